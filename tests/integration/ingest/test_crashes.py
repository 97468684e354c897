"""Writers and committers that are killed at any point: every acknowledged row is there, and none twice."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests import tails
from tests.integration.ingest.writer import Writer
from tests.tails import POINTS, committed, everything, no_spark
from tests.waiting import eventually
from volstream.tables.tails.writer import commit_tail


def check(location: str, arrived: set[str], sent: set[str]) -> None:
    """Compares the rows with those that were acknowledged, before and after a commit."""
    for _ in range(2):
        found = [row["id"] for row in everything(location)]
        assert len(found) == len(set(found)), "none is there twice"
        assert arrived <= set(found) <= sent, "all that were acknowledged are there, and none that was not sent"
        commit_tail(location, no_spark)
    assert [row["id"] for row in committed(location)] == sorted(found)


@pytest.mark.parametrize("passes", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "point", [one if one in ("tail.appended", "tail.moved") else pytest.param(one, marks=pytest.mark.long) for one in POINTS]
)
def test_a_kill_at_any_named_point_loses_and_doubles_nothing(tmp_path: Path, point: str, passes: int) -> None:
    location = tails.create(tmp_path)
    first = Writer(location, "a", 200, f"{point}#{passes}")
    assert first.end() == -signal.SIGKILL
    second = Writer(location, "b", 40)
    assert second.end() == 0
    assert len(second.acknowledged()) == 40
    check(location, first.acknowledged() | second.acknowledged(), {f"{name}-{one:04}" for name in "ab" for one in range(200)})


@pytest.mark.long
@pytest.mark.parametrize("kills", [3, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_kills_at_random_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    location = tails.create(tmp_path)
    chosen = random.Random(kills)
    writers: list[Writer] = []

    def check_all() -> None:
        arrived = set[str]().union(*(one.acknowledged() for one in writers))
        check(location, arrived, {f"w{number}-{one:04}" for number in range(len(writers)) for one in range(10_000)})

    running: list[Writer] = []
    for number in range(kills):
        while len(running) < 2:
            running.append(Writer(location, f"w{len(writers)}", 10_000))
            writers.append(running[-1])
        for one in running:
            eventually(one.acknowledged, 60)
        time.sleep(chosen.uniform(0, 0.5))
        running.pop(chosen.randrange(2)).kill()
        if number % 50 == 49 or number == kills - 1:
            for one in running:
                one.kill()
            running.clear()
            check_all()
