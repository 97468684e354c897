"""The objects of a bucket of any provider: what listings and answers mean, and outputs, which are written in parts if they are
large.

What does not belong here: the requests themselves, which a provider's store makes; uploads in numbered parts (``parts``); the
rules of keys (``bucket``).
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.errors import StorageDeniedError
from volstream.files.providers.access import Access
from volstream.files.storage.bucket import BucketPlace
from volstream.files.storage.ranged import Content, Ranged, ranged

#: An object of a listing: key, size, time of the last change, etag and, if listings of the store have it, version id.
Listed = tuple[str, int, datetime, str] | tuple[str, int, datetime, str, str]

#: Larger objects are written and copied in parts of this size. With the same parts, a copy has the same etag.
PART_BYTES = 16 << 20


#: For this long after the bucket was seen, a missing key counts as a missing object without checking the bucket.
_SEEN_SECONDS = 60.0

#: When a bucket answered a check of this process, by access and bucket: a thousand volumes can be in one.
_checked: dict[tuple[Access, str], float] = {}


class Found(NamedTuple):
    """An object, as a request for it shows it."""

    size: int
    modified: datetime
    etag: str
    content_type: str | None
    version_id: str | None = None


class BucketStore(ABC):
    """An :class:`~.base.ObjectStore` that is :class:`~.base.KeyOrdered` and :class:`~.base.Writable`, and
    :class:`~.base.TakesOutputs`. Subclasses make the requests.

    A pickled store has keys for tasks instead of its credentials.

    Args:
        page: keys per listing request.
    """

    def __init__(self, location: str, access: Access, *, page: int = 1000) -> None:
        self._location = location
        self._place = BucketPlace.of(location)
        self._access = access
        self._page = page
        self._seen = float("-inf")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._location, self._place.provider.for_tasks(self._access, self._location))

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`. In key order."""
        return self._entries(prefix, selection, "", deep=True)

    def list_after(self, prefix: str, selection: Selection, after: str, *, deep: bool = True) -> Iterator[FileInfo | Finding]:
        """See :meth:`KeyOrdered.list_after`."""
        return self._entries(prefix, selection, after, deep=deep)

    def _entries(self, prefix: str, selection: Selection, after: str, *, deep: bool) -> Iterator[FileInfo | Finding]:
        if not selection.may_contain(prefix[:-1]) or (prefix and not selection.recursive):
            return
        if prefix and self._place.key(f"{prefix}x") is None:
            return  # no key begins so; a store may refuse to look for one
        for listed, _ in self._pages(prefix, after, deep=deep and selection.recursive):
            for one in listed:
                entry = self._place.entry(*one, selection=selection)
                if entry is not None:
                    yield entry

    def prefixes(self, prefix: str) -> Iterator[str]:
        """See :meth:`KeyOrdered.prefixes`."""
        for _, prefixes in self._pages(prefix, "", deep=False):
            yield from map(self._place.path, prefixes)

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`."""
        try:
            found = self._found(path)
        except FileNotFoundError:
            # The answer does not show whether the bucket or the object is missing.
            if time.monotonic() - self._seen > _SEEN_SECONDS:
                self._check_bucket()
                self._seen = time.monotonic()
            return None
        self._seen = time.monotonic()
        return self._place.file(path, *found)

    def check(self) -> None:
        """See :meth:`Checkable.check`."""
        bucket = (self._access, self._place.authority)
        if time.monotonic() - _checked.get(bucket, float("-inf")) > _SEEN_SECONDS / 2:
            self._check_bucket()
            _checked[bucket] = time.monotonic()

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`. Reading to the end takes one request."""
        return ranged(self._place.name(path), partial(self._content, path), partial(self._errors, path))

    def open_part(self, info: FileInfo, start: int, end: int) -> Ranged:
        """See :meth:`HasParts.open_part`."""
        path, last = info.relative_path, None if end == info.size else end - 1
        fetch = partial(self._content, path, last=last)
        return Ranged(self._place.name(path), fetch, partial(self._errors, path), start, (info.version, end))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        body = self._content(path, start, start + length - 1).body
        with self._errors(path):
            return body.read(length)

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return self._place.url(path)

    def write(self, path: str, content: bytes) -> None:
        """See :meth:`Writable.write`."""
        self._put(path, content, None)

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

        etag = self._put_large(path, content_type, counted()).strip('"')
        return size, etag

    def move(self, path: str, to: str, *, replaces: bool = True) -> str | None:
        """See :meth:`TakesOutputs.move`. Copies, then removes. An object that appears at ``to`` after the look fails the copy,
        unless the store ignores conditions."""
        if not replaces and self.head(to) is not None:
            raise FileExistsError(to)
        try:
            found = self._found(path)
            etag = self._copy(path, to, found, replaces).strip('"')
        except FileNotFoundError:
            return None
        self._remove_version(path, found)
        return etag

    def remove_folder(self, path: str) -> None:
        """See :meth:`TakesOutputs.remove_folder`. Forgets unfinished uploads, too, if it may list them."""
        with suppress(StorageDeniedError):
            self._forget_uploads(f"{path}/")
        for entry in self.list(f"{path}/", Selection(ignores=())):
            if isinstance(entry, FileInfo):
                self.remove(entry.relative_path)

    def obstacle(self, path: str) -> str | None:
        """See :meth:`TakesOutputs.obstacle`."""
        try:
            self._key(path)
        except FileNotFoundError:
            return "cannot be a key"
        return None if self.head(path) is None else "already exists"

    def _remove_version(self, path: str, found: Found) -> None:  # noqa: ARG002  # of stores that can tell versions apart
        """Removes an object; where the store can tell, only if nothing else has replaced it."""
        self.remove(path)

    def _forget_uploads(self, prefix: str) -> None:  # noqa: B027  # most stores have none
        """Forgets unfinished uploads below a prefix, unless the store does so itself after some days."""

    def _key(self, path: str) -> str:
        """Returns the key at ``path``. Raises FileNotFoundError if no object can be there."""
        key = self._place.key(path)
        if key is None:
            raise FileNotFoundError(path)
        return key

    def _found(self, path: str) -> Found:
        with self._errors(path):
            return self._head(path)

    def _content(self, path: str, start: int, last: int | None = None) -> Content:
        with self._errors(path):
            return self._fetch(path, start, last)

    @abstractmethod
    def _errors(self, path: str) -> AbstractContextManager[None]:
        """Maps the errors of requests about a path, and of reading their answers."""

    @abstractmethod
    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        """Yields the objects of each page of a listing, and the prefixes of others that are not ``deep``. Keeps :attr:`_seen`."""

    @abstractmethod
    def _check_bucket(self) -> None:
        """Raises StorageError if the bucket does not exist."""

    @abstractmethod
    def _head(self, path: str) -> Found:
        """Returns an object. Raises FileNotFoundError."""

    @abstractmethod
    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        """Requests an object's content, from a position to the ``last`` one. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""

    @abstractmethod
    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        """Creates an object; returns its etag."""

    @abstractmethod
    def _put_large(self, path: str, content_type: str | None, parts: Iterator[bytes]) -> str:
        """Uploads an object in parts of :data:`PART_BYTES` (the last may be shorter); returns its etag. The object appears once
        all parts are there; if ``parts`` raises, it never does."""

    @abstractmethod
    def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
        """Copies an object, at once; returns the copy's etag. Raises FileNotFoundError.

        Args:
            replaces: what is at ``to``. If False, nothing may be there, if the store knows such a condition.
        """


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
