"""Computes what each worker of a job needs, and how many of them the home's own engine can run at a time.

Spark itself divides a cluster by the CPUs and GPUs of its tasks. The home's engine runs a task in each slot,
so there the number of tasks is limited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import psutil

from volstream.base.config import Settings
from volstream.base.definitions import FileJob, JobState, OnMove, Volume
from volstream.base.log import get
from volstream.base.model.text import counted
from volstream.base.model.units import format_size, parse_rate
from volstream.base.model.work import Batch, Plan
from volstream.base.processes import new_owner
from volstream.base.tracing import span
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import FunctionLoadError, InvalidStateError, VolstreamError
from volstream.files.storage.base import HasBirths, ObjectStore
from volstream.files.volumes.access import store_of
from volstream.functions import concurrency
from volstream.functions.call import Work
from volstream.functions.concurrency import Gpus, Pace
from volstream.functions.schema import key_column, of_job, of_table
from volstream.functions.source import FunctionSource
from volstream.jobs.batches import logs
from volstream.jobs.batches.ledger import LOGS
from volstream.jobs.batches.outputs import JobOutputs, target_of
from volstream.jobs.batches.residents import ResidentDiedError, Residents
from volstream.jobs.batches.results import followed
from volstream.jobs.batches.staged import Staged, task
from volstream.jobs.batches.staging import RowsTarget
from volstream.jobs.batches.step_values import target_of_steps
from volstream.jobs.plans import plan
from volstream.jobs.plans.sizing import result_bounds
from volstream.jobs.rules.definitions import FUNCTION_BROKEN, ship
from volstream.jobs.runs.services import JobServices
from volstream.spark.frames import relation
from volstream.spark.tasks import idle_slots, tagged
from volstream.tables.delta.warehouse import options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


def max_workers(job: FileJob, settings: Settings) -> int | None:
    """Returns how many workers of a job may run at a time, or None if only Spark limits them.

    Raises:
        InvalidStateError: this host has less than a single worker needs.
    """
    if settings.on_cluster:
        return job.parallel
    limits = [] if job.parallel is None else [job.parallel]
    if job.cpus is not None:
        limits.append(_max_fitting(job, job.cpus, settings.slots, lambda count: counted(count, "CPU"), "the engine"))
    if job.memory is not None:
        room = psutil.virtual_memory().total - settings.driver_memory
        limits.append(_max_fitting(job, job.memory, room, lambda size: f"{format_size(size)} of memory", "this host"))
    if job.gpus is not None:
        limits.append(_max_fitting(job, job.gpus, len(concurrency.devices()), lambda count: counted(count, "GPU"), "this host"))
    return min(limits, default=None)


def gpus_of(job: FileJob, settings: Settings) -> Gpus | None:
    """Returns the GPUs that each worker takes, if any."""
    if job.gpus is None:
        return None
    return Gpus(job.gpus, () if settings.on_cluster else tuple(concurrency.devices()))


def profile_of(job: FileJob, settings: Settings) -> Any:
    """Returns Spark's resource profile for a job's tasks on a cluster, or None for the default."""
    if not settings.on_cluster or (job.cpus is None and job.gpus is None):
        return None
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(job.cpus or 1)
    if job.gpus is not None:
        requests = requests.resource("gpu", job.gpus)
    return ResourceProfileBuilder().require(requests).build


def _max_fitting(job: FileJob, needed: int, available: int, describe: Callable[[int], str], where: str) -> int:
    if needed <= available:
        return available // needed
    raise InvalidStateError(
        f"Each worker of the job {job.name} needs {describe(needed)}, and {where} has {describe(max(available, 0))} for workers.",
        f"Ask for less (volstream alter-job {job.name}), or run it on a cluster.",
    )


# Runs a job's function on the files of a batch, and stages the outcomes. The caller chooses the batch
# (``LookAhead``) and commits the outcomes (``attempt``).

_log = get("jobs")

#: After this many attempts whose processes died, each file of the batch runs in its own child process,
#: because one of them must be fatal.
_ATTEMPTS_BEFORE_ISOLATION = 2

#: Up to this number of files run in waiting tasks if each slot has such a task.
_FEW_FILES = 100

#: Interval at which unwanted calls are interrupted until they end: they may not have started yet.
_INTERRUPT_SECONDS = 0.2


@dataclass(frozen=True)
class StagedBatch:
    """The staged outcomes of a batch.

    Attributes:
        seconds: duration of the function's run.
        followed: moved files whose rows follow them, each with its old path and the batch that made the rows.
    """

    batch_id: str
    staged: Staged
    outcome: BatchOutcome
    seconds: float
    followed: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Staging:
    """A batch on which the function runs, in another thread.

    Attributes:
        future: of the staged outcomes.
        changed: set once the run has ended, or leaves slots idle.
        session: in which it runs, or None if the batch has no file.
        began: by the monotonic clock.
        residents: the waiting tasks in which it may run instead.
    """

    batch: Batch
    future: Future[StagedBatch]
    changed: threading.Event
    session: SparkSession | None
    began: float
    residents: Residents | None = None

    def end(self) -> None:
        """Interrupts the run, and returns once it has ended."""
        while wait([self.future], timeout=_INTERRUPT_SECONDS).not_done:
            if self.residents is not None:
                self.residents.interrupt(self.batch.id)
            if self.session is not None:
                with suppress(Exception):  # the engine died, which also ends the run
                    self.session.interruptTag(self.batch.id)


class Stager:
    """Runs a job's function on batches of one plan, each in another thread.

    Args:
        source: the function's current code.

    Attributes:
        job: the job, including columns added from files of the plan.
        steps: where the values of steps are kept, or None for a function without steps.
    """

    def __init__(
        self, services: JobServices, job: FileJob, source: FunctionSource, volume: Volume, outputs: JobOutputs | None
    ) -> None:
        self.job = job
        self._services = services
        self._source = source
        self._store = store_of(volume, services.catalog, services.settings)
        self._location = services.results.location_of(job)
        self._outputs = outputs
        self.steps = target_of_steps(services.settings, services.warehouse, job, source)
        self._last_call: float | None = None  # when the last calls ended
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"batches of {job.name}")

    def close(self) -> None:
        """Waits for the calls to end."""
        self._pool.shutdown()

    def begin(self, open_plan: Plan, batch: Batch, attempt: str) -> Staging:
        """Starts the function on a batch, in another thread with this thread's session.

        Args:
            attempt: name of the attempt's folder.
        """
        began, changed = time.monotonic(), threading.Event()
        session = self._services.gateway.session() if batch.files else None
        run = partial(self._stage, open_plan, batch, attempt, session, changed.set)
        future = self._pool.submit(copy_context().run, run)
        future.add_done_callback(lambda _: changed.set())
        return Staging(batch, future, changed, session, began, self._services.residents)

    @property
    def seconds_to_turn(self) -> float:
        """Seconds until the job's rate allows the next call."""
        pace = pace_of(self.job)
        return 0.0 if pace is None else self._pace(pace).wait

    def _pace(self, pace: Pace) -> Pace:
        """Returns the pace of the next calls.

        They follow the last calls, which have ended once their batch is staged.
        """
        if self._last_call is not None:
            ago = time.monotonic() - self._last_call
        elif last := self._services.catalog.reports.measured(self.job.id, limit=1):
            ago = (datetime.now(UTC) - (last[0].committed_on or last[0].created_on)).total_seconds()
        else:
            ago = pace.seconds
        return replace(pace, wait=min(pace.seconds, max(0.0, pace.seconds - ago)))

    def _stage(
        self, open_plan: Plan, batch: Batch, attempt: str, session: SparkSession | None, idle: Callable[[], None]
    ) -> StagedBatch:
        """Runs the function on the batch's files and stages the outcomes.

        Args:
            attempt: name of the attempt's folder.
            session: None if the batch has no file.
            idle: called when the batch leaves slots of the engine idle.
        """
        with span("run", **about(self.job, batch)) as current, ExitStack() as stack:
            if session is not None:
                stack.enter_context(tagged(session, batch.id))
                stack.enter_context(idle_slots(session, self._services.slots(), idle))
            done = self._stage_now(open_plan, batch, attempt, session)
            current.set(rows=done.outcome.rows, failed=done.outcome.unsuccessful)
            return done

    def _stage_now(self, open_plan: Plan, batch: Batch, attempt: str, session: SparkSession | None) -> StagedBatch:
        began = time.monotonic()
        location = f"{self._services.staging}/{batch.id}/{attempt}"
        target = target_of_rows(self.job, location, batch.id)
        work = work_on(self._services.settings, self.job, self._source, self._store)
        work = replace(work, isolate=self._isolates(batch), pace=work.pace and self._pace(work.pace))
        if self._outputs is not None:
            work = replace(work, outputs=self._outputs.target(batch, attempt))
        work = replace(work, steps=self.steps)
        if session is not None:
            with self._services.session(session):
                followed = self._followed(session, open_plan, batch)
                staged = self._run_resident(session, location, target, open_plan, batch, work)
                if staged is None:
                    files = plan.work_of(session, open_plan, batch, [*followed])
                    staged = stage(self._services, location, target, files, work, self.job, batch.files, batch=batch.id)
            self._last_call = time.monotonic()
        else:
            followed, staged = {}, Staged.of(location, target, iter(()))
        self._save_output(batch, staged)
        outcome = staged.outcome()
        if outcome.failed and (broken := staged.broken()) is not None:
            raise self._pause_broken(broken["error_message"], broken["error_traceback"])
        outcomes = outcome.succeeded + outcome.unsuccessful
        if outcomes + len(followed) != batch.files:
            raise VolstreamError(
                f"Batch {batch.id} has {batch.files} files, but {outcomes} outcomes were staged.",
                "Nothing of it was committed; the next run repeats it.",
            )
        return StagedBatch(batch.id, staged, outcome, time.monotonic() - began, followed)

    def _run_resident(
        self, session: SparkSession, location: str, target: RowsTarget, open_plan: Plan, batch: Batch, work: Work
    ) -> Staged | None:
        """Runs the function on a small batch in waiting tasks. Returns None if that is not possible now."""
        residents, slots = self._services.residents, self._services.slots()
        if residents is None or batch.moves or work.apart or work.pace is not None:
            return None
        # A large number of files, each of which may take long, uses all slots anyway.
        limit = _FEW_FILES if residents.count >= slots else residents.count
        if batch.files > limit or max_workers(self.job, self._services.settings) is not None:
            return None
        rows = plan.small_batch_rows(open_plan, batch)
        assert rows is not None, "the batch is small"
        replies = residents.call(batch.id, task(work, target), rows, slots)
        if replies is None:
            return None
        try:
            return Staged.of(location, target, replies)
        except ResidentDiedError:
            _log.warning("worker_died", job=str(self.job.name), batch=batch.id, next="each file in a child process")
            work = replace(work, isolate=True)
        except RuntimeError as error:
            _log.warning("resident_failed", job=str(self.job.name), batch=batch.id, cause=str(error))
        return stage(self._services, location, target, relation(session, rows), work, self.job, batch.files, batch=batch.id)

    def _followed(self, session: SparkSession, open_plan: Plan, batch: Batch) -> Mapping[str, tuple[str, str]]:
        """Returns the moved files of a batch whose rows follow them, without calls of the function; see
        :func:`followed`.

        A failed file is called again even if it has rows: a replay or a retry failed, and the rows are older.
        """
        if self.job.on_move is OnMove.RERUN or not batch.moves:
            return {}
        moved = plan.moved(open_plan.location, batch)
        last = max((file.old_path for file in moved), key=str.encode)
        failed = {failure.path for failure in self._services.catalog.failures.active(self.job.id, until=last)}
        moved = [file for file in moved if file.old_path not in failed]
        births: dict[str, datetime] = {}
        if isinstance(self._store, HasBirths):
            births = {file.path: birth for file in moved if (birth := self._store.born(file.path)) is not None}
        return followed(session, moved, self._location, births)

    def _isolates(self, batch: Batch) -> bool:
        """Returns whether each file of a batch runs in its own child process."""
        return self.job.isolate or batch.attempts >= _ATTEMPTS_BEFORE_ISOLATION

    def _save_output(self, batch: Batch, staged: Staged) -> None:
        """Saves the function's output, regardless of the attempt's result."""
        printed = staged.printed()
        if (first := next(printed, None)) is None:
            return
        location = LOGS.of(self._services.warehouse, self.job.id)
        logs.write(location, batch.id, chain([first], printed), self._services.settings.log_batch_bytes)
        logs.trim(location, self._services.settings.log_bytes, self._services.settings.history_begins())

    def _pause_broken(self, why: str, trace: str | None) -> FunctionLoadError:
        """Pauses the job, whose function fails during setup and would fail for every file. Returns the error
        to raise.

        Raises JobChangedError if the job was altered since.
        """
        _log.warning("function_broken", job=str(self.job.name), why=why, traceback=trace)
        reason = f"{FUNCTION_BROKEN}: {why}"
        self._services.catalog.jobs.change(self.job, state=JobState.PAUSED, state_reason=reason[:500])
        return FunctionLoadError(
            f"The function of job {self.job.name} cannot be set up: {why}",
            f"The job is paused. Give it a function that works: session.jobs.alter({str(self.job.name)!r}, function=...)."
            if self.job.pickled is not None
            else f"The job is paused. After fixing it: volstream resume {self.job.name}. To accept other columns: "
            f"volstream alter-job {self.job.name} --function {self.job.function}.",
        )


def about(job: FileJob, batch: Batch) -> dict[str, str | int]:
    """Returns the attributes of a batch for spans."""
    return {"job": str(job.name), "batch": batch.id, "files": batch.files, "bytes": batch.bytes}


def work_on(settings: Settings, job: FileJob, source: FunctionSource, store: ObjectStore) -> Work:
    """Returns what executors need to call a job's function on a store's files. Outputs are measured, not
    written."""
    return Work(
        source,
        job.function_arguments,
        store,
        of_job(job),
        job.timeout,
        job.isolate,
        job.memory or settings.function_memory,
        settings.fetch_ahead_bytes,
        result_bounds(settings),
        # A pickled function cannot change, and its annotations may resolve only where it was pickled.
        job.declared and job.pickled is None,
        sets=job.group_by is not None,
        concurrency=job.concurrency,
        pace=pace_of(job),
        owner=new_owner(),
        outputs=None if job.outputs_to is None else target_of(job),
        gpus=gpus_of(job, settings),
    )


def pace_of(job: FileJob) -> Pace | None:
    """Returns the interval of calls of a job's function, or None without a rate."""
    return None if job.rate is None else Pace(1 / parse_rate(job.rate))


def target_of_rows(job: FileJob, location: str, batch_id: str) -> RowsTarget:
    """Returns where rows go that are too many for a reply, below an attempt's folder."""
    options = tuple(sorted(options_of(location).items()))
    return RowsTarget(f"{location}/rows", of_table(job), key_column(job), batch_id, options)


def stage(
    services: JobServices, location: str, target: RowsTarget, files: DataFrame, work: Work, job: FileJob, count: int, **about: str
) -> Staged:
    """Runs a job's function on ``count`` files and stages the outcomes. ``about`` adds fields to the log."""
    from pyspark.errors import PySparkException

    limit = max_workers(job, services.settings)
    if work.pace is not None or limit is not None:
        workers = min(count, limit or count, plan.processors(files))
        files = files.repartition(workers)
        work = replace(work, pace=work.pace and replace(work.pace, workers=workers))
    session = cast("SparkSession", files.sparkSession)
    work = replace(work, source=ship(services, session, work.source))
    profile = profile_of(job, services.settings)
    try:
        return Staged.run(location, target, files, work, profile)
    except PySparkException as error:
        if work.apart or not _worker_died(error):
            raise
        # A file kills its worker. One child process per file finds it and lets the other files succeed.
        _log.warning("worker_died", job=str(job.name), **about, next="each file in a child process")
        return Staged.run(location, target, files, replace(work, isolate=True), profile)


def _worker_died(error: BaseException) -> bool:
    """Returns whether a query failed because a Python worker died, which is how Spark reports a crashed
    function."""
    return "Python worker exited unexpectedly" in str(error)
