"""Buckets that take large objects as numbered parts, each with an ETag: S3 and compatible stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from volstream.errors import StorageError
from volstream.files.storage.bucket_store import PART_BYTES, BucketStore, Found

Part = TypeVar("Part")


class PartedStore(BucketStore):
    """A :class:`BucketStore` whose uploads in parts have an id, and stay until they are completed or aborted."""

    def _put_large(self, path: str, content_type: str | None, parts: Iterator[bytes]) -> str:
        return self._in_parts(path, content_type, parts, partial(self._put_part, path), replaces=True)

    def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
        if "-" not in found.etag:
            return self._copy_whole(path, to, found.etag, replaces)
        # With the same parts, a copy has the same etag.
        copy = partial(self._copy_part, path, to)
        return self._in_parts(to, found.content_type, _ranges_of(found.size), copy, replaces)

    def _forget_uploads(self, prefix: str) -> None:
        for unfinished, upload in [*self._uploads(prefix)]:
            self._abort_parts(unfinished, upload)

    def _in_parts(
        self, path: str, content_type: str | None, parts: Iterable[Part], write: Callable[[str, int, Part], str], replaces: bool
    ) -> str:
        """Creates an object of parts, which appears when it is complete; returns its etag.

        Args:
            write: writes a part, given the upload's id and the part's number; returns its etag.
        """
        upload = self._begin_parts(path, content_type)
        try:
            etags = [(number, write(upload, number, part)) for number, part in enumerate(parts, 1)]
            return self._complete_parts(path, upload, etags, replaces)
        except BaseException:
            with suppress(StorageError):
                self._abort_parts(path, upload)
            raise

    @abstractmethod
    def _copy_whole(self, path: str, to: str, etag: str, replaces: bool) -> str:
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
    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]], replaces: bool) -> str:
        """Makes an object of the parts, given their numbers and etags; returns its etag."""

    @abstractmethod
    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yields the unfinished uploads in parts below a prefix: the object's path, and the upload's id."""

    @abstractmethod
    def _abort_parts(self, path: str, upload: str) -> None:
        """Forgets an upload and its parts."""


def _ranges_of(size: int) -> Sequence[tuple[int, int]]:
    """Returns the first and the last position of each part of an object."""
    return [(start, min(start + PART_BYTES, size) - 1) for start in range(0, size, PART_BYTES)]
