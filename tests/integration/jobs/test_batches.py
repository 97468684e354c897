"""Batches on a real engine: their size, and reading them back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.integration.conftest import COUNT, Place
from tests.interrupts import meanwhile
from tests.waiting import eventually
from volstream.base.definitions import JobState
from volstream.base.model.work import BatchState
from volstream.base.threads import Stop
from volstream.catalog.alerts import ConditionKind
from volstream.errors import EngineLostError, InvalidStateError, NotFoundError, VolstreamError
from volstream.jobs.plans import plan
from volstream.jobs.runs.lease import Progress
from volstream.ops.inspection.status import ProblemCause, problems, status
from volstream.spark.frames import batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The call for ``a`` returns once that for ``c``, of the next batch, has begun; that for ``c`` once there is the file ``go``.
WAITING = """
import pathlib
import time

AT = pathlib.Path({at!r})

def wait_for(name):
    deadline = time.monotonic() + {seconds}
    while not (AT / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.05)

def f(file):
    if file.name == "a":
        (AT / "waiting").touch()
        wait_for("begun")
    elif file.name == "c":
        (AT / "begun").touch()
        wait_for("go")
        (AT / "ended").touch()
    return {{"n": 1}}
"""

PICKY = "def f(file):\n    if file.name == 'c':\n        raise ValueError('no good')\n    return {'n': 1}\n"


def wait_beside(place: Place, at: Path, names: str, seconds: int = 60, **options: Any) -> None:
    """Creates the job with the function above, which waits for so long at most, in batches of two files."""
    for name in names:
        place.put(name, name)
    place.job(WAITING.format(at=str(at), seconds=seconds), max_files=2, **options)


def run_first_batch(place: Place) -> None:
    """A run that is stopped after its first batch."""
    stop = Stop()

    def after_one(progress: Progress) -> None:
        if progress.batches:
            stop.set()

    place.session.jobs.run("j", stop=stop, observe=after_one)


def bounds(place: Place) -> list[tuple[int, str | None, str | None, int]]:
    found = sorted(place.session.batches.list("j"), key=lambda one: one.number)
    return [(one.number, one.after_path, one.until_path, one.files) for one in found]


def files(place: Place, identity: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = place.session.batches.read(identity).orderBy("relative_path").toArrow().to_pylist()
    return rows


@pytest.mark.long
def test_a_batch_of_which_outcomes_are_missing_is_not_committed_but_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        place.put(name, name)
    place.job(COUNT)

    def without_first(frame: DataFrame) -> Iterator[pa.Table]:
        yield pa.concat_tables(batches(frame)).slice(1)

    with monkeypatch.context() as patch:
        patch.setattr("volstream.jobs.batches.staged.batches", without_first)
        with pytest.raises(VolstreamError, match="has 3 files, but 2 outcomes were staged"):
            place.run()
    assert place.table("_file_path") == []
    place.run()
    assert place.table("_file_path") == [("a",), ("b",), ("c",)]


@pytest.mark.long
@pytest.mark.parametrize("limit", [{"max_files": 2}, pytest.param({"max_bytes": 2}, marks=pytest.mark.long)])
def test_a_batch_that_ended_its_engine_is_recut_by_lower_limits(place: Place, limit: dict[str, Any]) -> None:
    for name in "abcdef":
        place.put(name)
    place.job(COUNT)

    def die() -> None:
        raise EngineLostError("The Spark engine was lost.")

    with (
        meanwhile("call", "volstream.jobs.batches.attempt.BatchExecutor._with_expectations", die),
        pytest.raises(EngineLostError),
    ):
        place.run()
    assert bounds(place) == [(1, None, "f", 6)]
    place.session.jobs.alter("j", **limit)
    place.run()
    assert bounds(place) == [(1, None, "b", 2), (2, "b", "d", 2), (3, "d", "f", 2)]
    assert [row[0] for row in place.table()] == [*"abcdef"]


@pytest.mark.long
def test_waiting_batches_are_recut_to_the_measured_speed_and_a_stopped_run_resumes_there(place: Place) -> None:
    for name in "abcdefgh":
        place.put(name, name)
    place.job(COUNT, max_files=2)
    run_first_batch(place)
    assert bounds(place) == [(1, None, "b", 2), (2, "b", "d", 2), (3, "d", "f", 2), (4, "f", "h", 2)]
    place.session.jobs.alter("j", max_files=100)  # from here on nothing holds the batches small
    report = place.run()
    assert report.progress.done_files == 6
    assert bounds(place) == [(1, None, "b", 2), (2, "b", "h", 6)]
    assert [row[0] for row in place.table()] == [*"abcdefgh"]
    assert not place.session.streams.has_data("j_stream")
    assert all(batch.seconds and batch.rate for batch in place.session.batches.list("j"))


def test_the_next_batch_runs_beside_the_last_calls_of_one(place: Place, tmp_path: Path) -> None:
    wait_beside(place, tmp_path, "abcdef")
    (tmp_path / "go").touch()
    report = place.run()
    assert (report.progress.batches, report.progress.failed) == (3, 0)
    assert bounds(place) == [(1, None, "b", 2), (2, "b", "d", 2), (3, "d", "f", 2)]
    assert place.table() == [(name, 1) for name in "abcdef"]


@pytest.mark.long
def test_a_run_that_stops_does_not_wait_for_calls_of_the_next_batch(place: Place, tmp_path: Path) -> None:
    wait_beside(place, tmp_path, "abcd")
    run_first_batch(place)
    assert (tmp_path / "begun").exists()
    assert not (tmp_path / "ended").exists()
    assert place.table("_file_path") == [("a",), ("b",)]
    (tmp_path / "go").touch()
    report = place.run()
    assert (report.progress.batches, report.progress.failed) == (1, 0)
    assert place.table() == [(name, 1) for name in "abcd"]


@pytest.mark.long
@pytest.mark.parametrize("options", [{"parallel": 1}, {"rate": "100/s"}, {"expect": ("n > 0",)}])
def test_a_batch_begins_after_the_calls_of_the_one_before(place: Place, tmp_path: Path, options: dict[str, Any]) -> None:
    wait_beside(place, tmp_path, "abcd", 6, **options)
    (tmp_path / "go").touch()
    place.run()
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["a"]


@pytest.mark.long
def test_where_spark_commits_no_batch_holds_the_slots_that_it_needs(place: Place, tmp_path: Path) -> None:
    wait_beside(place, tmp_path, "0", 6)
    place.run()
    place.forget_other_tables()
    place.rows(f"ALTER TABLE {place.at} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    for name in "abcd":
        place.put(name, name)
    place.refresh()
    (tmp_path / "go").touch()
    place.run()
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["a"]


@pytest.mark.long
def test_a_job_that_is_paused_begins_no_batch(place: Place, tmp_path: Path) -> None:
    wait_beside(place, tmp_path, "abcd", 6)

    def pause() -> None:
        eventually((tmp_path / "waiting").exists, 60)
        place.session.jobs.pause("j")

    pausing = threading.Thread(target=pause)
    pausing.start()
    place.run()
    pausing.join()
    assert not (tmp_path / "begun").exists()
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["a"]


@pytest.mark.long
def test_batches_that_take_too_long_become_smaller(place: Place, slower: Place) -> None:
    for name in "abcdefgh":
        place.put(name, name)
    place.job(COUNT, max_files=4)
    run_first_batch(slower)
    slower.run()
    assert bounds(place) == [
        (1, None, "d", 4),
        *((n, a, b, 1) for n, a, b in ((2, "d", "e"), (3, "e", "f"), (4, "f", "g"), (5, "g", "h"))),
    ]
    assert [row[0] for row in place.table()] == [*"abcdefgh"]


@pytest.mark.long
def test_a_batch_is_read_back_from_its_plan_and_later_from_the_history_of_the_directory(place: Place) -> None:
    for name in "abcde":
        place.put(name, name)
    place.job(COUNT, max_files=2, where="relative_path <> 'b'")
    run_first_batch(place)
    second = next(batch for batch in place.session.batches.list("j") if batch.state is BatchState.PLANNED)
    of_plan = files(place, second.id)
    assert [(row["relative_path"], row["action"], row["size"]) for row in of_plan] == [("d", "insert", 1), ("e", "insert", 1)]
    place.run()
    place.put("d", "changed")
    place.delete("e")
    place.refresh()
    place.session.jobs.alter("j", where="size > 100")
    assert files(place, second.id) == of_plan
    with pytest.raises(NotFoundError, match="nowhere"):
        place.session.batches.read("nowhere")


@pytest.mark.long
def test_a_batch_knows_its_removals_and_its_failures(place: Place) -> None:
    for name in "abc":
        place.put(name, name)
    place.job(PICKY)
    place.run()
    (first,) = place.session.batches.list("j")
    assert [failure.path for failure in place.session.batches.failures(first.id)] == ["c"]
    place.delete("b")
    place.put("a", "changed")
    place.refresh()
    place.run()
    second = place.session.batches.list("j")[0]
    assert [(row["relative_path"], row["action"]) for row in files(place, second.id)] == [("a", "replace"), ("b", "remove")]


@pytest.mark.long
def test_the_files_of_a_retry_are_not_recorded(place: Place) -> None:
    place.put("c", "c")
    place.job(PICKY)
    place.run()
    place.session.jobs.retry("j")
    place.run()
    again = place.session.batches.list("j")[0]
    with pytest.raises(InvalidStateError, match=f"describe batch {again.id}"):
        place.session.batches.read(again.id)
    assert [failure.path for failure in place.session.batches.failures(again.id)] == ["c"]


def test_large_files_are_dealt_out_evenly(place: Place) -> None:
    sizes = [32 << 20] * 6 + [1] * 1001  # by path, so that they would be neighbours
    planned = pa.Table.from_pylist(
        [{"relative_path": f"{number:05d}", "size": size} for number, size in enumerate(sizes)], schema=plan._SCHEMA
    )
    session = place.session.spark
    work = plan.work_of_rows(session, planned).selectExpr("spark_partition_id() AS task", "size", "relative_path")
    tasks = work.toArrow().to_pylist()
    assert sorted(row["relative_path"] for row in tasks) == planned["relative_path"].to_pylist()
    large = Counter(row["task"] for row in tasks if row["size"] > 1)
    assert set(large.values()) == {6 // len({row["task"] for row in tasks})}


def test_a_resumed_job_is_no_problem_until_it_has_run(place: Place) -> None:
    place.put("a")
    place.job("def f(file):\n    raise ValueError\n", returns="n INT", retries=0, pause_after=1)
    place.run()
    assert place.session.jobs.get("j").state is JobState.PAUSED
    home = place.session.home
    home.catalog.conditions.note(ConditionKind.JOB, place.session.jobs.get("j").id, "The job is paused.")
    place.session.jobs.resume("j")
    assert [problem.cause for problem in problems(status(home), {})] == [ProblemCause.FILES]


def test_a_run_that_its_user_interrupts_is_no_problem_of_the_job(place: Place) -> None:
    for name in "abcd":
        place.put(name, name)
    place.job(COUNT, max_files=1)

    def interrupted(progress: Progress) -> None:
        if progress.batches:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.session.jobs.run("j", observe=interrupted)
    found = status(place.session.home)
    (job,) = found["jobs"]
    assert (job["outcome"], job["interrupted"], job["done"]) == ("interrupted by the user", False, 1)
    assert problems(found, {}) == []
    place.run()
    assert [row[0] for row in place.table()] == [*"abcd"]
