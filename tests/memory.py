"""A store and a queue in this process's memory: the scheme, and the type of queue, ``memory`` of all tests."""

from __future__ import annotations

import io
import itertools
import mimetypes
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from volstream.base.model.hints import Hint
from volstream.base.model.paths import FileInfo, Finding, Selection, is_utf8, quote_path
from volstream.errors import InvalidValueError, StorageError
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.in_process import InProcessQueue
from volstream.files.storage.base import Details

_etags = itertools.count(1)
_TYPES = mimetypes.MimeTypes()


@dataclass(frozen=True, slots=True)
class _Object:
    info: FileInfo
    content: bytes


#: Objects by location URI, shared by all stores of the location.
_locations: dict[str, dict[str, _Object]] = {}
_lock = threading.Lock()


class MemoryStore:
    """The objects of ``memory://name``; stores with the same name share them, and a pickled store contains only the name.

    A location exists from the first :meth:`create` or :meth:`put` until :meth:`drop`.
    """

    def __init__(self, location: str) -> None:
        self._location = location

    def __reduce__(self) -> tuple[Any, ...]:
        return (MemoryStore, (self._location,))

    def create(self) -> None:
        """Creates an empty location if it does not exist. Idempotent."""
        with _lock:
            _locations.setdefault(self._location, {})

    def drop(self) -> None:
        """Removes the location and its objects. Idempotent."""
        with _lock:
            _locations.pop(self._location, None)

    def put(
        self, path: str, content: bytes, *, content_type: str | None = None, last_modified_time: datetime | None = None
    ) -> FileInfo:
        """Creates or replaces an object, with a new etag."""
        if not path or not is_utf8(path):
            raise InvalidValueError(f"{path!r} is not a valid key.")
        info = FileInfo(
            relative_path=path,
            size=len(content),
            last_modified_time=last_modified_time or datetime.now(UTC),
            etag=f"{next(_etags):x}",
            content_type=content_type or _TYPES.guess_type(path)[0],
        )
        with _lock:
            _locations.setdefault(self._location, {})[path] = _Object(info, content)
        return info

    def delete(self, path: str) -> None:
        """Removes an object. Idempotent."""
        with _lock:
            _locations.get(self._location, {}).pop(path, None)

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`. Yields the objects as of its start."""
        with self._objects() as objects:
            snapshot = dict(objects)
        for path, stored in snapshot.items():
            if path.startswith(prefix) and selection.accepts(path):
                yield stored.info

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""
        with self._objects() as objects:
            stored = objects.get(path)
        return stored.info if stored is not None else None

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`."""
        with self._objects() as objects:
            stored = objects.get(path)
        if stored is None:
            raise FileNotFoundError(path)
        return io.BytesIO(stored.content)

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`. Always empty."""
        self.open(path)
        return Details()

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`. Always empty."""
        self.open(path)
        return {}

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        return self.open(path).read()[start : start + length]

    def presigned_url(self, path: str, seconds: int) -> str:  # of the protocol
        """See :meth:`HasDetails.presigned_url`. Always raises."""
        raise InvalidValueError(f"{path} is in memory, so it has no presigned URL.")

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return f"{self._location}/{quote_path(path)}"

    @contextmanager
    def _objects(self) -> Iterator[dict[str, _Object]]:
        """Yields the location's objects, holding the lock."""
        with _lock:
            objects = _locations.get(self._location)
            if objects is None:
                raise StorageError(f"{self._location} does not exist in this process.", "Create it or put an object.")
            yield objects


class MemoryQueue(InProcessQueue):
    """Delivers the hints passed to :meth:`send`, in order, at least once.

    Like a provider's queue, and unlike a watcher, it keeps messages sent before ``start``.
    """

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec.settings.visibility_seconds)
        self._waiting: deque[Hint] = deque()

    def send(self, hint: Hint) -> None:
        """Adds a message."""
        with self._changed:
            self._waiting.append(hint)
            self._changed.notify_all()
        self._ready(time.monotonic())

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        with self._changed:
            return len(self._waiting)

    @property
    def _next_due(self) -> float | None:
        return float("-inf") if self._waiting and self._in_flight.room else None

    def _new(self, now: float, limit: int) -> list[Message]:
        room = min(limit, self._in_flight.room, len(self._waiting))
        return [self._in_flight.deliver(self._waiting.popleft(), now) for _ in range(room)]
