"""Writers and committers that are killed at any point: every acknowledged row is there, and none twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import tails
from tests.tails import POINTS, committed, everything, no_spark
from volstream.tails.move import move


def start(location: str, name: str, rows: int, fault: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.ingest.writer", location, name, str(rows), "--commit"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "VOLSTREAM_FAULT": fault})


def acknowledged(process: subprocess.Popen[str]) -> set[str]:
    """The rows that a process said had arrived, after its end."""
    told, _ = process.communicate(timeout=120)
    whole = told[: told.rfind("\n") + 1]  # it may have been killed in the middle of a line
    return {*whole.split()}


def check(location: str, arrived: set[str], sent: set[str]) -> None:
    """Compares the rows with those that were acknowledged, before and after a commit."""
    for _ in range(2):
        found = [row["id"] for row in everything(location)]
        assert len(found) == len(set(found)), "none is there twice"
        assert arrived <= set(found) <= sent, "all that were acknowledged are there, and none that was not sent"
        move(location, no_spark)
    assert [row["id"] for row in committed(location)] == sorted(found)


@pytest.mark.parametrize("passes", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_named_point_loses_and_doubles_nothing(tmp_path: Path, point: str, passes: int) -> None:
    location = tails.create(tmp_path)
    process = start(location, "a", 200, f"{point}#{passes}")
    arrived = acknowledged(process)
    assert process.returncode == -signal.SIGKILL
    second = start(location, "b", 40)
    arrived |= acknowledged(second)
    assert second.returncode == 0
    check(location, arrived, {f"{name}-{one:04}" for name in "ab" for one in range(200)})


@pytest.mark.parametrize("kills", [6, pytest.param(1000, marks=pytest.mark.long)])
def test_kills_at_random_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    location = tails.create(tmp_path)
    chosen = random.Random(kills)
    arrived: set[str] = set()
    names: list[str] = []
    running: list[subprocess.Popen[str]] = []
    for number in range(kills):
        while len(running) < 2:
            names.append(f"w{len(names)}")
            running.append(start(location, names[-1], 10_000))
        time.sleep(chosen.uniform(0.3, 1.2))
        killed = running.pop(chosen.randrange(2))
        killed.kill()
        arrived |= acknowledged(killed)
        if number % 50 == 49:
            for one in running:
                one.kill()
                arrived |= acknowledged(one)
            running.clear()
            check(location, arrived, {f"{name}-{one:04}" for name in names for one in range(10_000)})
    for one in running:
        one.kill()
        arrived |= acknowledged(one)
    assert arrived
    check(location, arrived, {f"{name}-{one:04}" for name in names for one in range(10_000)})
