"""The live overview: what it shows of given facts, and that q ends it on a terminal."""

from __future__ import annotations

import dataclasses
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.commands import Shell, shell
from volstream.cli.top import HomeFacts, picture, rates
from volstream.ops.inspection.status import Problem
from volstream.spark.engine.client import EngineStatus

__all__ = ["shell"]

JOB = {
    "state": "active",
    "reason": None,
    "trigger": "manual",
    "files": 7,
    "done": 5,
    "waiting": 0,
    "waiting_since": None,
    "failed": 0,
    "last_run": None,
    "outcome": "",
}
VOLUME = {
    "files": 7,
    "rejected": 0,
    "last_listing": None,
    "queue": "none",
    "added_by_listing": 0,
    "removed_by_listing": 0,
    "late_events": 0,
}
STATUS = {
    "home": "/home",
    "engine": None,
    "volumes": [{"volume": "photos", "note": None, **VOLUME}],
    "streams": [{"stream": "s", "unread": 3, "unread_bytes": 9, "source": "volume photos", "offset": 1, "has_data": True, "note": None}],
    "jobs": [{"job": "sizes", **JOB}],
    "tables": [],
}  # fmt: skip
NOW = HomeFacts(10.0, datetime(2026, 3, 1, 12, tzinfo=UTC), STATUS, wrong=[], done={"sizes": (100, 300)})


def now_with(**status: Any) -> HomeFacts:
    return dataclasses.replace(NOW, status={**STATUS, **status})


def shown(now: HomeFacts, before: HomeFacts | None = None, *, width: int = 120, height: int = 40, note: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(picture(before, now, width, height, note), highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def jobs(**changed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"job": name, **JOB, **values} for name, values in changed.items()]


def test_volumes_streams_and_jobs_are_shown_with_rates() -> None:
    before = dataclasses.replace(NOW, at=8.0, done={"sizes": (80, 200), "gone": (1, 1)})
    assert rates(before, NOW) == {"sizes": (10.0, 50.0)}
    text = " ".join(shown(NOW, before).split())
    assert "photos 7" in text
    assert "s 3 9 volume photos" in text
    assert "sizes active 5 of 7 0 10 50" in text
    assert text.index("sizes active") < text.index("photos 7"), "jobs first"
    assert "Nothing is wrong." in text


@pytest.mark.parametrize("before", [None, NOW, dataclasses.replace(NOW, at=8.0, done={})])
def test_without_an_earlier_look_there_are_no_rates(before: HomeFacts | None) -> None:
    assert rates(before, NOW) == {}
    assert "sizes active 5 of 7 0 - -" in " ".join(shown(NOW, before).split())


def test_what_is_wrong_is_said() -> None:
    problem = Problem(True, "volume", "v", "the folder is missing\x1b[31m", "volstream doctor v")
    now = dataclasses.replace(now_with(engine=EngineStatus("running", "daemon", 1, 2, 3, 4, 60.0)), wrong=[problem])
    text = shown(now, note="These are old")
    assert "engine running (daemon, up 60s)" in text
    assert "These are old" in text
    assert "■ volume v: the folder is missing\\x1b[31m. Run: volstream doctor v" in text
    assert "\x1b" not in text


def test_many_objects_fit_on_the_screen_and_troubled_jobs_come_first() -> None:
    many = {f"j{number}": dict[str, Any]() for number in range(100)} | {"bad": {"failed": 1}, "held": {"state": "paused"}}
    text = shown(now_with(jobs=jobs(**many)), height=30)
    assert len(text.splitlines()) <= 30
    assert text.index("held ") < text.index("bad ") < text.index("j0 ")
    assert "more" in text


def test_a_narrow_terminal_shows_the_most_important_columns() -> None:
    lines = shown(NOW, width=45).splitlines()
    assert max(map(len, lines)) <= 45
    assert any(line.split()[:4] == ["job", "state", "done", "failed"] for line in lines)


def test_without_a_terminal_it_prints_once(shell: Shell) -> None:
    text = shell.ok("top")
    assert "no engine" in text
    assert "last listing" in text
    assert '"wrong": []' in shell.ok("top", "--format", "json")


def test_on_a_terminal_it_looks_again_and_again_until_q(shell: Shell) -> None:
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(there)
    command = [sys.executable, "-m", "volstream", "top", "--every", "200ms", "--home", str(shell.home)]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as running:
        try:
            seen = read_until(here, b"q: quit", times=3)
            assert b"Nothing is wrong." in seen
            os.write(here, b"xq")
            assert running.wait(30) == 0
        finally:
            running.kill()
    assert termios.tcgetattr(there) == before, "the terminal is as it was"
    assert read_until(here, b"\x1b[?1049l")
    os.close(here)
    os.close(there)


def read_until(terminal: int, wanted: bytes, *, times: int = 1) -> bytes:
    """What a terminal got until it has some bytes so many times."""
    import select

    seen, deadline = b"", time.monotonic() + 60
    while seen.count(wanted) < times:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 65536)
    return seen


def test_a_job_has_one_line_however_long_its_outcome_is() -> None:
    jobs = [{"job": f"j{number}", **JOB, "outcome": "failed: " + "too long " * 40} for number in range(3)]
    said = shown(now_with(jobs=jobs), width=200)
    assert len([line for line in said.splitlines() if "too long" in line]) == 3
    assert "…" in said
