"""Packages of others in environments of their own, in ``.cache/``, which are made once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_CACHE = Path(__file__).parents[1] / ".cache"

#: How uv ends if it could not try; with 1, if packages do not go together.
_NOT_TRIED = 2


def environment_with(packages: Sequence[str], name: str) -> Path:
    """Returns the folder of the commands of an environment; skips, but not in CI, if the packages cannot be fetched.

    Args:
        packages: requirements, and options of ``uv pip install``.
        name: path of its folder in ``.cache/``.
    """
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))  # make test-long installs it
    folder = _CACHE / name
    python = str(folder / "bin" / "python")
    listed = folder / "packages.json"
    if not listed.exists() or json.loads(listed.read_text()) != list(packages):
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python, *packages]
        done = subprocess.run(install, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == _NOT_TRIED and not os.environ.get("CI"):
            pytest.skip(f"{', '.join(packages)} cannot be fetched: {done.stderr}")
        assert done.returncode == 0, done.stderr
        listed.write_text(json.dumps(list(packages)))
    return folder / "bin"
