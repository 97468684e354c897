"""Stores of buckets, for all providers: keys and paths, ranged reads, uploads in parts, listings."""

from __future__ import annotations

import io
import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.errors import StorageDeniedError, StorageError
from volstream.files.providers.access import Access
from volstream.files.providers.base import BucketPlace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The content of an object as a seekable file: one request for reading forward, another after a far seek. Not
# here: requests to a provider (see the stores that use this).

Fetch: TypeAlias = "Callable[[int], Content]"
Errors: TypeAlias = Callable[[], AbstractContextManager[None]]

_BUFFER = 256 << 10

#: Up to this many bytes are read and discarded instead of sending another request.
_SKIP = 1 << 20

#: Attempts to resume a connection that breaks while reading, without progress in between.
_TRIES = 4


class Body(Protocol):
    """A response body being received."""

    def read(self, amount: int, /) -> bytes:
        """Returns at most ``amount`` bytes. Empty at the end."""

    def close(self) -> None:
        """Closes the connection."""


@dataclass(frozen=True)
class Content:
    """A response with content.

    Attributes:
        end: position in the object at which the requested part ends.
        etag: of the version, as in :attr:`FileInfo.version`. May be in quotes.
        body: the requested part.
    """

    end: int
    etag: str
    body: Body


def ranged(what: str, fetch: Fetch, errors: Errors) -> BinaryIO:
    """Returns a file that reads through ``fetch``, which requests content from a position on.

    Sends the first request immediately.

    Args:
        what: name of the object in messages.
        errors: maps the vendor's errors, including those of bodies.

    Raises:
        The errors of ``fetch``. A read raises StorageError if the object has changed.
    """
    # Typeshed does not declare BufferedReader as a BinaryIO.
    return cast("BinaryIO", io.BufferedReader(Ranged(what, fetch, errors), _BUFFER))


class Ranged(io.RawIOBase):
    """See :func:`ranged`. Unbuffered.

    Args:
        start: the first position.
        expected: the only version to read, and the position at which ``fetch`` ends. By default, those of the
            first response.
    """

    def __init__(self, what: str, fetch: Fetch, errors: Errors, start: int = 0, expected: tuple[str, int] | None = None) -> None:
        self._what, self._fetch, self._errors = what, fetch, errors
        self._expected = expected
        self._position = start
        self._body: Body | None = self._request()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._read(min(len(view), _BUFFER))  # a small copy besides the buffer
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        parts: list[bytes] = []
        while data := self._read(self._end - self._position):
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()

    def _read(self, amount: int) -> bytes:
        if amount <= 0 or self._position >= self._end:
            return b""
        failed: StorageError | None = None
        for _ in range(_TRIES):
            body = self._body_at_position()
            try:
                with self._errors():
                    data = body.read(amount) if body is not None else b""
            except StorageError as error:
                failed = error
                data = b""
            if data:
                self._position += len(data)
                self._body_position = self._position
                return data
            self._drop()
        raise failed or StorageError(f"{self._what} ended before its full size was read.")

    def _body_at_position(self) -> Body | None:
        """Returns the body, advanced to the position, or None if it broke before."""
        ahead = self._position - self._body_position
        if self._body is None or not 0 <= ahead <= _SKIP:
            self._drop()
            self._body = self._request()
            return self._body
        try:
            with self._errors():
                while ahead:
                    skipped = len(self._body.read(ahead))
                    if not skipped:
                        return None
                    ahead -= skipped
        except StorageError:
            return None
        return self._body

    def _request(self) -> Body:
        response = self._fetch(self._position)
        found = response.etag.strip('"'), response.end
        self._expected = self._expected or found
        if found != self._expected:
            response.body.close()
            raise StorageError(f"{self._what} changed while it was being read.", "It will be read again.")
        self._end, self._body_position = response.end, self._position
        return response.body

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


# The objects of any provider's bucket: interprets listings and responses, and writes outputs, in parts if
# they are large. Not here: the requests (a provider's store); the rules of keys (``providers.base``).

#: An object of a listing: key, size, time of the last change, etag and, if the store's listings have it,
#: version id.
Listed = tuple[str, int, datetime, str] | tuple[str, int, datetime, str, str]

#: Larger objects are written and copied in parts of this size. With the same parts, a copy has the same etag.
PART_BYTES = 16 << 20


#: For this long after the bucket was seen, a missing key means a missing object, without a check of the
#: bucket.
_SEEN_SECONDS = 60.0

#: Time of this process's last successful check, by access and bucket: a bucket may have a thousand volumes.
_checked: dict[tuple[Access, str], float] = {}


class Found(NamedTuple):
    """An object as described by a response."""

    size: int
    modified: datetime
    etag: str
    content_type: str | None
    version_id: str | None = None


class BucketStore(ABC):
    """The objects of a bucket. Subclasses send the requests.

    An :class:`~.base.ObjectStore` that is :class:`~.base.KeyOrdered`, :class:`~.base.Writable` and
    :class:`~.base.TakesOutputs`. A pickled store has keys for tasks instead of its credentials.

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
            return  # no key begins like this, and a store may refuse the request
        for listed, _ in self._pages(prefix, after, deep=deep and selection.recursive):
            for item in listed:
                entry = self._place.entry(*item, selection=selection)
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
            # The response does not show whether the bucket or the object is missing.
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
        """See :meth:`ObjectStore.open`. Reading the whole content takes one request."""
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
        """See :meth:`TakesOutputs.put`. Uploads large objects in parts, others in one request."""
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
        """See :meth:`TakesOutputs.move`. Copies, then removes.

        If an object appears at ``to`` after the check, the copy fails, unless the store ignores conditions.
        """
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
        """See :meth:`TakesOutputs.remove_folder`. Also aborts unfinished uploads if it may list them."""
        with suppress(StorageDeniedError):
            self._abort_uploads(f"{path}/")
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

    def _remove_version(self, path: str, found: Found) -> None:  # noqa: ARG002  # for stores with versions
        """Removes an object. A store with versions keeps it if it was replaced meanwhile."""
        self.remove(path)

    def _abort_uploads(self, prefix: str) -> None:  # noqa: B027  # most stores have none
        """Aborts unfinished uploads below a prefix, unless the store expires them itself after some days."""

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
        """Maps the errors of requests about a path and from parsing their responses."""

    @abstractmethod
    def _pages(self, prefix: str, after: str, *, deep: bool) -> Iterator[tuple[Iterable[Listed], Iterable[str]]]:
        """Yields the objects of each page of a listing and, unless ``deep``, sub-prefixes. Sets
        :attr:`_seen`."""

    @abstractmethod
    def _check_bucket(self) -> None:
        """Raises StorageError if the bucket does not exist."""

    @abstractmethod
    def _head(self, path: str) -> Found:
        """Returns an object. Raises FileNotFoundError."""

    @abstractmethod
    def _fetch(self, path: str, start: int, last: int | None = None) -> Content:
        """Requests an object's content from ``start`` to ``last``, inclusive. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""

    @abstractmethod
    def _put(self, path: str, content: bytes, content_type: str | None) -> str:
        """Creates an object. Returns its etag."""

    @abstractmethod
    def _put_large(self, path: str, content_type: str | None, parts: Iterator[bytes]) -> str:
        """Uploads an object in parts of :data:`PART_BYTES` (the last may be shorter). Returns its etag.

        The object appears once all parts are uploaded. If ``parts`` raises, it never appears.
        """

    @abstractmethod
    def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
        """Copies an object in one step. Returns the copy's etag. Raises FileNotFoundError.

        Args:
            replaces: overwrite an object at ``to``. If False, fails if one exists, as far as the store
                supports that.
        """


def _parts_of(content: BinaryIO) -> Iterator[bytes]:
    """Yields the content of a file in parts. There is at least one, which may be empty."""
    part = _part(content)
    yield part
    while len(part) == PART_BYTES and (part := _part(content)):
        yield part


def _part(content: BinaryIO) -> bytes:
    """Reads one part from a stream whose reads may return less than requested."""
    pieces, missing = [], PART_BYTES
    while missing and (piece := content.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


# Buckets that take large objects as numbered parts, each with an ETag: S3, compatible stores, and OSS.

Part = TypeVar("Part")


class PartedStore(BucketStore):
    """A :class:`BucketStore` whose multipart uploads have an id and stay until completed or aborted."""

    def _put_large(self, path: str, content_type: str | None, parts: Iterator[bytes]) -> str:
        return self._in_parts(path, content_type, parts, partial(self._put_part, path), replaces=True)

    def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
        if "-" not in found.etag:
            return self._copy_whole(path, to, found.etag, replaces)
        # With the same parts, a copy has the same etag.
        copy = partial(self._copy_part, path, to)
        return self._in_parts(to, found.content_type, _ranges_of(found.size), copy, replaces)

    def _abort_uploads(self, prefix: str) -> None:
        for unfinished, upload in [*self._uploads(prefix)]:
            self._abort_parts(unfinished, upload)

    def _in_parts(
        self, path: str, content_type: str | None, parts: Iterable[Part], write: Callable[[str, int, Part], str], replaces: bool
    ) -> str:
        """Creates an object from parts. It appears once it is complete. Returns its etag.

        Args:
            write: writes a part, given the upload's id and the part's number. Returns its etag.
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
        """Copies an object with this etag that was written in one request. Returns the copy's etag."""

    @abstractmethod
    def _begin_parts(self, path: str, content_type: str | None) -> str:
        """Begins an upload in parts. Returns its id."""

    @abstractmethod
    def _put_part(self, path: str, upload: str, number: int, part: bytes) -> str:
        """Writes a part. Returns its etag."""

    @abstractmethod
    def _copy_part(self, path: str, to: str, upload: str, number: int, extent: tuple[int, int]) -> str:
        """Copies a part of another object: the first to the last position in ``extent``. Returns its etag."""

    @abstractmethod
    def _complete_parts(self, path: str, upload: str, etags: Sequence[tuple[int, str]], replaces: bool) -> str:
        """Completes an object, given the numbers and etags of its parts. Returns its etag."""

    @abstractmethod
    def _uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yields unfinished uploads below a prefix: the object's path and the upload's id."""

    @abstractmethod
    def _abort_parts(self, path: str, upload: str) -> None:
        """Aborts an upload and deletes its parts."""


def _ranges_of(size: int) -> Sequence[tuple[int, int]]:
    """Returns the first and the last position of each part of an object."""
    return [(start, min(start + PART_BYTES, size) - 1) for start in range(0, size, PART_BYTES)]
