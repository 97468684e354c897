"""The scheduler while the engine is down, and when runs die with it."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from sqlalchemy import insert
from structlog.testing import capture_logs

from tests import objects
from tests.integration.conftest import Home, Place
from tests.waiting import eventually
from volstream.api.statements.dynamic import StatementRunner
from volstream.base import config
from volstream.base.definitions import Job, JobState
from volstream.base.model.names import Name
from volstream.base.model.work import FailureState
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.definitions import note_begun
from volstream.catalog.tables import digest, failures
from volstream.errors import EngineLostError, InvalidStateError, NotFoundError, SqlError
from volstream.jobs.runs.lease import Observer, RunReport, held
from volstream.jobs.runs.run import StreamRun
from volstream.server.daemon import jobs
from volstream.server.daemon.jobs import Scheduler
from volstream.spark.errors import engine_lost
from volstream.tables.delta.opened import newest_version


class FakeRunner:
    """A runner that always has work and fails as instructed."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.runs = 0
        self.begun: Callable[[], None] = lambda: None

    def run(
        self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None, owner: str | None = None
    ) -> RunReport:
        del until_empty, stop, observe, owner
        self.runs += 1
        self.begun()
        if self.failures:
            raise self.failures.pop(0)
        return RunReport()

    def has_work(self) -> bool:
        return True


class World:
    def __init__(self, folder: Path, *failures: BaseException) -> None:
        settings = config.load(folder / "home")
        self.catalog = Catalog(settings.database_url)
        source, on_it = dataclasses.replace(objects.volume(), refresh_count=1), objects.stream()
        with self.catalog.database.transaction() as transaction:
            self.catalog.volumes.add(transaction, source)
            self.catalog.streams.add(transaction, on_it)
            self.catalog.jobs.add(transaction, objects.job(on_it, on_change=True))
        self.runner, self.stop, self.up = FakeRunner(*failures), Stop(), False
        self.looks = 0
        self.choose: Callable[[Job], FakeRunner] = lambda _: self.runner
        self.scheduler = Scheduler(
            self.catalog, lambda job: self.choose(job), settings, ZoneInfo("UTC"), lambda _: True, self.stop, self.is_up
        )

    def failing(self) -> dict[str, str]:
        """What everybody who looks at the catalog sees."""
        names = {job.id: str(job.name) for job in self.catalog.jobs.list()}
        return {names[job_id]: cause for job_id, cause in self.catalog.conditions.causes(ConditionKind.JOB).items()}

    def is_up(self) -> bool:
        self.looks += 1
        return self.up

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.scheduler.run)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self.scheduler.wake()
            thread.join(5)
            assert not thread.is_alive()
            self.catalog.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_no_run_starts_while_the_engine_is_down_and_due_runs_follow(world: World) -> None:
    with world.running():
        eventually(lambda: world.looks >= 3)
        assert world.runner.runs == 0
        world.up = True
        world.scheduler.wake()
        eventually(lambda: world.runner.runs > 0)


def test_of_jobs_that_are_due_those_of_higher_priority_run_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    order: list[str] = []
    for name, priority in (("a_late", -1), ("b_early", 5), ("c_early", 9)):
        of_it = objects.stream()
        with world.catalog.database.transaction() as transaction:
            world.catalog.streams.add(transaction, dataclasses.replace(of_it, name=Name.parse(f"of_{name}")))
            world.catalog.jobs.add(transaction, objects.job(of_it, name, on_change=True, priority=priority))

    class Once(FakeRunner):
        def has_work(self) -> bool:
            return self.runs == 0

    runners: dict[str, FakeRunner] = {}

    def chosen(job: Job) -> FakeRunner:
        if job.id not in runners:
            runners[job.id] = Once()
            runners[job.id].begun = lambda: order.append(str(job.name))
        return runners[job.id]

    world.up = True
    settings = config.load(tmp_path / "home").model_copy(update={"max_parallel_jobs": 1})
    world.scheduler = Scheduler(world.catalog, chosen, settings, ZoneInfo("UTC"), lambda _: True, world.stop, world.is_up)
    with world.running():
        eventually(lambda: len(order) >= 4)
    assert order[:4] == ["c_early", "b_early", "classify", "a_late"]


def test_jobs_that_always_have_work_take_turns(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("a", "b"):
        of_it = objects.stream(name=f"of_{name}")
        with world.catalog.database.transaction() as transaction:
            world.catalog.streams.add(transaction, of_it)
            world.catalog.jobs.add(transaction, objects.job(of_it, name, on_change=True))
    runners: dict[str, FakeRunner] = defaultdict(FakeRunner)
    world.up = True
    settings = config.load(tmp_path / "home").model_copy(update={"max_parallel_jobs": 1, "on_change_gap_seconds": 0.0})
    world.scheduler = Scheduler(
        world.catalog, lambda job: runners[str(job.name)], settings, ZoneInfo("UTC"), lambda _: True, world.stop, world.is_up
    )
    with world.running():
        eventually(lambda: sum(runner.runs for runner in runners.values()) >= 9)
    counts = {name: runner.runs for name, runner in runners.items()}
    assert len(counts) == 3
    assert max(counts.values()) - min(counts.values()) <= 1, counts


def test_a_run_that_dies_with_the_engine_is_retried(tmp_path: Path) -> None:
    world = World(tmp_path, EngineLostError("The Spark engine was lost: it was killed by signal 9."))
    world.up = True
    with world.running():
        eventually(lambda: len(world.scheduler.runs) == 2)
    assert sorted(outcome for _, outcome in world.scheduler.runs) == ["failed", "ok"]


@pytest.mark.parametrize(
    "error",
    [
        SqlError("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint"),
        InvalidStateError("The table t mirrors the files of job other."),
        NotFoundError("There is no table t."),
        ValueError("not one of ours"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failing_job_is_reported_and_does_not_hold_up_other_jobs(tmp_path: Path, error: BaseException) -> None:
    world = World(tmp_path)
    other = objects.stream(name="others")
    with world.catalog.database.transaction() as transaction:
        world.catalog.streams.add(transaction, other)
        made = objects.job(other, "well", on_change=True)
        world.catalog.jobs.add(transaction, made)
    bad, good = FakeRunner(*[error] * 100), FakeRunner()
    world.choose = lambda job: good if job.id == made.id else bad
    world.up = True
    with world.running():
        eventually(lambda: good.runs >= 2 and bad.runs >= 1 and bool(world.failing()))
        assert [*world.failing()] == ["classify"]
        assert str(error) in world.failing()["classify"]
        runs = good.runs
        eventually(lambda: good.runs > runs)


def test_a_run_that_ends_because_its_job_was_paused_is_no_failure(world: World) -> None:
    class Paused(FakeRunner):
        def run(self, **_options: object) -> RunReport:
            self.runs += 1
            (job,) = world.catalog.jobs.list()
            world.catalog.jobs.change(job, state=JobState.PAUSED)
            raise InvalidStateError("The job classify is paused.")

    world.runner, world.up = Paused(), True
    with world.running():
        eventually(lambda: world.runner.runs == 1)
        looks = world.looks
        eventually(lambda: not world.scheduler.running and world.looks > looks)
        assert not world.failing()
        assert not world.scheduler.runs


def test_a_brief_catalog_outage_does_not_end_the_scheduler(tmp_path: Path) -> None:
    world = World(tmp_path)

    def rename(before: str, after: str) -> None:
        with closing(sqlite3.connect(tmp_path / "home" / "catalog.db", timeout=10)) as connection:
            connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
            connection.commit()

    world.up = True
    rename("jobs", "away")
    with capture_logs() as lines, world.running():
        eventually(lambda: "loop_failing" in [line["event"] for line in lines])
        assert world.runner.runs == 0
        rename("away", "jobs")
        eventually(lambda: world.runner.runs > 0)


def test_a_schedule_that_cannot_be_computed_fails_only_its_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    other = objects.stream(name="others")
    with world.catalog.database.transaction() as transaction:
        world.catalog.streams.add(transaction, other)
        odd = objects.job(other, "odd", every=8e15, last_started=objects.NOW)
        world.catalog.jobs.add(transaction, odd)
    world.up = True
    with world.running():
        eventually(lambda: "odd" in world.failing() and world.runner.runs > 1)


class Idle(FakeRunner):
    """A runner that has work on request and counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.work = False

    def has_work(self) -> bool:
        self.asked += 1
        return self.work


def test_an_idle_job_is_checked_again_only_when_the_catalog_changed(tmp_path: Path) -> None:
    world = World(tmp_path)
    idle = Idle()
    world.runner = idle
    world.up = True
    with world.running():
        eventually(lambda: idle.asked == 1)
        looks = world.looks
        eventually(lambda: world.looks >= looks + 4)
        assert idle.asked == 1
        idle.work = True
        (job,) = world.catalog.jobs.list()
        world.catalog.jobs.change(job, comment="another")
        eventually(lambda: idle.runs > 0)


def test_a_job_with_a_due_retry_is_checked_without_a_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    idle = Idle()
    world.runner = idle
    world.up = True
    (job,) = world.catalog.jobs.list()
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    with world.catalog.database.transaction() as transaction:
        failed = dataclasses.asdict(objects.failure(job, "a", "x", state=FailureState.RETRYING, next_try=due))
        transaction.execute(insert(failures).values(**failed, path_digest=digest("a")))
    with world.running():
        eventually(lambda: idle.asked == 1)
        idle.work = True
        eventually(lambda: idle.runs > 0)
        assert datetime.now(UTC) >= due


def test_a_job_is_well_once_there_is_nothing_left_to_do(world: World) -> None:
    world.runner, world.up = Idle(), True
    (job,) = world.catalog.jobs.list()
    note_begun(world.catalog.database, job)  # by a process that was killed
    with world.running():
        eventually(lambda: not world.catalog.jobs.list()[0].unended)
        world.catalog.conditions.note(ConditionKind.JOB, job.id, "There is no table t.")
        eventually(lambda: not world.failing())
        with held(world.catalog, job.id, job.name, 10.0):
            note_begun(world.catalog.database, job)
            world.scheduler.wake()
            looks = world.looks
            eventually(lambda: world.looks >= looks + 3)
            assert world.catalog.jobs.list()[0].unended, "another process runs it"


def test_a_failure_that_the_catalog_cannot_take_is_known_to_the_daemon_until_it_is_over(tmp_path: Path) -> None:
    world = World(tmp_path, *[SqlError("no column n")] * 2)
    world.up = True

    def statement(text: str) -> None:
        with closing(sqlite3.connect(tmp_path / "home" / "catalog.db", timeout=10)) as connection:
            connection.execute(text)
            connection.commit()

    full = "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    statement(f"CREATE TRIGGER full BEFORE INSERT ON conditions {full}")
    with world.running():
        eventually(lambda: world.scheduler.unrecorded == {"classify": "no column n"})
        assert not world.failing()
        statement("DROP TRIGGER full")
        eventually(lambda: not world.scheduler.unrecorded and world.runner.runs > 2)


def test_a_run_that_was_stopped_with_its_engine_did_not_fail(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("1", "text")
    place.job("def f(file): return {'t': file.read_text()}", returns="t STRING")
    [job] = place.session.home.catalog.jobs.list()
    stop = Stop()

    def go(*_: object, **__: object) -> None:
        raise engine_lost("its gateway was closed")

    monkeypatch.setattr(StreamRun, "go", go)
    with pytest.raises(EngineLostError):
        place.session.jobs.runner(job).run(stop=stop)
    stop.set()
    place.session.jobs.runner(job).run(stop=stop)
    assert not place.session.home.catalog.conditions.causes(ConditionKind.JOB)


def test_a_statement_that_was_stopped_with_its_engine_did_not_fail(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.sql(
        "CREATE TABLE a$ (n INT); ALTER TABLE a$ SET PROPERTIES ('change_tracking' = 'true'); CREATE TABLE b$ (n INT);"
        "CREATE STREAM s$ ON TABLE a$; CREATE JOB copy AS INSERT INTO b$ SELECT n FROM s$"
    )
    session = home.session
    [job] = session.home.catalog.jobs.list()
    stop = Stop()

    def lose(*_: object) -> None:
        raise engine_lost("its gateway was closed")

    monkeypatch.setattr(StatementRunner, "_recover", lose)
    with pytest.raises(EngineLostError):
        session.jobs.runner(job).run(stop=Stop())
    stop.set()
    session.jobs.runner(job).run(stop=stop)
    assert not session.home.catalog.conditions.causes(ConditionKind.JOB)


def test_the_table_of_a_job_that_rests_has_no_deleted_rows_left(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    home, stop = place.session.home, Stop()
    for number in range(4):
        place.put(f"{number}", "text")
    place.job("def f(file): return {'t': file.read_text()}", returns="t STRING", on_change=True)
    scheduler = Scheduler(home.catalog, place.session.jobs.runner, home.settings, home.zone, lambda _: True, stop, lambda: True)
    monkeypatch.setattr(jobs, "_REST_SECONDS", (1.0, 1000.0))
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    location = f"{home.warehouse}/tables/public/t"

    def write(content: str, version: int) -> None:
        place.put("1", content)
        place.refresh()
        scheduler.wake()
        eventually(lambda: newest_version(location) == version, 60)

    def vectors(version: int) -> int:
        found = DeltaTable(location, version).deletion_vectors()
        return sum(len(batch) for batch in pa.RecordBatchReader.from_stream(found))

    try:
        write("other", 1)
        write("again", 3)
    finally:
        stop.set()
        thread.join()
    assert [vectors(version) for version in (2, 3)] == [1, 0]
    assert place.table("t") == [("again",), ("text",), ("text",), ("text",)]
    assert sum(scheduler.runs.values()) == 2
