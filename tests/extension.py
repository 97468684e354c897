"""Compiles the engine's extension of Spark into its jar: ``python -m tests.extension``. Needs a JDK.

The jar is in the repository because those who install volstream have no compiler; it holds the source that it was made from.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from volstream.jvm import jars

SOURCE = jars.EXTENSION.with_name("NoReflection.java")

#: The same for every build, so that the jar changes only with its contents.
_TIME = (2026, 1, 1, 0, 0, 0)


def main() -> int:
    """Writes the jar."""
    with tempfile.TemporaryDirectory() as folder:
        classes = f"{jars.pyspark_directory()}/jars/*"
        subprocess.run(["javac", "--release", "17", "-g:none", "-cp", classes, "-d", folder, SOURCE], check=True)
        with zipfile.ZipFile(jars.EXTENSION, "w") as jar:
            for path in (*sorted(Path(folder).rglob("*.class")), SOURCE):
                jar.writestr(zipfile.ZipInfo(f"volstream/{path.name}", _TIME), path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
