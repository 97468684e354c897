"""The JVM's class archive (AppCDS): which file matches, and the options that use or create it.

It saves three quarters of the start-up time. A JVM that rejects its archive starts without it, only slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from volstream.spark.jvm.java import Java

#: Archives take 240 MB each; those unused for this long are removed when a new one is created.
_KEEP_SECONDS = 30 * 24 * 3600.0

#: Time to make a Java's own archive; seconds on an idle machine.
_BASE_SECONDS = 120.0

#: By default the JVM prints to standard output why it rejects an archive, and how it created one.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def path_of(cache: Path, java: Java, jvm_options: str, classes: Sequence[Path]) -> Path:
    """Returns the path of the archive, which is valid only for this Java, these options and these jars; and for this volstream,
    because the archive has the classes that volstream's own work loads."""
    stats = [(str(path), path.stat()) for path in classes]
    parts = [
        metadata.version("volstream"),
        java.build,
        str(java.executable),
        jvm_options,
        *(f"{p} {s.st_size} {s.st_mtime_ns}" for p, s in stats),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache / f"cds-{digest}.jsa"


def use(archive: Path) -> list[str]:
    """Returns the JVM options that use ``archive`` if it exists."""
    if not archive.is_file():
        return []
    with suppress(PermissionError):  # a shared cache that an administrator maintains
        os.utime(archive)  # marks it as used
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET]


def make(archive: Path) -> list[str]:
    """Returns the JVM options that write ``archive`` when the JVM exits normally."""
    return [f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def has_base(java: Java) -> bool:
    """Returns whether a Java has the archive of its own classes, which ours adds to. That of pip comes without it: it is made, if
    its folder can be written."""
    base = java.executable.resolve().parents[1] / "lib" / "server" / "classes.jsa"
    if not base.is_file():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([java.executable, "-Xshare:dump"], capture_output=True, timeout=_BASE_SECONDS, check=False)
    return base.is_file()


def remove_unused(cache: Path, keep: Path) -> None:
    """Removes archives other than ``keep`` that were unused for a long time."""
    for path in cache.glob("cds-*.jsa"):
        if path != keep and time.time() - path.stat().st_mtime > _KEEP_SECONDS:
            path.unlink(missing_ok=True)
