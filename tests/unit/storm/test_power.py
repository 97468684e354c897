"""When the power of a storm goes, what was not synced is lost, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm.power import Power
from tests.storm.preload import Preload

_WRITES = """
import os

def sync(path):
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)

for name in ("synced", "not known", "replaced"):
    with open(name, "w") as file:
        file.write(name)
sync("synced")
sync("replaced")
os.chmod("synced", 0o600)
os.mkdir("folder")
sync(".")
with open("not there", "w") as file:
    file.write("not there")
sync("not there")
with open("folder/below", "w") as file:
    file.write("below")
sync("folder/below")
with open("synced", "a") as file:
    file.write(" and more")
os.rename("not there", "replaced")
os.unlink("old")
"""


def test_what_was_synced_survives_and_nothing_else(tmp_path: Path) -> None:
    preload = Preload(tmp_path)
    if preload.why_not:
        pytest.skip(preload.why_not)
    root = tmp_path / "home"
    root.mkdir()
    (root / "old").write_text("old")
    power = Power(root, tmp_path / "synced", preload.variables)
    power.begin()
    environment = {**os.environ, **preload.variables, **power.variables}
    subprocess.run([sys.executable, "-c", _WRITES], cwd=root, env=environment, check=True)
    lost = power.lose()
    found = {one.name: one.read_text() for one in root.rglob("*") if one.is_file()}
    assert found == {"old": "old", "synced": "synced", "not known": "", "replaced": "replaced"}
    assert lost == ["folder/below", "not known", "old", "replaced", "synced"]
    assert (root / "synced").stat().st_mode & 0o777 == 0o600
    assert power.lose() == []


_LOCKS = """
import fcntl, os, subprocess, sys

other = "import fcntl; fcntl.lockf(open('locked', 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
with open("locked", "w+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.fsync(file.fileno())
    assert subprocess.run([sys.executable, "-c", other], stderr=subprocess.PIPE).returncode == 1
"""


def test_a_file_that_is_synced_stays_locked(tmp_path: Path) -> None:
    preload = Preload(tmp_path)
    if preload.why_not:
        pytest.skip(preload.why_not)
    root, kept = tmp_path / "home", tmp_path / "synced"
    root.mkdir()
    power = Power(root, kept, preload.variables)
    power.begin()
    environment = {**os.environ, **preload.variables, **power.variables}
    subprocess.run([sys.executable, "-c", _LOCKS], cwd=root, env=environment, check=True)
