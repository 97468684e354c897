"""A storm is determined by its seed, so that a failed one can be repeated."""

from __future__ import annotations

import inspect
from itertools import islice
from pathlib import Path

import volstream
from tests import broker, receivers, tails
from tests.storm.files import Folder
from tests.storm.schedule import OUTPUT_POINTS, POINTS, Deed, steps


def test_the_same_seed_gives_the_same_steps_and_another_seed_others() -> None:
    first, again, other = (list(islice(steps(seed, longest_pause=1.0), 1000)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {step.deed for step in first} == {*Deed}


def test_the_same_seed_gives_the_same_changes_and_the_folder_matches_them(tmp_path: Path) -> None:
    folders = [Folder(tmp_path / name, "seed") for name in ("a", "b")]
    told = []
    for folder in folders:
        folder.fill(20)
        told.append([folder.change() for _ in range(400)])
    assert told[0] == told[1]
    assert folders[0].contents() == folders[0].texts == folders[1].contents()
    assert 20 < len(folders[0].texts) < 400


def test_every_fault_point_is_reached_by_a_storm_or_by_writers_that_are_killed() -> None:
    package = Path(inspect.getfile(volstream)).parent
    marked = {
        line.partition('faults.point("')[2].partition('"')[0]
        for file in package.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if 'faults.point("' in line
    }
    assert marked == {*POINTS, *OUTPUT_POINTS, *tails.POINTS, *broker.POINTS, *receivers.POINTS}
