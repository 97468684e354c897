"""What a volume's files are read through. Implementations sit beside this file; :mod:`volstream.storage` picks one by URI scheme.

What does not belong here: which paths are in (``model.selection``), what is done with a listing (``directory``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from volstream.model.files import FileInfo, Finding
from volstream.model.selection import Selection

#: A key that is asked for to learn whether a store answers; most likely nothing is there.
PROBE = ".volstream-probe"


class ObjectStore(Protocol):
    """The objects below one location.

    A store does no I/O when it is made, can be pickled (tasks on executors get a copy), and can be used by several
    threads at once. Every method may block on the network and raises :class:`~volstream.errors.StorageError` for what
    may pass and :class:`~volstream.errors.StorageDeniedError` for what will not.
    """

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """Every file below ``prefix`` (``""``, or ending in ``/``) that ``selection`` accepts, in no promised order.

        Memory stays flat. A prefix that does not exist has no files; a location that does not exist is a
        :class:`~volstream.errors.StorageError`: an unmounted disk must not read as "all files were deleted".
        """

    def head(self, path: str) -> FileInfo | None:
        """The object at ``path`` as it is now; None where there is none (or a directory, or a link out of the root)."""

    def open(self, path: str) -> BinaryIO:
        """The content, seekable. Raises FileNotFoundError where the object is gone."""

    def url(self, path: str) -> str:
        """The object's URL, percent-encoded."""


@runtime_checkable
class KeyOrdered(Protocol):
    """A store whose objects appear whole, never half-written, and are listed in the order of their keys from any key on.

    A listing of it can be split among threads, and taken up again where it was interrupted.
    """

    def list_after(
        self, prefix: str, selection: Selection, after: str, *, deep: bool = True
    ) -> Iterator[FileInfo | Finding]:
        """Like :meth:`ObjectStore.list`, in the order of the keys, beginning behind the path ``after`` (``""``: at once).

        Args:
            deep: with what lies below sub-prefixes; else only the objects directly below ``prefix``.
        """

    def prefixes(self, prefix: str) -> Iterator[str]:
        """The sub-prefixes directly below ``prefix``, in order; each ends in ``/``."""


@runtime_checkable
class Writable(Protocol):
    """A store that can be written to: only for trying out a volume, which volstream never writes to otherwise."""

    def write(self, path: str, content: bytes) -> None:
        """Makes or replaces an object."""

    def remove(self, path: str) -> None:
        """Removes an object. Idempotent."""


@runtime_checkable
class HasLocalPaths(Protocol):
    """A store whose objects are files of this machine."""

    def local_path(self, path: str) -> Path:
        """Where the object's content lies. Raises FileNotFoundError where the object is gone."""
