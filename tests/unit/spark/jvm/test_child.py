"""A child that does not outlive its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.waiting import eventually
from volstream.spark.jvm import child

CHILD = str(Path(child.__file__))


def test_killing_the_parent_kills_its_child() -> None:
    script = (
        "import os, subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, {CHILD!r}, str(os.getpid()), '/bin/sleep', '60'])\n"
        "print(p.pid, flush=True)\n"
        "p.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        eventually(lambda: process.name() == "sleep")
        parent.kill()
    eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_a_child_whose_parent_has_already_ended_does_not_start() -> None:
    run = subprocess.run([sys.executable, CHILD, "1", "/bin/echo", "began"], capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (1, b"")
