"""What is recorded of a job's runs: outcomes that last, runs that never ended, and who else runs the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import objects
from volstream.base.definitions import FileJob
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.errors import EngineLostError, FencedError, SqlError, StreamBusyError, VolstreamError
from volstream.jobs.runs.lease import NOTHING, clear, held, lease, runs_of
from volstream.ops.inspection.details import outcome


class World:
    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog(f"sqlite:///{folder}/catalog.db")
        *_, self._made = objects.store_job(self.catalog)

    @property
    def job(self) -> FileJob:
        return objects.file_job(self.catalog.jobs.by_id(self._made.id))

    @property
    def failed(self) -> str | None:
        return self.catalog.conditions.cause(ConditionKind.JOB, self._made.id)

    def run(self, *, did: str | None = None, fails: BaseException | None = None) -> str | None:
        """Runs the job; its outcome."""
        try:
            with lease(self.catalog, self.job, 10.0) as lead:
                assert outcome(self.job, runs_of(self.catalog, [self.job])) == "running"
                lead.summary = did
                if fails is not None:
                    raise fails
        except (VolstreamError, SystemExit):
            pass
        return outcome(self.job, runs_of(self.catalog, [self.job]))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.catalog.close()


def test_a_run_without_work_says_so_and_what_the_last_one_with_work_did(world: World) -> None:
    assert world.run() == NOTHING
    assert world.run(did="2 files done") == "2 files done"
    before = world.job.last_ended
    assert world.run() == world.run() == f"{NOTHING}; before: 2 files done"
    assert world.job.last_ended != before


def test_a_failure_is_known_until_a_run_ends_well_also_while_that_one_is_in_hand(world: World) -> None:
    assert world.run(fails=SqlError("no column n")) == "failed: no column n"
    with lease(world.catalog, world.job, 10.0):
        assert world.failed == "no column n"
    assert outcome(world.job, runs_of(world.catalog, [world.job])) == NOTHING


def test_what_helps_is_recorded_with_the_failure(world: World) -> None:
    world.run(fails=EngineLostError("The Spark server has no executors.\nTraceback ...", "Look at its master."))
    assert world.failed == "The Spark server has no executors.\nLook at its master."


def test_a_run_that_never_ended_is_interrupted_until_another_ends(world: World) -> None:
    world.run(did="2 files done")
    assert world.run(fails=SystemExit()) == "interrupted", "as when its process is killed"
    assert world.run() == f"{NOTHING}; before: 2 files done"


def test_what_another_process_does_is_no_failure_of_the_job(world: World) -> None:
    world.run(did="2 files done")
    assert world.run(fails=StreamBusyError("The stream is busy.")) == "2 files done"
    world.run(fails=FencedError("Another process took over."))
    assert world.failed is None


def test_who_holds_a_job_runs_it_and_others_are_told_to_wait(world: World) -> None:
    with held(world.catalog, world.job.id, world.job.name, 10.0) as owner:
        refused = pytest.raises(StreamBusyError, match=r"^Another run of the job classify is in progress, on .*\. Wait")
        with refused, lease(world.catalog, world.job, 10.0):
            pass
        with lease(world.catalog, world.job, 10.0, owner) as lead:
            assert lead.owner == owner


def test_a_run_that_ends_or_begins_while_somebody_looks_is_not_taken_for_interrupted(world: World) -> None:
    with lease(world.catalog, world.job, 10.0):
        seen = world.job
    assert seen.unended
    assert not runs_of(world.catalog, [seen]).interrupted, "it has ended since"
    world.run(fails=SystemExit())
    assert runs_of(world.catalog, [world.job]).interrupted == {seen.id}


def test_what_is_cleared_is_what_was_seen(world: World) -> None:
    world.run(fails=SqlError("no column n"))
    seen = world.job
    world.run(did="2 files done")
    clear(world.catalog, seen)
    assert world.job.last_outcome == "2 files done"
    world.run(fails=SqlError("no column n"))
    clear(world.catalog, world.job)
    assert (world.failed, world.job.last_outcome) == (None, f"{NOTHING}; before: 2 files done")
