"""The work that every contender does with one file. volstream runs these functions like its users' functions, from this file."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from typing import Protocol

#: CPU seconds of :func:`slow` per file: like a small parser or model.
SLOW_SECONDS = 0.005


#: Seconds that :func:`waiting` waits.
WAIT_SECONDS = 0.2

#: Seconds that :func:`sleeping` waits.
SLEEP_SECONDS = 0.02


@dataclass(frozen=True)
class Summary:
    """A file's row."""

    sha256: str
    words: int
    first_line: str


@dataclass(frozen=True)
class Digest:
    """A large file's row."""

    sha256: str


class Readable(Protocol):
    """A file, as volstream passes it to functions."""

    def read_bytes(self) -> bytes:
        """Returns all of its content."""
        ...


def summarise(file: Readable) -> Summary:
    """Summarises a file: the cheap function, about 0.1 ms."""
    return summary_of(file.read_bytes())


def digest(file: Readable) -> Digest:
    """Returns what takes little of a large file."""
    return Digest(hashlib.sha256(file.read_bytes()).hexdigest())


def slow(file: Readable) -> Summary:
    """Does the same after :data:`SLOW_SECONDS` of CPU."""
    burn()
    return summary_of(file.read_bytes())


def summary_of(content: bytes) -> Summary:
    """Returns the row of a file with this content."""
    first_line = content.partition(b"\n")[0].decode()
    return Summary(hashlib.sha256(content).hexdigest(), len(content.split()), first_line)


def burn() -> None:
    """Uses :data:`SLOW_SECONDS` of CPU time, not wall time: with few processors it takes longer for every contender."""
    end = time.thread_time() + SLOW_SECONDS
    while time.thread_time() < end:
        hashlib.sha256(b"x" * 4096).digest()


async def waiting(file: Readable) -> dict[str, int]:
    """Waits, as for the API of a model."""
    size = len(file.read_bytes())
    await asyncio.sleep(WAIT_SECONDS)
    return {"n": size}


def sleeping(file: Readable) -> dict[str, int]:
    """Waits without using a processor: as many calls run at once as there are slots."""
    time.sleep(SLEEP_SECONDS)
    return {"n": len(file.read_bytes())}
