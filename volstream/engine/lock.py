"""Who owns a home: an exclusive lock that the operating system takes back when the process ends, and its owner's name.

``flock`` by hand and not ``filelock``: that one empties the file at each attempt, and the owner's name is in it.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from volstream.config import Settings
from volstream.jvm.address import Kind
from volstream.lifecycle import identity
from volstream.lifecycle.privacy import make_directory


@dataclass(frozen=True)
class Owner:
    """A process that owns a home, or did.

    Attributes:
        started: when it began, as psutil tells.
    """

    pid: int
    started: float
    kind: Kind

    @classmethod
    def me(cls, kind: Kind) -> Owner:
        """This process."""
        return cls(os.getpid(), identity.start_time(os.getpid()), kind)

    def lives(self) -> bool:
        """Whether it still runs."""
        return identity.is_alive(self.pid, self.started)


class HomeLock:
    """The lock of a home. One object is for one thread."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.run_directory / "engine.lock"
        self._descriptor: int | None = None

    def try_acquire(self, owner: Owner) -> bool:
        """Takes the lock for ``owner`` if nobody has it. Does not wait."""
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
        """Gives the lock back. Idempotent. The file stays: removing it would let two processes lock two files."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def present_owner(settings: Settings) -> Owner | None:
    """Who owns the home now; None where nobody does (or has just taken it and not yet written its name)."""
    return _living(settings.run_directory / "engine.lock")


def _living(path: Path) -> Owner | None:
    try:
        owner = Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return owner if owner.lives() else None
