"""The content of a bucket's object as a seekable file: one request for reading forward, another one after a far seek.

What does not belong here: requests to a provider (see the stores that use this).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias, cast

from volstream.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Fetch: TypeAlias = "Callable[[int], Content]"
Errors: TypeAlias = Callable[[], AbstractContextManager[None]]

_BUFFER = 256 << 10

#: Up to this many bytes are read and discarded rather than making another request.
_SKIP = 1 << 20

#: Attempts to resume a connection that breaks while reading, without any progress in between.
_TRIES = 4


class Body(Protocol):
    """A response body being received."""

    def read(self, amount: int, /) -> bytes:
        """Returns at most ``amount`` bytes; none at the end."""

    def close(self) -> None:
        """Closes the connection."""


@dataclass(frozen=True)
class Content:
    """A response with content.

    Attributes:
        end: where the requested part ends in the object.
        etag: the version's, as in :attr:`FileInfo.version`; may be in quotes.
        body: the requested part.
    """

    end: int
    etag: str
    body: Body


def ranged(what: str, fetch: Fetch, errors: Errors) -> BinaryIO:
    """Returns a file over ``fetch``, which requests the content from a position on. Makes the first request immediately.

    Args:
        what: name of the object in messages.
        errors: maps the vendor's errors, including those of bodies.

    Raises:
        The errors of ``fetch``; a read raises StorageError if the object has changed.
    """
    # Typeshed does not declare BufferedReader as a BinaryIO.
    return cast("BinaryIO", io.BufferedReader(Ranged(what, fetch, errors), _BUFFER))


class Ranged(io.RawIOBase):
    """See :func:`ranged`. Unbuffered.

    Args:
        start: where to begin.
        expected: the only version to read, and where ``fetch`` ends; None: those that the first request finds.
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
        data = self._read(min(len(view), _BUFFER))  # beside the buffer, so little that it does not count
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
        """Returns the body, advanced to the position, or None if it broke before that."""
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
