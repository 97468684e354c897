"""Runs batches: calls the function, records failures, commits the rows, and starts the next batch early."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from volstream.base import faults
from volstream.base.definitions import FileJob, JobState, Volume, Write
from volstream.base.log import get
from volstream.base.model.text import counted
from volstream.base.model.work import PERMANENT, SUPERSEDED, Batch, Failure, FailureKind, FailureState, Intent, Plan, add_counts
from volstream.base.threads import Backoff, Stop
from volstream.base.tracing import span
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import CatalogError, FencedError, JobChangedError, VolstreamError, reason_of
from volstream.functions.schema import key_column, of_job
from volstream.functions.source import FunctionSource
from volstream.jobs.batches import ledger
from volstream.jobs.batches.canary import Canary
from volstream.jobs.batches.ledger import LEDGER
from volstream.jobs.batches.outputs import JobOutputs, finish
from volstream.jobs.batches.results import changes_of, write_by_spark
from volstream.jobs.batches.staged import Staged, check_expectations
from volstream.jobs.batches.stager import StagedBatch, Stager, Staging, about, max_workers
from volstream.jobs.batches.step_values import follow
from volstream.jobs.plans import plan
from volstream.jobs.rules.columns import adopt
from volstream.jobs.rules.targets import loaded
from volstream.jobs.runs.lease import LOOK_SECONDS, JobWatch, Progress
from volstream.jobs.runs.services import JobServices
from volstream.tables.delta import direct, places
from volstream.tables.delta.ownership import Marker

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def record_failures(
    services: JobServices,
    job: FileJob,
    volume: Volume,
    staged: Staged,
    batch: tuple[Plan, Batch],
    intent: Intent,
    earlier: Mapping[str, Failure],
) -> int:
    """Records failures as pending. Returns the number of files whose function asked for retries too long."""
    (open_plan, current), settings = batch, services.settings
    backoff = Backoff(settings.retry_first_seconds, settings.retry_max_seconds)
    policy = RetryPolicy(job.retries, backoff, settings.retry_later_max_seconds)
    now, randomness = datetime.now(UTC), random.Random()
    superseded: list[str] = []
    given_up = 0

    def failures() -> Iterator[Failure]:
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
            after = row["retry_after"]
            if kind is FailureKind.HELD:
                next_try = None if after is None else now + timedelta(seconds=after)
            elif since is not None:
                next_try = policy.later(after or 0.0, now)
            else:
                attempts += 1
                if kind is FailureKind.RETRY_LATER:
                    kind, given_up = FailureKind.RAISED, given_up + 1
                    message = f"Gave up after retrying for longer than retry_later_max_seconds: {message}"
                next_try = policy.next_try(kind, attempts, now, randomness)
            if kind in SUPERSEDED:
                superseded.append(row["path"])
            yield Failure(
                job_id=job.id,
                path=row["path"],
                file_version=row["file_version"],
                commit_version=row["commit_version"],
                state=FailureState.PENDING,
                kind=kind,
                message=message,
                traceback=row["error_traceback"],
                attempts=attempts,
                next_try=next_try,
                batch_id=current.id,
                attempt=intent.attempt,
                failed_on=now,
                waiting_since=since,
            )

    services.catalog.failures.add_pending(failures())
    if superseded and job.group_by is not None:
        superseded = [*plan.files_in_sets(open_plan.location, superseded)]
    if superseded:
        services.catalog.refreshes.ask_check(volume.id, superseded)
    return given_up


def recover(services: JobServices, job: FileJob, why: str = "Its process ended.") -> bool:
    """Settles a failed attempt, or one that a dead process left open. Returns False if there was none.

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
    """Returns active failures of the files in this batch, by path. The batch ends them, whatever its
    outcome."""
    after, until = batch.paths
    active = services.catalog.failures.active(job.id, after=after, until=until)
    by_path = {failure.path: failure for failure in active}
    ending = plan.contained_paths(open_plan.location, by_path, batch) if by_path else set()
    origins = plan.origins(open_plan.location, batch)
    if origins is not None:
        moved = services.catalog.failures.active(job.id, until=origins[1])
        by_path |= {failure.path: failure for failure in moved}
        ending |= plan.contained_paths(open_plan.location, [failure.path for failure in moved], batch, column="old_path")
    return {path: by_path[path] for path in ending}


@dataclass(frozen=True)
class RetryPolicy:
    """Retries after failures.

    Attributes:
        retries: maximum number of retries after the first attempt.
        backoff: the delays before the retries.
        later_max_seconds: how long a function may ask to be called later for a file.
    """

    retries: int
    backoff: Backoff
    later_max_seconds: float

    def waiting_since(self, kind: FailureKind, before: Failure | None, now: datetime) -> datetime | None:
        """Returns since when a file has waited for the store, or for the later call that its function wants.

        Returns None if neither applies, or if the function has asked for later calls too long.

        Args:
            before: the earlier failure of the same file version.
        """
        since = (None if before is None else before.waiting_since) or now
        too_long = (now - since).total_seconds() > self.later_max_seconds
        waits = kind is FailureKind.STORE or (kind is FailureKind.RETRY_LATER and not too_long)
        return since if waits else None

    def later(self, after: float, now: datetime) -> datetime:
        """Returns when to retry a function that asked to be called ``after`` seconds later."""
        return now + timedelta(seconds=min(after, self.later_max_seconds))

    def next_try(self, kind: FailureKind, attempts: int, now: datetime, randomness: random.Random) -> datetime | None:
        """Returns when a file that failed ``attempts`` times is due again, or None without automatic
        retry."""
        if kind in PERMANENT or (attempts > self.retries and kind not in SUPERSEDED):
            return None
        return now + timedelta(seconds=self.backoff.delay(attempts, randomness.random))


# The look-ahead: the function starts on the next batch once the last calls of the current batch leave slots
# idle, and runs while the current batch is committed.

#: A run waits longer than this for the job's rate before a batch. Shorter waits happen in workers, which hold
#: slots of the engine.
LONG_WAIT_SECONDS = 1.0


class LookAhead:
    """Stages the batches of one plan in order, and starts the next one early where possible."""

    def __init__(self, services: JobServices, stager: Stager, stop: Stop) -> None:
        self._services = services
        self._stager = stager
        self._stop = stop
        self._ahead: Staging | None = None

    @property
    def begun_until(self) -> int:
        """The number of the batch that was started early, or 0."""
        return 0 if self._ahead is None else self._ahead.batch.number

    def staged(self, open_plan: Plan, batch: Batch, attempt: str, check: Callable[[], None]) -> StagedBatch:
        """Runs the function on a batch unless it was started early, and returns the staged outcomes.

        Args:
            check: called repeatedly while the function runs. Its exceptions end the calls.
        """
        ahead = self._ahead
        if ahead is None or ahead.batch.id != batch.id:
            self.forget()
        else:
            self._ahead = None
            try:
                return self._wait_for(open_plan, ahead, check)
            except (FencedError, JobChangedError):
                raise
            except VolstreamError:  # the regular attempt reports why
                places.discard(f"{self._services.staging}/{batch.id}")
        return self._wait_for(open_plan, self._stager.begin(open_plan, batch, attempt), check)

    def forget(self) -> None:
        """Ends the calls on the next batch and removes its staged outcomes."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.end()
            places.discard(f"{self._services.staging}/{ahead.batch.id}")

    def begin(self, open_plan: Plan, batch: Batch, seconds: float, *, beside: bool = False) -> None:
        """Starts the function on the next batch, unless that has happened or is not possible.

        It is not possible:

        - after an attempt that died: the function may have caused it, which only counted attempts detect;
        - if the next batch would take too long, because it is then re-cut;
        - for moved files, whose rows are in the table;
        - if the job's rate allows no call for a while, because waiting would hold slots of the engine;
        - if Spark commits, because it would wait for slots until the calls end.

        Args:
            seconds: how long the function took on all of ``batch``, or on all files except the last.
            beside: the function still runs on ``batch``.
        """
        if self._ahead is not None or self._stop or batch.attempts or batch.files == open_plan.files:
            return
        following = self._services.catalog.consumptions.following(batch)
        if following is None or following.moves:
            return
        current = self._services.catalog.jobs.by_id(self._stager.job.id)
        if current is None or current.state is JobState.PAUSED or current.generation != self._stager.job.generation:
            return
        if (
            (beside and not self._may_share_slots())
            or self._stager.seconds_to_turn > LONG_WAIT_SECONDS
            or seconds * _relative_duration(following, batch) > self._services.settings.batch_seconds
            or not direct.can_write(self._services.results.location_of(self._stager.job), key_column(self._stager.job))
        ):
            return
        self._ahead = self._stager.begin(open_plan, following, "ahead")

    def _wait_for(self, open_plan: Plan, staging: Staging, check: Callable[[], None]) -> StagedBatch:
        """Waits for a batch's outcomes and returns them. Starts the next batch if this one leaves slots
        idle."""
        try:
            while not staging.changed.wait(LOOK_SECONDS):
                check()
            if not staging.future.done():
                with suppress(VolstreamError):  # the catalog may be briefly unavailable
                    self.begin(open_plan, staging.batch, time.monotonic() - staging.began, beside=True)
            while wait([staging.future], LOOK_SECONDS).not_done:
                check()
            return staging.future.result()
        finally:
            staging.end()

    def _may_share_slots(self) -> bool:
        """Returns whether two batches may run at once.

        Together they would exceed a job's limits. And the calls on one would keep Spark from checking the
        expectations on the other's rows.
        """
        job = self._stager.job
        limited = job.rate is not None or max_workers(job, self._services.settings) is not None
        return not (limited or job.expect or job.expect_warn)


def _relative_duration(following: Batch, batch: Batch) -> float:
    """Estimates the function's duration on ``following`` as a multiple of its duration on ``batch``."""
    by_files = following.files / batch.files if batch.files else 1.0
    by_bytes = following.bytes / batch.bytes if batch.bytes else 1.0
    return max(by_files, by_bytes)


# Attempts at batches, one at a time: the function's results are staged and committed exactly once.
#
# How the function runs is in ``batches.stager``, and which rows change in ``batches.results``.

_log = get("jobs")


class BatchExecutor:
    """The attempts of one run at the batches of one plan.

    Args:
        owner: holder of the job's lease.
        source: the function's current code.
        progress: updated at each commit.
        committed: ids of the run's committed batches. Each commit adds one.
        code: version number of the job's code.

    Attributes:
        refused: why files of the last batch wait for the store, or None.
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
        code: int,
    ) -> None:
        self._services = services
        self.refused: str | None = None
        self._owner = owner
        self._volume = volume
        self._stop = stop
        self._progress = progress
        self._location = services.results.location_of(job)
        self._committed = committed
        self._code = code
        self._watch = JobWatch(services.catalog, job, stop, services.settings.batch_seconds)
        self._outputs = None if job.outputs_to is None else JobOutputs(services.catalog, services.settings, job)
        self.stager = Stager(services, job, source, volume, self._outputs)
        self.ahead = LookAhead(services, self.stager, stop)

    def process(self, open_plan: Plan, batch: Batch) -> None:
        """Runs and commits a batch.

        The function starts on the next one at the end, and runs during the commit.
        """
        with span("batch", **about(self.job, batch)):
            intent = self._services.consumer.begin(batch, owner=self._owner, location=self._location, job=self.job)
            try:
                self._process(open_plan, batch, intent)
            except BaseException as error:
                self.ahead.forget()
                if batch.id in self._committed or isinstance(error, FencedError):
                    raise
                if (takeover := self._takeover(intent)) is not None:
                    raise takeover from error
                # If that fails (the engine died), the next owner settles it.
                with suppress(VolstreamError):
                    recover(self._services, self.job, reason_of(error))
                raise

    @property
    def job(self) -> FileJob:
        """The job, including columns added from files of the plan."""
        return self.stager.job

    def close(self) -> None:
        """Ends the calls on the next batch, whose results are lost."""
        self.ahead.forget()
        self.stager.close()

    def _process(self, open_plan: Plan, batch: Batch, intent: Intent) -> None:
        if self._outputs is not None:
            self._outputs.sweep()
        check = partial(self._check, intent)
        done = self.ahead.staged(open_plan, batch, str(intent.attempt), check)
        # Nothing of the batch is committed yet, so the same files are read again with their new columns.
        while (columns := done.staged.new_columns()) and self._adopts(columns):
            self.ahead.forget()
            done = self.ahead.staged(open_plan, batch, str(intent.attempt), check)
        done = self._with_expectations(self._with_store_failures(done))
        if self._outputs is not None:
            faults.point("outputs.written")
            checked = self._outputs.checked(open_plan, batch, done.staged)
            done = done if checked is done.staged else replace(done, staged=checked, outcome=checked.outcome())
        earlier = earlier_failures(self._services, self.job, open_plan, batch)
        outcome = self._record(open_plan, batch, intent, done, earlier)
        if self._outputs is not None:
            self._outputs.note(open_plan, batch, intent, done.staged)
            self._outputs.publish(intent)
        if self.job.takes_files:
            files = loaded(self.job, self._volume, intent, done.staged)
            self._services.catalog.outputs.note(str(self.job.into), str(intent.attempt), files, ())
            faults.point("outputs.noted")
        follow(self.stager.steps, open_plan, batch, done.followed)
        if carried := self._carried(done):
            self._services.catalog.codes.note_carried(batch, carried)
        counted_before = [failure.kind for failure in earlier.values() if failure.batch_id in self._committed]
        faults.point("batch.staged")
        if self._stop:
            self.ahead.forget()
        self.ahead.begin(open_plan, batch, done.seconds)
        with span("commit", **about(self.job, batch), rows=outcome.rows, failed=outcome.failed):
            self._commit(open_plan, batch, intent, done, outcome)
        self._progress.take_back(counted_before)

    def _carried(self, done: StagedBatch) -> Mapping[str, int | None]:
        """Returns the code versions of the rows that follow moved files, by new path.

        Files whose rows were made by the batch's own version are left out.
        """
        if not done.followed:
            return {}
        codes = self._services.catalog.codes.of_batches(batch for _, batch in done.followed.values())
        made_by = {path: codes[batch].of(old) if batch in codes else None for path, (old, batch) in done.followed.items()}
        return {path: number for path, number in made_by.items() if number != self._code}

    def _commit(self, open_plan: Plan, batch: Batch, intent: Intent, done: StagedBatch, outcome: BatchOutcome) -> None:
        """Commits the staged outcomes of a batch to the table and the catalog."""
        began = time.monotonic()
        changes = changes_of(self.job, open_plan, batch, done.staged)

        def by_spark(session: SparkSession) -> None:
            write_by_spark(session, self._services.delta, self._location, done.staged, changes)

        def directly(marker: Marker) -> bool:
            return direct.commit(self._location, marker, changes)

        entries = Marker(intent.app_id(), intent.marker_sequence, {"batch": batch.id})
        ledger.record(LEDGER.of(self._services.warehouse, self.job.id), batch.id, entries, done.staged)
        self._services.consumer.write(intent, outcome.counts(), by_spark, directly=directly)
        seconds = done.seconds + time.monotonic() - began
        self._services.catalog.consumptions.commit(intent, replace(outcome, seconds=seconds))
        self._committed.add(batch.id)
        faults.point("batch.committed")
        if self._outputs is not None:
            self._outputs.finish(batch)
        if self.job.takes_files:
            finish(self._services.catalog, self._services.settings, str(self.job.into))
        places.discard(f"{self._services.staging}/{batch.id}")
        counted = {name: getattr(outcome, name) for name in ("failed", "overtaken", "later", "held", "rows")}
        removals = batch.removals if self.job.write is Write.UPSERT else 0  # a log keeps all rows
        self._progress.add(
            **counted, batches=1, done_files=batch.files, done_bytes=batch.bytes, removals=removals, moves=batch.moves
        )
        add_counts(self._progress.counted, outcome.counted)
        of_batch = {"batch": batch.id, "files": batch.files, "removed": batch.removals, "version": open_plan.to_version}
        _log.info("batch_committed", job=self.job.name, **of_batch, **counted)

    def _adopts(self, columns: Sequence[str]) -> bool:
        """Adds columns to the job and its table. Returns False if the job does not accept them."""
        changed = adopt(self._services, self.job, columns)
        if changed is None:
            return False
        before = [*of_job(self.job)]
        self._progress.new_columns += [field.name for field in of_job(changed) if field not in before]
        self.stager.job = changed
        return True

    def _check(self, intent: Intent) -> None:
        """Checks, while the function runs, that the run may continue: a call without a time limit may never
        return.

        Raises:
            FencedError: another process took the batch over.
            FencedError, BatchStoppedError: as :meth:`JobWatch.check`.
            JobChangedError: the time limit was changed.
        """
        current = self._watch.check()
        if current is None:
            return
        if (takeover := self._takeover(intent)) is not None:
            raise takeover
        if isinstance(current, FileJob) and current.timeout != self.job.timeout:
            raise JobChangedError(f"The time limit of job {self.job.name} was changed.")

    def _takeover(self, intent: Intent) -> FencedError | None:
        """Returns an error if another process settled this attempt.

        That process may work on the next attempt, which must not be settled.
        """
        try:
            present = self._services.catalog.consumptions.open_intent(intent.stream_id)
        except CatalogError:
            return None
        if present is not None and present.attempt == intent.attempt:
            return None
        return FencedError(f"Batch {intent.batch_id}: another process took it over; nothing of this run was kept.")

    def _with_store_failures(self, done: StagedBatch) -> StagedBatch:
        """Returns the outcomes, in which unreadable files wait for the store unless it serves other files
        beside them."""
        kinds = (FailureKind.DENIED, FailureKind.UNREADABLE)
        unread = {row["path"]: row["error_message"] for row in done.staged.failures() if row["error_kind"] in kinds}
        if not unread:
            return done
        read = [] if self.job.group_by is not None else done.staged.succeeded()["path"].to_pylist()
        canary = Canary(self._services, self._volume, of_sets=self.job.group_by is not None)
        if not (waiting := canary.waiting(unread, read)):
            return done
        self.refused = f"{next(iter(waiting.values())).rstrip('.')}; {counted(len(waiting), self.job.unit)} wait for the store."
        staged = done.staged.with_failed(waiting, FailureKind.STORE)
        return replace(done, staged=staged, outcome=staged.outcome())

    def _with_expectations(self, done: StagedBatch) -> StagedBatch:
        """Returns the outcomes after checking the job's expectations."""
        if not (self.job.expect or self.job.expect_warn):
            return done
        with self._services.session() as session:
            staged, warned = check_expectations(session, self.job, done.staged)
        outcome = staged.outcome()
        return replace(done, staged=staged, outcome=replace(outcome, counted={**outcome.counted, **warned}))

    def _record(
        self, open_plan: Plan, batch: Batch, intent: Intent, done: StagedBatch, earlier: Mapping[str, Failure]
    ) -> BatchOutcome:
        """Returns the outcome of an attempt, and records its failures as pending."""
        counts = done.outcome
        unchanged = batch.files - counts.succeeded - counts.unsuccessful if batch.moves else 0
        given_up = 0
        if counts.unsuccessful:
            given_up = record_failures(self._services, self.job, self._volume, done.staged, (open_plan, batch), intent, earlier)
        return replace(
            counts,
            succeeded=counts.succeeded + unchanged,
            failed=counts.failed + given_up,
            later=counts.later - given_up,
            superseded=list(earlier),
            code=self._code,
        )
