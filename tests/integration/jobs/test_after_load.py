"""Files leave their volume once their rows are committed: into an archive, or for good."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.integration.conftest import Place
from tests.interrupts import meanwhile
from volstream.base.definitions import QueueType
from volstream.errors import EngineLostError, InvalidStateError, InvalidValueError, ObjectInUseError
from volstream.ops.inspection import file_history
from volstream.ops.inspection.status import health, problems


def die() -> None:
    raise EngineLostError("The Spark engine was lost.")


def there(place: Place) -> dict[str, str]:
    return {one.relative_to(place.folder).as_posix(): one.read_text() for one in place.folder.rglob("*") if one.is_file()}


def load(place: Place, after_load: str, **options: object) -> None:
    place.session.jobs.load("j", "v", "t", schema="n INT", write="append", after_load=after_load, **options)  # type: ignore[arg-type]  # options of one test each


def check_nothing_else_reads(place: Place, volume: str) -> None:
    with pytest.raises(ObjectInUseError, match=f"The job j takes files of the volume {volume}, or of one that overlaps it, away"):
        place.session.streams.create("s", volume=volume)
    with pytest.raises(ObjectInUseError, match=f"The job j takes files of the volume {volume}, or of one that overlaps it, away"):
        place.session.jobs.load("k", volume, "u", schema="n INT")


def test_files_are_archived_once_their_rows_are_committed_and_their_rows_stay(place: Place) -> None:
    for name, text in {"a.csv": "n\n1\n", "d/b.csv": "n\n2\n", "bad.csv": "# x\nn,m\n1,2\n", "c.txt": "?"}.items():
        place.put(name, text)
    load(place, "archive:.done", where="relative_path LIKE '%.csv'")
    place.run()
    kept = {"bad.csv": "# x\nn,m\n1,2\n", "c.txt": "?"}
    assert there(place) == {**kept, ".done/a.csv": "n\n1\n", ".done/d/b.csv": "n\n2\n"}
    place.put("a.csv", "n\n3\n")
    place.refresh()
    place.run()
    files = there(place)
    assert sorted(text for path, text in files.items() if path.startswith(".done/a")) == ["n\n1\n", "n\n3\n"]
    place.refresh()
    assert place.run().progress.batches == 0
    assert place.table() == [("a.csv", 1), ("a.csv", 3), ("d/b.csv", 2)]
    events = file_history.tell(place.session.home, "v", "d/b.csv")
    [removed] = [event for event in events if event.what == "removed after loading"]
    assert removed.details == {"job": "j", "archive": ".done/d/b.csv"}
    events = file_history.tell(place.session.home, "v", "a.csv")
    [removed] = [event for event in events if event.what == "removed after loading"]
    assert removed.details == {"job": "j", "archive": ".done/a*.csv"}, "an earlier version has the name"


def test_files_are_deleted_by_a_job_of_a_function_too_and_failed_ones_stay(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "no number")
    place.job("def f(file):\n    return {'n': int(file.read_text())}\n", write="append", after_load="delete", retries=0)
    place.run()
    assert there(place) == {"b": "no number"}
    assert place.table() == [("a", 1)]
    assert place.session.home.catalog.outputs.unfinished_tables() == []
    place.delete("b")
    place.refresh()
    place.run()
    assert place.session.jobs.failures("j") == []
    assert place.table() == [("a", 1)]


@pytest.mark.long
def test_a_volume_may_be_emptied_and_refreshed_without_a_question(place: Place) -> None:
    for number in range(12):
        place.put(f"{number}.csv", f"n\n{number}\n")
    load(place, "delete")
    place.run()
    place.session.volumes.refresh("v")
    assert place.volume.held_removals == 0
    assert place.rows("SELECT count(*) AS files FROM DIRECTORY(VOLUME v)") == [{"files": 0}]
    assert [n for _, n in place.table()] == sorted(range(12), key=str)


@pytest.mark.parametrize(
    ("after_load", "point"),
    [
        pytest.param("delete", "volstream.jobs.batches.outputs._set_aside", marks=pytest.mark.long),
        ("archive:.done", "volstream.files.storage.local.LocalStore.move"),
        pytest.param("delete", "volstream.files.storage.local.LocalStore.move", marks=pytest.mark.long),
    ],
)
def test_a_file_that_is_replaced_before_it_leaves_stays_and_is_loaded_again(place: Place, after_load: str, point: str) -> None:
    def replace() -> None:
        (place.folder / ".new").write_text("n\n2\n")
        os.rename(place.folder / ".new", place.folder / "a.csv")

    place.put("a.csv", "n\n1\n")
    load(place, after_load)
    with meanwhile("call", point, replace):
        place.run()
    assert there(place) == {"a.csv": "n\n2\n"}
    place.refresh()
    place.run()
    assert place.table() == [("a.csv", 1), ("a.csv", 2)]
    assert [*there(place).values()] == (["n\n2\n"] if after_load != "delete" else [])


def test_a_version_that_was_not_loaded_waits_until_its_path_is_free_and_is_loaded_then(place: Place) -> None:
    def put(number: int) -> None:
        (place.folder / ".new").write_text(f"n\n{number}\n")
        os.rename(place.folder / ".new", place.folder / "a.csv")

    def replace() -> None:
        put(2)
        after.enter_context(meanwhile("return", move, lambda: put(3)))

    move = "volstream.files.storage.local.LocalStore.move"
    place.put("a.csv", "n\n1\n")
    load(place, "delete")
    with ExitStack() as after, meanwhile("call", move, replace):
        place.run()
    assert sorted(there(place).values()) == ["n\n2\n", "n\n3\n"]
    [problem] = problems(health(place.session.home, streams=False), {})
    assert "a.csv: a version of it that is not loaded waits as .volstream-outputs/" in problem.why
    for _ in range(3):
        place.refresh()
        place.run()
    assert place.table() == [("a.csv", 1), ("a.csv", 2), ("a.csv", 3)]
    assert there(place) == {}
    assert problems(health(place.session.home, streams=False), {}) == []


def test_an_attempt_that_is_not_committed_takes_nothing_and_a_killed_run_is_finished_by_the_next(place: Place) -> None:
    place.put("a.csv", "n\n1\n")
    load(place, "delete")
    with meanwhile("return", "volstream.catalog.outputs.Outputs.note", die), pytest.raises(EngineLostError):
        place.run()
    assert there(place) == {"a.csv": "n\n1\n"}
    place.put("b.csv", "n\n2\n")
    place.refresh()
    with meanwhile("call", "volstream.jobs.batches.outputs._take_away", die), pytest.raises(EngineLostError):
        place.run()
    place.run()
    place.refresh()
    place.run()
    assert there(place) == {}
    assert place.table() == [("a.csv", 1), ("b.csv", 2)]


def test_jobs_that_would_lose_files_or_rows_are_refused(place: Place) -> None:
    for options, message in (
        ({"after_load": "delete"}, "cannot follow deletions"),
        ({"after_load": "archive:done", "write": "append"}, r"Files in done would be files of the volume v.*such as \.loaded"),
        ({"after_load": "archive:", "write": "append"}, "is not a folder"),
        ({"after_load": "delete", "write": "append", "group_by": "folder"}, "job of sets cannot take files away"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            place.job("def f(file):\n    return {'n': 1}\n", **options)
    place.session.streams.create("s", volume="v")
    with pytest.raises(InvalidStateError, match="The stream s is on the volume v: it would miss"):
        load(place, "delete")
    place.session.streams.drop("s")
    load(place, "delete")
    check_nothing_else_reads(place, "v")
    load(place, "archive:.done", or_replace=True)
    place.session.jobs.alter("j", after_load="keep")
    place.session.streams.create("s", volume="v")
    with pytest.raises(InvalidStateError, match="The stream s is on the volume v: it would miss"):
        place.session.jobs.alter("j", after_load="delete")


@pytest.mark.parametrize("prefix", [None, "made"])
def test_outputs_of_a_job_are_not_taken_by_another_one(place: Place, prefix: str | None) -> None:
    landing = place.folder.parent / "landing"
    (landing / "made").mkdir(parents=True)
    place.session.volumes.create("landing", str(landing), queue_type=QueueType.NONE)
    place.session.volumes.create("below", str(landing / "made"), queue_type=QueueType.NONE)
    made = "def f(file):\n    import volstream\n    return {'made': volstream.OutputFile(file.name, data=b'n')}\n"
    writing = {"returns": "made FILE", "outputs_to": "landing", "outputs_prefix": prefix}
    loading = {"schema": "n INT", "write": "append", "after_load": "delete"}
    place.job(made, **writing)
    for volume in ("landing", "below"):
        with pytest.raises(InvalidStateError, match=f"The job j writes its outputs into the volume {volume}: its rows"):
            place.session.jobs.load("k", volume, "u", **loading)  # type: ignore[arg-type]  # as above
    place.session.jobs.load("k", "below", "u", **(loading | {"after_load": "keep"}))  # type: ignore[arg-type]  # as above
    with pytest.raises(InvalidStateError, match="The job j writes its outputs into the volume below"):
        place.session.jobs.alter("k", after_load="delete")
    place.session.jobs.drop("j")
    place.session.jobs.alter("k", after_load="delete")
    with pytest.raises(
        InvalidStateError, match="outputs of the job j would be files of the volume below, from which the job k takes"
    ):
        place.job(made, **writing)
    place.job(made, **writing | {"outputs_prefix": "other"})


def test_a_file_that_cannot_be_archived_waits_where_status_says_and_holds_up_no_other(place: Place) -> None:
    name = f"{'n' * 240}.csv"
    for path, text in {".done/x": "in the way", "x/y.csv": "n\n1\n", name: "n\n2\n"}.items():
        place.put(path, text)
    load(place, "archive:.done")
    place.refresh()
    place.run()
    place.put(name, "n\n3\n")
    place.put("good.csv", "n\n4\n")
    place.refresh()
    place.run()
    files = there(place)
    assert files[".done/good.csv"] == "n\n4\n"
    assert sorted(text for path, text in files.items() if "nnn" in path) == ["n\n2\n", "n\n3\n"]
    [waiting] = [path for path in files if path.startswith(".volstream")]
    assert files[waiting] == "n\n1\n"
    [problem] = problems(health(place.session.home, streams=False), {})
    said = f"A loaded file could not be moved out of its volume: x/y.csv: it waits as {waiting}: .done/x is a file"
    assert problem.why.startswith(said)
    (place.folder / ".done/x").unlink()
    place.run()
    assert there(place).keys() == {".done/x/y.csv", ".done/good.csv", *(path for path in files if "nnn" in path)}
    assert problems(health(place.session.home, streams=False), {}) == []
    assert sorted(n for _, n in place.table()) == [1, 2, 3, 4]


def test_a_share_that_is_away_has_lost_no_file_and_loads_none_again(place: Place) -> None:
    """Another directory is in its place, without the files and without what waits to be archived."""
    away, session = place.folder.parent / "away", place.session
    for name in ("a.csv", "b.csv"):
        place.put(name, "n\n1\n")
    (place.folder / ".done").write_text("in the way")
    load(place, "archive:.done")
    session.volumes.refresh("v")
    place.run()
    assert place.table() == [("a.csv", 1), ("b.csv", 1)]
    place.put("c.csv", "n\n2\n")
    session.volumes.refresh("v")
    place.folder.rename(away)
    place.folder.mkdir()
    session.volumes.refresh("v")
    place.run()
    [problem] = [one for one in problems(health(session.home, streams=False), {}) if "another directory" in one.why]
    assert "a.csv" in problem.why
    place.folder.rmdir()
    away.rename(place.folder)
    (place.folder / ".done").unlink()
    session.volumes.refresh("v")
    place.run()
    session.jobs.retry("j")  # the run found no file in the other directory
    place.run()
    assert there(place) == {".done/a.csv": "n\n1\n", ".done/b.csv": "n\n1\n", ".done/c.csv": "n\n2\n"}
    assert place.table() == [("a.csv", 1), ("b.csv", 1), ("c.csv", 2)]
    assert problems(health(session.home, streams=False), {}) == []


def test_a_file_that_is_not_read_by_rule_stays(place: Place) -> None:
    place.put("_a.csv", "n\n1\n")
    place.put("b.csv", "n\n2\n")
    load(place, "delete")
    place.refresh()
    place.run()
    assert there(place) == {"_a.csv": "n\n1\n"}


@pytest.mark.parametrize("folder", ["", "sub", ".."])
def test_a_volume_that_shares_files_with_another_is_as_the_same(place: Place, folder: str) -> None:
    place.put("sub/a.csv", "n\n1\n")
    link = place.folder.parent / "link"
    link.symlink_to(place.folder)
    place.session.volumes.create("w", str(link / folder), queue_type=QueueType.NONE, ignores=["home", ".*"])
    (place.folder.parent / "files2").mkdir()
    place.session.volumes.create("apart", str(place.folder.parent / "files2"), queue_type=QueueType.NONE)
    place.session.streams.create("apart", volume="apart")
    place.session.streams.create("s", volume="w")
    with pytest.raises(
        InvalidStateError, match="The stream s is on the volume w, which shares files with v: it would miss files"
    ):
        load(place, "delete")
    place.session.streams.drop("s")
    load(place, "delete")
    check_nothing_else_reads(place, "w")
