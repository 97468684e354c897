"""A wall clock for a storm's processes that a storm can move, without moving that of the machine."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The wall clock of all processes that are started with :attr:`variables`. Monotonic clocks are not moved.

    Attributes:
        why_not: why it cannot be moved; empty if it can.
        variables: of the environment.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.move(0)
        self.why_not = ""
        self.variables: Mapping[str, str] = {}
        compiler, library = shutil.which("cc"), folder / "clock.so"
        if compiler is None:
            self.why_not = "there is no C compiler"
            return
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
        self.variables = {"LD_PRELOAD": str(library), "STORM_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """Sets how far it is ahead; less than 0: behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # in place: it is mapped
            file.write(struct.pack("=q", seconds))
