"""Reading an object of a bucket as a file: the number of requests, broken connections, and concurrent changes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pytest

from volstream.errors import StorageError
from volstream.files.storage.buckets import Content, ranged

CONTENT = os.urandom(5 << 20)


class Server:
    """Holds one object. ``break_after``: how many bytes each body has before its connection breaks."""

    def __init__(self, content: bytes, *, break_after: int | None = None) -> None:
        self.content = content
        self.etag = "e1"
        self.starts: list[int] = []
        self.open_bodies = 0
        self._break_after = break_after

    def fetch(self, start: int) -> Content:
        self.starts.append(start)
        self.open_bodies += 1
        return Content(len(self.content), self.etag, Body(self, self.content[start:], self._break_after))

    def file(self) -> BinaryIO:
        return ranged("the object", self.fetch, errors)


class Body:
    def __init__(self, server: Server, content: bytes, break_after: int | None) -> None:
        self._server = server
        self._stream = io.BytesIO(content)
        self._left = break_after

    def read(self, amount: int, /) -> bytes:
        if self._left is None:
            return self._stream.read(amount)
        if not self._left:
            raise ConnectionResetError("broken")
        data = self._stream.read(min(amount, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._server.open_bodies -= 1


@contextmanager
def errors() -> Iterator[None]:
    try:
        yield
    except ConnectionResetError as exc:
        raise StorageError(str(exc)) from exc


def test_a_whole_read_is_one_request() -> None:
    server = Server(CONTENT)
    with server.file() as file:
        assert file.read() == CONTENT
        assert file.read() == b""
    assert server.starts == [0]
    assert server.open_bodies == 0


def test_reading_forward_in_pieces_is_one_request() -> None:
    server = Server(CONTENT)
    with server.file() as file:
        assert b"".join(iter(lambda: file.read(100_000), b"")) == CONTENT
    assert server.starts == [0]


def test_a_far_seek_costs_one_more_request_and_seeking_to_the_end_none() -> None:
    server = Server(CONTENT)
    with server.file() as file:
        assert file.seek(0, io.SEEK_END) == len(CONTENT)
        file.seek(0)
        assert file.read(10) == CONTENT[:10]
        file.seek(300_000)
        assert file.read(10) == CONTENT[300_000:300_010]
        assert server.starts == [0]
        file.seek(-22, io.SEEK_END)
        assert file.read() == CONTENT[-22:]
    assert server.starts == [0, len(CONTENT) - 22]
    assert server.open_bodies == 0


def test_reading_past_the_end_returns_nothing() -> None:
    with Server(b"abc").file() as file:
        file.seek(10)
        assert file.read() == b""
        with pytest.raises(ValueError, match="negative"):
            file.seek(-20, io.SEEK_CUR)
    with Server(b"").file() as file:
        assert file.read() == b""


def test_a_broken_connection_is_resumed_where_it_broke() -> None:
    server = Server(CONTENT, break_after=1 << 20)
    with server.file() as file:
        assert file.read() == CONTENT
    assert server.starts == [0, 1 << 20, 2 << 20, 3 << 20, 4 << 20]
    assert server.open_bodies == 0


def test_a_connection_that_keeps_breaking_is_given_up() -> None:
    server = Server(b"abc", break_after=0)
    with server.file() as file, pytest.raises(StorageError, match="broken"):
        file.read()
    assert len(server.starts) == 4


def test_a_body_that_is_too_short_is_an_error_and_not_an_end() -> None:
    server = Server(b"abc")
    file = ranged("the object", lambda start: Content(5, "e1", server.fetch(start).body), errors)
    with file, pytest.raises(StorageError, match="ended before"):
        file.read()


def test_an_object_that_changes_while_being_read_is_detected() -> None:
    server = Server(CONTENT)
    with server.file() as file:
        file.read(10)
        server.etag = "e2"
        file.seek(4 << 20)
        with pytest.raises(StorageError, match="changed while it was being read"):
            file.read(1)
    assert server.open_bodies == 0
