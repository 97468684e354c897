"""A job's run: take the range, plan once, and process and commit batch after batch, exactly once each (docs/exactly-once.md)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.catalog import Catalog
from volstream.catalog.consumptions import Outcome
from volstream.config import Settings
from volstream.delta import direct, folders
from volstream.delta.marker import Marker
from volstream.delta.places import reached
from volstream.delta.writer import DeltaWriter
from volstream.errors import (
    CatalogError,
    FencedError,
    FunctionLoadError,
    NotFoundError,
    VolstreamError,
)
from volstream.functions.schema import of_job
from volstream.functions.source import find
from volstream.functions.worker import Work
from volstream.jobs import logs, plan
from volstream.jobs.definitions import FUNCTION_BROKEN
from volstream.jobs.lease import RunReport, led, settling
from volstream.jobs.planner import Planner
from volstream.jobs.policy import RetryPolicy
from volstream.jobs.preview import Preview, preview
from volstream.jobs.progress import Observer
from volstream.jobs.results import ResultTables, put_batch, without_followed, write_batch
from volstream.jobs.sizing import Limits, bounds
from volstream.jobs.staged import Staged, Totals
from volstream.lifecycle import faults
from volstream.lifecycle.stop import Stop
from volstream.log import get
from volstream.model.objects import Job, JobState, OnMove, Stream, Volume, Write
from volstream.model.work import Batch, Failure, FailureKind, FailureState, Intent, Plan, PlanKind
from volstream.spark.errors import as_sql_errors
from volstream.streams.consume import Consumer
from volstream.streams.read import StreamReader
from volstream.volumes.access import store_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway

_log = get("jobs")

#: Retries are few files that failed before: small batches, so that a bad one holds up few.
_RETRY_FILES = 1000

#: After this many attempts whose owners died, a batch is run with each file in a child process: one of them kills.
_ATTEMPTS_BEFORE_ISOLATION = 2


class JobRunner:
    """Runs jobs of functions. Safe for threads: each run has its own sessions and its own lease.

    Catalog and logs tell whether there is anything to do; only where there is, the engine is attached to.
    """

    def __init__(self, catalog: Catalog, gateway: SparkGateway, settings: Settings) -> None:
        self._catalog = catalog
        self._gateway = gateway
        self._settings = settings
        self._warehouse = settings.warehouse_path
        self._delta = DeltaWriter(gateway)
        self._reader = StreamReader(catalog, self._warehouse)
        self.planner = Planner(catalog, self._reader, settings)
        self._consumer = Consumer(catalog, self._delta)
        self._results = ResultTables(catalog, self._delta, self._warehouse)

    def run(
        self, job: Job, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None
    ) -> RunReport:
        """Processes what the job's stream holds now, and the failures that are due. See :class:`Runner`."""
        return self._lead(job, stop, observe, lambda run: run.go(until_empty=until_empty))

    def replay(
        self, job: Job, where: str | None = None, *, stop: Stop | None = None, observe: Observer | None = None
    ) -> RunReport:
        """Processes again the files that were delivered and are still what they were; their results are replaced.

        Files that are newer come through the stream, whose offset stays. A replay of all files accepts the function's
        code as it is now. One that was interrupted goes on with the next run; another replay begins anew.

        Args:
            where: SQL condition on the directory's columns, besides the job's own.

        Raises:
            As :meth:`run`.
        """
        return self._lead(job, stop, observe, lambda run: run.replay(where))

    def preview(self, job: Job) -> Preview:
        """What a run would do now. Changes nothing."""
        return preview(self.session, self._catalog, self._reader, self.planner, job)

    def _lead(self, job: Job, stop: Stop | None, observe: Observer | None, act: Callable[[_Run], None]) -> RunReport:
        """A run of the job by the holder of its lease, of which the catalog is told."""
        with led(self._catalog, job, self._settings.lease_seconds) as lead:
            run = _Run(self, lead.job, lead.owner, Stop() if stop is None else stop, observe or (lambda _: None))
            with self._gateway.explaining(), as_sql_errors(), reached(self._warehouse):
                act(run)
            lead.summary = run.summary()
            return run.report

    def free(self, job: Job) -> None:
        """Settles what a run left open that is no more. Without Spark, unless it is to be fenced off from a table that needs it.

        Raises:
            StreamBusyError: it is at work.
            As :meth:`Consumer.settle`.
        """
        if self._catalog.consumptions.open_intent(job.stream_id) is None:
            return
        with (
            settling(self._catalog, job, self._settings.lease_seconds),
            self._gateway.explaining(),
            as_sql_errors(),
            reached(self._warehouse),
        ):
            self._consumer.settle(job.stream_id)

    def has_work(self, job: Job) -> bool:
        """See :class:`Runner`."""
        stream = self._stream(job)
        return (
            self._reader.has_data(stream)
            or self._catalog.consumptions.open_plan(stream.id) is not None
            or bool(self._catalog.failures.due(job.id, datetime.now(UTC), 1))
        )

    def _stream(self, job: Job) -> Stream:
        stream = self._catalog.streams.by_id(job.stream_id)
        assert stream is not None, "a job's stream cannot be dropped before the job"
        return stream

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """This thread's session, for reading and staging, with Spark's errors mapped.

        One for all runs of a thread: Spark keeps Python workers, which hold the imported function, by session.
        """
        with as_sql_errors():
            yield self._gateway.session()


@dataclass(frozen=True)
class _Ahead:
    """The staged outcomes of a batch.

    Attributes:
        seconds: that the function took.
    """

    batch_id: str
    staged: Staged
    totals: Totals
    seconds: float


class _Run:
    """One run of one job, by the holder of its lease."""

    def __init__(self, runner: JobRunner, job: Job, owner: str, stop: Stop, observe: Observer) -> None:
        self.report = RunReport()
        self._runner = runner
        self._catalog = runner._catalog
        self._settings = runner._settings
        self._staging = f"{runner._warehouse}/_staging"
        self._job = job
        self._owner = owner
        self._stop = stop
        self._observe = observe
        self._has_table = False
        self._prepared = False

    def go(self, *, until_empty: bool) -> None:
        """Recovers, finishes an open plan, then plans and processes what is there."""
        self._begin()
        unfinished = self._catalog.consumptions.open_plan(self._job.stream_id)
        if unfinished is not None:
            self._process(unfinished)
        while not self._ended:
            worked = self._plan_stream()
            if not self._ended:
                worked = self._plan_retries() or worked
            if not (worked and until_empty):
                return

    def replay(self, where: str | None) -> None:
        """Recovers, finishes an open plan, then plans and processes what was delivered before."""
        self._begin()
        unfinished = self._catalog.consumptions.open_plan(self._job.stream_id)
        if unfinished is not None and unfinished.kind is PlanKind.REPLAY:
            self._catalog.consumptions.drop_plan(unfinished)  # its beginning may have run with other code
            folders.remove(unfinished.location)
        elif unfinished is not None:
            self._process(unfinished)
        stream = self._runner._stream(self._job)
        covered = None if self._ended else self._runner._reader.delivered(stream)
        if covered is None:
            return
        self._make_table()
        made, batches = self._runner.planner.of_replay(self._runner.session, self._job, covered, where)
        if where is None:
            self._job = self._catalog.jobs.change(self._job, fingerprint=self._source.fingerprint)
            self.report.progress.code_changed = False
        # From here on the table may have rows of any file.
        self._job = self._catalog.jobs.change(self._job, clean=False)
        self._open(made, batches, stream)

    @property
    def _ended(self) -> bool:
        return bool(self._stop) or self.report.paused is not None

    @property
    def _location(self) -> str:
        """Of the result table."""
        return folders.table_location(self._runner._warehouse, self._job.into)

    def _begin(self) -> None:
        """Recovers, and finds what the run needs. Without Spark, unless an attempt is to be fenced off, or the table to be
        altered."""
        self.report.recovered = self._runner._consumer.settle(self._job.stream_id, self._superseded_in) is not None
        assert self._job.function is not None, "a job of a statement has another runner"
        self._source = find(self._job.function, self._job.search_path)
        self.report.progress.code_changed = self._source.fingerprint != self._job.fingerprint
        self._volume = self._volume_of(self._runner._stream(self._job))
        self._store = store_of(self._volume, self._catalog, self._runner._settings)
        if self._runner._results.exists(self._job):
            self._make_table()

    def _make_table(self) -> None:
        """Makes or checks the result table, once in a run and before any file is planned: there is something to do."""
        if not self._has_table:
            self._job = self._runner._results.prepare(self._job)
            self._has_table = True

    def summary(self) -> str:
        """One line for the catalog."""
        progress = self.report.progress
        if self.report.paused:
            return f"paused: {self.report.paused}"
        return f"{progress.processed} files done, {progress.failed} failed, {progress.removals} removed"

    def _volume_of(self, stream: Stream) -> Volume:
        volume = self._catalog.volumes.by_id(stream.source_id)
        if volume is None:
            self._runner._reader.pin(stream)  # says why the stream is stale
            raise NotFoundError(f"The volume {stream.source_name} was dropped.")
        return volume

    def _plan_stream(self) -> bool:
        """Plans and processes the stream's range; false where there was nothing in it."""
        stream = self._runner._stream(self._job)
        if not self._runner._reader.has_data(stream):
            return False
        covered = self._runner._reader.pin(stream)
        if covered is None or covered.empty:
            return False
        if self._runner._reader.only_upkeep(covered):
            self._catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
            return False
        self._make_table()
        self._prepare_commit()
        made, batches = self._runner.planner.of_range(self._runner.session, self._job, covered)
        faults.point("plan.written")
        if not self._open(made, batches, stream):
            self._catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
        return True  # after initial rows of which none is wanted come the changes

    def _plan_retries(self) -> bool:
        """Plans and processes the failures that are due; false where there are none."""
        due = self._catalog.failures.due(self._job.id, datetime.now(UTC), _RETRY_FILES)
        if not due:
            return False
        stream = self._runner._stream(self._job)
        covered = self._runner._reader.pin(stream)
        if covered is None:
            return False
        self._make_table()
        covered = replace(covered, to_version=self._runner._reader.latest_version(stream))
        made, batches = self._runner.planner.of_retries(self._job, covered, due)
        asked = [one.path for one in due]
        planned = plan.among(made.location, asked)
        self._catalog.failures.postpone([one for one in due if one.path not in planned])
        self._open(made, batches, stream)
        return True

    def _open(self, made: Plan, batches: Sequence[Batch], stream: Stream) -> bool:
        """Opens a plan and processes its batches; false, and nothing of it is left, where it has none."""
        if not batches:
            folders.remove(made.location)
            return False
        self._catalog.consumptions.open((made, batches, stream))
        # From here on nobody moves the stream: whether it was moved before, and rows may be there, is known now.
        current = self._catalog.jobs.by_id(self._job.id)
        self._job = replace(self._job, clean=current is not None and current.clean)
        faults.point("plan.opened")
        self._process(made)
        return True

    def _process(self, made: Plan) -> None:
        """Processes the batches of an open plan that are not committed, in order."""
        if not self._has_files(made):
            self._catalog.consumptions.drop_plan(made)
            return
        self._make_table()
        progress = self.report.progress
        left = self._catalog.consumptions.waiting(self._job.id)
        progress.files += left.files
        progress.bytes += left.bytes
        self._observe(progress)
        cut_by: Limits | None = None
        ahead: _Ahead | None = None
        try:
            while not self._ended:
                cut_by = self._runner.planner.resize(self._job, made, cut_by)
                batch = self._catalog.consumptions.next_batch(made)
                if batch is None:
                    folders.remove(made.location)
                    return
                self._prepare_commit()
                mine, ahead = (ahead, None) if ahead is not None and ahead.batch_id == batch.id else (None, ahead)
                self._forget(ahead)
                ahead = self._process_batch(made, batch, mine)
                self._observe(progress)
                self._look_at_job()
        finally:
            self._forget(ahead)

    def _look_at_job(self) -> None:
        """Whether the job is to go on: it may have been paused or dropped, and a batch may have paused it."""
        current = self._catalog.jobs.by_id(self._job.id)
        if current is None:
            raise FencedError(f"The job {self._job.name} was dropped while it ran.")
        if current.state is JobState.PAUSED:
            self.report.paused = current.state_reason or "paused by the user"

    def _forget(self, ahead: _Ahead | None) -> None:
        """Removes what was staged of a batch that will not be committed from it."""
        if ahead is not None:
            folders.remove(f"{self._staging}/{ahead.batch_id}")

    def _prepare_commit(self) -> None:
        """Lets Delta do beforehand what the next commit begins with, while files are planned and processed."""
        if self._prepared:
            return
        self._prepared = True

        def prepare() -> None:
            with suppress(VolstreamError):  # whatever it is, the commit meets it
                if not direct.can_write(self._location):
                    self._runner._delta.prepare(self._location)

        threading.Thread(target=prepare, name=f"commit of {self._job.name}", daemon=True).start()

    def _has_files(self, made: Plan) -> bool:
        """Whether a plan's files are there; where a range of versions gives the same ones, they are written again."""
        if plan.exists(made.location):
            return True
        return self._runner.planner.write_again(self._runner.session, self._job, made, self._runner._stream(self._job))

    def _process_batch(self, made: Plan, batch: Batch, ahead: _Ahead | None) -> _Ahead | None:
        """Runs and commits a batch; while it is committed, the function runs on the next one.

        Args:
            ahead: what was staged of this batch while the one before was committed.

        Returns:
            What was staged of the next one.
        """
        intent = self._runner._consumer.begin(batch, owner=self._owner, location=self._location)
        committing: Future[None] | None = None
        following: _Ahead | None = None
        try:
            done = ahead or self._stage(made, batch, str(intent.attempt), isolate=self._isolates(batch))
            outcome = self._note(made, batch, intent, done)
            faults.point("batch.staged")
            with ThreadPoolExecutor(1, thread_name_prefix=f"commit of {self._job.name}") as pool:
                committing = pool.submit(self._commit, made, batch, intent, done, outcome)
                following = self._stage_ahead(made, batch, done)
                committing.result()
        except BaseException as error:
            self._forget(following)
            if committing is not None and committing.exception() is None:
                raise  # the batch is committed; it was the next one that failed
            if self._is_overtaken(intent):
                raise FencedError(
                    f"Batch {batch.id}: another process took it over; nothing of this run was kept."
                ) from error
            # The next owner would do the same. Where it cannot be done now (the engine is gone), it is left to them.
            with suppress(VolstreamError):
                self._runner._consumer.settle(self._job.stream_id, self._superseded_in)
            raise
        return following

    def _commit(self, made: Plan, batch: Batch, intent: Intent, done: _Ahead, outcome: Outcome) -> None:
        """Commits the staged outcomes of a batch, in the table and in the catalog."""
        began = time.monotonic()

        def commit(session: SparkSession) -> None:
            write_batch(session, self._runner._delta, self._job, made, batch, self._location, done.staged)

        def directly(marker: Marker) -> bool:
            return put_batch(self._job, made, batch, self._location, done.staged, marker)

        self._runner._consumer.write(intent, outcome.told(), commit, directly=directly)
        self._prepared = False
        seconds = done.seconds + time.monotonic() - began
        self._catalog.consumptions.commit(intent, replace(outcome, seconds=seconds))
        faults.point("batch.committed")
        folders.remove(f"{self._staging}/{batch.id}")
        progress = self.report.progress
        progress.batches += 1
        progress.done_files += batch.files
        progress.done_bytes += batch.bytes
        progress.failed += outcome.failed
        progress.overtaken += outcome.overtaken
        progress.rows += outcome.rows
        progress.removals += batch.removals if self._job.write is Write.UPSERT else 0  # a log keeps what was
        progress.moves += batch.moves
        _log.info(
            "batch_committed",
            job=str(self._job.name),
            batch=batch.id,
            files=batch.files,
            removed=batch.removals,
            failed=outcome.failed,
            overtaken=outcome.overtaken,
            rows=outcome.rows,
            version=made.to_version,
        )

    def _stage_ahead(self, made: Plan, batch: Batch, done: _Ahead) -> _Ahead | None:
        """Runs the function on the next batch, while this one is committed; None where that is not to be done, or failed.

        Not after an attempt that died: what died may be the function, which is found by attempts that are counted. Not where
        the next batch would take too long, for then it is cut anew; nor of moved files, whose rows are in the table.
        """
        following = None if self._stop or batch.attempts else self._catalog.consumptions.following(batch)
        if (
            following is None
            or following.moves
            or self._seconds_of(following, batch, done) > self._settings.batch_seconds
        ):
            return None
        with suppress(VolstreamError):  # it is run again as a batch of its own, and fails as one
            return self._stage(made, following, "ahead", isolate=self._job.isolate)
        folders.remove(f"{self._staging}/{following.id}")
        return None

    @staticmethod
    def _seconds_of(following: Batch, batch: Batch, done: _Ahead) -> float:
        """How long the function may take on the next batch, by how long it took on this one."""
        by_files = following.files / batch.files if batch.files else 1.0
        by_bytes = following.bytes / batch.bytes if batch.bytes else 1.0
        return done.seconds * max(by_files, by_bytes)

    def _is_overtaken(self, intent: Intent) -> bool:
        """Whether somebody else settled this attempt, and may be at work on the next: theirs is not ours to settle."""
        try:
            present = self._catalog.consumptions.open_intent(intent.stream_id)
        except CatalogError:
            return False
        return present is None or present.attempt != intent.attempt

    def _isolates(self, batch: Batch) -> bool:
        """Whether each file of a batch is run in a child process."""
        return self._job.isolate or batch.attempts >= _ATTEMPTS_BEFORE_ISOLATION

    def _stage(self, made: Plan, batch: Batch, attempt: str, *, isolate: bool) -> _Ahead:
        """Runs the function on the batch's files into staged files.

        Args:
            attempt: names the folder.
        """
        began = time.monotonic()
        staged = Staged(f"{self._staging}/{batch.id}/{attempt}", of_job(self._job))
        work = Work(
            self._source,
            dict(self._job.arguments),
            self._store,
            staged.result,
            self._job.timeout_seconds,
            isolate,
            self._settings.function_memory,
            self._settings.fetch_ahead_bytes,
            bounds(self._settings),
            self._job.declared,
        )
        if batch.files:
            with self._runner.session() as session:
                self._run_function(self._files_to_run(session, made, batch), work, batch, staged)
        else:
            staged.write_nothing()
        totals = staged.totals()
        if totals.printed:
            self._keep_printed(batch, staged)
        if totals.failed and (broken := staged.broken()) is not None:
            raise self._give_up(broken["error_message"], broken["error_traceback"])
        if not batch.moves and totals.succeeded + totals.failed != batch.files:
            raise VolstreamError(
                f"Batch {batch.id} has {batch.files} files, and {totals.succeeded + totals.failed} outcomes were staged.",
                "Nothing of it was committed; the next run does it again.",
            )
        return _Ahead(batch.id, staged, totals, time.monotonic() - began)

    def _keep_printed(self, batch: Batch, staged: Staged) -> None:
        """Keeps what the function printed, whatever becomes of the attempt."""
        location = logs.location_of(self._runner._warehouse, self._job.id)
        logs.write(location, batch.id, staged.printed(), self._settings.log_batch_bytes)
        logs.trim(location, self._settings.log_bytes, self._settings.history_begins())

    def _give_up(self, why: str, trace: str | None) -> FunctionLoadError:
        """Pauses the job, whose function fails before it sees a file: no file is to blame, and the next would do no better."""
        _log.warning("function_broken", job=str(self._job.name), why=why, traceback=trace)
        reason = f"{FUNCTION_BROKEN}: {why}"
        self._catalog.jobs.change(self._job, state=JobState.PAUSED, state_reason=reason[:500])
        return FunctionLoadError(
            f"The function of job {self._job.name} cannot be set up: {why}",
            f"The job is paused. After fixing it: volstream resume {self._job.name}. To accept other columns: "
            f"volstream alter-job {self._job.name} --function {self._job.function}.",
        )

    def _note(self, made: Plan, batch: Batch, intent: Intent, done: _Ahead) -> Outcome:
        """What an attempt comes to; its failures are noted as pending."""
        totals = done.totals
        kept = batch.files - totals.succeeded - totals.failed if batch.moves else 0
        earlier = self._earlier(made, batch)
        if totals.failed:
            self._note_failures(done.staged, batch, intent, earlier)
        failed = totals.failed - totals.overtaken
        return Outcome(totals.succeeded + kept, failed, totals.rows, list(earlier), overtaken=totals.overtaken)

    def _files_to_run(self, session: SparkSession, made: Plan, batch: Batch) -> DataFrame:
        """The files of a batch that the function is called on: not those whose rows follow them."""
        files = plan.work_of(session, made, batch)
        if self._job.on_move is OnMove.RERUN:
            return files
        origins = plan.of_origins("t._file_path", made.location, batch)
        if origins is None:
            return files
        return without_followed(session, files, self._location, origins)

    def _run_function(self, files: DataFrame, work: Work, batch: Batch, staged: Staged) -> None:
        from pyspark.errors import PySparkException

        try:
            staged.write(files, work)
        except PySparkException as error:
            if work.isolate or not _worker_died(error):
                raise
            # Some file takes its worker down. With each file in a child process it is found, and the others land.
            _log.warning("worker_died", job=str(self._job.name), batch=batch.id, next="each file in a child process")
            staged.write(files, replace(work, isolate=True))

    def _note_failures(self, staged: Staged, batch: Batch, intent: Intent, earlier: dict[str, Failure]) -> None:
        settings = self._settings
        policy = RetryPolicy(self._job.retries, settings.retry_first_seconds, settings.retry_max_seconds)
        now, randomness = datetime.now(UTC), random.Random()
        moved: list[str] = []

        def found() -> Iterator[Failure]:
            for row in staged.failures():
                kind = FailureKind(row["error_kind"])
                before = earlier.get(row["path"])
                same = before is not None and before.file_version == row["file_version"]
                attempts = before.attempts + 1 if before is not None and same else 1
                if kind in (FailureKind.VANISHED, FailureKind.CHANGED):
                    moved.append(row["path"])
                yield Failure(
                    job_id=self._job.id,
                    path=row["path"],
                    file_version=row["file_version"],
                    commit_version=row["commit_version"],
                    state=FailureState.PENDING,
                    kind=kind,
                    message=row["error_message"],
                    traceback=row["error_traceback"],
                    attempts=attempts,
                    next_try=policy.next_try(kind, attempts, now, randomness),
                    batch_id=batch.id,
                    attempt=intent.attempt,
                    failed_on=now,
                )

        self._catalog.failures.add_pending(found())
        if moved:
            self._catalog.refreshes.ask_check(self._volume.id, moved)

    def _earlier(self, made: Plan, batch: Batch) -> dict[str, Failure]:
        """Active failures of the files in this batch, by path: whatever becomes of the files now, these end."""
        active = self._catalog.failures.active(self._job.id, after=batch.after_path, until=batch.until_path)
        by_path = {one.path: one for one in active}
        ending = plan.among(made.location, by_path, batch) if by_path else set()
        origins = plan.origins(made.location, batch)
        if origins is not None:
            moved = self._catalog.failures.active(self._job.id, until=origins[1])
            by_path |= {one.path: one for one in moved}
            ending |= plan.among(made.location, [one.path for one in moved], batch, column="old_path")
        return {path: by_path[path] for path in ending}

    def _superseded_in(self, batch: Batch) -> list[str]:
        made = self._catalog.consumptions.plan(batch.plan_id)
        assert made is not None, "a batch refers to its plan"
        return list(self._earlier(made, batch)) if self._has_files(made) else []


def _worker_died(error: BaseException) -> bool:
    """Whether a query failed because a Python worker ended, which is how Spark tells of a crashed function."""
    return "Python worker exited unexpectedly" in str(error)
