"""Compiles the engine's extensions of Spark and Delta into their jar: ``python -m tests.extension``. Needs a JDK, and Delta's jars.

The jar is in the repository because those who install volstream have no compiler; it holds the sources that it was made from.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from volstream.base import config
from volstream.spark.jvm import install

SOURCES = sorted(install.EXTENSION.parent.glob("*.java"))

#: The same for every build, so that the jar changes only with its contents.
_TIME = (2026, 1, 1, 0, 0, 0)


def main() -> int:
    """Writes the jar."""
    with tempfile.TemporaryDirectory() as folder:
        delta = map(str, install.cached_jars(config.cache_directory()))
        classes = ":".join([f"{install.pyspark_directory()}/jars/*", *delta])
        subprocess.run(["javac", "--release", "17", "-g:none", "-cp", classes, "-d", folder, *SOURCES], check=True)
        with zipfile.ZipFile(install.EXTENSION, "w") as jar:
            for path in (*sorted(Path(folder).rglob("*.class")), *SOURCES):
                jar.writestr(zipfile.ZipInfo(f"volstream/{path.name}", _TIME), path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
