"""Random lives of a directory: at any refresh, and between any two, it agrees with a model; folds and kills change nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.directories import Directory
from volstream.changes.directory.writer import FileSizes
from volstream.changes.streams import net_files

PATHS = [f"{letter}/{number}" for letter in "abü" for number in range(6)]

State = dict[str, tuple[int, int]]  # path -> content, refresh that wrote it


def live(directory: Directory, rng: random.Random, steps: int) -> list[State]:
    """Refreshes, folds and takeovers at random; the states after each refresh."""
    states: list[State] = [{}]
    first = {path: rng.randrange(100) for path in rng.sample(PATHS, rng.randrange(len(PATHS)))}
    if first and rng.random() < 0.8:
        directory.list_first(first)
        states.append({path: (content, 1) for path, content in first.items()})
    for _ in range(steps):
        match rng.choice(["refresh"] * 5 + ["fold", "takeover"]):
            case "fold":
                directory.writer.maintain()
            case "takeover":
                directory.writer = directory.new_writer()
            case _:
                number, state = len(states), dict(states[-1])
                looked = {
                    path: None if rng.random() < 0.4 else rng.randrange(3) for path in rng.sample(PATHS, rng.randrange(1, 6))
                }
                for path, content in looked.items():
                    if content is None:
                        state.pop(path, None)
                    elif state.get(path, (None, 0))[0] != content:
                        state[path] = (content, number)
                if (directory.refresh(looked) is not None) != (state != states[-1]):
                    raise AssertionError("a refresh is a commit exactly where something differs")
                if state != states[-1]:
                    states.append(state)
    return states


def shown(tables: list[pa.Table]) -> State:
    rows = pa.concat_tables(tables)
    found = zip(rows["relative_path"].to_pylist(), rows["size"].to_pylist(), rows["refresh_id"].to_pylist(), strict=True)
    return {path: (size, number) for path, size, number in found}


def net(before: State, after: State) -> set[tuple[str, bool, bool, int]]:
    """Path, whether it was there before and is after, and its content: the new one, or of one that is gone the old."""
    return {
        (path, path in before, path in after, (after.get(path) or before[path])[0])
        for path in before.keys() | after.keys()
        if before.get(path, (None, 0))[0] != after.get(path, (None, 0))[0]
    }


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in range(3, 300))])
def test_the_directory_agrees_with_a_model_at_every_refresh_and_between_any_two(tmp_path: Path, seed: int) -> None:
    directory = Directory(tmp_path, sizes=FileSizes(rows=4, few_rows=2, small_files=3))
    rng = random.Random(seed)
    states = live(directory, rng, steps=14)
    snapshot = directory.snapshot() if len(states) > 1 else None
    if snapshot is None:
        directory.close()
        return
    assert snapshot.newest == len(states) - 1
    assert list(snapshot.at(0)) == []
    for number, state in enumerate(states):
        if number >= max(snapshot.floor, 1):
            assert shown(list(snapshot.at(number))) == state, f"refresh {number}"
    for after in range(snapshot.floor, len(states)):
        for until in range(after, len(states)):
            found = net_files.changed(snapshot, after, until)
            columns = (found[name].to_pylist() for name in ("relative_path", "had", "has", "size"))
            assert set(zip(*columns, strict=True)) == net(states[after], states[until]), f"({after}, {until}]"
    wanted = rng.sample(PATHS, 8)
    assert shown([snapshot.find(wanted)]) == {path: states[-1][path] for path in wanted if path in states[-1]}
    old = directory.snapshot()
    directory.refresh({"zz": 1})
    directory.writer.maintain()
    assert shown(list(old.at())) == states[-1], "a reader of before is not disturbed"
    directory.close()
