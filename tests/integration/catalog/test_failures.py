"""Failed files in the catalog."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests import objects
from volstream.api.session import Session
from volstream.base.definitions import Job
from volstream.base.model.work import Failure, FailureKind, FailureState, Target
from volstream.catalog import Catalog, tables
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.failures import FailureFilter, cut
from volstream.cli.main import run
from volstream.errors import FencedError, JobChangedError

TARGET = Target("/t", "table", 0)


def fail(catalog: Catalog, job: Job, *failures: dict[str, object], superseded: tuple[str, ...] = ()) -> None:
    """A committed batch with these failures."""
    current = catalog.streams.by_id(job.stream_id)
    assert current is not None
    _, (batch,) = objects.store_plan(catalog, job, from_version=current.offset)
    intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
    found = [objects.failure(job, str(one.pop("path")), intent.attempt, **one) for one in map(dict, failures)]
    catalog.failures.add_pending(found)
    catalog.consumptions.commit(intent, BatchOutcome(0, len(found), 0, superseded))


def set_state(catalog: Catalog, job: Job, state: FailureState, **those: Any) -> Sequence[str]:
    with catalog.database.transaction() as transaction:
        return catalog.failures.set_state(transaction, job.id, state, **those)


def states(catalog: Catalog, job: Job) -> dict[str, FailureState]:
    return {one.path: one.state for one in catalog.failures.active(job.id)}


def test_failures_of_an_open_attempt_are_invisible(catalog: Catalog, job: Job) -> None:
    _, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
    catalog.failures.add_pending([objects.failure(job, "a", intent.attempt)])
    assert catalog.failures.active(job.id) == []
    assert catalog.failures.due(job.id, objects.NOW, 10) == []
    assert catalog.failures.next_due(job.id) is None
    assert catalog.failures.counts(job.id) == {}
    catalog.consumptions.commit(intent, BatchOutcome(1, 1, 1))
    assert states(catalog, job) == {"a": FailureState.RETRYING}


def test_the_state_follows_from_the_kind_and_the_next_retry(catalog: Catalog, job: Job) -> None:
    fail(
        catalog,
        job,
        {"path": "again"},
        {"path": "gone", "kind": FailureKind.VANISHED, "next_try": None},
        {"path": "moved", "kind": FailureKind.CHANGED},
        {"path": "out of tries", "next_try": None},
    )
    assert states(catalog, job) == {
        "again": FailureState.RETRYING,
        "gone": FailureState.WAITING,
        "moved": FailureState.WAITING,
        "out of tries": FailureState.QUARANTINED,
    }
    assert catalog.failures.counts(job.id) == {"retrying": 1, "waiting": 2, "quarantined": 1}


def test_every_field_of_a_failure_is_read_back(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "ü/%", "message": "m", "traceback": "t", "attempts": 4, "file_version": "v9"})
    (found,) = catalog.failures.active(job.id)
    attempt = found.attempt
    assert found == objects.failure(
        job, "ü/%", attempt, message="m", traceback="t", attempts=4, file_version="v9", state=FailureState.RETRYING
    )


def test_a_batch_resolves_only_the_earlier_failures_of_its_own_files(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "healed"}, {"path": "worse"}, {"path": "elsewhere"})
    fail(catalog, job, {"path": "worse", "attempts": 2, "next_try": None}, superseded=("healed", "worse"))
    assert states(catalog, job) == {"elsewhere": FailureState.RETRYING, "worse": FailureState.QUARANTINED}


def test_a_file_has_one_failure_even_if_the_earlier_one_was_not_named(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a"})
    fail(catalog, job, {"path": "a", "attempts": 2})
    assert [one.attempts for one in catalog.failures.active(job.id)] == [2]


def test_failures_of_other_jobs_are_left_alone(catalog: Catalog, job: Job) -> None:
    other_stream = objects.stream(name="other")
    other = objects.job(other_stream, "other")
    with catalog.database.transaction() as transaction:
        catalog.streams.add(transaction, other_stream)
        catalog.jobs.add(transaction, other)
    fail(catalog, other, {"path": "a"})
    fail(catalog, job, {"path": "b"}, superseded=("a",))
    assert states(catalog, other) == {"a": FailureState.RETRYING}
    assert len(catalog.failures.active()) == 2


def test_due_failures_are_ordered_longest_due_first(catalog: Catalog, job: Job) -> None:
    later = objects.NOW + timedelta(seconds=1)
    fail(catalog, job, {"path": "b"}, {"path": "c", "next_try": later}, {"path": "a"})
    assert [one.path for one in catalog.failures.due(job.id, objects.NOW, 10)] == ["a", "b"]
    assert [one.path for one in catalog.failures.due(job.id, later, 2)] == ["a", "b"]
    assert [one.path for one in catalog.failures.due(job.id, later, 10)] == ["a", "b", "c"]
    assert catalog.failures.next_due(job.id) == objects.NOW


def test_skip_and_retry_affect_the_named_files(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a"}, {"path": "b", "next_try": None}, {"path": "c"})
    moved = set_state(catalog, job, FailureState.SKIPPED, paths=["a", "unknown"])
    assert moved == ["a"]
    assert catalog.failures.due(job.id, objects.NOW, 10) == [one for one in catalog.failures.active(job.id) if one.path == "c"]
    # All that failed, but for what was given up knowingly; a skipped one is retried when it is named.
    assert set_state(catalog, job, FailureState.RETRYING, paths=None) == ["b", "c"]
    assert states(catalog, job)["a"] is FailureState.SKIPPED
    assert set_state(catalog, job, FailureState.RETRYING, paths=["a"]) == ["a"]
    assert states(catalog, job) == dict.fromkeys("abc", FailureState.RETRYING)


def test_failures_can_be_selected_by_kind_and_sql_pattern(catalog: Catalog, job: Job) -> None:
    names = ["scans/a.pdf", "scans/A.pdf", "scans/b*.txt", "SCANS/a.pdf", "scans/a_pdf", "[x]/a.pdf", "scans/%.pdf"]
    fail(catalog, job, *(dict[str, object](path=name) for name in names[:-1]), {"path": names[-1], "kind": FailureKind.TIMED_OUT})

    def found(**sort: Any) -> list[str]:
        wanted = FailureFilter(**sort)
        paths = [one.path for one in catalog.failures.active(job.id, wanted=wanted)]
        assert catalog.failures.count(job.id, wanted) == len(paths)
        return sorted(paths)

    assert found(like="scans/%.pdf") == ["scans/%.pdf", "scans/A.pdf", "scans/a.pdf"]
    assert found(like="scans/a_pdf") == ["scans/a.pdf", "scans/a_pdf"]
    assert found(like="scans/a\\_pdf") == ["scans/a_pdf"]
    assert found(like="scans/\\%%") == ["scans/%.pdf"]
    assert found(like="[x]/%") == ["[x]/a.pdf"]
    assert found(like="%*.txt") == ["scans/b*.txt"]
    assert found(like="scans/a\\") == found(like="scans/a\\\\") == []
    assert found(kinds=[FailureKind.TIMED_OUT]) == ["scans/%.pdf"]
    wanted = FailureFilter(like="scans/%.pdf")
    moved = set_state(catalog, job, FailureState.SKIPPED, paths=None, wanted=wanted)
    assert sorted(moved) == found(like="scans/%.pdf") == found(states=[FailureState.SKIPPED])


def test_a_failure_recorded_while_the_clock_was_ahead_is_due_at_once(catalog: Catalog, job: Job) -> None:
    now = datetime.now(UTC)
    ahead = {"failed_on": now + timedelta(hours=1), "next_try": now + timedelta(hours=1)}
    fail(catalog, job, {"path": "a", **ahead}, {"path": "b", "next_try": now + timedelta(hours=1)})
    assert [one.path for one in catalog.failures.due(job.id, now, 10)] == ["a"]
    due = catalog.failures.next_due(job.id)
    assert due is not None
    assert due < now + timedelta(minutes=1)


def test_what_is_asked_for_while_the_clock_is_ahead_is_due_at_once_when_it_is_right_again(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a", "next_try": None}, {"path": "b"}, {"path": "c"})
    now = datetime.now(UTC)
    set_state(catalog, job, FailureState.RETRYING, paths=["a"])  # whatever time it is
    looked_at = [one for one in catalog.failures.active(job.id) if one.path == "b"]
    catalog.failures.postpone(job, looked_at, now + timedelta(days=365))
    assert [one.path for one in catalog.failures.due(job.id, now, 10)] == ["a", "c", "b"]
    due = catalog.failures.next_due(job.id)
    assert due is not None
    assert due <= now


def test_a_postponed_failure_waits_and_becomes_due_again(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a"}, {"path": "b"})
    (a, _) = catalog.failures.active(job.id)
    catalog.failures.postpone(job, [a], datetime.now(UTC))
    assert states(catalog, job) == {"a": FailureState.WAITING, "b": FailureState.RETRYING}
    later = datetime.now(UTC) + timedelta(hours=2)
    assert {one.path for one in catalog.failures.due(job.id, datetime.now(UTC), 10)} == {"b"}
    assert {one.path for one in catalog.failures.due(job.id, later, 10)} == {"a", "b"}


def test_what_is_to_be_tried_again_is_not_postponed_by_a_run_that_looked_before(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a"})
    looked_at = catalog.failures.active(job.id)
    with catalog.database.transaction() as transaction:
        catalog.jobs.alter(transaction, job)
    with pytest.raises(JobChangedError):
        catalog.failures.postpone(job, looked_at, datetime.now(UTC))
    assert states(catalog, job) == {"a": FailureState.RETRYING}


@pytest.mark.parametrize("superseded", [(), ("a", "b")])
def test_a_skipped_version_of_a_file_that_fails_again_stays_skipped(
    catalog: Catalog, job: Job, superseded: tuple[str, ...]
) -> None:
    fail(catalog, job, {"path": "a"}, {"path": "b"})
    set_state(catalog, job, FailureState.SKIPPED, paths=None)
    fail(catalog, job, {"path": "a"}, {"path": "b", "file_version": "newer"}, superseded=superseded)
    assert states(catalog, job) == {"a": FailureState.SKIPPED, "b": FailureState.RETRYING}


def test_a_failure_from_a_clock_that_was_ahead_can_be_postponed(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a", "failed_on": datetime.now(UTC) + timedelta(days=1)})
    catalog.failures.postpone(job, catalog.failures.active(job.id), datetime.now(UTC))
    assert catalog.failures.due(job.id, datetime.now(UTC), 10) == []


def test_a_vanished_file_that_may_return_unchanged_becomes_due_automatically(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a", "kind": FailureKind.VANISHED})
    assert states(catalog, job) == {"a": FailureState.WAITING}
    assert [one.path for one in catalog.failures.due(job.id, objects.NOW, 10)] == ["a"]
    assert catalog.failures.next_due(job.id) == objects.NOW


def test_failures_are_found_between_bounds_in_byte_order(catalog: Catalog, job: Job) -> None:
    names = ["B", "a", "é", "中"]
    fail(catalog, job, *(dict[str, object](path=name) for name in reversed(names)))

    def found(**bounds: str) -> list[str]:
        return [one.path for one in catalog.failures.active(job.id, **bounds)]  # type: ignore[arg-type]  # str is fine

    assert found() == names
    assert found(after="B", until="é") == ["a", "é"]
    assert found(path="中") == ["中"]
    assert [one.path for one in catalog.failures.active(job.id, limit=1)] == ["B"]


def test_more_failures_than_fit_one_statement_are_stored_and_superseded(catalog: Catalog, job: Job) -> None:
    paths = [f"{number:05d}" for number in range(1201)]
    fail(catalog, job, *(dict[str, object](path=path) for path in paths))
    assert len(catalog.failures.active(job.id)) == 1201
    fail(catalog, job, superseded=tuple(paths[1:]))
    assert list(states(catalog, job)) == ["00000"]


def test_failures_that_arrive_slowly_do_not_block_other_writers(catalog: Catalog, job: Job, url: str) -> None:
    other = Catalog(url)
    _, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)

    def found() -> Iterator[Failure]:
        assert other.leases.acquire("name", "owner", "test", 60) is None
        yield objects.failure(job, "a", intent.attempt)

    catalog.failures.add_pending(found())
    other.close()


def test_text_that_no_database_can_store_is_escaped(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a", "message": "nul \0, half \udcff", "traceback": "x" * 20_000})
    (found,) = catalog.failures.active(job.id)
    assert found.message == "nul \\x00, half \\udcff"
    assert found.traceback is not None
    assert len(found.traceback) < 8100
    assert "12000 characters left out" in found.traceback


def test_a_long_text_is_shortened_in_the_middle() -> None:
    assert cut("abcdefgh", 8) == "abcdefgh"
    assert cut("abcdefghi", 4) == "ab\n... 5 characters left out ...\nhi"


def test_failures_are_stored_for_paths_of_any_length(catalog: Catalog, job: Job) -> None:
    path = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(64))  # which does not compress
    fail(catalog, job, {"path": path, "message": "nul \0"})
    assert [one.message for one in catalog.failures.active(job.id, path=path)] == ["nul \\x00"]


def test_a_process_presumed_dead_leaves_no_failures_behind(catalog: Catalog, job: Job) -> None:
    _, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="zombie", target=TARGET)
    catalog.consumptions.abort(intent)
    with pytest.raises(FencedError):
        catalog.failures.add_pending([objects.failure(job, "a", intent.attempt)])
    with catalog.database.reading() as transaction:
        assert not transaction.execute(select(tables.failures)).all()


def test_a_list_of_failures_that_is_cut_says_so_and_json_has_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(tmp_path / "home")]
    assert run(["init", *home]) == 0
    with Session.builder.config("home", tmp_path / "home").create() as session:
        _, _, job = objects.store_job(session.home.catalog)
        found: list[dict[str, object]] = [{"path": f"{number:04}"} for number in range(1001)]
        fail(session.home.catalog, job, *found)
    capsys.readouterr()
    assert run(["list", "failures", *home]) == 0
    shown = capsys.readouterr()
    assert "These are 1000 of 1001 failures." in " ".join((shown.out + shown.err).split())
    assert run(["list", "failures", "--format", "json", *home]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1001


def test_a_run_with_an_earlier_condition_forgets_no_failure(catalog: Catalog, job: Job) -> None:
    fail(catalog, job, {"path": "a"})
    with catalog.database.transaction() as transaction:
        now = catalog.jobs.alter(transaction, job, where="size > 1")
    with pytest.raises(JobChangedError):
        catalog.failures.forget(job, ["a"])
    assert states(catalog, job) == {"a": FailureState.RETRYING}
    catalog.failures.forget(now, ["a"])
    assert states(catalog, job) == {}
