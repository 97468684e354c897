"""The content of an object of a bucket as a seekable file: one request while it is read forward, another after a far seek.

What does not belong here: how a provider is asked (the store beside this file that reads with it).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from volstream.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER = 256 << 10

#: Up to so much is read and thrown away before another request is made.
_SKIP = 1 << 20

#: A connection that breaks while the content is read is made again, so often without a byte of progress.
_TRIES = 4


class Body(Protocol):
    """Content on its way from a server."""

    def read(self, amount: int, /) -> bytes:
        """At most so many bytes; none at the end."""

    def close(self) -> None:
        """Gives the connection up."""


@dataclass(frozen=True)
class Content:
    """An answer with content.

    Attributes:
        size: of the whole object.
        body: what was asked for.
    """

    size: int
    etag: str
    body: Body


def ranged(what: str, fetch: Callable[[int], Content], errors: Callable[[], AbstractContextManager[None]]) -> BinaryIO:
    """A file of what ``fetch`` gets, beginning at a position. Asks once, for the beginning.

    Args:
        what: the object, as messages name it.
        errors: maps the vendor's errors, those of bodies, too.

    Raises:
        What ``fetch`` does; a read raises StorageError where the object changed meanwhile.
    """
    # Typeshed knows no BufferedReader as BinaryIO.
    return cast("BinaryIO", io.BufferedReader(_Ranged(what, fetch, errors), _BUFFER))


class _Ranged(io.RawIOBase):
    def __init__(
        self, what: str, fetch: Callable[[int], Content], errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._what, self._fetch, self._errors = what, fetch, errors
        first = fetch(0)
        self._size, self._etag = first.size, first.etag
        self._body: Body | None = first.body
        self._position = self._body_position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        parts: list[bytes] = []
        while data := self._read(self._size - self._position):
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()

    def _read(self, amount: int) -> bytes:
        if amount <= 0 or self._position >= self._size:
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
        raise failed or StorageError(f"{self._what} ended before its size was read.")

    def _body_at_position(self) -> Body | None:
        """The body, having been read to the position; None where it broke on the way."""
        ahead = self._position - self._body_position
        if self._body is None or not 0 <= ahead <= _SKIP:
            self._drop()
            found = self._fetch(self._position)
            if found.etag != self._etag:
                found.body.close()
                raise StorageError(f"{self._what} changed while it was read.", "It will be read again.")
            self._body, self._body_position = found.body, self._position
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

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
