"""Jobs on a real engine: what lands in the result table, and what happens to files that fail."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests import objects
from tests.integration.conftest import COUNT, Place, session_on
from volstream.base.config import Settings
from volstream.base.definitions import JobState, Write
from volstream.base.model.names import Name
from volstream.base.model.work import FailureKind, FailureState
from volstream.catalog.consumptions import BatchOutcome
from volstream.changes.streams.consume import Consumer
from volstream.errors import FencedError, InvalidStateError, InvalidValueError, SqlError
from volstream.jobs.runs.lease import Progress
from volstream.ops.inspection.details import backlog
from volstream.tables.delta.ownership import owner_of
from volstream.tables.delta.places import table_location
from volstream.tables.delta.writer import DeltaWriter

SLOW = """
import time
def f(file):
    if file.name == 'a':
        time.sleep(60)
    return {'n': 1}
"""

FIRST_BAD = """
import os
def f(file):
    if file.name == 'a':
        with open({told!r}, 'a') as told:
            told.write('a')
        if not {heals} or os.path.getsize({told!r}) == 1:
            raise ValueError('no good')
    return {{'n': 1}}
"""

PICKY = """
def f(file):
    text = file.read_text()
    if text == 'bad':
        raise ValueError('no good')
    if text == 'wrong':
        return {'n': 'many'}
    return {'n': len(text)}
"""


def test_an_upsert_table_mirrors_the_files(place: Place) -> None:
    place.put("a", "1")
    place.put("b/c", "22")
    place.job(COUNT)
    place.run()
    assert place.table() == [("a", 1), ("b/c", 2)]
    place.put("a", "4444")
    place.delete("b/c")
    place.put("d", "333")
    place.refresh()
    place.run()
    assert place.table() == [("a", 4), ("d", 3)]


def test_an_append_table_logs_every_version_and_no_removal(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT, write=Write.APPEND)
    place.run()
    place.put("a", "22")
    place.refresh()
    place.run()
    place.delete("a")
    place.refresh()
    assert place.run().progress.removals == 0
    assert place.table() == [("a", 1), ("a", 2)]


@pytest.mark.long
def test_a_run_with_nothing_to_do_makes_no_commit(place: Place) -> None:
    place.put("a")
    place.job(COUNT)
    place.run()
    before = place.rows(f"DESCRIBE HISTORY {place.at}")
    assert place.run().progress.batches == 0
    assert len(place.rows(f"DESCRIBE HISTORY {place.at}")) == len(before)


@pytest.mark.long
def test_rows_say_where_they_come_from(place: Place) -> None:
    place.put("a")
    place.job(COUNT)
    place.run()
    (row,) = place.rows(f"SELECT * FROM {place.at}")
    (file,) = place.rows("SELECT * FROM DIRECTORY(VOLUME v)")
    (batch,) = place.session.home.catalog.reports.batches_of()
    assert (row["_file_path"], row["_file_version"]) == ("a", file["etag"])
    assert (row["_refresh_id"], row["_batch_id"]) == (1, batch.id)
    assert isinstance(row["_processed_at"], datetime)


@pytest.mark.long
def test_a_function_may_give_many_rows_or_none(place: Place) -> None:
    place.put("a", "3")
    place.put("b", "0")
    place.job("def f(file):\n    for n in range(int(file.read_text())):\n        yield {'n': n}\n")
    place.run()
    assert place.table() == [("a", 0), ("a", 1), ("a", 2)]


@pytest.mark.long
def test_a_file_that_no_longer_passes_the_condition_is_removed(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "22")
    place.job(COUNT, where="size < 5")
    place.run()
    place.put("a", "too long")
    place.refresh()
    place.run()
    assert place.table() == [("b", 2)]


def test_one_bad_file_never_stops_the_others_and_keeps_its_old_rows(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "22")
    place.job(PICKY)
    place.run()
    place.put("a", "bad")
    place.put("b", "333")
    place.put("c", "wrong")
    place.refresh()
    report = place.run()
    assert (report.progress.done_files, report.progress.failed) == (3, 2)
    assert place.table() == [("a", 1), ("b", 3)]
    first, second = place.session.jobs.failures("j")
    assert (first.path, first.kind, first.state) == ("a", FailureKind.RAISED, FailureState.RETRYING)
    assert "ValueError: no good" in first.message
    assert first.traceback is not None
    assert "job.py" in first.traceback
    assert (second.path, second.kind, second.state) == ("c", FailureKind.WRONG_RESULT, FailureState.QUARANTINED)
    assert "'n'" in second.message

    facts = place.rows(
        "SELECT f.job, f.path, f.kind, f.attempts, b.files, b.failed, r.inserted FROM volstream.failures f "
        "JOIN volstream.batches b ON b.id = f.batch_id JOIN volstream.refreshes r ON r.number = f.refresh_id ORDER BY f.path"
    )
    common = {"job": "j", "attempts": 1, "files": 3, "failed": 2, "inserted": 1}
    assert facts == [{**common, "path": "a", "kind": "raised"}, {**common, "path": "c", "kind": "wrong-result"}]
    assert place.rows("SELECT volume, count FROM volstream.rejected") == []
    assert place.rows("SELECT 1 AS one") == [{"one": 1}]
    staged = Path(place.session.home.warehouse, "_staging")
    assert [one.name for one in staged.glob("facts-*")] == [], "the files of facts go with the frames"


@pytest.mark.long
def test_a_failure_is_resolved_by_a_newer_version_or_a_delete(place: Place) -> None:
    place.put("a", "bad")
    place.put("b", "bad")
    place.job(PICKY, retries=0)
    place.run()
    assert len(place.session.jobs.failures("j")) == 2
    place.put("a", "good")
    place.delete("b")
    place.refresh()
    place.run()
    assert place.table() == [("a", 4)]
    assert not place.session.jobs.failures("j")


@pytest.mark.long
def test_a_due_retry_heals_a_transient_failure(place: Place, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    place.put("a", "1")
    place.job(f"import os\ndef f(file):\n    os.stat({str(flag)!r})\n    return {{'n': 1}}\n")
    place.run()
    (failure,) = place.session.jobs.failures("j")
    assert (failure.attempts, failure.state) == (1, FailureState.RETRYING)
    flag.touch()
    place.session.jobs.retry("j")
    place.run()
    assert place.table() == [("a", 1)]
    assert not place.session.jobs.failures("j")


def retrying_at_once(place: Place) -> Settings:
    return place.session.home.settings.model_copy(update={"retry_first_seconds": 0.001})


@pytest.mark.parametrize("heals", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_file_that_is_retried_in_the_same_run_counts_once(place: Place, heals: bool) -> None:
    place.put("a", "1")
    place.put("b", "22")
    told = place.folder.parent / "told"
    place.job(FIRST_BAD.format(told=str(told), heals=heals), retries=1)
    with session_on(place.gateway, retrying_at_once(place)) as session:
        progress = session.jobs.run("j").progress
    assert told.read_text() == "aa"
    assert (progress.files, progress.done_files, progress.processed, progress.failed) == (2, 2, 1 + heals, 1 - heals)


def test_what_a_job_owes_counts_files_and_not_attempts_and_knows_since_when(place: Place) -> None:
    def owed() -> tuple[int | None, int, bool]:
        home = place.session.home
        found = backlog(home.catalog, place.session.jobs.get("j"))
        assert found is not None
        return found.done, found.files, found.waiting_since is not None

    place.put("a", "bad")
    place.put("b", "fine")
    place.job(PICKY, retries=0)
    place.refresh()
    assert owed() == (0, 2, True)
    place.run()
    assert owed() == (1, 2, False)
    for text in ("fine again", "and again"):
        place.put("b", text)
        place.refresh()
        assert owed() == (0, 2, True)
        place.run()
    assert owed() == (1, 2, False), "its function ran three times on b"
    place.session.jobs.skip("j")
    assert owed() == (1, 2, False), "a file that was given up is not done"


def test_what_is_done_never_falls_while_batches_are_in_hand(place: Place) -> None:
    def done(_: Progress | None = None) -> None:
        found = backlog(place.session.home.catalog, place.session.jobs.get("j"))
        assert found is not None
        assert found.done is not None
        assert (found.waiting_since is None) is (found.done == found.files), "also of the rows that a stream begins with"
        seen.append(found.done)

    seen: list[int] = []
    for name in "abc":
        place.put(name, "1")
    place.refresh()  # the job begins with what is there
    place.job(PICKY, max_files=1)
    place.session.jobs.run("j", until_empty=True, observe=done)
    assert sorted({*seen}) == [0, 1, 2, 3]
    assert seen == sorted(seen)
    seen.clear()
    place.session.jobs.replay("j", observe=done)
    assert {*seen} == {3}


def test_a_failed_file_that_a_new_condition_excludes_is_no_failure_any_more(place: Place) -> None:
    place.put("a", "bad")
    place.put("b", "bad")
    place.job(PICKY, retries=0)
    place.run()
    place.session.jobs.alter("j", where="relative_path = 'b'")
    place.run()
    assert [(failure.path, failure.state) for failure in place.session.jobs.failures("j")] == [("b", FailureState.QUARANTINED)]
    place.session.jobs.alter("j", where="relative_path = 'c'")
    assert place.run().progress.batches == 0
    assert not place.session.jobs.failures("j")


@pytest.mark.long
def test_a_skipped_file_is_left_alone_until_it_changes(place: Place) -> None:
    place.put("a", "bad")
    place.job(PICKY)
    place.run()
    place.session.jobs.skip("j", ["a"])
    assert place.session.jobs.retry("j") == []
    assert place.run().progress.batches == 0
    place.put("a", "good")
    place.refresh()
    place.run()
    assert place.table() == [("a", 4)]


def test_a_job_whose_files_all_fail_pauses_itself(place: Place) -> None:
    for name in "abc":
        place.put(name, "bad")
    place.job(PICKY, max_files=1, pause_after=2)
    assert place.run().paused == "every file failed in 2 batches in a row"
    with pytest.raises(InvalidStateError, match="paused"):
        place.run()
    place.session.jobs.resume("j")
    place.run()
    assert len(place.session.jobs.failures("j")) == 3


def test_a_file_that_kills_its_worker_is_identified_and_the_others_land(place: Place) -> None:
    for name in "abcd":
        place.put(name, name)
    place.job("import os\ndef f(file):\n    if file.name == 'c':\n        os.kill(os.getpid(), 11)\n    return {'n': 1}\n")
    place.run()
    assert [row[0] for row in place.table()] == ["a", "b", "d"]
    (failure,) = place.session.jobs.failures("j")
    assert (failure.path, failure.kind) == ("c", FailureKind.WORKER_DIED)
    assert "SIGSEGV" in failure.message


@pytest.mark.long
def test_a_function_that_runs_too_long_is_interrupted(place: Place) -> None:
    place.put("a", "slow")
    place.put("b", "1")
    place.job(SLOW, timeout=0.5)
    place.run()
    (failure,) = place.session.jobs.failures("j")
    assert (failure.path, failure.kind) == ("a", FailureKind.TIMED_OUT)
    assert place.table() == [("b", 1)]


def test_a_file_changed_since_the_listing_waits_for_the_directory(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "1")
    place.refresh()
    place.put("a", "22")
    place.delete("b")
    place.job(COUNT, pause_after=1)
    progress = place.run().progress
    assert (progress.done_files, progress.failed, progress.overtaken) == (2, 0, 2), "nobody failed"
    assert [one.failed for one in place.session.home.catalog.reports.batches_of()] == [0]
    assert place.session.jobs.get("j").state is JobState.ACTIVE
    kinds = {failure.path: (failure.kind, failure.state) for failure in place.session.jobs.failures("j")}
    assert kinds == {"a": (FailureKind.CHANGED, FailureState.WAITING), "b": (FailureKind.VANISHED, FailureState.WAITING)}
    assert set(place.session.home.catalog.refreshes.asked_checks(place.volume.id, 10)) == {"a", "b"}
    place.refresh()
    place.run()
    assert place.table() == [("a", 2)]
    assert not place.session.jobs.failures("j")


@pytest.mark.long
def test_a_plan_is_cut_by_files_and_each_batch_is_one_commit(place: Place) -> None:
    for number in range(7):
        place.put(f"f{number}", "x" * number)
    place.job(COUNT, max_files=3)
    assert place.run().progress.batches == 3
    batches = place.session.home.catalog.reports.batches_of()
    assert [(batch.after_path, batch.until_path, batch.files) for batch in reversed(batches)] == [
        (None, "f2", 3),
        ("f2", "f5", 3),
        ("f5", "f6", 1),
    ]
    assert [row[1] for row in place.table()] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_an_attempt_that_died_before_its_commit_is_fenced_and_redelivered(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT)
    place.run()
    place.put("b", "22")
    place.refresh()
    zombie, location = _open_attempt(place)
    place.run()
    assert place.table() == [("a", 1), ("b", 2)]
    consumer = Consumer(place.session.home.catalog, DeltaWriter(place.gateway))
    batch = place.session.home.catalog.reports.batch(zombie.batch_id)
    assert batch is not None
    with pytest.raises(FencedError):
        consumer.write(zombie, BatchOutcome(1, 0, 1).counts(), lambda session: _append_row(session, location, batch.id))
    assert place.table() == [("a", 1), ("b", 2)]
    assert [one.state for one in place.session.home.catalog.reports.batches_of()] == ["committed", "committed"]


@pytest.mark.long
def test_an_attempt_that_died_after_its_commit_is_rolled_forward(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT)
    place.run()
    place.put("b", "22")
    place.refresh()
    intent, location = _open_attempt(place)
    consumer = Consumer(place.session.home.catalog, DeltaWriter(place.gateway))
    batch = place.session.home.catalog.reports.batch(intent.batch_id)
    assert batch is not None
    consumer.write(intent, BatchOutcome(1, 0, 1).counts(), lambda session: _append_row(session, location, batch.id))
    report = place.run()
    assert (report.recovered, report.progress.batches) == (True, 0)
    assert place.table() == [("a", 1), ("b", 99)]
    assert place.session.streams.has_data("j_stream") is False


@pytest.mark.long
def test_a_plan_whose_files_are_gone_is_rebuilt_from_its_bounds(place: Place) -> None:
    for name in "abcd":
        place.put(name, name)
    place.job(COUNT, max_files=2)
    intent, _ = _open_attempt(place)
    shutil.rmtree(Path(place.session.home.warehouse) / "_plans")
    place.run()
    assert [row[0] for row in place.table()] == ["a", "b", "c", "d"]
    assert intent.sequence == 1


def test_a_second_job_cannot_mirror_into_the_same_table(place: Place) -> None:
    place.put("a")
    place.job(COUNT)
    place.run()
    code = place.folder.parent / "code" / "job.py"
    with pytest.raises(InvalidStateError, match="job j"):
        place.session.jobs.create("other", f"{code}:f", "t", volume="v", returns="n INT")
    made = place.session.jobs.create("other", f"{code}:f", "t2", volume="v", returns="n INT")
    place.session.home.catalog.jobs.change(made, into=Name.parse("t"))  # as an earlier volstream allowed
    with pytest.raises(InvalidStateError, match="job j"):
        place.session.jobs.run("other")


@pytest.mark.long
def test_new_columns_evolve_the_table_and_another_type_is_rejected_before_any_file(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT)
    place.run()
    code = place.folder.parent / "code" / "job.py"
    code.write_text("def f(file):\n    return {'n': 5, 'label': 'new'}\n")
    place.session.jobs.alter("j", function=f"{code}:f", returns="n INT, label STRING")
    place.put("b", "1")
    place.refresh()
    place.run()
    assert place.table("_file_path, n, coalesce(label, '')") == [("a", 1, ""), ("b", 5, "new")]
    with pytest.raises(InvalidValueError, match="Column n of table t is INT, but the function returns STRING"):
        place.session.jobs.alter("j", function=f"{code}:f", returns="n STRING, label STRING")
    with pytest.raises(InvalidValueError, match=r"volstream drop table t, and create the job"):
        place.session.jobs.create("j", f"{code}:f", "t", returns="n STRING", volume="v", or_replace=True)
    place.put("c", "1")
    place.refresh()
    place.run()
    assert not place.session.jobs.failures("j")


def test_a_table_without_rows_takes_columns_of_other_types(place: Place) -> None:
    place.put("a", "1")
    place.job("def f(file):\n    raise ValueError('no total')\n", returns="n STRING", retries=0)
    place.run()
    assert place.table() == []
    code = place.folder.parent / "code" / "job.py"
    code.write_text("def f(file):\n    return {'n': 1.5}\n")
    place.session.jobs.alter("j", function=f"{code}:f", returns="n DOUBLE")
    place.session.jobs.retry("j")
    place.run()
    assert place.table() == [("a", 1.5)]
    assert owner_of(place.session.home.catalog, place.location) == place.session.jobs.get("j")


@pytest.mark.parametrize("changed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_file_that_is_back_as_it_was_is_processed_without_a_change_of_the_directory(place: Place, changed: bool) -> None:
    place.put("a", "1")
    place.refresh()
    away = place.folder.parent / "away"
    (place.folder / "a").rename(away)
    if changed:
        place.put("a", "22")
    place.job(COUNT)
    with session_on(place.gateway, retrying_at_once(place)) as session:
        assert session.jobs.run("j").progress.overtaken == 1
        away.rename(place.folder / "a")
        place.refresh()
        assert len(session.home.catalog.refreshes.committed(place.volume.id)) == 1, "there is nothing to tell"
        session.jobs.run("j")
    assert place.table() == [("a", 1)]
    assert not place.session.jobs.failures("j")


@pytest.mark.long
def test_a_condition_that_spark_rejects_is_a_user_error_and_loses_nothing(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT, where="to_timestamp(relative_path, 'nonsense-[') > last_modified_time")
    with pytest.raises(SqlError):
        place.run()
    place.session.jobs.alter("j", where="size < 10")
    place.run()
    assert place.table() == [("a", 1)]


def test_a_catalog_older_than_the_table_is_rejected(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT)
    place.run()
    # What a restored backup of before the run says of the stream.
    place.session.home.catalog.streams.change(place.session.streams.get("j_stream"), sequence=0, offset=None)
    with pytest.raises(InvalidStateError, match="older than the table"):
        place.run()
    assert place.table() == [("a", 1)]


def _open_attempt(place: Place):  # type: ignore[no-untyped-def]  # (intent, location) for the tests above
    """Begins an attempt as a run does and abandons it, as a killed process does."""
    session = place.session
    if place.volume.last_listing is None:
        place.refresh()
    services = session.jobs.services
    job = services.results.prepare(objects.file_job(session.jobs.get("j")))
    stream = session.streams.get("j_stream")
    covered = services.reader.pin(stream)
    assert covered is not None
    made, batches = services.planner.of_range(services.session, job, covered)
    session.home.catalog.consumptions.open((made, batches, stream))
    table = table_location(session.home.warehouse, job.into)
    return Consumer(session.home.catalog, DeltaWriter(place.gateway)).begin(batches[0], owner="gone", location=table), table


def _append_row(session, location: str, batch_id: str) -> None:  # type: ignore[no-untyped-def]  # Spark's session
    now = datetime.now(UTC).isoformat()
    frame = session.sql(
        f"SELECT CAST(99 AS INT) n, 'b' _file_path, 'v' _file_version, 2L _refresh_id, '{batch_id}' _batch_id, "
        f"TIMESTAMP '{now}' _processed_at"
    )
    frame.write.format("delta").mode("append").save(location)


@pytest.mark.long
def test_many_small_batches_leave_few_files(place: Place) -> None:
    place.put("0", "0")
    place.job(COUNT)
    for number in range(40):
        place.put(f"{number:02}", "x" * number)
        place.put("0", "0" * number)
        place.refresh()
        place.run()
    assert place.table() == sorted([("0", 39), *((f"{number:02}", number) for number in range(40))])
    assert len(DeltaTable(f"{place.session.home.warehouse}/tables/public/t").file_uris()) < 30


def test_an_appending_job_that_is_replaced_or_created_again_does_not_append_the_same_files(place: Place) -> None:
    jobs = place.session.jobs
    place.put("a.csv", "n\n1\n")
    place.put("b.csv", "n\n2\n")
    load = partial(jobs.load, "j", "v", schema="n INT", write="append", where="relative_path LIKE '%.csv'")
    load("t")
    load("t", or_replace=True)
    place.run()
    refused = r"The table t has rows of 2 files of the volume v already, such as a\.csv\..* volstream alter-job j\."
    with pytest.raises(InvalidStateError, match=refused):
        load("t", or_replace=True)
    load("t", if_not_exists=True)
    jobs.drop("j")
    with pytest.raises(InvalidStateError, match=refused):
        load("t")
    with pytest.raises(InvalidStateError, match="has rows of 1 file of"):
        load("t", where="relative_path = 'b.csv'")
    load("u")
    jobs.drop("j")
    place.put("a.csv", "n\n3\n")
    place.refresh()
    load("t", where="relative_path = 'a.csv'")
    place.run()
    assert place.table() == [("a.csv", 1), ("a.csv", 3), ("b.csv", 2)]
