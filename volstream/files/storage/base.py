"""The interface of stores. :mod:`volstream.files.storage` picks an implementation by scheme.

Not here: selecting paths (``model.paths``), using a listing (``directory``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from volstream.base.model.paths import FileInfo, Finding, Selection

#: A key requested only to check that a store responds. It usually does not exist.
PROBE = ".volstream-probe"


class ObjectStore(Protocol):
    """The objects below one location.

    A store does no I/O when created, can be pickled (tasks on executors get a copy), and is thread-safe.
    Every method may block on the network. It raises :class:`~volstream.errors.StorageError` for temporary
    problems and :class:`~volstream.errors.StorageDeniedError` for permanent ones.
    """

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """Yields every file below ``prefix`` (``""``, or ending in ``/``) that ``selection`` accepts, in no
        particular order.

        Memory use stays flat. A missing prefix has no files. A missing location raises
        :class:`~volstream.errors.StorageError`: an unmounted disk must not look as if all files were deleted.
        """

    def head(self, path: str) -> FileInfo | None:
        """Returns the object at ``path``, or None (also for a directory or a link out of the root)."""

    def open(self, path: str) -> BinaryIO:
        """Returns the content as a seekable file. Raises FileNotFoundError if the object no longer exists."""

    def url(self, path: str) -> str:
        """Returns the object's URL, percent-encoded."""


@dataclass(frozen=True)
class Details:
    """A store's facts about an object beyond its listing.

    Attributes:
        metadata: set by the user, such as ``x-amz-meta-``. For a local file, its extended attributes
            ``user.``.
        storage_class: None if the store has no classes.
        version_id: the store's own version, or None if the bucket keeps no versions.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    storage_class: str | None = None
    version_id: str | None = None


@runtime_checkable
class HasDetails(Protocol):
    """A store with more facts about objects. Each method makes one request, or raises FileNotFoundError."""

    def details(self, path: str) -> Details:
        """Returns the details missing from a listing."""

    def tags(self, path: str) -> Mapping[str, str]:
        """Returns the object's tags."""

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Returns ``length`` bytes of the content from ``start`` on. The content must be long enough."""

    def presigned_url(self, path: str, seconds: int) -> str:
        """Returns a URL with which anyone can read the object for ``seconds``. Usually makes no request.

        Raises:
            InvalidValueError: the store has no such URLs.
        """


@runtime_checkable
class Checkable(Protocol):
    """A store whose existence can be checked by one request, or by none if it was checked just now."""

    def check(self) -> None:
        """Raises StorageError if the store is missing or does not respond."""


@runtime_checkable
class HasParts(Protocol):
    """A store that reports an object's version with every read of its content."""

    def open_part(self, info: FileInfo, start: int, end: int) -> RawIOBase:
        """Returns the content of this version from ``start`` to ``end``, in one request.

        Raises:
            StorageError: the object has another version. Reads raise it, too.
            FileNotFoundError: the object no longer exists.
        """


@runtime_checkable
class KeyOrdered(Protocol):
    """A store whose objects appear complete, never half-written, and can be listed in key order from any key.

    Its listing can be split among threads, and resumed after an interruption.
    """

    def list_after(self, prefix: str, selection: Selection, after: str, *, deep: bool = True) -> Iterator[FileInfo | Finding]:
        """Like :meth:`ObjectStore.list`, in key order, starting after a path (``""``: at the beginning).

        Args:
            deep: include objects below sub-prefixes, not only objects directly below ``prefix``.
        """

    def prefixes(self, prefix: str) -> Iterator[str]:
        """Yields the sub-prefixes directly below ``prefix``, in order. Each ends in ``/``."""


@runtime_checkable
class Writable(Protocol):
    """A writable store. volstream writes only to test a volume."""

    def write(self, path: str, content: bytes) -> None:
        """Creates or replaces an object."""

    def remove(self, path: str) -> None:
        """Removes an object. Idempotent."""


@runtime_checkable
class TakesOutputs(ObjectStore, Protocol):
    """A store to which jobs write files. Content is complete and on disk before its path exists."""

    def put(self, path: str, content: BinaryIO, content_type: str | None) -> tuple[int, str]:
        """Creates an object. Returns its size and etag."""

    def move(self, path: str, to: str, *, replaces: bool = True) -> str | None:
        """Moves an object in one step. Returns its new etag, or None if it is missing (moved before).

        The etag stays the same unless the store encrypts with KMS keys.

        Args:
            replaces: overwrite an existing object. If False, raises FileExistsError instead.
        """

    def remove(self, path: str) -> None:
        """Removes an object. Idempotent."""

    def remove_folder(self, path: str) -> None:
        """Removes everything below a path. Idempotent."""

    def obstacle(self, path: str) -> str | None:
        """Returns why no object can be created at a path (as the end of a sentence), or None if one can."""


@runtime_checkable
class HasBirths(Protocol):
    """A store that may know when its objects were created."""

    def born(self, path: str) -> datetime | None:
        """Returns when an object was created, or None if missing or unknown. Moves keep the time."""


@runtime_checkable
class HasLocalPaths(Protocol):
    """A store whose objects are local files."""

    def root_id(self) -> str:
        """Returns an id that differs for another directory at the same path. Raises StorageError."""

    def local_path(self, path: str) -> Path:
        """Returns the path of the object's content. Raises FileNotFoundError if the object no longer
        exists."""

    def has_version(self, path: str, version: str) -> bool:
        """True if a quick check finds this version. If False, :meth:`ObjectStore.head` decides."""
