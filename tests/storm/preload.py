"""Makes the library that a storm's processes are started with: it moves their clock, and keeps what they synced."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCES = [Path(__file__).with_name(name) for name in ("clock.c", "power.c")]


class Preload:
    """A library that is loaded before all others.

    Attributes:
        why_not: why it cannot be made; empty if it can.
        variables: of the environment of who is to load it.
    """

    def __init__(self, folder: Path) -> None:
        self.why_not = ""
        self.variables: Mapping[str, str] = {}
        compiler, library = shutil.which("cc"), folder / "preload.so"
        if compiler is None:
            self.why_not = "there is no C compiler"
            return
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, *_SOURCES, "-ldl"], check=True)
        self.variables = {"LD_PRELOAD": str(library)}
