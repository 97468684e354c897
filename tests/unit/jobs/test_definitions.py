"""Creating, altering, replacing and dropping jobs, without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests import objects
from tests.environments import environment
from volstream.base import config
from volstream.base.definitions import FileJob, FileJobSpec, JobState
from volstream.base.definitions.options import read
from volstream.base.model.names import Name
from volstream.base.model.work import FailureKind, FailureState, Target
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.definitions import note_begun
from volstream.errors import (
    AlreadyExistsError,
    FunctionLoadError,
    InvalidStateError,
    InvalidValueError,
    JobChangedError,
    NotFoundError,
    ObjectInUseError,
    StreamBusyError,
)
from volstream.functions.schema import InferredColumns, from_ddl
from volstream.home import Home
from volstream.jobs.rules.columns import Infer
from volstream.jobs.rules.definitions import alter_job, create_job, drop_job, set_paused

J, V, T = Name.parse("j"), Name.parse("v"), Name.parse("t")


class Place:
    """A catalog with a volume ``v``, and a function ``f`` in a file."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(config.load(folder / "home"))
        self.catalog = self.home.catalog
        self.code = folder / "code.py"
        self.code.write_text("def f(file, k=None): ...\ndef g(file): ...\n")
        self.volume = objects.volume("v")
        with self.catalog.database.transaction() as transaction:
            self.catalog.volumes.add(transaction, self.volume)

    def create(
        self, *, or_replace: bool = False, if_not_exists: bool = False, infer: Infer | None = None, **options: Any
    ) -> FileJob:
        given = {"name": J, "function": f"{self.code}:f", "into": T, "returns": "n INT", **options}
        if "stream" not in options:
            given.setdefault("volume", V)
        spec = FileJobSpec(**read(FileJobSpec, given))
        made = create_job(self.home, spec, or_replace=or_replace, if_not_exists=if_not_exists, infer=infer)
        return objects.file_job(made)

    def alter(self, **changes: Any) -> FileJob:
        return objects.file_job(alter_job(self.home, J, **read(FileJobSpec, changes)))

    def open_plan(self) -> None:
        objects.store_plan(self.catalog, self.catalog.jobs.get(J))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.home.close()


def test_a_job_on_a_volume_has_its_own_stream(place: Place) -> None:
    job = place.create(arguments={"k": "v"}, max_files=3)
    assert place.catalog.jobs.get(J) == job
    assert (job.owns_stream, job.returns, job.state, job.search_path) == (True, "n INT", JobState.ACTIVE, str(place.code.parent))
    assert place.catalog.streams.by_id(job.stream_id) == place.catalog.streams.get(Name.parse("j_stream"))
    assert drop_job(place.catalog, J)
    assert place.catalog.streams.list() == []


def test_dropping_a_job_on_a_stream_leaves_the_stream(place: Place) -> None:
    stream = _stream(place, "s")
    assert not place.create(stream=stream).owns_stream
    assert drop_job(place.catalog, J)
    assert [one.name for one in place.catalog.streams.list()] == [stream]


def test_a_job_needs_a_stream_or_a_volume(place: Place) -> None:
    with pytest.raises(InvalidValueError, match="either a stream or a volume"):
        place.create(stream=_stream(place, "s"), volume=V)
    with pytest.raises(InvalidValueError, match="either a stream or a volume"):
        place.create(volume=None)


def test_a_stream_serves_one_job(place: Place) -> None:
    stream = _stream(place, "s")
    place.create(stream=stream)
    with pytest.raises(ObjectInUseError, match="serves the job j"):
        place.create(name=Name.parse("other"), stream=stream)


def test_an_existing_stream_with_the_name_of_the_jobs_own_is_not_taken_over(place: Place) -> None:
    _stream(place, "j_stream")
    with pytest.raises(AlreadyExistsError, match="j_stream"):
        place.create()


def test_a_replaced_job_starts_over(place: Place) -> None:
    first = place.create()
    with pytest.raises(AlreadyExistsError):
        place.create()
    assert place.create(if_not_exists=True, function="gone.py:f") == first
    second = place.create(or_replace=True)
    assert second.id != first.id
    assert second.stream_id != first.stream_id
    assert len(place.catalog.streams.list()) == len(place.catalog.jobs.list()) == 1


def test_a_job_can_be_replaced_by_one_on_the_stream_created_for_it(place: Place) -> None:
    first = place.create()
    second = place.create(or_replace=True, stream=Name.parse("j_stream"))
    assert second.stream_id == first.stream_id
    assert not second.owns_stream
    assert place.catalog.jobs.list() == [second]


def test_a_failed_replacement_leaves_the_job_as_it_was(place: Place) -> None:
    first = place.create()
    for wrong in ({"function": f"{place.code}:missing"}, {"returns": "n NONSENSE"}, {"volume": Name.parse("none")}):
        with pytest.raises((FunctionLoadError, InvalidValueError, NotFoundError)):
            place.create(or_replace=True, **wrong)
    assert place.catalog.jobs.list() == [first]


def test_columns_must_be_declared(place: Place) -> None:
    with pytest.raises(InvalidValueError, match="not declared"):
        place.create(returns=None)
    place.code.write_text("from dataclasses import dataclass\n@dataclass\nclass R:\n    n: int\ndef f(file) -> R: ...")
    assert place.create(returns=None).returns == "n BIGINT"


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"pause_after": -1},
        {"max_files": 0},
        {"cron": "never"},
        {"where": "size >"},
        {"where": "colour = 'red'"},
        {"where": "size > 1; DROP TABLE t"},
        {"where": "size > 1 -- all"},
        {"where": "true GROUP BY size"},
    ],
)
def test_invalid_options_are_rejected(place: Place, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        place.create(**wrong)
    assert place.catalog.streams.list() == []


@pytest.mark.parametrize("where", ["size > 10 AND relative_path LIKE '%.jpg'", "RELATIVE_PATH RLIKE '^a'", "`etag` IS NOT NULL"])
def test_a_condition_may_name_the_columns_of_a_directory(place: Place, where: str) -> None:
    assert place.create(where=where).where == where


def test_a_table_cannot_have_the_name_of_a_stream(place: Place) -> None:
    _stream(place, "t")
    with pytest.raises(AlreadyExistsError, match="t is a stream"):
        place.create()


def test_an_alteration_keeps_everything_else(place: Place) -> None:
    before = place.create(retries=7, where="size > 1")
    after = place.alter(max_files=5)
    assert (after.retries, after.where, after.max_files, after.fingerprint) == (7, "size > 1", 5, before.fingerprint)
    assert place.catalog.jobs.get(J) == after
    with pytest.raises(InvalidValueError):
        place.alter(retries=-1)
    with pytest.raises(InvalidValueError):
        place.alter(where="colour = 1")
    assert place.catalog.jobs.get(J) == after


def test_a_new_function_is_imported_and_keeps_the_columns_if_it_declares_none(place: Place) -> None:
    place.create()
    place.code.write_text("def f(file): ...\ndef g(file): return 1\n")
    changed = place.alter(function=f"{place.code}:g")
    assert (changed.function, changed.returns) == (f"{place.code}:g", "n INT")
    with pytest.raises(FunctionLoadError):
        place.alter(function=f"{place.code}:h")
    assert place.alter(returns="n INT, label STRING").returns == "n INT, label STRING"


def test_the_condition_of_an_open_plan_stays(place: Place) -> None:
    place.create()
    place.catalog.streams.change(place.catalog.streams.get(Name.parse("j_stream")), offset=3)
    place.open_plan()
    with pytest.raises(StreamBusyError, match=r"A run of the job .* is in progress, or was interrupted"):
        place.alter(where="size > 1")
    assert place.alter(retries=1).retries == 1


def test_a_job_whose_batch_is_being_written_is_neither_dropped_nor_replaced(place: Place) -> None:
    job = place.create()
    place.catalog.streams.change(place.catalog.streams.get(Name.parse("j_stream")), offset=3)
    _, (batch,) = objects.store_plan(place.catalog, job)
    intent = place.catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
    for act in (lambda: drop_job(place.catalog, J), lambda: place.create(or_replace=True)):
        with pytest.raises(InvalidStateError, match=batch.id):
            act()
    place.catalog.consumptions.abort(intent)
    assert drop_job(place.catalog, J)


@pytest.mark.parametrize("writes", [True, False])
def test_a_job_is_not_replaced_if_a_run_begins_to_write_while_its_new_function_is_looked_at(place: Place, writes: bool) -> None:
    job = place.create()
    place.catalog.streams.change(place.catalog.streams.get(Name.parse("j_stream")), offset=3)
    _, (batch,) = objects.store_plan(place.catalog, job)

    def infer(*_: object) -> InferredColumns:
        note_begun(place.catalog.database, job)
        if writes:
            place.catalog.consumptions.begin(batch, owner="other", target=Target("/t", "table", 0))
        return InferredColumns(from_ddl("n INT"), 1, [])

    with pytest.raises(InvalidStateError, match=batch.id) if writes else nullcontext():
        place.create(or_replace=True, returns=None, infer=infer)
    assert (place.catalog.jobs.get(J).id == job.id) is writes


def test_a_job_whose_batch_is_open_can_be_dropped_by_force(place: Place) -> None:
    job = place.create()
    place.catalog.streams.change(place.catalog.streams.get(Name.parse("j_stream")), offset=3)
    _, (batch,) = objects.store_plan(place.catalog, job)
    place.catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
    with pytest.raises(InvalidStateError, match="volstream drop job j --force"):
        drop_job(place.catalog, J)
    assert drop_job(place.catalog, J, force=True)
    assert place.catalog.consumptions.open_intent(job.stream_id) is None
    assert place.create().id != job.id


def test_it_is_stored_whether_the_function_declares_the_columns(place: Place) -> None:
    place.code.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Row:\n    n: int\ndef f(file) -> Row: ...\ndef g(file): ...\n"
    )
    assert not place.create().declared
    assert place.create(returns=None, or_replace=True).declared
    assert objects.file_job(place.catalog.jobs.get(J)).declared
    assert not place.alter(returns="n INT").declared
    assert place.alter(function=f"{place.code}:f").declared
    # This one declares none: the columns stay what they were, and are still the code's, not the user's.
    altered = place.alter(function=f"{place.code}:g")
    assert (altered.declared, altered.returns) == (True, "n BIGINT")


def test_a_function_is_imported_in_its_environment(place: Place, tmp_path: Path) -> None:
    own = environment(tmp_path / "own", clasher="VERSION = '7'")
    place.code.write_text("import clasher\ndef f(file): ...\n")
    with pytest.raises(FunctionLoadError, match="or give the function an environment of its own"):
        place.create()
    assert place.create(environment=str(own)).environment == str(own)
    assert place.alter(environment=os.path.relpath(own)).environment == str(own)
    with pytest.raises(NotFoundError, match=r"There is no .*/none\.txt for the environment"):
        place.alter(environment="none.txt")
    with pytest.raises(FunctionLoadError, match="No module named 'clasher'"):
        place.alter(environment="")
    assert objects.file_job(place.catalog.jobs.get(J)).environment == str(own)
    place.code.write_text("def f(file): ...\n")
    assert place.alter(environment="").environment is None


@pytest.mark.parametrize("change", ["function", "returns", "retries", "where"])
def test_a_new_function_makes_files_due_that_were_bound_to_fail_with_the_old_one(place: Place, change: str) -> None:
    job = place.create()
    place.catalog.streams.change(place.catalog.streams.get(Name.parse("j_stream")), offset=3)
    _, (batch,) = objects.store_plan(place.catalog, job)
    intent = place.catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
    kinds = (FailureKind.WRONG_RESULT, FailureKind.TOO_LARGE, FailureKind.CODE, FailureKind.RAISED)
    found = [objects.failure(job, kind.value, intent.attempt, kind=kind, next_try=None) for kind in kinds]
    found.append(objects.failure(job, "skipped", intent.attempt, kind=FailureKind.WRONG_RESULT, next_try=None))
    place.catalog.failures.add_pending(found)
    place.catalog.consumptions.commit(intent, BatchOutcome(0, len(found), 0))
    with place.catalog.database.transaction() as transaction:
        place.catalog.failures.set_state(transaction, job.id, FailureState.SKIPPED, paths=["skipped"])
    new = {"function": f"{place.code}:g", "returns": "n INT, m INT", "retries": 9, "where": "size > 1"}
    place.alter(**{change: new[change]})
    due = {one.path for one in place.catalog.failures.due(job.id, datetime.now(UTC), 10)}
    lasting = {"wrong-result", "too-large", "code"}
    # Another condition may exclude any of them, which the next run finds out.
    assert due == {"retries": set(), "where": {*lasting, "raised"}}.get(change, lasting)


@pytest.mark.parametrize(("reason", "goes_on"), [("its function cannot be set up: OSError", True), ("paused by the user", False)])
def test_a_new_function_resumes_a_job_that_was_paused_because_of_the_old_one(place: Place, reason: str, goes_on: bool) -> None:
    job = place.create()
    place.catalog.jobs.change(job, state=JobState.PAUSED, state_reason=reason)
    assert place.alter(retries=2).state is JobState.PAUSED
    assert (place.alter(function=f"{place.code}:g").state is JobState.ACTIVE) == goes_on


def test_a_pause_has_a_reason_and_a_resume_clears_it(place: Place) -> None:
    place.create()
    paused = set_paused(place.catalog, J, paused=True)
    assert (paused.state, paused.state_reason) == (JobState.PAUSED, "paused by the user")
    resumed = objects.file_job(set_paused(place.catalog, J, paused=False))
    assert (resumed.state, resumed.state_reason, resumed.failed_batches) == (JobState.ACTIVE, None, 0)


def test_dropping_a_missing_job_is_an_error_unless_asked_otherwise(place: Place) -> None:
    assert not drop_job(place.catalog, J, if_exists=True)
    with pytest.raises(NotFoundError):
        drop_job(place.catalog, J)


def _stream(place: Place, name: str) -> Name:
    made = objects.stream(place.volume, name)
    with place.catalog.database.transaction() as transaction:
        place.catalog.streams.add(transaction, made)
    return made.name


@pytest.mark.parametrize(("change", "decides"), [({"retries": 9}, 1), ({"comment": "c", "every": "5m"}, 0)])
def test_a_change_of_what_decides_about_files_overrules_what_a_run_decides_meanwhile(
    place: Place, change: dict[str, Any], decides: int
) -> None:
    before = place.create()
    assert place.alter(**change).generation - before.generation == decides
    if decides:
        with pytest.raises(JobChangedError):
            place.catalog.jobs.change(before, state=JobState.PAUSED)
    else:
        place.catalog.jobs.change(before, state=JobState.PAUSED)
    assert (place.catalog.jobs.get(J).paused is None) == bool(decides)
