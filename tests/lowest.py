"""Runs tests with the lowest versions that pyproject.toml allows: ``python -m tests.lowest``, or ``make test-lowest``.

Makes an environment in ``.cache/lowest``, which later runs update. The arguments are pytest's; default: the unit tests, and those
of the console with Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FOLDER = ROOT / ".cache" / "lowest"

_TESTS = ("-n", "2", "-m", "not long", "tests/unit", "tests/integration/server/console")

#: Of old packages on a new Python, and of newer packages that they use.
_WARNINGS = ("-W", "ignore::DeprecationWarning", "-W", "ignore::SyntaxWarning")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status of pytest, or of the step before it that failed."""
    uv = str(Path(sys.executable).with_name("uv"))
    python = str(_FOLDER / "bin" / "python")
    _FOLDER.parent.mkdir(exist_ok=True)
    wanted = str(_FOLDER.with_suffix(".txt"))
    compiled = [uv, "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--python", python, "--no-annotate"]
    install = [uv, "pip", "install", "--quiet", "--python", python]
    steps = [
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(_FOLDER)],
        [*compiled, "pyproject.toml", "--all-extras", "--group", "dev", "--output-file", wanted],
        [*install, "--requirement", wanted, "setuptools"],
        [*install, "--no-deps", "--no-build-isolation", "--editable", "."],
        [python, "-m", "pytest", *_WARNINGS, *(arguments or _TESTS)],
    ]
    for step in steps:
        status = subprocess.run(step, cwd=ROOT, env=os.environ | {"VIRTUAL_ENV": str(_FOLDER)}, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
