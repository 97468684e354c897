"""Attempts at batches, one at a time: the function's results are staged in files and committed exactly once.

Once the last calls of a batch leave slots idle, and while it is committed, the function runs on the next one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, cast

from volstream.base.config import Settings
from volstream.base.definitions import FileJob, JobState, OnMove, Volume, Write
from volstream.base.lifecycle import faults
from volstream.base.lifecycle.backoff import Backoff
from volstream.base.lifecycle.identity import new_owner
from volstream.base.lifecycle.stop import Stop
from volstream.base.log import get
from volstream.base.model import counts
from volstream.base.model.units import parse_rate
from volstream.base.model.work import SUPERSEDED, Batch, Failure, FailureKind, FailureState, Intent, Plan
from volstream.base.tracing import span
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import CatalogError, FencedError, FunctionLoadError, VolstreamError, reason_of
from volstream.files.storage.base import HasBirths, ObjectStore
from volstream.files.volumes.access import store_of
from volstream.functions.pace import Pace
from volstream.functions.schema import key_column, of_job, of_table
from volstream.functions.source import FunctionSource
from volstream.functions.worker import Work
from volstream.jobs import ledger, logs, plan
from volstream.jobs.definitions import FUNCTION_BROKEN
from volstream.jobs.environments import brought
from volstream.jobs.expectations import judged
from volstream.jobs.load import arguments_of
from volstream.jobs.load_columns import adopt
from volstream.jobs.needs import gpus_of, most_workers, profile_of
from volstream.jobs.outputs import JobOutputs, target_of
from volstream.jobs.policy import RetryPolicy
from volstream.jobs.progress import Progress
from volstream.jobs.results import changes_of, followed, write_by_spark
from volstream.jobs.services import JobServices
from volstream.jobs.sizing import bounds
from volstream.jobs.staged import Staged, Totals
from volstream.jobs.staging import RowsTarget
from volstream.spark.tasks import idle_slots, tagged
from volstream.tables.delta import direct, folders
from volstream.tables.delta.marker import Marker
from volstream.tables.delta.options import options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_log = get("jobs")

#: After this many attempts whose processes died, each file of the batch runs in its own child process: one file is fatal.
_ATTEMPTS_BEFORE_ISOLATION = 2

#: How often unwanted calls are interrupted until they have ended: they may not have begun yet.
_INTERRUPT_SECONDS = 0.2

#: Options whose changes apply from the next batch.
_AT_ONCE = ("rate", "parallel", "concurrency", "cpus", "memory", "gpus")

#: A run waits longer than this for the job's rate before a batch; workers, which hold slots of the engine, wait less.
LONG_WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class StagedBatch:
    """The staged outcomes of a batch.

    Attributes:
        seconds: duration of the function's run.
    """

    batch_id: str
    staged: Staged
    totals: Totals
    seconds: float


class BatchExecutor:
    """The attempts of one run at the batches of one plan.

    Args:
        owner: holder of the job's lease.
        source: the function's current code.
        progress: updated at each commit.
        committed: ids of the run's batches, added to at each commit.
    """

    def __init__(
        self,
        services: JobServices,
        job: FileJob,
        owner: str,
        source: FunctionSource,
        volume: Volume,
        stop: Stop,
        progress: Progress,
        committed: set[str],
    ) -> None:
        self._services = services
        self._job = job
        self._owner = owner
        self._source = source
        self._volume = volume
        self._store = store_of(volume, services.catalog, services.settings)
        self._stop = stop
        self._progress = progress
        self._location = services.table_of(job)
        self._committed = committed
        self._outputs = None if job.outputs_to is None else JobOutputs(services.catalog, services.settings, job)
        self._called: float | None = None  # when the last calls ended
        self._ahead: _Staging | None = None
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=f"batches of {job.name}")

    def process(self, open_plan: Plan, batch: Batch) -> None:
        """Runs and commits a batch; at its end, and while it is committed, the function runs on the next one."""
        with span("batch", **self._about(batch)):
            self._process(open_plan, batch)

    def _process(self, open_plan: Plan, batch: Batch) -> None:
        intent = self._services.consumer.begin(batch, owner=self._owner, location=self._location)
        try:
            if self._outputs is not None:
                self._outputs.sweep()
            done = self._staged_ahead(open_plan, batch) or self._staged(open_plan, batch, intent)
            # Nothing of the batch is committed yet, so the same files are read again, now with their new columns.
            while done.totals.new_columns and self._adopts(done.staged.new_columns()):
                self._forget()
                done = self._staged(open_plan, batch, intent)
            done = self._judged(done)
            if self._outputs is not None:
                faults.point("outputs.written")
                checked = self._outputs.checked(open_plan, batch, done.staged)
                done = done if checked is done.staged else replace(done, staged=checked, totals=checked.totals())
            earlier = earlier_failures(self._services, self._job, open_plan, batch)
            outcome = self._note(open_plan, batch, intent, done, earlier)
            if self._outputs is not None:
                self._outputs.note(open_plan, batch, intent, done.staged)
                self._outputs.place(intent)
            again = [failure for failure in earlier.values() if failure.batch_id in self._committed]
            faults.point("batch.staged")
            if self._stop:
                self._forget()
            self._stage_ahead(open_plan, batch, done.seconds)
            self._commit(open_plan, batch, intent, done, outcome, again)
        except BaseException as error:
            self._forget()
            if batch.id in self._committed:
                raise
            if self._is_overtaken(intent):
                raise FencedError(
                    f"Batch {batch.id}: another process took it over; nothing of this run was kept."
                ) from error
            # If that fails now (the engine died), the next owner settles it.
            with suppress(VolstreamError):
                recover(self._services, self._job, reason_of(error))
            raise

    def close(self) -> None:
        """Ends the calls on the next batch, whose results are lost."""
        self._forget()
        self._pool.shutdown()

    @property
    def begun_until(self) -> int:
        """The number of the batch that was begun ahead; 0: none was."""
        return 0 if self._ahead is None else self._ahead.batch.number

    def apply_changes(self, job: FileJob) -> None:
        """Takes over what a user has changed since the run began and the next batch can follow."""
        self._job = replace(self._job, **{name: getattr(job, name) for name in _AT_ONCE})

    @property
    def job(self) -> FileJob:
        """The job, including columns added from files of the plan."""
        return self._job

    def _commit(
        self,
        open_plan: Plan,
        batch: Batch,
        intent: Intent,
        done: StagedBatch,
        outcome: BatchOutcome,
        again: Sequence[Failure],
    ) -> None:
        """Commits the staged outcomes of a batch, in the table and in the catalog.

        Args:
            again: failures of the batch's files that this run has already counted.
        """
        with span("commit", **self._about(batch), rows=outcome.rows, failed=outcome.failed):
            self._commit_now(open_plan, batch, intent, done, outcome)
        self._progress.take_back([failure.kind for failure in again])

    def _commit_now(
        self, open_plan: Plan, batch: Batch, intent: Intent, done: StagedBatch, outcome: BatchOutcome
    ) -> None:
        began = time.monotonic()

        changes = changes_of(self._job, open_plan, batch, done.staged)

        def by_spark(session: SparkSession) -> None:
            write_by_spark(session, self._services.delta, self._location, done.staged, changes)

        def directly(marker: Marker) -> bool:
            return direct.commit(self._location, marker, changes)

        entries = Marker(intent.app_id(), intent.marker_sequence, {"batch": batch.id})
        ledger.record(ledger.location_of(self._services.warehouse, self._job.id), batch.id, entries, done.staged)
        self._services.consumer.write(intent, outcome.counts(), by_spark, directly=directly)
        seconds = done.seconds + time.monotonic() - began
        self._services.catalog.consumptions.commit(intent, replace(outcome, seconds=seconds))
        self._committed.add(batch.id)
        faults.point("batch.committed")
        if self._outputs is not None:
            self._outputs.finish(batch)
        folders.discard(f"{self._services.staging}/{batch.id}")
        progress = self._progress
        progress.batches += 1
        progress.done_files += batch.files
        progress.done_bytes += batch.bytes
        progress.failed += outcome.failed
        progress.overtaken += outcome.overtaken
        progress.later += outcome.later
        progress.held += outcome.held
        progress.rows += outcome.rows
        counts.add(progress.counted, outcome.counted)
        progress.removals += batch.removals if self._job.write is Write.UPSERT else 0  # a log keeps all rows
        progress.moves += batch.moves
        _log.info(
            "batch_committed",
            job=str(self._job.name),
            batch=batch.id,
            files=batch.files,
            removed=batch.removals,
            failed=outcome.failed,
            overtaken=outcome.overtaken,
            later=outcome.later,
            held=outcome.held,
            rows=outcome.rows,
            version=open_plan.to_version,
        )

    def _begin(self, open_plan: Plan, batch: Batch, attempt: str) -> _Staging:
        """Begins to run the function on a batch, in another thread with this one's session.

        Args:
            attempt: name of the attempt's folder.
        """
        began, changed = time.monotonic(), threading.Event()
        session = self._services.gateway.session() if batch.files else None
        run = partial(self._stage, open_plan, batch, attempt, session, changed.set)
        future = self._pool.submit(copy_context().run, run)
        future.add_done_callback(lambda _: changed.set())
        return _Staging(batch, future, changed, session, began)

    def _staged(self, open_plan: Plan, batch: Batch, intent: Intent) -> StagedBatch:
        """Runs the function on a batch, and returns the staged outcomes."""
        return self._ended(open_plan, self._begin(open_plan, batch, str(intent.attempt)))

    def _staged_ahead(self, open_plan: Plan, batch: Batch) -> StagedBatch | None:
        """Returns the outcomes of a batch that was begun ahead; None if it was not, or failed: its own attempt says why."""
        ahead = self._ahead
        if ahead is None or ahead.batch.id != batch.id:
            self._forget()
            return None
        self._ahead = None
        with suppress(VolstreamError):
            return self._ended(open_plan, ahead)
        folders.discard(f"{self._services.staging}/{batch.id}")
        return None

    def _ended(self, open_plan: Plan, staging: _Staging) -> StagedBatch:
        """Waits for a batch's outcomes. If it leaves slots idle before its end, the next batch begins."""
        try:
            staging.changed.wait()
            if not staging.future.done():
                with suppress(VolstreamError):  # the catalog may be away for a moment
                    self._stage_ahead(open_plan, staging.batch, time.monotonic() - staging.began, beside=True)
            return staging.future.result()
        finally:
            staging.end()

    def _stage_ahead(self, open_plan: Plan, batch: Batch, seconds: float, *, beside: bool = False) -> None:
        """Begins to run the function on the next batch, unless that was done, or is not possible.

        It is not possible after an attempt that died: the function may have caused it, which only counted attempts detect; nor
        if the next batch would take too long, because it is then re-cut; nor for moved files, whose rows are in the
        table; nor if the job's rate allows no call for a while, because waiting would hold slots of the engine; nor if Spark
        commits, which would wait for slots until the calls end.

        Args:
            seconds: how long the function took on all of ``batch``, or on all files but the last ones.
            beside: the function still runs on ``batch``.
        """
        if self._ahead is not None or self._stop or batch.attempts:
            return
        following = self._services.catalog.consumptions.following(batch)
        if following is None or following.moves:
            return
        current = self._services.catalog.jobs.by_id(self._job.id)
        if not isinstance(current, FileJob) or current.state is JobState.PAUSED:
            return
        self.apply_changes(current)
        if (
            (beside and not self._may_share_slots())
            or self.seconds_to_turn > LONG_WAIT_SECONDS
            or seconds * _times_as_long(following, batch) > self._services.settings.batch_seconds
            or not direct.can_write(self._location, key_column(self._job))
        ):
            return
        self._ahead = self._begin(open_plan, following, "ahead")

    def _may_share_slots(self) -> bool:
        """Returns whether two batches may run at a time: both together would exceed a job's limits, and the calls on one would
        keep Spark from looking at what the other's rows should be."""
        job = self._job
        limited = job.rate is not None or most_workers(job, self._services.settings) is not None
        return not (limited or job.expect or job.expect_warn)

    def _forget(self) -> None:
        """Ends the calls on the next batch, and removes its staged outcomes."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.end()
            folders.discard(f"{self._services.staging}/{ahead.batch.id}")

    def _adopts(self, columns: Sequence[str]) -> bool:
        """Adds columns to the job and its table, if the job accepts new columns."""
        changed = adopt(self._services, self._job, columns)
        if changed is None:
            return False
        had = [*of_job(self._job)]
        self._progress.new_columns += [field.name for field in of_job(changed) if field not in had]
        self._job = changed
        return True

    def _is_overtaken(self, intent: Intent) -> bool:
        """Returns whether another process settled this attempt; it may be working on the next, which must not be settled."""
        try:
            present = self._services.catalog.consumptions.open_intent(intent.stream_id)
        except CatalogError:
            return False
        return present is None or present.attempt != intent.attempt

    def _isolates(self, batch: Batch) -> bool:
        """Returns whether each file of a batch runs in its own child process."""
        return self._job.isolate or batch.attempts >= _ATTEMPTS_BEFORE_ISOLATION

    def _stage(
        self,
        open_plan: Plan,
        batch: Batch,
        attempt: str,
        session: SparkSession | None,
        idle: Callable[[], None],
    ) -> StagedBatch:
        """Runs the function on the batch's files and stages the outcomes.

        Args:
            attempt: name of the attempt's folder.
            session: None if the batch has no file.
            idle: called while the batch leaves slots of the engine idle.
        """
        with span("run", **self._about(batch)) as current, ExitStack() as stack:
            if session is not None:
                stack.enter_context(tagged(session, batch.id))
                stack.enter_context(idle_slots(session, self._services.slots(), idle))
            done = self._stage_now(open_plan, batch, attempt, session)
            current.set(rows=done.totals.rows, failed=done.totals.failed)
            return done

    def _about(self, batch: Batch) -> dict[str, str | int]:
        """Returns the attributes of a batch for spans."""
        return {"job": str(self._job.name), "batch": batch.id, "files": batch.files, "bytes": batch.bytes}

    @property
    def seconds_to_turn(self) -> float:
        """How long until the job's rate allows the next call."""
        pace = pace_of(self._job)
        return 0.0 if pace is None else self._turn(pace).wait

    def _turn(self, pace: Pace) -> Pace:
        """Returns the pace of the next calls; they follow the last ones, which have ended once their batch is staged."""
        if self._called is not None:
            ago = time.monotonic() - self._called
        elif last := self._services.catalog.reports.measured(self._job.id, limit=1):
            ago = (datetime.now(UTC) - (last[0].committed_on or last[0].created_on)).total_seconds()
        else:
            ago = pace.seconds
        return replace(pace, wait=min(pace.seconds, max(0.0, pace.seconds - ago)))

    def _judged(self, done: StagedBatch) -> StagedBatch:
        """Returns the outcomes as the job's expectations have them."""
        if not (self._job.expect or self._job.expect_warn):
            return done
        with self._services.session() as session:
            staged, warned = judged(session, self._job, done.staged)
        totals = staged.totals()
        return replace(done, staged=staged, totals=replace(totals, counted={**totals.counted, **warned}))

    def _stage_now(self, open_plan: Plan, batch: Batch, attempt: str, session: SparkSession | None) -> StagedBatch:
        began = time.monotonic()
        location = f"{self._services.staging}/{batch.id}/{attempt}"
        target = target_of_rows(self._job, location, batch.id)
        work = work_on(self._services.settings, self._job, self._source, self._store)
        work = replace(work, isolate=self._isolates(batch), pace=work.pace and self._turn(work.pace))
        if self._outputs is not None:
            work = replace(work, outputs=self._outputs.target(batch, attempt))
        if session is not None:
            with self._services.session(session):
                files = self._files_to_run(session, open_plan, batch)
                staged = stage(self._services, location, target, files, work, self._job, batch.files, batch=batch.id)
            self._called = time.monotonic()
        else:
            staged = Staged.of(location, target, iter(()))
        totals = staged.totals()
        if totals.printed:
            self._keep_printed(batch, staged)
        if totals.failed and (broken := staged.broken()) is not None:
            raise self._give_up(broken["error_message"], broken["error_traceback"])
        if not batch.moves and totals.succeeded + totals.failed != batch.files:
            raise VolstreamError(
                f"Batch {batch.id} has {batch.files} files, but {totals.succeeded + totals.failed} outcomes were staged.",
                "Nothing of it was committed; the next run repeats it.",
            )
        return StagedBatch(batch.id, staged, totals, time.monotonic() - began)

    def _keep_printed(self, batch: Batch, staged: Staged) -> None:
        """Keeps the function's output, whatever the attempt's result."""
        location = logs.location_of(self._services.warehouse, self._job.id)
        logs.write(location, batch.id, staged.printed(), self._services.settings.log_batch_bytes)
        logs.trim(location, self._services.settings.log_bytes, self._services.settings.history_begins())

    def _give_up(self, why: str, trace: str | None) -> FunctionLoadError:
        """Pauses the job: its function fails before it receives a file, so it would fail for every file."""
        _log.warning("function_broken", job=str(self._job.name), why=why, traceback=trace)
        reason = f"{FUNCTION_BROKEN}: {why}"
        self._services.catalog.jobs.change(self._job, state=JobState.PAUSED, state_reason=reason[:500])
        return FunctionLoadError(
            f"The function of job {self._job.name} cannot be set up: {why}",
            f"The job is paused. Give it a function that works: session.jobs.alter({str(self._job.name)!r}, function=...)."
            if self._job.pickled is not None
            else f"The job is paused. After fixing it: volstream resume {self._job.name}. To accept other columns: "
            f"volstream alter-job {self._job.name} --function {self._job.function}.",
        )

    def _note(
        self, open_plan: Plan, batch: Batch, intent: Intent, done: StagedBatch, earlier: dict[str, Failure]
    ) -> BatchOutcome:
        """Returns the outcome of an attempt, and records its failures as pending."""
        totals = done.totals
        kept = batch.files - totals.succeeded - totals.failed if batch.moves else 0
        given_up = self._note_failures(done.staged, open_plan, batch, intent, earlier) if totals.failed else 0
        later = totals.later - given_up
        failed = totals.failed - totals.overtaken - later - totals.held
        return BatchOutcome(
            totals.succeeded + kept,
            failed,
            totals.rows,
            list(earlier),
            overtaken=totals.overtaken,
            later=later,
            held=totals.held,
            counted=totals.counted,
            files_per_call=totals.files_per_call,
        )

    def _files_to_run(self, session: SparkSession, open_plan: Plan, batch: Batch) -> DataFrame:
        """Returns the files of a batch to call the function on: all but moved ones whose rows follow them."""
        if self._job.on_move is OnMove.RERUN or not batch.moves:
            return plan.work_of(session, open_plan, batch)
        moved = plan.moved(open_plan.location, batch)
        births: dict[str, datetime] = {}
        if isinstance(self._store, HasBirths):
            births = {file.path: born for file in moved if (born := self._store.born(file.path)) is not None}
        return plan.work_of(session, open_plan, batch, followed(session, moved, self._location, births))

    def _note_failures(
        self, staged: Staged, open_plan: Plan, batch: Batch, intent: Intent, earlier: dict[str, Failure]
    ) -> int:
        """Records failures as pending; returns how many have waited too long to be called later."""
        settings = self._services.settings
        backoff = Backoff(settings.retry_first_seconds, settings.retry_max_seconds)
        policy = RetryPolicy(self._job.retries, backoff, settings.retry_later_max_seconds)
        now, randomness = datetime.now(UTC), random.Random()
        moved: list[str] = []
        given_up = 0

        def found() -> Iterator[Failure]:
            nonlocal given_up
            for row in staged.failures():
                kind = FailureKind(row["error_kind"])
                message = row["error_message"]
                before = earlier.get(row["path"])
                if before is not None and before.file_version != row["file_version"]:
                    before = None
                attempts = 0 if before is None else before.attempts
                since = policy.waiting_since(kind, before, now)
                next_try: datetime | None
                if kind is FailureKind.HELD:
                    after = row["retry_after"]
                    next_try = None if after is None else now + timedelta(seconds=after)
                elif since is not None:
                    next_try = policy.later(row["retry_after"], now)
                else:
                    attempts += 1
                    if kind is FailureKind.RETRY_LATER:
                        kind, given_up = FailureKind.RAISED, given_up + 1
                        message = f"Gave up after retrying for longer than retry_later_max_seconds: {message}"
                    next_try = policy.next_try(kind, attempts, now, randomness)
                if kind in SUPERSEDED:
                    moved.append(row["path"])
                yield Failure(
                    job_id=self._job.id,
                    path=row["path"],
                    file_version=row["file_version"],
                    commit_version=row["commit_version"],
                    state=FailureState.PENDING,
                    kind=kind,
                    message=message,
                    traceback=row["error_traceback"],
                    attempts=attempts,
                    next_try=next_try,
                    batch_id=batch.id,
                    attempt=intent.attempt,
                    failed_on=now,
                    waiting_since=since,
                )

        self._services.catalog.failures.add_pending(found())
        if moved and self._job.group_by is not None:
            moved = [*plan.files_in_sets(open_plan.location, moved)]
        if moved:
            self._services.catalog.refreshes.ask_check(self._volume.id, moved)
        return given_up


@dataclass(frozen=True)
class _Staging:
    """A batch on which the function runs, in another thread.

    Attributes:
        future: of the staged outcomes.
        changed: set once it has ended, or leaves slots idle.
        session: in which it runs; None if the batch has no file.
        began: by the monotonic clock.
    """

    batch: Batch
    future: Future[StagedBatch]
    changed: threading.Event
    session: SparkSession | None
    began: float

    def end(self) -> None:
        """Interrupts it if it runs, and returns once it has ended."""
        while wait([self.future], timeout=_INTERRUPT_SECONDS).not_done:
            if self.session is not None:
                with suppress(Exception):  # the engine died, which ends it, too
                    self.session.interruptTag(self.batch.id)


def _times_as_long(following: Batch, batch: Batch) -> float:
    """Estimates how many times as long as on one batch the function takes on another."""
    by_files = following.files / batch.files if batch.files else 1.0
    by_bytes = following.bytes / batch.bytes if batch.bytes else 1.0
    return max(by_files, by_bytes)


def work_on(settings: Settings, job: FileJob, source: FunctionSource, store: ObjectStore) -> Work:
    """Returns what executors need to call a job's function on files of a store. Its outputs are measured, not written."""
    return Work(
        source,
        arguments_of(job),
        store,
        of_job(job),
        job.timeout,
        job.isolate,
        job.memory or settings.function_memory,
        settings.fetch_ahead_bytes,
        bounds(settings),
        # A pickled one cannot change, and its annotations may resolve only where it was pickled.
        job.declared and job.pickled is None,
        sets=job.group_by is not None,
        concurrency=job.concurrency,
        pace=pace_of(job),
        owner=new_owner(),
        outputs=None if job.outputs_to is None else target_of(job),
        gpus=gpus_of(job, settings),
    )


def pace_of(job: FileJob) -> Pace | None:
    """Returns how far the calls of a job's function are apart; None: it has no rate."""
    return None if job.rate is None else Pace(1 / parse_rate(job.rate))


def target_of_rows(job: FileJob, location: str, batch_id: str) -> RowsTarget:
    """Returns where rows that are too many for a reply go, below an attempt's folder."""
    options = tuple(sorted(options_of(location).items()))
    return RowsTarget(f"{location}/rows", of_table(job), key_column(job), batch_id, options)


def stage(
    services: JobServices,
    location: str,
    target: RowsTarget,
    files: DataFrame,
    work: Work,
    job: FileJob,
    count: int,
    **about: str,
) -> Staged:
    """Runs a job's function on ``count`` files and stages the outcomes; ``about`` adds fields to the log."""
    from pyspark.errors import PySparkException

    most = most_workers(job, services.settings)
    if work.pace is not None or most is not None:
        workers = min(count, most or count, plan.processors(files))
        files = files.repartition(workers)
        work = replace(work, pace=work.pace and replace(work.pace, workers=workers))
    session = cast("SparkSession", files.sparkSession)
    work = replace(work, source=brought(services, session, work.source))
    profile = profile_of(job, services.settings)
    try:
        return Staged.run(location, target, files, work, profile)
    except PySparkException as error:
        if work.apart or not _worker_died(error):
            raise
        # A file kills its worker. One child process per file identifies it and lets the other files succeed.
        _log.warning("worker_died", job=str(job.name), **about, next="each file in a child process")
        return Staged.run(location, target, files, replace(work, isolate=True), profile)


def recover(services: JobServices, job: FileJob, why: str = "Its process ended.") -> bool:
    """Settles a failed attempt, or one that a dead process left open; returns False if there was none.

    Args:
        why: recorded as the reason if the attempt was not committed.

    Raises:
        As :meth:`Consumer.settle`.
    """

    def superseded_in(batch: Batch) -> list[str]:
        open_plan = services.catalog.reports.plan(batch.plan_id)
        assert open_plan is not None, "a batch refers to its plan"
        return list(earlier_failures(services, job, open_plan, batch)) if services.has_files(job, open_plan) else []

    return services.consumer.settle(job.stream_id, superseded_in, why) is not None


def earlier_failures(services: JobServices, job: FileJob, open_plan: Plan, batch: Batch) -> dict[str, Failure]:
    """Returns active failures of the files in this batch, by path; they end whatever the files' outcome now."""
    active = services.catalog.failures.active(job.id, after=batch.after_path, until=batch.until_path)
    by_path = {failure.path: failure for failure in active}
    ending = plan.contained_paths(open_plan.location, by_path, batch) if by_path else set()
    origins = plan.origins(open_plan.location, batch)
    if origins is not None:
        moved = services.catalog.failures.active(job.id, until=origins[1])
        by_path |= {failure.path: failure for failure in moved}
        ending |= plan.contained_paths(
            open_plan.location, [failure.path for failure in moved], batch, column="old_path"
        )
    return {path: by_path[path] for path in ending}


def _worker_died(error: BaseException) -> bool:
    """Returns whether a query failed because a Python worker died, which is how Spark reports a crashed function."""
    return "Python worker exited unexpectedly" in str(error)
