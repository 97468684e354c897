"""The JVM's class archive (AppCDS): which file fits, and the options that use or make it.

It saves three quarters of the start. A JVM that does not like its archive starts without it, just slower.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from volstream.jvm.java import Java

#: Archives take 240 MB each; those that no engine used for this long go when a new one is made.
_KEEP_SECONDS = 30 * 24 * 3600.0

#: The JVM prints to standard output what it dislikes about an archive, and how it made one.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def path_of(cache: Path, java: Java, jvm_options: str, classes: Sequence[Path]) -> Path:
    """The archive for this Java, these options and these jars, and valid for nothing else; and for this volstream, since what
    it made the JVM load is what it needs itself."""
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
    """JVM options that use ``archive`` where it exists."""
    if not archive.is_file():
        return []
    with suppress(PermissionError):  # an administrator's cache that many users share
        os.utime(archive)  # so that it is not taken for unused
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET]


def make(archive: Path) -> list[str]:
    """JVM options that write ``archive`` when the JVM ends in good order."""
    return [f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def remove_unused(cache: Path, keep: Path) -> None:
    """Removes archives other than ``keep`` that were not used for a long time."""
    for path in cache.glob("cds-*.jsa"):
        if path != keep and time.time() - path.stat().st_mtime > _KEEP_SECONDS:
            path.unlink(missing_ok=True)
