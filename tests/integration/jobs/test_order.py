"""The order in which a run takes its files: those modified last first."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from tests.integration.jobs.test_moves import CALLS, calls
from volstream.base.definitions import FileOrder, OnMove
from volstream.changes.streams import net_files
from volstream.errors import InvalidValueError, StreamBusyError
from volstream.jobs.plans import plan
from volstream.jobs.runs.lease import Progress
from volstream.ops.inspection.file_history import tell

NEWEST = FileOrder.NEWEST


def put(place: Place, name: str, content: str, time: float) -> None:
    place.put(name, content)
    os.utime(place.folder / name, (time, time))


def job(place: Place, **options: object) -> None:
    place.job(CALLS.format(log=str(place.folder.parent / "calls")), order=NEWEST, **options)


def batches_of(place: Place, name: str) -> list[object]:
    return [one.details["batch"] for one in tell(place.session.home, "v", name) if one.what == "processed in batch"]


def taken(place: Place) -> list[list[str]]:
    """The files of each batch so far, in order."""
    found = sorted(place.session.batches.list("j"), key=lambda one: (one.created_on, one.number))
    return [sorted(row["relative_path"] for row in place.session.batches.read(one.id).collect()) for one in found]


@pytest.mark.parametrize("few", [net_files.FEW, pytest.param(0, marks=pytest.mark.long)])
def test_the_newest_files_are_in_the_first_batches(place: Place, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    for module in (plan, net_files):  # with 0, Spark sorts the plan
        monkeypatch.setattr(module, "FEW", few)
    for name, time in {"a": 1, "b": 5, "c": 3, "d": 3, "e": 2.000001, "f": 2}.items():
        put(place, name, "x", time)
    job(place, max_files=2, on_move=OnMove.REKEY)
    place.run()
    assert taken(place) == [["b", "c"], ["d", "e"], ["a", "f"]]
    assert calls(place) == [*"abcdef"]
    put(place, "a", "xx", 9)
    put(place, "g", "bad", 8)
    (place.folder / "b").rename(place.folder / "0")
    (place.folder / "f").unlink()
    place.refresh()
    report = place.run()
    assert (report.progress.failed, report.progress.moves, report.progress.removals) == (1, 1, 1)
    assert taken(place)[3:] == [["a", "g"], ["0", "f"]]
    assert place.table() == [("0", 0), ("a", 0), ("a", 1), ("c", 0), ("d", 0), ("e", 0)]
    assert calls(place) == ["a", "g"]
    (failed,) = place.session.jobs.failures("j")
    assert place.session.batches.failures(failed.batch_id) == [failed]
    numbers = {batch.id: batch.number for batch in place.session.batches.list("j")}
    assert [numbers[str(one)] for one in batches_of(place, "a")] == [3, 1]
    assert [numbers[str(one)] for one in batches_of(place, "b")] == [1, 2], "the second with its new path"
    put(place, "g", "xxx", 8)
    place.refresh()
    place.run()
    assert not place.session.jobs.failures("j")
    place.session.jobs.replay("j")
    assert taken(place)[-3:] == [["a", "g"], ["0", "c"], ["d", "e"]]


def test_a_plan_of_the_newest_files_goes_on_after_a_kill_without_its_files(place: Place) -> None:
    for name, time in {"a": 1, "b": 5, "c": 3, "d": 4}.items():
        put(place, name, "x", time)
    job(place, max_files=1)

    class KilledError(Exception):
        pass

    def killed(progress: Progress) -> None:
        if progress.batches:
            raise KilledError

    with pytest.raises(KilledError):
        place.session.jobs.run("j", observe=killed)
    assert calls(place)[:1] == ["b"]
    with pytest.raises(StreamBusyError):
        place.session.jobs.alter("j", order="path")
    put(place, "e", "x", 9)
    place.refresh()
    shutil.rmtree(Path(place.session.home.warehouse) / "_plans")
    place.session.jobs.alter("j", max_files=2)
    place.run()
    assert taken(place)[0] == ["b"]
    assert taken(place)[-1] == ["e"], "what came meanwhile waits for the plan"
    assert [row[0] for row in place.table()] == [*"abcde"]


def test_sets_have_no_order(place: Place) -> None:
    with pytest.raises(InvalidValueError, match="order=newest cannot be combined with group_by"):
        job(place, group_by="folder")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_random_histories_end_as_without_an_order(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    job(place, max_files=chance.choice([1, 2, 5]), on_move=chance.choice([*OnMove]))
    names = [f"{folder}{name}" for folder in ("", "x/", "é/") for name in "abcd"]
    for _ in range(8):
        for name in chance.sample(names, chance.randint(0, 5)):
            path = place.folder / name
            match chance.randrange(4):
                case 0:
                    path.unlink(missing_ok=True)
                case 1 if path.exists():
                    target = place.folder / chance.choice(names)
                    target.parent.mkdir(exist_ok=True)
                    path.rename(target)
                case _:
                    put(place, name, "x" * chance.randint(0, 3), chance.randrange(4))
        place.refresh()
        if chance.random() < 0.7:
            place.run()
        if chance.random() < 0.2:
            place.session.jobs.replay("j")
    place.run()
    lengths = {name: (place.folder / name).stat().st_size for name in names if (place.folder / name).exists()}
    assert place.table() == sorted((name, at) for name, length in lengths.items() for at in range(length))
