"""Files that are moved inside their volume: reported as such, and with ``rekey`` their rows follow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.conftest import Place
from volstream.base.definitions import OnMove, Write
from volstream.base.model.work import Load
from volstream.errors import InvalidValueError
from volstream.ops.inspection.file_history import tell
from volstream.sql.text import MAX_NAMED

#: Each call leaves a line, so that tests see which files the function was called on.
CALLS = """
from pathlib import Path


def f(file):
    with Path({log!r}).open('a') as log:
        log.write(file.relative_path + '\\n')
    text = file.read_text()
    if text == 'bad':
        raise ValueError('no good')
    for n in range(len(text)):
        yield {{'n': n}}
"""


def job(place: Place, **options: object) -> None:
    place.job(CALLS.format(log=str(place.folder.parent / "calls")), **options)


def calls(place: Place) -> list[str]:
    """The files that the function was called on since the last call."""
    log = place.folder.parent / "calls"
    lines = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def move(place: Place, old: str, new: str) -> None:
    target = place.folder / new
    target.parent.mkdir(parents=True, exist_ok=True)
    (place.folder / old).rename(target)


def given(place: Place, on_move: OnMove, **files: str) -> None:
    for name, content in files.items():
        place.put(name, content)
    job(place, on_move=on_move)
    place.run()
    calls(place)


@pytest.mark.parametrize("by", ["volstream", pytest.param("Apache-Spark", marks=pytest.mark.long)])
def test_rows_follow_a_moved_file_without_calling_the_function(place: Place, by: str) -> None:
    given(place, OnMove.REKEY, a="xx", b="x", c="x")
    if by == "Apache-Spark":
        place.forget_other_tables()
        place.rows(f"ALTER TABLE {place.at} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    before = dict(place.table("_file_path, _processed_at"))
    move(place, "a", "sub/z")
    move(place, "c", "0")
    place.put("b", "xxx")
    place.refresh()
    assert place.session.jobs.preview("j").load == Load(batches=1, files=3, moves=2, bytes=3)
    report = place.run()
    assert calls(place) == ["b"]
    assert (report.progress.done_files, report.progress.moves, report.progress.removals) == (3, 2, 0)
    assert place.table() == [("0", 0), ("b", 0), ("b", 1), ("b", 2), ("sub/z", 0), ("sub/z", 1)]
    location = f"{place.session.home.warehouse}/tables/public/t"
    assert DeltaTable(location).history(1)[0]["engineInfo"].startswith(by)
    (batch, _) = place.session.batches.list("j")
    assert (batch.files, batch.moves, batch.succeeded, batch.failed, batch.rows) == (3, 2, 3, 0, 3)
    versions = {row["relative_path"]: row["etag"] for row in place.rows("SELECT * FROM DIRECTORY(VOLUME v)")}
    rows = place.rows(f"SELECT * FROM {place.at}")
    assert all(row["_file_version"] == versions[str(row["_file_path"])] for row in rows)
    assert {row["_refresh_id"] for row in rows} == {2}
    assert {row["_batch_id"] for row in rows} == {batch.id}
    assert dict(place.table("_file_path, _processed_at"))["0"] == before["c"], "when the function saw it"
    again = place.session.batches.read(batch.id).orderBy("relative_path").toArrow().to_pylist()
    assert [(row["relative_path"], row["action"], row["old_path"]) for row in again] == [
        ("0", "move", "c"),
        ("b", "replace", None),
        ("sub/z", "move", "a"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("by", ["volstream", pytest.param("Apache-Spark", marks=pytest.mark.long)])
def test_a_new_file_in_the_inode_of_a_deleted_one_is_not_that_one_moved(place: Place, by: str) -> None:
    old, new = place.folder / "old", place.folder / "new"

    def write(path: Path, content: str) -> int:
        path.write_text(content)
        os.utime(path, (1, 1))
        return path.stat().st_ino

    given(place, OnMove.REKEY)
    inode = write(old, "xx")
    place.refresh()
    place.run()
    if by == "Apache-Spark":
        place.forget_other_tables()
        place.rows(f"ALTER TABLE {place.at} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    calls(place)
    old.unlink()
    for number in range(1000):  # until the file system hands the inode on
        if write(place.folder.parent / f"{number}", "yy") == inode:
            break
    else:
        pytest.skip("This file system does not use inodes again.")
    (place.folder.parent / f"{number}").rename(new)
    place.refresh()
    place.run()
    assert calls(place) == ["new"]
    assert place.table("_file_path") == [("new",), ("new",)]


@pytest.mark.long
def test_by_default_the_function_runs_on_a_moved_file_and_its_old_rows_go(place: Place) -> None:
    given(place, OnMove.RERUN, a="xx", b="x")
    move(place, "a", "z")
    place.refresh()
    report = place.run()
    assert calls(place) == ["z"]
    assert (report.progress.done_files, report.progress.moves) == (1, 1)
    assert place.table() == [("b", 0), ("z", 0), ("z", 1)]


@pytest.mark.long
def test_a_move_across_batches_belongs_to_one_batch(place: Place) -> None:
    given(place, OnMove.REKEY, a="x", b="xx", y="x", z="xxx")
    place.session.jobs.alter("j", max_files=1)
    move(place, "z", "0")
    move(place, "a", "zz")
    place.put("m", "x")
    place.refresh()
    assert place.run().progress.batches == 3
    assert calls(place) == ["m"]
    assert place.table() == [("0", 0), ("0", 1), ("0", 2), ("b", 0), ("b", 1), ("m", 0), ("y", 0), ("zz", 0)]
    assert not place.session.streams.has_data("j_stream")


@pytest.mark.long
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_so_many_moves_across_batches_that_they_cannot_be_named(place: Place, more: int) -> None:
    files = MAX_NAMED + more
    given(place, OnMove.REKEY, **{f"m{number:05}": "x" for number in range(files)})
    place.session.jobs.alter("j", max_files=files)
    for number in range(files):  # half of them move to a place in the other batch
        move(place, f"m{number:05}", f"{'a' if number % 2 else 'z'}{number:05}")
    for number in range(files):
        place.put(f"n{number:05}", "x")
    place.refresh()
    assert place.run().progress.batches == 2
    assert len(calls(place)) == files
    moved = [(f"{'a' if number % 2 else 'z'}{number:05}", 0) for number in range(files)]
    assert place.table() == sorted([*moved, *((f"n{number:05}", 0) for number in range(files))])
    assert not place.session.streams.has_data("j_stream")


@pytest.mark.long
def test_a_moved_file_without_rows_is_processed_and_its_old_failure_resolved(place: Place) -> None:
    given(place, OnMove.REKEY, a="x", b="bad")
    place.put("a", "bad")
    place.refresh()
    place.run()
    calls(place)
    assert {failure.path for failure in place.session.jobs.failures("j")} == {"a", "b"}
    move(place, "a", "c")
    move(place, "b", "d")
    place.refresh()
    report = place.run()
    assert calls(place) == ["c", "d"]
    assert report.progress.failed == 2
    # The rows of an older content of a do not follow: they are not those of what was moved.
    assert place.table() == []
    assert {failure.path for failure in place.session.jobs.failures("j")} == {"c", "d"}


@pytest.mark.long
def test_rows_of_a_file_whose_replay_failed_do_not_follow_it(place: Place) -> None:
    given(place, OnMove.REKEY, a="x", b="x")
    job_file = place.folder.parent / "code" / "job.py"
    job_file.write_text(job_file.read_text().replace("== 'bad'", "== 'x'"))
    assert place.session.jobs.replay("j").progress.failed == 2
    assert place.table() == [("a", 0), ("b", 0)], "the rows before the replay"
    calls(place)
    move(place, "a", "c")
    place.refresh()
    assert place.run().progress.failed == 1
    assert calls(place) == ["c"]
    assert {failure.path for failure in place.session.jobs.failures("j")} == {"b", "c"}
    assert place.table() == [("b", 0)]


@pytest.mark.long
def test_moves_between_files_with_the_same_content_are_ambiguous(place: Place) -> None:
    given(place, OnMove.REKEY, a="x")
    (place.folder / "b").hardlink_to(place.folder / "a")
    place.refresh()
    place.run()
    calls(place)
    move(place, "a", "c")
    move(place, "b", "d")
    place.refresh()
    report = place.run()
    assert calls(place) == ["c", "d"]
    assert (report.progress.moves, report.progress.removals) == (0, 2)
    assert place.table() == [("c", 0), ("d", 0)]


@pytest.mark.long
def test_a_file_moved_out_of_the_condition_is_removed(place: Place) -> None:
    place.put("a", "x")
    job(place, on_move=OnMove.REKEY, where="relative_path NOT LIKE 'old/%'")
    place.run()
    move(place, "a", "old/a")
    place.refresh()
    report = place.run()
    assert (report.progress.moves, report.progress.removals) == (0, 1)
    assert place.table() == []


@pytest.mark.long
def test_a_repeated_range_leaves_moved_rows_in_place(place: Place) -> None:
    given(place, OnMove.REKEY, a="x", b="xx")
    move(place, "a", "c")
    place.refresh()
    place.run()
    place.session.streams.reset("j_stream", to_version=1)
    place.run()
    assert calls(place) == ["c"], "no rows of a are there to follow"
    assert place.table() == [("b", 0), ("b", 1), ("c", 0)]


@pytest.mark.long
def test_a_plan_with_moves_whose_files_are_gone_is_rebuilt(place: Place) -> None:
    given(place, OnMove.REKEY, a="x", b="xx")
    move(place, "a", "c")
    move(place, "b", "d")
    place.refresh()
    place.session.jobs.alter("j", max_files=1)

    class KilledError(Exception):
        pass

    def killed(progress: object) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        place.session.jobs.run("j", observe=killed)
    shutil.rmtree(Path(place.session.home.warehouse) / "_plans")
    place.run()
    assert calls(place) == []
    assert place.table() == [("c", 0), ("d", 0), ("d", 1)]


@pytest.mark.long
def test_an_append_table_treats_a_moved_file_as_new_and_cannot_rekey(place: Place) -> None:
    with pytest.raises(InvalidValueError, match="write=append"):
        job(place, write=Write.APPEND, on_move=OnMove.REKEY)
    place.put("a", "x")
    job(place, write=Write.APPEND)
    place.run()
    move(place, "a", "b")
    place.refresh()
    place.run()
    assert place.table() == [("a", 0), ("b", 0)]


@pytest.mark.long
def test_the_history_of_both_paths_shows_the_move(place: Place) -> None:
    given(place, OnMove.REKEY, a="x", m="x")
    place.session.jobs.alter("j", max_files=1)
    move(place, "a", "z")
    place.put("b", "x")
    place.refresh()
    place.run()
    batch = next(one for one in place.session.batches.list("j") if one.moves)
    for path, key, other in (("a", "moved_to", "z"), ("z", "moved_from", "a")):
        story = [event.details for event in tell(place.session.home, "v", path) if event.what == "processed in batch"]
        assert [one.get(key) for one in story if one["batch"] == batch.id] == [other]
        assert all(one["batch"] == batch.id for one in story[-1:])
