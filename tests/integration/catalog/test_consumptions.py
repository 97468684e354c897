"""Plans, batches and intents: the catalog's side of exactly once."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime, timedelta

import pytest

from tests import objects
from tests.processes import race
from volstream.base.definitions import FileJob, Job, JobState, Stream
from volstream.base.model.work import Batch, BatchState, FailureState, Load, Plan, PlanKind, PlanState, Target
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import FencedError, JobChangedError, StreamBusyError

TARGET = Target("/warehouse/tables/public/labels", "table", 4)
DONE = BatchOutcome(succeeded=2, failed=0, rows=2)
ALL_FAILED = BatchOutcome(succeeded=0, failed=2, rows=0)


def stream_of(catalog: Catalog, job: Job) -> Stream:
    found = catalog.streams.by_id(job.stream_id)
    assert found is not None
    return found


def test_the_offset_moves_with_the_last_batch_and_not_before(catalog: Catalog, job: Job) -> None:
    made, batches = objects.store_plan(catalog, job, batches=3)
    for number, batch in enumerate(batches, start=1):
        assert stream_of(catalog, job).offset == 3
        assert catalog.consumptions.next_batch(made) == dataclasses.replace(batch, attempts=0)
        intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
        assert (intent.sequence, intent.app_id()) == (number, f"volstream:{job.stream_id}#0")
        catalog.consumptions.commit(intent, DONE)
    moved = stream_of(catalog, job)
    assert (moved.offset, moved.initial, moved.sequence) == (7, False, 3)
    assert catalog.consumptions.next_batch(made) is None
    assert catalog.consumptions.open_plan(job.stream_id) is None
    ended = catalog.reports.plan(made.id)
    assert ended is not None
    assert ended.state is PlanState.DONE
    stored = catalog.reports.batch(batches[0].id)
    assert stored is not None
    assert (stored.state, stored.succeeded, stored.rows, stored.sequence, stored.attempts) == (BatchState.COMMITTED, 2, 2, 1, 1)
    assert stored.committed_on is not None


def test_a_consumed_stream_adopts_the_table_and_has_shown_its_initial_rows(catalog: Catalog, job: Job) -> None:
    stream = catalog.streams.change(stream_of(catalog, job), offset=None, table_id=None, initial=True)
    _, (batch,) = objects.store_plan(catalog, job, table_id="adopted", from_version=None, to_version=2)
    catalog.consumptions.commit(catalog.consumptions.begin(batch, owner="me", target=TARGET), DONE)
    moved = stream_of(catalog, job)
    assert (moved.offset, moved.table_id, moved.initial) == (2, "adopted", False)
    assert stream.initial


def test_a_stream_has_one_open_plan(catalog: Catalog, job: Job) -> None:
    made, _ = objects.store_plan(catalog, job)
    assert catalog.consumptions.open_plan(job.stream_id) == made
    with pytest.raises(StreamBusyError, match=f"plan {made.id}"):
        objects.store_plan(catalog, job)
    assert catalog.consumptions.open_plans() == [made.id]


@pytest.mark.parametrize("change", [{"offset": 9}, {"initial": True}])
def test_a_plan_made_before_the_stream_moved_is_fenced(catalog: Catalog, job: Job, change: dict[str, object]) -> None:
    before = stream_of(catalog, job)
    catalog.streams.change(before, **change)
    made = objects.plan(job)
    with pytest.raises(FencedError):
        catalog.consumptions.open((made, [objects.batch(made)], before))
    assert catalog.reports.plan(made.id) is None


def test_a_plan_for_a_stream_that_is_gone_is_fenced(catalog: Catalog, job: Job) -> None:
    gone = objects.stream()
    made = objects.plan(job, stream_id=gone.id)
    with pytest.raises(FencedError):
        catalog.consumptions.open((made, [objects.batch(made)], gone))


def test_a_second_attempt_waits_for_the_first_to_end(catalog: Catalog, job: Job) -> None:
    _, batches = objects.store_plan(catalog, job, batches=2)
    first = catalog.consumptions.begin(batches[0], owner="me", target=TARGET)
    assert catalog.consumptions.open_intent(job.stream_id) == first
    with pytest.raises(FencedError, match="is intent"):
        catalog.consumptions.begin(batches[0], owner="you", target=TARGET)
    with pytest.raises(StreamBusyError):
        catalog.consumptions.begin(batches[1], owner="you", target=TARGET)


def test_an_attempt_commits_once(catalog: Catalog, job: Job) -> None:
    _, batches = objects.store_plan(catalog, job, batches=2)
    intent = catalog.consumptions.begin(batches[0], owner="me", target=TARGET)
    catalog.consumptions.commit(intent, DONE)
    with pytest.raises(FencedError, match=intent.attempt):
        catalog.consumptions.commit(intent, BatchOutcome(1, 1, 1))
    with pytest.raises(FencedError):
        catalog.consumptions.abort(intent)
    stored = catalog.reports.batch(batches[0].id)
    assert stored is not None
    assert (stored.succeeded, stored.failed) == (2, 0)
    with pytest.raises(FencedError, match="is committed"):
        catalog.consumptions.begin(batches[0], owner="me", target=TARGET)


def test_an_aborted_attempt_releases_its_batch_but_not_its_number(catalog: Catalog, job: Job) -> None:
    made, (batch,) = objects.store_plan(catalog, job)
    first = catalog.consumptions.begin(batch, owner="me", target=TARGET)
    catalog.failures.add_pending([objects.failure(job, "a", first.attempt)])
    catalog.consumptions.abort(first)
    assert catalog.consumptions.open_intent(job.stream_id) is None
    again = catalog.consumptions.next_batch(made)
    assert again is not None
    assert (again.state, again.attempts) == (BatchState.PLANNED, 1)
    with pytest.raises(FencedError):
        catalog.consumptions.commit(first, DONE)
    second = catalog.consumptions.begin(again, owner="me", target=TARGET)
    assert (second.sequence, stream_of(catalog, job).offset) == (2, 3)
    assert second.attempt != first.attempt
    catalog.consumptions.commit(second, DONE)
    assert catalog.failures.active(job.id) == []
    assert stream_of(catalog, job).offset == 7


def test_a_job_pauses_after_consecutive_batches_in_which_every_file_failed(catalog: Catalog, job: Job) -> None:
    _, batches = objects.store_plan(catalog, job, batches=6)
    outcomes = [ALL_FAILED, ALL_FAILED, BatchOutcome(1, 1, 1), ALL_FAILED, BatchOutcome(0, 0, 0), ALL_FAILED]
    for batch, outcome in zip(batches, outcomes, strict=True):
        assert catalog.jobs.get(job.name).state is JobState.ACTIVE
        catalog.consumptions.commit(catalog.consumptions.begin(batch, owner="me", target=TARGET), outcome)
    # A success resets the count; a batch of removals does not matter.
    assert objects.file_job(catalog.jobs.get(job.name)).failed_batches == 2
    objects.store_plan(catalog, job, from_version=7)
    waiting = catalog.consumptions.open_plan(job.stream_id)
    assert waiting is not None
    last = catalog.consumptions.next_batch(waiting)
    assert last is not None
    catalog.consumptions.commit(catalog.consumptions.begin(last, owner="me", target=TARGET), ALL_FAILED)
    paused = objects.file_job(catalog.jobs.get(job.name))
    assert (paused.state, paused.failed_batches) == (JobState.PAUSED, 0)
    assert paused.state_reason == "every file failed in 3 batches in a row"


def test_a_job_that_must_not_pause_does_not(catalog: Catalog) -> None:
    _, _, job = objects.store_job(catalog, pause_after=0)
    _, batches = objects.store_plan(catalog, job, batches=4)
    for batch in batches:
        catalog.consumptions.commit(catalog.consumptions.begin(batch, owner="me", target=TARGET), ALL_FAILED)
    assert catalog.jobs.get(job.name).state is JobState.ACTIVE


def test_retries_neither_move_the_offset_nor_pause_the_job(catalog: Catalog) -> None:
    _, _, job = objects.store_job(catalog, pause_after=1)
    made, (batch,) = objects.store_plan(catalog, job, kind=PlanKind.RETRY)
    catalog.consumptions.commit(catalog.consumptions.begin(batch, owner="me", target=TARGET), ALL_FAILED)
    assert stream_of(catalog, job).offset == 3
    assert catalog.jobs.get(job.name).state is JobState.ACTIVE
    ended = catalog.reports.plan(made.id)
    assert ended is not None
    assert ended.state is PlanState.DONE


def test_a_dropped_plan_keeps_what_was_committed_and_the_offset(catalog: Catalog, job: Job) -> None:
    made, batches = objects.store_plan(catalog, job, batches=2)
    catalog.consumptions.commit(catalog.consumptions.begin(batches[0], owner="me", target=TARGET), DONE)
    catalog.consumptions.drop_plan(made)
    states = [found.state for batch in batches if (found := catalog.reports.batch(batch.id)) is not None]
    assert states == [BatchState.COMMITTED, BatchState.DROPPED]
    assert catalog.consumptions.open_plan(job.stream_id) is None
    assert stream_of(catalog, job).offset == 3
    with pytest.raises(FencedError, match="is dropped"):
        catalog.consumptions.begin(batches[1], owner="me", target=TARGET)


def test_a_plan_that_is_being_written_is_not_dropped(catalog: Catalog, job: Job) -> None:
    made, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
    with pytest.raises(FencedError):
        catalog.consumptions.drop_plan(made)
    catalog.consumptions.commit(intent, DONE)
    with pytest.raises(FencedError):
        catalog.consumptions.drop_plan(made)


def test_a_stream_is_not_moved_during_a_plan_nor_from_an_outdated_offset(catalog: Catalog, job: Job) -> None:
    catalog.jobs.change(job, clean=True)
    before = stream_of(catalog, job)
    made, _ = objects.store_plan(catalog, job)
    with pytest.raises(StreamBusyError):
        catalog.consumptions.move(before, 1, "table")
    catalog.consumptions.drop_plan(made)
    assert catalog.consumptions.move(before, 1, "table").offset == 1
    with pytest.raises(FencedError):  # by who read it before
        catalog.consumptions.move(before, 2, "table")
    assert stream_of(catalog, job).offset == 1
    assert not objects.file_job(catalog.jobs.get(job.name)).clean


def sliced(made: Plan, number: int, *bounds: str | None) -> list[Batch]:
    """Batches from ``number`` on, between the bounds."""
    return [
        objects.batch(made, number + index, after_path=after, until_path=str(until), files=3)
        for index, (after, until) in enumerate(itertools.pairwise(bounds))
    ]


def test_unstarted_batches_are_recut_and_the_plan_still_ends_at_the_same_version(catalog: Catalog, job: Job) -> None:
    made, batches = objects.store_plan(catalog, job, batches=5)
    catalog.consumptions.commit(catalog.consumptions.begin(batches[0], owner="me", target=TARGET), DONE)
    waiting = catalog.consumptions.remaining(made, begun=False)
    assert waiting is not None
    assert (waiting.first.number, waiting.count, waiting.files, waiting.bytes) == (2, 4, 8, 80)
    assert (waiting.most_files, waiting.most_bytes) == (2, 20)
    catalog.consumptions.recut(made, sliced(made, 2, "0001", "00025", "0005"))
    for number in (2, 3):
        following = catalog.consumptions.next_batch(made)
        assert following is not None
        assert (following.number, following.files) == (number, 3)
        catalog.consumptions.commit(catalog.consumptions.begin(following, owner="me", target=TARGET), DONE)
    assert stream_of(catalog, job).offset == 7
    assert catalog.consumptions.remaining(made, begun=False) is None


def test_a_batch_in_work_is_not_recut_and_one_whose_attempt_has_ended_keeps_its_name(catalog: Catalog, job: Job) -> None:
    made, batches = objects.store_plan(catalog, job, batches=3)
    intent = catalog.consumptions.begin(batches[0], owner="me", target=TARGET)
    with pytest.raises(FencedError):
        catalog.consumptions.recut(made, sliced(made, 1, None, "0003"))
    catalog.consumptions.abort(intent)
    numbers = {}
    for begun in (False, True):
        waiting = catalog.consumptions.remaining(made, begun=begun)
        assert waiting is not None
        numbers[begun] = waiting.first.number
    assert numbers == {False: 2, True: 1}
    catalog.consumptions.recut(made, sliced(made, 2, "0001", "0003"))
    catalog.consumptions.recut(made, sliced(made, 1, None, "00005", "0003"))
    second, first = catalog.reports.batches_of(job.id)
    assert (first.id, first.attempts, first.until_path) == (batches[0].id, 1, "00005")
    assert (second.number, second.attempts, second.after_path) == (2, 0, "00005")
    assert [one.state for one in catalog.reports.attempts_at(first.id)] == ["aborted"]
    catalog.consumptions.commit(catalog.consumptions.begin(first, owner="me", target=TARGET), DONE)
    catalog.consumptions.commit(catalog.consumptions.begin(second, owner="me", target=TARGET), DONE)
    assert stream_of(catalog, job).offset == 7


@pytest.mark.parametrize("bounds", [("0002", "0003"), ("0001", "00029"), ("0001", "00025", "00029")])
def test_a_recut_that_leaves_out_paths_is_rejected(catalog: Catalog, job: Job, bounds: tuple[str, ...]) -> None:
    made, batches = objects.store_plan(catalog, job, batches=3)
    catalog.consumptions.commit(catalog.consumptions.begin(batches[0], owner="me", target=TARGET), DONE)
    with pytest.raises(FencedError):
        catalog.consumptions.recut(made, sliced(made, 2, *bounds))
    assert len(catalog.reports.batches_of(job.id)) == 3


def test_a_finished_plan_is_not_recut(catalog: Catalog, job: Job) -> None:
    made, _ = objects.store_plan(catalog, job, batches=2)
    catalog.consumptions.drop_plan(made)
    with pytest.raises(FencedError):
        catalog.consumptions.recut(made, sliced(made, 1, None, "0002"))


def test_the_duration_of_a_batch_is_stored(catalog: Catalog, job: Job) -> None:
    made, batches = objects.store_plan(catalog, job, batches=3)
    for batch, seconds in zip(batches, (2.5, None, 7.5), strict=True):
        intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
        catalog.consumptions.commit(intent, dataclasses.replace(DONE, seconds=seconds))
    assert [one.seconds for one in catalog.reports.measured(job.id)] == [7.5, 2.5]
    assert [one.seconds for one in catalog.reports.measured(job.id, plan_id=made.id, limit=1)] == [7.5]
    assert not catalog.reports.measured(job.id, plan_id="another")


def test_batches_committed_close_together_are_one_piece_of_work(catalog: Catalog, job: Job) -> None:
    since = datetime.now(UTC) - timedelta(hours=1)
    _, batches = objects.store_plan(catalog, job, batches=3)
    for batch, failed in zip(batches, (0, 1, 0), strict=True):
        intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
        catalog.consumptions.commit(intent, dataclasses.replace(DONE, failed=failed, seconds=30.0))
    whole = catalog.reports.worked_in([job.id, "another"], since, timedelta(hours=2))
    ((work,),) = whole.values()
    assert (work.batches, work.files, work.failed) == (3, sum(one.files for one in batches), 1)
    assert 29 < (work.ended_on - work.began_on).total_seconds() < 40
    assert abs((work.ended_on - datetime.now(UTC)).total_seconds()) < 10
    pieces = catalog.reports.worked_in([job.id], since, timedelta(milliseconds=1))[job.id]
    assert sum(one.batches for one in pieces) == 3
    assert not catalog.reports.worked_in([job.id], datetime.now(UTC) + timedelta(hours=1), timedelta(hours=1))


def test_advance_skips_a_range_without_data(catalog: Catalog, job: Job) -> None:
    before = stream_of(catalog, job)
    catalog.consumptions.advance(before, 5, "table")
    assert stream_of(catalog, job).offset == 5
    catalog.consumptions.advance(before, 9, "table")
    assert stream_of(catalog, job).offset == 5, "it had moved already"
    objects.store_plan(catalog, job, from_version=5)
    catalog.consumptions.advance(stream_of(catalog, job), 9, "table")
    assert stream_of(catalog, job).offset == 5, "a plan is open"


def test_batches_are_found_by_the_path_they_cover_in_byte_order(catalog: Catalog, job: Job) -> None:
    made = objects.plan(job)
    bounds = [(None, "B"), ("B", "a"), ("a", "é"), ("é", "中"), ("中", "\U0001f600")]
    batches = [
        objects.batch(made, number, after_path=after, until_path=until) for number, (after, until) in enumerate(bounds, start=1)
    ]
    catalog.consumptions.open((made, batches, stream_of(catalog, job)))
    expected = {"A": 1, "B": 1, "C": 2, "a": 2, "b": 3, "zz": 3, "é": 3, "中": 4, "中x": 5, "\uffff": 5}
    for path, number in expected.items():
        assert [batch.number for batch in catalog.reports.batches_of(covering=path)] == [number], path
    assert catalog.reports.batches_of("another job") == []
    assert len(catalog.reports.batches_of(job.id, limit=2)) == 2


def test_waiting_and_finished_work_is_totalled(catalog: Catalog, job: Job) -> None:
    _, batches = objects.store_plan(catalog, job, batches=3)
    catalog.consumptions.commit(
        catalog.consumptions.begin(batches[0], owner="me", target=TARGET), BatchOutcome(1, 1, 5, counted={"tokens": 1.5})
    )
    catalog.consumptions.begin(batches[1], owner="me", target=TARGET)
    assert catalog.reports.waiting(job.id) == Load(batches=2, files=4, bytes=40)
    assert catalog.reports.totals(job.id) == {"batches": 1, "succeeded": 1, "failed": 1, "rows": 5, "bytes": 20}
    assert catalog.reports.totals("another job")["batches"] == 0
    assert catalog.reports.counted(job.id) == {"tokens": 1.5}
    assert catalog.reports.counted("another job") == {}


def test_exactly_one_of_several_racing_processes_begins_a_batch(url: str, catalog: Catalog, job: Job) -> None:
    _, (batch,) = objects.store_plan(catalog, job)
    code = """
import atexit, sys
from volstream.catalog import Catalog
from volstream.errors import FencedError, StreamBusyError
from volstream.base.model.work import Target
catalog = Catalog(sys.argv[1])
atexit.register(catalog.close)
batch = catalog.reports.batch(sys.argv[2])
input()
try:
    print(catalog.consumptions.begin(batch, owner="owner", target=Target("/t", "table", 0)).sequence)
except (FencedError, StreamBusyError):
    print("refused")
"""
    assert sorted(race(code, [url, batch.id], processes=3)) == ["1", "refused", "refused"]
    assert stream_of(catalog, job).sequence == 1


@pytest.mark.long
def test_exactly_one_of_several_racing_recoverers_resolves_an_intent(url: str, catalog: Catalog, job: Job) -> None:
    _, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="gone", target=TARGET)
    code = """
import atexit, sys
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import FencedError
catalog = Catalog(sys.argv[1])
atexit.register(catalog.close)
intent = catalog.consumptions.open_intent(sys.argv[2])
input()
try:
    catalog.consumptions.commit(intent, BatchOutcome(1, 0, 1))
    print("committed")
except FencedError:
    print("fenced")
"""
    assert sorted(race(code, [url, job.stream_id], processes=3)) == ["committed", "fenced", "fenced"]
    with pytest.raises(FencedError):
        catalog.consumptions.abort(intent)
    assert stream_of(catalog, job).offset == 7


def altered(catalog: Catalog, job: Job) -> Job:
    with catalog.database.transaction() as transaction:
        return catalog.jobs.alter(transaction, job)


def test_failures_of_an_attempt_with_an_earlier_definition_are_due_with_all_their_retries(catalog: Catalog, job: Job) -> None:
    _, (first, second) = objects.store_plan(catalog, job, batches=2)
    for batch, path in ((first, "old"), (second, "new")):
        current = catalog.jobs.get(job.name)
        intent = catalog.consumptions.begin(batch, owner="me", target=TARGET, job=current)
        catalog.failures.add_pending([objects.failure(job, path, intent.attempt, attempts=3, next_try=None)])
        if path == "old":
            altered(catalog, current)
        assert intent == catalog.consumptions.open_intent(job.stream_id)  # whoever settles it knows as much
        catalog.consumptions.commit(intent, ALL_FAILED)
    new, old = catalog.failures.active(job.id)
    assert (new.state, new.attempts) == (FailureState.QUARANTINED, 3)
    assert (old.state, old.attempts, old.next_try) == (FailureState.RETRYING, 0, old.failed_on)


def test_a_batch_that_failed_with_an_earlier_definition_does_not_pause_the_job(catalog: Catalog) -> None:
    _, _, job = objects.store_job(catalog, pause_after=1)
    _, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="me", target=TARGET, job=job)
    altered(catalog, job)
    catalog.consumptions.commit(intent, ALL_FAILED)
    assert catalog.jobs.get(job.name).state is JobState.ACTIVE


def test_a_plan_for_an_earlier_definition_is_not_opened(catalog: Catalog, job: Job) -> None:
    made = objects.plan(job)
    altered(catalog, job)
    with pytest.raises(JobChangedError, match="was changed or dropped by someone else"):
        catalog.consumptions.open((made, [objects.batch(made)], stream_of(catalog, job)), job=job)
    assert catalog.consumptions.open_plan(job.stream_id) is None


def test_a_batch_is_not_begun_with_an_earlier_definition(catalog: Catalog, job: Job) -> None:
    _, (batch,) = objects.store_plan(catalog, job)
    altered(catalog, job)
    with pytest.raises(JobChangedError, match="was changed or dropped by someone else"):
        catalog.consumptions.begin(batch, owner="me", target=TARGET, job=job)
    assert catalog.consumptions.open_intent(job.stream_id) is None


def test_a_stream_does_not_move_past_what_an_earlier_definition_leaves_out(catalog: Catalog, job: Job) -> None:
    stream = stream_of(catalog, job)
    altered(catalog, job)
    with pytest.raises(JobChangedError, match="was changed or dropped by someone else"):
        catalog.consumptions.advance(stream, 7, "table", job)
    assert stream_of(catalog, job) == stream


def test_a_run_in_progress_notices_that_its_stream_was_moved(catalog: Catalog) -> None:
    _, stream, job = objects.store_job(catalog)
    catalog.consumptions.move(stream, 1, "table")
    with pytest.raises(JobChangedError):
        catalog.jobs.change(job, clean=True)
    moved = catalog.jobs.get(job.name)
    assert isinstance(moved, FileJob)
    assert moved.may_have_strays
