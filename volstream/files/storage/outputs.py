"""Writes outputs to a bucket of any provider: in one request, or in parts if they are large.

What does not belong here: the requests themselves, which a provider's store makes.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO, ClassVar, TypeVar

from volstream.base.model.files import FileInfo, Finding
from volstream.base.model.selection import Selection
from volstream.errors import StorageDeniedError, StorageError
from volstream.files.storage.bucket import BucketPlace

Part = TypeVar("Part")

#: Larger objects are written and copied in parts of this size. With the same parts, a copy has the same etag.
PART_BYTES = 16 << 20


class BucketOutputs(ABC):
    """:class:`~.base.TakesOutputs` for a bucket. Subclasses make its requests, one for each abstract method;
    an upload in parts has an id."""

    #: Raised if the object that is copied is missing.
    _missing: ClassVar[tuple[type[Exception], ...]] = (FileNotFoundError,)

    _place: BucketPlace

    def put(self, path: str, content: BinaryIO, content_type: str | None) -> tuple[int, str]:
        """See :meth:`TakesOutputs.put`. In one request, or in parts if it is large."""
        parts = _parts_of(content)
        first, second = next(parts), next(parts, None)
        if second is None:
            return len(first), self._put(path, first, content_type).strip('"')
        size = 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for part in itertools.chain((first, second), parts):
                size += len(part)
                yield part

        etag = self._in_parts(path, content_type, counted(), partial(self._put_part, path))
        return size, etag

    def move(self, path: str, to: str) -> str | None:
        """See :meth:`TakesOutputs.move`. Copies, then removes."""
        try:
            size, whole, content_type = self._stored(path)
            if "-" not in whole:
                etag = self._copy(path, to, whole).strip('"')
            else:
                etag = self._in_parts(to, content_type, _ranges_of(size), partial(self._copy_part, path, to))
        except self._missing:
            return None
        self.remove(path)
        return etag

    def remove_folder(self, path: str) -> None:
        """See :meth:`TakesOutputs.remove_folder`. Forgets unfinished uploads, too, if it may list them."""
        with suppress(StorageDeniedError):
            for unfinished, upload in [*self._uploads(f"{path}/")]:
                self._abort_parts(unfinished, upload)
        for entry in self.list(f"{path}/", Selection(ignores=())):
            if isinstance(entry, FileInfo):
                self.remove(entry.relative_path)

    def obstacle(self, path: str) -> str | None:
        """See :meth:`TakesOutputs.obstacle`."""
        if self._place.key(path) is None:
            return "is too long for a key"
        return None if self.head(path) is None else "already exists"

    def _in_parts(
        self, path: str, content_type: str | None, parts: Iterable[Part], write: Callable[[str, int, Part], str]
    ) -> str:
        """Creates an object of parts, which appears when it is complete; returns its etag.

        Args:
            write: writes a part, given the upload's id and the part's number; returns its etag.
        """
        upload = self._begin_parts(path, content_type)
        try:
            etags = [(number, write(upload, number, part)) for number, part in enumerate(parts, 1)]
            return self._complete_parts(path, upload, etags).strip('"')
        except BaseException:
            with suppress(StorageError):
                self._abort_parts(path, upload)
            raise

    @abstractmethod
    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`."""

    @abstractmethod
    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""

    @abstractmethod
    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        """Creates an object; returns its etag."""

    @abstractmethod
    def _stored(self, path: str) -> tuple[int, str, str | None]:
        """Returns an object's size, etag and content type. Raises as :attr:`_missing`."""

    @abstractmethod
    def _copy(self, path: str, to: str, etag: str) -> str:
        """Copies an object of this etag, which was written in one request; returns the copy's etag."""

    @abstractmethod
    def _begin_parts(self, path: str, content_type: str | None) -> str:
        """Begins an upload in parts; returns its id."""

    @abstractmethod
    def _put_part(self, path: str, upload: str, number: int, part: bytes) -> str:
        """Writes a part; returns its etag."""

    @abstractmethod
    def _copy_part(self, path: str, to: str, upload: str, number: int, extent: tuple[int, int]) -> str:
        """Copies a part of another object, from its first to its last position; returns its etag."""

    @abstractmethod
    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]]) -> str:
        """Makes an object of the parts, given their numbers and etags; returns its etag."""

    @abstractmethod
    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yields the unfinished uploads in parts below a prefix: the object's path, and the upload's id."""

    @abstractmethod
    def _abort_parts(self, path: str, upload: str) -> None:
        """Forgets an upload and its parts."""


def _parts_of(content: BinaryIO) -> Iterator[bytes]:
    """Yields the content of a file in parts; at least one, which may be empty."""
    part = _part(content)
    yield part
    while len(part) == PART_BYTES and (part := _part(content)):
        yield part


def _part(content: BinaryIO) -> bytes:
    """Reads one part, from a stream that may return less than it is asked for."""
    pieces, missing = [], PART_BYTES
    while missing and (piece := content.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _ranges_of(size: int) -> Sequence[tuple[int, int]]:
    """Returns the first and the last position of each part of an object."""
    return [(start, min(start + PART_BYTES, size) - 1) for start in range(0, size, PART_BYTES)]
