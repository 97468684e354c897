"""Jobs with unusual ranges, plans and tables: rows are neither duplicated nor left over."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import stamina

from tests import objects
from tests.integration.conftest import COUNT, Place
from tests.waiting import eventually
from volstream.base.definitions import FileJob, JobState, StreamMode, Write
from volstream.base.model.names import Name
from volstream.base.model.work import FailureState, Intent
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.leases import of_job
from volstream.changes.streams.consume import Consumer
from volstream.errors import FencedError, FunctionLoadError, InvalidValueError, StorageError, StreamBusyError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.aws.store import S3Store
from volstream.functions.file import File
from volstream.functions.finding import find
from volstream.functions.trial import try_function
from volstream.jobs.batches.staged import Staged
from volstream.jobs.batches.stager import target_of_rows, work_on
from volstream.jobs.runs.lease import Progress
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import table_location
from volstream.tables.delta.writer import DeltaWriter

FAILING = "def f(file):\n    raise ValueError('no good')\n"


def change(place: Place, *, delete: str | None = None, **files: str) -> None:
    """One refresh with these changes."""
    for path, content in files.items():
        place.put(path, content)
    if delete is not None:
        place.delete(delete)
    place.refresh()


def consumer(place: Place) -> Consumer:
    return Consumer(place.session.home.catalog, DeltaWriter(place.gateway))


def begin(place: Place, owner: str = "gone") -> Intent:
    """The next batch's INTENT, as of a process that then died."""
    catalog = place.session.home.catalog
    job = place.session.jobs.get("j")
    plan = catalog.consumptions.open_plan(job.stream_id)
    assert plan is not None
    batch = catalog.consumptions.next_batch(plan)
    assert batch is not None
    return consumer(place).begin(batch, owner=owner, location=table_location(place.session.home.warehouse, job.into))


@pytest.mark.long
def test_a_returning_path_has_no_old_rows_even_if_its_stream_shows_no_deletes(place: Place) -> None:
    change(place, a="1")
    place.session.streams.create("s", "v", mode=StreamMode.APPEND_ONLY, at_version=0)
    place.job(COUNT, stream="s", volume=None)
    place.run()
    change(place, delete="a")
    place.run()
    change(place, a="333")
    place.run()
    assert place.table() == [("a", 3)]


@pytest.mark.long
def test_a_failed_file_of_an_append_only_stream_is_tried_as_it_is_now_and_forgotten_once_it_is_gone(place: Place) -> None:
    change(place, first="1")
    place.session.streams.create("s", "v", mode=StreamMode.APPEND_ONLY, at_version=1)
    place.job("def f(file):\n    return {'n': int(file.read_text())}\n", stream="s", volume=None, retries=0)
    change(place, a="odd", b="odd")
    place.run()
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["a", "b"]
    change(place, a="7")
    place.session.jobs.retry("j")
    place.run()
    assert place.table() == [("a", 7)]
    change(place, delete="b")
    place.run()
    assert place.session.jobs.failures("j") == []


@pytest.mark.long
def test_a_returning_path_has_no_old_rows_after_a_range_was_discarded(place: Place) -> None:
    change(place, a="1")
    place.job(COUNT)
    place.run()
    change(place, delete="a")
    place.session.streams.advance("j_stream")
    change(place, a="333")
    place.run()
    assert place.table() == [("a", 3)]


def test_resetting_a_stream_during_its_job_duplicates_no_row(place: Place) -> None:
    change(place, a="1", b="22")
    place.job(COUNT)
    resets = iter([0])

    def reset(progress: Progress) -> None:
        """Between the end of the first plan and the next one, of the same run."""
        if progress.batches:
            for version in resets:
                place.session.streams.reset("j_stream", to_version=version)

    place.session.jobs.run("j", until_empty=True, observe=reset)
    assert next(resets, None) is None
    assert place.table() == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_a_repeated_range_duplicates_no_row(place: Place) -> None:
    change(place, a="1", b="22")
    place.job(COUNT)
    place.run()
    place.session.streams.reset("j_stream", to_version=0)
    place.run()
    assert place.table() == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_a_replaced_job_duplicates_no_row_of_its_predecessor(place: Place) -> None:
    change(place, a="1", b="22")
    place.job(COUNT)
    place.run()
    place.job(COUNT, or_replace=True)
    place.run()
    assert place.table() == [("a", 1), ("b", 2)]


def test_a_plan_is_cut_by_bytes_and_a_large_file_is_its_own_batch(place: Place) -> None:
    change(place, a="x" * 4, b="x" * 4, c="x" * 50, d="x")
    place.job(COUNT, max_bytes=10)
    place.run()
    batches = place.session.home.catalog.reports.batches_of()
    assert [(batch.until_path, batch.files, batch.bytes) for batch in reversed(batches)] == [
        ("b", 2, 8),
        ("c", 1, 50),
        ("d", 1, 1),
    ]
    assert [commit.operation for commit in DeltaLog(_table(place)).commits_after(0)] == ["WRITE"] * 3
    assert place.table() == [("a", 4), ("b", 4), ("c", 50), ("d", 1)]


@pytest.mark.long
def test_changes_follow_initial_rows_even_if_none_of_those_is_wanted(place: Place) -> None:
    change(place, a="too large")
    place.job(COUNT, where="size < 3")
    change(place, b="1")
    report = place.session.jobs.run("j", until_empty=True)
    assert report.progress.batches == 1
    assert place.table() == [("b", 1)]


def test_a_second_run_of_a_running_job_is_refused_and_names_the_first(place: Place) -> None:
    change(place, a="1")
    place.job(COUNT)
    job = place.session.jobs.get("j")
    place.session.home.catalog.leases.acquire(of_job(job.id), "another-host/1/1.00/x", "run of job j", 60)
    with pytest.raises(StreamBusyError, match="another-host"):
        place.run()
    told: list[str] = []

    def ends(why: str) -> None:
        told.append(why)
        place.session.home.catalog.leases.release(of_job(job.id), "another-host/1/1.00/x")

    assert place.session.jobs.run("j", waits=ends).progress.done_files == 1
    assert told == ["Another run of the job j is in progress, on another-host."]


@pytest.mark.long
def test_an_attempt_that_died_after_its_commit_is_rolled_forward_without_the_plan_files(place: Place) -> None:
    change(place, a="1", b="22")
    place.job(FAILING, retries=0)
    place.run()
    change(place, b="333")
    _plan_only(place)
    intent = begin(place)
    batch = place.session.home.catalog.reports.batch(intent.batch_id)
    assert batch is not None
    row = (
        f"SELECT CAST(9 AS INT) n, 'b' _file_path, 'v' _file_version, 1L _refresh_id, '{batch.id}' _batch_id, now() _processed_at"
    )
    consumer(place).write(
        intent,
        BatchOutcome(1, 0, 1).counts(),
        lambda session: session.sql(row).write.format("delta").mode("append").save(_table(place)),
    )
    shutil.rmtree(Path(place.session.home.warehouse) / "_plans")
    report = place.run()
    assert (report.recovered, report.progress.batches) == (True, 0)
    assert place.table() == [("b", 9)]
    # The batch ends what failed before of its files, which only the plan names.
    assert [(failure.path, failure.state) for failure in place.session.jobs.failures("j")] == [("a", FailureState.QUARANTINED)]
    assert not place.session.streams.has_data("j_stream")


@pytest.mark.long
def test_failures_of_a_dead_attempt_do_not_count(place: Place) -> None:
    change(place, a="1", b="22")
    place.job(FAILING, max_files=1, pause_after=1)
    place.run()
    place.session.jobs.resume("j")
    intent = begin(place)
    job = place.session.jobs.get("j")
    place.session.home.catalog.failures.add_pending([objects.failure(job, "b", intent.attempt, message="of the dead")])
    place.run()
    found = {failure.path: (failure.attempts, failure.message) for failure in place.session.jobs.failures("j")}
    assert found["b"] == (1, "ValueError: no good")
    assert len(found) == 2


@pytest.mark.long
def test_a_batch_with_nothing_to_write_is_still_committed(place: Place) -> None:
    change(place, a="1", b="22")
    place.job("def f(file):\n    return None\n")
    place.run()
    assert place.table() == []
    # Removals that hit no row: the DML makes no commit, so a marker has to.
    change(place, delete="a")
    assert place.run().progress.removals == 1
    assert not place.session.streams.has_data("j_stream")
    assert [one.state for one in place.session.home.catalog.reports.batches_of()] == ["committed"] * 2


@pytest.mark.long
def test_an_append_table_has_each_version_once_after_a_dead_attempt(place: Place) -> None:
    change(place, a="1", b="22")
    place.job(COUNT, write=Write.APPEND, max_files=1)
    place.run()
    change(place, a="333", c="4444")
    _plan_only(place)
    begin(place)
    place.run()
    assert place.table() == [("a", 1), ("a", 3), ("b", 2), ("c", 4)]


def _plan_only(place: Place) -> None:
    """A run that ends after its plan: as if it had been killed there."""

    class StoppingError(Exception):
        pass

    def stop(progress: object) -> None:
        raise StoppingError

    with pytest.raises(StoppingError):
        place.session.jobs.run("j", observe=stop)


def _table(place: Place) -> str:
    return table_location(place.session.home.warehouse, place.session.jobs.get("j").into)


def test_a_failing_setup_is_not_blamed_on_files_and_pauses_the_job(place: Place) -> None:
    change(place, a="1", b="22")
    code = "class f:\n    def __init__(self): {body}\n    def __call__(self, file): return {{'n': file.size}}\n"
    place.job(code.format(body="raise OSError('no model here')"))
    with pytest.raises(FunctionLoadError, match="cannot be set up: OSError: no model here"):
        place.run()
    assert place.session.jobs.get("j").state is JobState.PAUSED
    assert not place.session.jobs.failures("j")
    (place.folder.parent / "code" / "job.py").write_text(code.format(body="pass"))
    place.session.jobs.resume("j")
    assert place.run().progress.failed == 0
    assert place.table() == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_a_job_whose_run_died_mid_batch_can_be_dropped_without_running_it(place: Place) -> None:
    change(place, a="1")
    place.job(COUNT)
    place.run()
    change(place, b="22")
    _plan_only(place)
    intent = begin(place)
    place.session.jobs.drop("j")
    assert place.table() == [("a", 1)]
    # The process that had begun it can no longer commit.
    table = OpenTable.newest(table_location(place.session.home.warehouse, Name.parse("t")))
    assert table is not None
    marked = table.transaction(intent.app_id())
    assert marked is not None
    assert marked >= intent.marker_sequence


@pytest.mark.long
@pytest.mark.parametrize("force", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_job_in_the_middle_of_a_batch_can_only_be_dropped_by_force(place: Place, force: bool) -> None:
    change(place, a="1")
    gate = place.folder.parent / "gate"
    place.job(
        f"import os, time\ndef f(file):\n    while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n    return {{'n': 1}}"
    )
    job = place.session.jobs.get("j")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(place.run)
        eventually(lambda: place.session.home.catalog.consumptions.open_intent(job.stream_id) is not None)
        if force:
            place.session.jobs.drop("j", force=True)
        else:
            with pytest.raises(StreamBusyError, match="volstream drop job j --force"):
                place.session.jobs.drop("j")
        gate.touch()
        if force:
            with pytest.raises(FencedError):
                run.result()
        else:
            assert run.result().progress.done_files == 1
    assert (place.session.home.catalog.jobs.by_id(job.id) is None) == force


def test_a_cloud_without_keys_for_the_workers_is_a_storage_error_of_which_spark_prints_nothing(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    role = "arn:aws:iam::123456789012:role/reader"  # the workers get its keys
    closed = Access("s3", "us-east-1", "http://127.0.0.1:1", role, credentials="static", keys=Keys("AKIATEST", "secret"))
    home = place.session.home
    place.job(COUNT)
    job = home.catalog.jobs.get(Name.parse("j"))
    assert isinstance(job, FileJob)
    work = work_on(home.settings, job, find(job.function), S3Store("s3://bucket", closed))
    location = f"{home.warehouse}/staged"
    with place.gateway.pooled() as spark, pytest.raises(StorageError) as error, stamina.set_testing(True, attempts=1):
        Staged.run(location, target_of_rows(job, location, "a batch"), spark.range(1), work)
    assert error.value.transient
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_relative_path_begins_at_the_functions_folder_wherever_it_is_called(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, isolate: bool
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "n.txt").write_text("7")
    (tmp_path / "n.txt").write_text("wrong")
    monkeypatch.chdir(tmp_path)
    place.put("a.txt")
    place.job(
        "import pathlib\ndef f(file):\n    return {'n': int(pathlib.Path('n.txt').read_text())}\n", returns=None, isolate=isolate
    )
    place.run()
    assert place.table() == [("a.txt", 7)]
    [tried] = try_function(f"{code}/job.py:f", [str(place.folder / "a.txt")], None, {}, None).outcomes
    assert (tried.rows, Path.cwd()) == ([{"n": 7}], tmp_path)


def test_code_without_a_folder_finds_the_same_in_inference_and_in_a_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "n.txt").write_text("7")
    monkeypatch.chdir(tmp_path)
    place.put("a.txt")

    def here(file: File) -> dict[str, int]:
        return {"n": int(Path("n.txt").read_text())}

    with pytest.raises(InvalidValueError, match="No such file or directory"):
        place.session.jobs.create("j", here, "t", volume="v")
    place.session.jobs.create("j", here, "t", volume="v", returns="n INT")
    place.run()
    assert [failure.message for failure in place.session.jobs.failures()] != []
