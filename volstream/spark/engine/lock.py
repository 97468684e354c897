"""Ownership of a home: an exclusive lock that the operating system releases when the process ends, with its owner's name.

``flock`` is used directly because ``filelock`` empties the file, which has the owner's name, on every attempt.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from volstream.base import processes
from volstream.base.config import Settings
from volstream.base.privacy import make_directory
from volstream.spark.jvm.address import Kind


@dataclass(frozen=True)
class Owner:
    """A process that owns, or owned, a home.

    Attributes:
        started: the name of its start.
    """

    pid: int
    started: str
    kind: Kind

    @classmethod
    def current_process(cls, kind: Kind) -> Owner:
        """Returns this process as an owner."""
        return cls(os.getpid(), processes.name_of_start(os.getpid()), kind)

    def is_alive(self) -> bool:
        """True if the process is still running."""
        return processes.is_alive(self.pid, self.started)


class HomeLock:
    """The lock of a home. An object must be used by a single thread."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.run_directory / "engine.lock"
        self._descriptor: int | None = None

    def try_acquire(self, owner: Owner) -> bool:
        """Takes the lock for ``owner`` if it is free. Does not wait."""
        make_directory(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(asdict(owner)).encode())
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock. Idempotent. The file stays, because removing it would let two processes lock two files."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def present_owner(settings: Settings) -> Owner | None:
    """Returns the current owner of the home; None if it has none (or one that has not written its name yet)."""
    return _living(settings.run_directory / "engine.lock")


def _living(path: Path) -> Owner | None:
    try:
        owner = Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return owner if owner.is_alive() else None
