"""Files that tell when they are opened, and a port that tells when it is called."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_IN_OPEN, _IN_ACCESS = 0x20, 0x01

_HEAD = struct.Struct("iIII")


class Baits:
    """Files and a port that nobody has any business with. Linux notes each opening, and each listing of a folder, at once.

    Attributes:
        folder: with the file ``secret.csv``, and the folder ``inside`` with another one.
        port: on 127.0.0.1; hangs up on those who call.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "inside").mkdir(parents=True)
        for path in ("secret.csv", "inside/part.csv"):
            (folder / path).write_text("s3cret,line\n1,2\n")
        libc = ctypes.CDLL(None, use_errno=True)
        self._notes: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        watched = [libc.inotify_add_watch(self._notes, os.fsencode(path), _IN_OPEN | _IN_ACCESS) for path in self._paths]
        if min(self._notes, *watched) < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._called = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._hang_up, daemon=True).start()

    @property
    def _paths(self) -> list[Path]:
        return [self.folder, self.folder / "inside"]

    def taken(self) -> list[str]:
        """Returns what has been opened, listed or called since the last time, each once."""
        found = {"the port"} if self._called.is_set() else set()
        self._called.clear()
        with suppress(BlockingIOError):
            while notes := os.read(self._notes, 1 << 16):
                at = 0
                while at < len(notes):
                    _, _, _, length = _HEAD.unpack_from(notes, at)
                    at += _HEAD.size
                    found.add(notes[at : at + length].rstrip(b"\0").decode() or "a folder")
                    at += length
        return sorted(found)

    def _hang_up(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._called.set()
                connection.close()

    def close(self) -> None:
        """Stops watching."""
        self._server.close()
        os.close(self._notes)


@contextmanager
def baits(folder: Path) -> Iterator[Baits]:
    """Yields baits in a new folder."""
    found = Baits(folder)
    try:
        yield found
    finally:
        found.close()
