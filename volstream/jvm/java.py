"""Finds a Java that can run Spark. What is run with it, and how, does not belong here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from volstream import config
from volstream.errors import JavaError

#: Spark 4 runs on nothing older.
OLDEST = 17

#: ``java -version`` answers in a tenth of a second; one that hangs is none.
_ANSWER_SECONDS = 30.0

#: Where packages put Java without touching PATH: Debian and Fedora, macOS, Homebrew on both of its prefixes.
_USUAL_PLACES = (
    "/usr/lib/jvm/*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",
    "/usr/local/opt/openjdk*/bin/java",
    "/opt/java/*/bin/java",
)


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        executable: the ``java`` command, an absolute path.
        major: the feature release, such as 17.
        build: what it says about itself; two runtimes of one build are the same.
    """

    executable: Path
    major: int
    build: str


def find(usual_places: Iterable[str] = _USUAL_PLACES) -> Java:
    """The first Java of at least :data:`OLDEST` in JAVA_HOME, on PATH, in the usual places.

    Args:
        usual_places: patterns of files below the root.

    Raises:
        JavaError: there is none; the remedy is the platform's command, the cause names what was found instead.
    """
    rejected: list[str] = []
    for executable in _candidates(usual_places):
        java = _asked(executable)
        if java is None:
            continue
        if java.major >= OLDEST:
            return java
        rejected.append(f"{executable} is Java {java.major}")
    seen = f" ({'; '.join(rejected)})" if rejected else ""
    raise JavaError(f"No Java {OLDEST} or newer was found{seen}.", remedy(sys.platform, debian=_is_debian()))


def parse_major(text: str) -> int | None:
    """The feature release in what ``java -version`` prints; None where that says nothing of a version."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first  # Java 8 calls itself 1.8


def remedy(platform: str, *, debian: bool) -> str:
    """How one gets a Java on ``platform`` (as ``sys.platform`` names it)."""
    if debian:
        return f"Run: apt-get install openjdk-{OLDEST}-jre-headless"
    if platform == "darwin":
        return f"Run: brew install openjdk@{OLDEST}"
    return f"Install a Java runtime {OLDEST} or newer, such as Eclipse Temurin, and set JAVA_HOME to its folder."


def _candidates(usual_places: Iterable[str]) -> Iterator[Path]:
    home = config.java_home()
    if home is not None:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    for pattern in usual_places:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _asked(executable: Path) -> Java | None:
    """What ``executable`` says it is; None where it does not run (macOS ships a stub that only asks to install one)."""
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("Picked up ")]
    build = "\n".join(lines)
    major = parse_major(build)
    return None if major is None else Java(executable.absolute(), major, build)


def _is_debian() -> bool:
    return shutil.which("apt-get") is not None
