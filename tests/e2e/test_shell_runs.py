"""Runs of a job from a shell, one after the other: each finds Python started, and the code as it is now."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.e2e.homes import Home, finished, write
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(200)

_FUNCTION = """
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append({packages!r})
import lately


@dataclass
class Seen:
    text: str
    said: str
    worker: int
    parent: int


def look(file) -> Seen:
    text = file.read_text()
    if text == "slow":
        Path({started!r}).write_text(str(os.getpid()))
        time.sleep(60)
    return Seen(text, lately.SAID, os.getpid(), os.getppid())
"""


@pytest.mark.long
def test_each_run_has_the_code_as_it_is_now_and_nothing_of_a_killed_one(
    home: Home, name: str, files: Path, tmp_path: Path
) -> None:
    packages, started = tmp_path / "packages", tmp_path / "started"
    packages.mkdir()
    (packages / "lately.py").write_text("SAID = 'one'\n")
    code = _FUNCTION.format(packages=str(packages), started=str(started))
    (home.folder / "looking.py").write_text(code, encoding="utf-8")

    def run(text: str) -> dict[str, int | str]:
        write(files, {"file.txt": text})
        home.ok("refresh", name)
        home.ok("run-job", name)
        [row] = home.rows(f"SELECT text, said, worker, parent FROM {name}")
        assert row["text"] == text
        return row

    write(files, {"file.txt": "first"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "looking.py:look")
    first = run("one")
    # A package that is not the function's own is imported once by a worker.
    (packages / "lately.py").write_text("SAID = 'another'\n")
    second = run("two")
    assert (first["said"], second["said"]) == ("one", "another")
    assert second["parent"] == first["parent"], "the second run found Python started"

    write(files, {"file.txt": "slow"})
    home.ok("refresh", name)
    killed = home.start("run-job", name)
    eventually(started.exists, timeout=60)
    eventually(started.read_text)
    killed.kill()
    finished(killed)
    run("three")
    eventually(lambda: not psutil.pid_exists(int(started.read_text())))
