"""Folders whose files change as real programs change them."""

from __future__ import annotations

import os
from pathlib import Path

#: The time of the first file written. Long past, so that no file of a test waits to settle.
LONG_AGO = 1_700_000_000


class FileWriter:
    """Writes and deletes files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clock = LONG_AGO

    def put(self, path: str, content: str = "x") -> None:
        """Writes a file as programs do that replace files: with a new inode and a new time."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(".new.tmp")
        temporary.write_text(content)
        self._clock += 1
        os.utime(temporary, (self._clock, self._clock))
        temporary.rename(target)

    def delete(self, path: str) -> None:
        (self.folder / path).unlink()
