"""A wall clock for a storm's processes that a storm can move, without moving that of the machine."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path


class Clock:
    """The wall clock of all processes that have ``clock.c`` preloaded. Monotonic clocks are not moved.

    Attributes:
        variables: of their environment.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.move(0)
        self.variables: Mapping[str, str] = {"STORM_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """Sets how far it is ahead; less than 0: behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # in place: it is mapped
            file.write(struct.pack("=q", seconds))
