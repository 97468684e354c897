"""The file passed to a per-file function. Runs on executors."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NoReturn, Protocol

from volstream.base.model.paths import FileInfo
from volstream.base.model.text import like, shortened
from volstream.base.model.work import total_counts
from volstream.files.storage.base import Details, HasDetails, HasLocalPaths, ObjectStore

#: Prefix of folders with copies of files, for functions that need a path.
COPIES = "volstream-file-"

#: Maximum length of a count's name, and maximum number of names per file.
LONGEST_COUNT, _MOST_COUNTS = 100, 100

#: Maximum number added to a count: all integers up to it are exact.
_MOST_ADDED = 1 << 53

#: Seconds for which a presigned URL may be valid.
_LONGEST_URL = 7 * 86400

#: What files of other libraries call what a file has.
_INSTEAD = {
    "read": "read_bytes() or read_text()",
    "path": "relative_path, or local_path() for a path on this machine",
    "key": "relative_path",
    "mtime": "last_modified_time",
}

#: A function may count in its own threads.
_counting = threading.Lock()

#: Maximum length of a file name on disk, in bytes.
_LONGEST_NAME = 255


class Fetched(Protocol):
    """A content fetched ahead of the function."""

    def result(self) -> bytes:
        """Waits for the content."""


class File:
    """One version of one file of a volume. Its content is read on demand.

    Attributes:
        relative_path: ``/``-separated, relative to the volume's location.
        size: bytes.
        last_modified_time: UTC.
        etag: changes whenever the content may have changed.
        version_id: the store's own version, or None.
        content_type: as reported by the store, else guessed from the name, else None.
        was_read: whether its content was requested.
        counted: see :meth:`count`.
    """

    def __init__(self, store: ObjectStore, info: FileInfo, fetched: Fetched | None = None) -> None:
        self.relative_path = info.relative_path
        self.size = info.size
        self.last_modified_time: datetime = info.last_modified_time
        self.etag = info.etag
        self.version_id = info.version_id
        self.content_type = info.content_type
        self.was_read = False
        self.counted: dict[str, float] = {}
        self._store = store
        self._fetched = fetched
        self._used = self._asked = False
        self._resources = ExitStack()

    @property
    def is_fetched(self) -> bool:
        """Whether the function got the fetched content, and asked the store for nothing else."""
        return self._used and not self._asked

    @property
    def url(self) -> str:
        """The object's URL, percent-encoded."""
        return self._store.url(self.relative_path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.relative_path.rpartition("/")[2]

    def __getattr__(self, name: str) -> NoReturn:
        """Says what a file has instead of an attribute that it does not have."""
        instead = _INSTEAD.get(name)
        hint = f"Use {instead}." if instead else like(name, [known for known in dir(self) if known[0] != "_"]).rstrip()
        raise AttributeError(f"A File has no attribute {name!r}. {hint}".rstrip(), name=name, obj=self)

    def open(self) -> BinaryIO:
        """Returns the content as a seekable binary file. Raises FileNotFoundError if the object no longer
        exists."""
        return self._resources.enter_context(self._content())

    def read_bytes(self) -> bytes:
        """Returns the whole content."""
        # Not isinstance: to look whether a class has a protocol's methods takes longer than the reading.
        read: Callable[[str], bytes] | None = None if self._fetched else getattr(self._store, "read_bytes", None)
        if read is not None:
            self.was_read = True
            return read(self.relative_path)
        with self._content() as content:
            return content.read()

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the whole content as text."""
        return self.read_bytes().decode(encoding, errors)

    def local_path(self) -> Path:
        """Returns a path on this machine with the content, read-only; valid until the function returns."""
        self.was_read = True
        if isinstance(self._store, HasLocalPaths):
            return self._store.local_path(self.relative_path)
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix=COPIES)))
        target = folder / _file_name(self.name)
        with self._content() as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        return target

    def read_range(self, start: int, length: int) -> bytes:
        """Returns ``length`` bytes from ``start``, in one request; fewer, or none, where the content ends.

        Raises:
            ValueError: ``start`` or ``length`` is negative.
            FileNotFoundError: the object no longer exists.
        """
        if start < 0 or length < 0:
            raise ValueError(f"read_range({start}, {length}): neither can be negative.")
        self.was_read = True
        if (content := self._ahead()) is not None:
            return content[start : start + length]
        length = min(length, self.size - start)
        return self._details_store.read_range(self.relative_path, start, length) if length > 0 else b""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The user's metadata of the object: such as ``x-amz-meta-``, or a local file's extended attributes
        ``user.``.

        Fetched on first access, in one request with :attr:`storage_class`; :attr:`tags` take another one.
        Raises FileNotFoundError if the object no longer exists.
        """
        return self._details.metadata

    @property
    def storage_class(self) -> str | None:
        """For example ``STANDARD_IA``; None for a local file."""
        return self._details.storage_class

    @cached_property
    def tags(self) -> Mapping[str, str]:
        """The object's tags; a local file has none."""
        return self._details_store.tags(self.relative_path)

    def presigned_url(self, seconds: int = 3600) -> str:
        """Returns a URL with which anyone can read the object for ``seconds``, or until the worker's keys
        expire.

        Raises:
            ValueError: not between a second and a week.
            InvalidValueError: the file is local.
        """
        check_url_seconds(seconds)
        return self._details_store.presigned_url(self.relative_path, int(seconds))

    def count(self, name: str, number: float = 1) -> None:
        """Adds to a number that volstream sums up per batch and job, such as tokens used. Calls that fail
        later count, too.

        Args:
            name: up to 100 characters; up to 100 names per file.

        Raises:
            ValueError: the number is negative or too large, the name is empty, too long or unprintable, or
                there are too many names.
            TypeError: ``number`` is not a number, or ``name`` is not text.
        """
        if not isinstance(name, str) or isinstance(number, bool) or not hasattr(number, "__float__"):
            raise TypeError(f"count() takes a name and a number, not {shortened(name)} and {shortened(number)}.")
        if not 0 <= number <= _MOST_ADDED:
            raise ValueError(f"count({shortened(name)}, {shortened(number)}): the number must be from 0 to 2**53.")
        if not name.isprintable() or not 0 < len(name) <= LONGEST_COUNT:
            raise ValueError(f"The name of a count must have 1 to {LONGEST_COUNT} printable characters, unlike {name[:200]!r}.")
        with _counting:
            if name not in self.counted and len(self.counted) >= _MOST_COUNTS:
                raise ValueError(f"A file has at most {_MOST_COUNTS} counts with different names.")
            self.counted[name] = self.counted.get(name, 0.0) + float(number)

    def close(self) -> None:
        """Closes opened contents and removes local copies; volstream calls it after the function."""
        self._resources.close()

    @cached_property
    def _details(self) -> Details:
        return self._details_store.details(self.relative_path)

    @property
    def _details_store(self) -> HasDetails:
        self._asked = True
        if not isinstance(self._store, HasDetails):
            raise NotImplementedError(f"The store of {self.url} has no further details of its objects.")
        return self._store

    def _content(self) -> BinaryIO:
        self.was_read = True
        return self._store.open(self.relative_path) if (content := self._ahead()) is None else io.BytesIO(content)

    def _ahead(self) -> bytes | None:
        """Returns the content, if it was fetched."""
        if self._fetched is None:
            return None
        content = self._fetched.result()
        self._used = True
        return content

    def __repr__(self) -> str:
        return f"File({self.relative_path!r}, size={self.size})"


class FileSet(list[File]):
    """The files of a set, by path: what a function gets whose job has ``group_by``.

    Attributes:
        key: what its files have in common.
    """

    def __init__(self, key: str, files: Iterable[File]) -> None:
        super().__init__(files)
        self.key = key

    @property
    def was_read(self) -> bool:
        """See :class:`File`."""
        return any(file.was_read for file in self)

    @property
    def is_fetched(self) -> bool:
        """See :class:`File`."""
        return all(file.is_fetched for file in self)

    @property
    def counted(self) -> Mapping[str, float]:
        """What its files count."""
        return total_counts(*(file.counted for file in self))

    def close(self) -> None:
        """Closes its files."""
        for file in self:
            file.close()


def _file_name(name: str) -> str:
    """Returns a valid file name on this machine: a part of a key may be too long, or ``..``. Keeps the
    suffix."""
    if name in (".", ".."):
        return "_"
    stem, suffix = os.path.splitext(name)
    suffix = _cut(suffix, _LONGEST_NAME)
    return _cut(stem, _LONGEST_NAME - len(suffix.encode())) + suffix


def _cut(text: str, maximum: int) -> str:
    """Returns the beginning of a text, in at most ``maximum`` bytes."""
    return text.encode()[:maximum].decode(errors="ignore")


def check_url_seconds(seconds: float) -> None:
    """Raises ValueError if a presigned URL cannot be valid for ``seconds``."""
    if not 1 <= seconds <= _LONGEST_URL:
        raise ValueError(f"presigned_url({seconds!r}): give from 1 to {_LONGEST_URL} seconds.")
