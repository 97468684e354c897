"""A process that serves another one: their messages over pipes, and how one ends with the other."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1


def send(descriptor: int, value: Any) -> None:
    """Writes a value. Raises BrokenPipeError if the other process has ended."""
    data = pickle.dumps(value)
    view = memoryview(struct.pack(">Q", len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def receive(descriptor: int, deadline: float | None = None) -> Any:
    """Returns the next value. Raises EOFError at the end, TimeoutError at the deadline (monotonic)."""
    (length,) = struct.unpack(">Q", _read(descriptor, 8, deadline))
    return pickle.loads(_read(descriptor, length, deadline))


def _read(descriptor: int, length: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        if deadline is not None and not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(descriptor, min(1 << 20, length - len(data)))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def requests(descriptor: int) -> Iterator[Any]:
    """Yields the parent's requests until it closes its end."""
    while True:
        try:
            yield receive(descriptor)
        except EOFError:
            return


def end_of(code: int) -> str:
    """Returns how a process ended, by its return code as in ``subprocess``."""
    if code >= 0:
        return f"ended with exit status {code}"
    return f"was killed by {signal.Signals(-code).name if -code in {*signal.Signals} else -code}"


def last_line(words: bytes) -> str:
    """Returns the last line that a process wrote, as the continuation of a sentence; empty if there is none."""
    lines = words.decode("utf-8", "replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {line.rstrip('.')}" if line else ""


def end_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, because the function may run forever without reading a pipe.

    Linux only. The parent is the thread that started this process, which is the one that reads its answers.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl was called
            sys.exit(1)
