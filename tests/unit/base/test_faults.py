"""Fault points, in processes that may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

CODE = """
from volstream.base import faults
for number in range(4):
    faults.point("other")
    print(number, flush=True)
    faults.point("here")
"""


def run(fault: str | None) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "VOLSTREAM_FAULT"}
    if fault is not None:
        environment["VOLSTREAM_FAULT"] = fault
    ended = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=30, check=False)
    return ended.returncode, ended.stdout.replace("\n", "")


def test_without_a_fault_every_point_is_passed() -> None:
    assert run(None) == (0, "0123")


def test_a_named_point_kills_at_its_first_pass() -> None:
    assert run("here") == (-signal.SIGKILL, "0")


def test_a_counted_point_kills_at_that_pass() -> None:
    assert run("here#3") == (-signal.SIGKILL, "012")


def test_a_point_can_freeze_the_process_instead() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], env={**os.environ, "VOLSTREAM_FAULT": "here:stop"}, stdout=subprocess.PIPE
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=30)[0] == b"0\n1\n2\n3\n"
    finally:
        process.kill()
        process.wait()
