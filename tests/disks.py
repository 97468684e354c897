"""Small disks mounted on a folder, which can be filled without harming anything else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import eventually


class Disk:
    """A disk in memory.

    Attributes:
        why_not: why it could not be mounted; empty where it was.
    """

    def __init__(self, place: Path, why_not: str) -> None:
        self.why_not = why_not
        self._place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Takes up all free space."""
        free = shutil.disk_usage(self._place).free
        with suppress(OSError), self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free))

    def empty(self) -> None:
        """Frees the space again. Idempotent."""
        self._ballast.unlink(missing_ok=True)

    def seal(self) -> None:
        """Makes it read-only, as a file system with an error is, once nothing has a file of it open for writing.

        A process that was killed closes its files last, when it cannot be found by its environment any more.
        """
        eventually(lambda: subprocess.run(["mount", "-o", "remount,ro", self._place]).returncode == 0)

    def unseal(self) -> None:
        """Makes it writable again. Idempotent."""
        subprocess.run(["mount", "-o", "remount,rw", self._place], check=True)

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", self._place], check=True)


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Disk]:
    """A disk of a given size, such as ``300k``, mounted on an empty folder."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", place], capture_output=True, text=True
    )
    why_not = done.stderr.strip() or "it is refused" if done.returncode else ""
    try:
        yield Disk(place, why_not)
    finally:
        if not why_not:
            subprocess.run(["umount", "-l", place], check=True)
