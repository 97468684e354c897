"""Runs of jobs: ordinary runs, replays, and verifications of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from volstream.base import faults
from volstream.base.definitions import FileJob, Stream, Volume, Write
from volstream.base.log import get
from volstream.base.model.text import counted
from volstream.base.model.work import Batch, Load, Plan, PlanKind
from volstream.base.threads import Stop
from volstream.base.tracing import span
from volstream.catalog.alerts import ConditionKind
from volstream.errors import (
    DependencyError,
    InvalidStateError,
    JobChangedError,
    NotFoundError,
    SqlError,
    StorageError,
    StreamStaleError,
    VolstreamError,
)
from volstream.functions.pickled import code_of, has_steps
from volstream.jobs.batches.attempt import LONG_WAIT_SECONDS, BatchExecutor, recover
from volstream.jobs.batches.outputs import finish
from volstream.jobs.batches.step_values import forget_replayed
from volstream.jobs.plans import plan, sizing
from volstream.jobs.plans.sizing import Limits
from volstream.jobs.proof.verify import Verification, compared, compared_outputs
from volstream.jobs.rules.definitions import with_environment
from volstream.jobs.rules.targets import has_outputs
from volstream.jobs.rules.version import version_of
from volstream.jobs.runs.lease import LOOK_SECONDS, BatchStoppedError, Observer, RunReport, held, lease, present, resumable
from volstream.jobs.runs.services import JobServices
from volstream.spark.errors import as_sql_errors, condition_of
from volstream.tables.delta import places
from volstream.tables.delta.damage import Damage
from volstream.tables.delta.places import is_table, reached

# One run of a job: the parts that all kinds of runs share. A plan is made once, and its batches are processed
# and committed exactly once (docs/exactly-once.md).

_log = get("jobs")

Planned = tuple[Plan, Sequence[Batch]]


class Run:
    """One run of a job, by the holder of its lease."""

    def __init__(self, services: JobServices, job: FileJob, owner: str, stop: Stop, observe: Observer) -> None:
        self.report = RunReport(unit=job.unit)
        self.services = services
        self.job = job
        self.owner = owner
        self.stop = stop
        self.observe = observe
        self._has_table = False
        self._code: int | None = None  # number of the version of the job's code
        self._committed: set[str] = set()  # ids of batches

    @property
    def ended(self) -> bool:
        return bool(self.stop) or self.report.paused is not None

    def renew(self) -> None:
        """Adopts the job's current definition, for a run that starts over. Raises FencedError if the job was
        dropped."""
        current = present(self.services.catalog, self.job)
        assert isinstance(current, FileJob), "an id belongs to one job"
        self.job = current
        self.report.paused = current.paused
        self._has_table = False
        self._code = None

    def begin(self, *, fills: bool = False) -> None:
        """Recovers, and loads the run's requirements. Uses Spark only to fence off an attempt or to alter the
        table.

        Args:
            fills: the run makes all rows of a lost table again.

        Raises:
            InvalidStateError: the table is lost.
        """
        self.report.recovered |= recover(self.services, self.job)
        if has_outputs(self.job):
            finish(self.services.catalog, self.services.settings, str(self.job.into))
        environments = self.services.settings.environments_directory
        self.source = with_environment(code_of(self.job), self.job.environment, environments)
        self.report.progress.code_changed = not self.source.is_that_of(self.job.fingerprint)
        self.stream = self.services.stream(self.job)
        self.volume = self._volume_of(self.stream)
        if self.services.results.exists(self.job):
            self.make_table()
        elif not fills:
            self._check_not_lost()

    def _check_not_lost(self) -> None:
        """Raises InvalidStateError if a missing table had rows of files that the run would not process."""
        catalog = self.services.catalog
        unfinished = catalog.consumptions.open_plan(self.stream.id) is not None
        if (unfinished or (self.stream.offset and not self.stream.initial)) and catalog.reports.totals(self.job.id)["batches"]:
            remedy = f"Restore it, or make its rows again: volstream heal {self.job.name}. Then run the job."
            if self.job.takes_files:
                remedy = (
                    "The files of its rows have left the volume: restore the table, or load the archive by another job. To "
                    f"continue without these rows, run: volstream replay {self.job.name}."
                )
            raise InvalidStateError(
                f"The table {self.job.into}, to which the job {self.job.name} has committed rows, is missing: "
                f"{self.services.results.location_of(self.job)} does not exist.",
                remedy,
            )

    def make_table(self) -> None:
        """Creates or checks the result table once per run, before any file is planned. Called only if there
        is work."""
        if not self._has_table:
            self.job = self.services.results.prepare(self.job)
            self._has_table = True

    def summary(self) -> str | None:
        """Returns a one-line summary for the catalog, or None if there was nothing to do."""
        progress = self.report.progress
        if self.report.paused:
            return f"paused: {self.report.paused}"
        if not progress.batches:
            return None
        later = f", {progress.later} to be called later" if progress.later else ""
        held = f", {progress.held} held back" if progress.held else ""
        done = f"{counted(progress.processed, self.job.unit)} done, {progress.failed} failed"
        return f"{done}, {progress.removals} removed{later}{held}"

    def _volume_of(self, stream: Stream) -> Volume:
        volume = self.services.catalog.volumes.by_id(stream.source_id)
        if volume is None:
            self.services.reader.pin(stream)  # raises the reason why the stream is stale
            raise NotFoundError(f"The volume {stream.source_name} was dropped.")
        return volume

    @contextmanager
    def planning(self, kind: PlanKind) -> Iterator[Callable[[Planned], Planned]]:
        """Wraps the planning in a span. The yielded function adds the plan's numbers to the span."""
        with span("plan", job=str(self.job.name), kind=str(kind)) as current:

            def traced(result: Planned) -> Planned:
                open_plan, batches = result
                current.set(plan=open_plan.id, files=open_plan.files, bytes=open_plan.bytes, batches=len(batches))
                return result

            yield traced

    def open(self, open_plan: Plan, batches: Sequence[Batch], stream: Stream) -> bool:
        """Opens a plan and processes its batches. Discards it and returns False if it has no batches."""
        if not batches:
            places.discard(open_plan.location)
            return False
        self.services.catalog.consumptions.open((open_plan, batches, stream), job=self.job)
        # From now on the stream cannot be moved. The job's current record shows whether it was moved before,
        # so that old rows may exist.
        current = self.services.catalog.jobs.by_id(self.job.id)
        self.job = replace(self.job, clean=isinstance(current, FileJob) and current.clean)
        faults.point("plan.opened")
        self.process(open_plan, batches[0] if len(batches) == 1 else None)
        return True

    def process(self, open_plan: Plan, single: Batch | None = None) -> None:
        """Processes the uncommitted batches of an open plan, in order.

        Args:
            single: the plan has just been opened, with only this batch.
        """
        if not self.services.has_files(self.job, open_plan):
            self.services.catalog.consumptions.drop_plan(open_plan)
            return
        self.make_table()
        progress = self.report.progress
        waiting = single or self.services.catalog.reports.waiting(self.job.id)
        progress.files = progress.done_files + waiting.files
        progress.bytes = progress.done_bytes + waiting.bytes
        self.observe(progress)
        if self._code is None:
            version = version_of(self.services.settings, self.job, self.source)
            self._code = self.services.catalog.codes.number_of(self.job, version)
        attempts = BatchExecutor(
            self.services, self.job, self.owner, self.source, self.volume, self.stop, progress, self._committed, self._code
        )
        cut_by: Limits | None = None
        slow_down = False
        with closing(attempts):
            while not self.ended:
                if single is None:
                    cut_by = self.services.planner.resize(self.job, open_plan, cut_by, after=attempts.ahead.begun_until)
                    batch = self.services.catalog.consumptions.next_batch(open_plan)
                else:
                    batch = None if single.id in self._committed else single
                if batch is None:
                    places.discard(open_plan.location)
                    return
                if slow_down:
                    slow_down = False
                    self._slow_down()
                    continue
                if batch.files and batch.number > attempts.ahead.begun_until and not self._has_turn(attempts):
                    continue
                before = progress.later
                with suppress(BatchStoppedError):
                    attempts.process(open_plan, batch)
                self.observe(progress)
                if attempts.refused is not None:
                    raise StorageError(f"Files of the volume {self.volume.name} cannot be read: {attempts.refused}")
                slow_down = progress.later - before > batch.files / 2
                self._check_job(attempts)

    def _has_turn(self, attempts: BatchExecutor) -> bool:
        """Waits until the job's rate allows another call. Returns False if the run ends before that."""
        while (wait := attempts.stager.seconds_to_turn) > LONG_WAIT_SECONDS and not self.ended:
            self.stop.wait(min(wait, LOOK_SECONDS))
            self._check_job(attempts)
        return not self.ended

    def _slow_down(self) -> None:
        """Waits before the next batch if most calls of the last batch asked to be called later."""
        seconds = self.services.settings.retry_first_seconds
        _log.warning("slowed_down", job=str(self.job.name), seconds=seconds, cause="most calls ask to be made later")
        self.stop.wait(seconds)

    def _check_job(self, attempts: BatchExecutor) -> None:
        """Checks that the job may continue: it may have been dropped or paused, possibly by a batch.

        Raises:
            JobChangedError: it was altered, or its failures are to be retried, so the run has to start over.
        """
        current = present(self.services.catalog, self.job)
        self.job = attempts.job
        if current.paused is not None:
            self.report.paused = current.paused
        elif current.generation != self.job.generation:
            raise JobChangedError(f"The job {self.job.name} was changed while it ran.")


# The ordinary run of a job: the changes of its stream, and due failures.

#: Maximum number of files per plan of retries. Small, so that a bad file delays few others.
_RETRY_FILES = 1000


class StreamRun(Run):
    """Processes the stream's changes."""

    def go(self, *, until_empty: bool) -> None:
        """Recovers, finishes any open plan, then plans and processes new work."""
        self.begin()
        stream = self.stream
        unfinished = self.services.catalog.consumptions.open_plan(self.job.stream_id)
        if unfinished is not None:
            self.process(unfinished)
            stream = self.services.stream(self.job)
        if not self.ended:
            self._plan_strays()
        while not self.ended:
            worked = self._plan_stream(stream)
            if not self.ended:
                worked = self._plan_retries() or worked
            # Changes since the stream's creation follow its initial rows in the same run.
            if not (worked and (until_empty or stream.initial)):
                break
            stream = self.services.stream(self.job)
        if batches := self.report.progress.batches:
            self.services.results.compact(self.job, batches, self.stop)

    def _plan_strays(self) -> None:
        """Plans and processes the removal of rows of deleted files that the stream cannot report."""
        if not self.job.may_have_strays:
            return
        stream = self.services.stream(self.job)
        covered = self.services.reader.pin_newest(stream)
        if covered is None:
            return
        if self.job.write is Write.UPSERT and self.services.results.exists(self.job):
            self.make_table()
            covered.source.make_durable(covered.table_id, covered.to_version)
            table = places.table_location(self.services.warehouse, self.job.into)
            with self.planning(PlanKind.STRAYS) as traced:
                open_plan, batches = traced(self.services.planner.of_strays(self.services.session, self.job, covered, table))
            self.open(open_plan, batches, stream)
        if not self.ended:
            self.job = self.services.catalog.jobs.change(self.job, may_have_strays=False)

    def _plan_stream(self, stream: Stream) -> bool:
        """Plans and processes the stream's range. Returns False if the range is empty."""
        covered = self.services.reader.pin_news(stream)
        if covered is None or covered.empty:
            return False
        covered.source.make_durable(covered.table_id, covered.to_version)
        if self.services.reader.only_upkeep(covered):
            self.services.catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
            return False
        self.make_table()
        with self.planning(PlanKind.STREAM) as traced:
            open_plan, batches = traced(self.services.planner.of_range(self.services.session, self.job, covered))
        faults.point("plan.written")
        if unreported := self.services.planner.unreported(self.job, covered):
            self.services.catalog.failures.forget(self.job, unreported)
        if not self.open(open_plan, batches, stream):
            self.services.catalog.consumptions.advance(stream, covered.to_version, covered.table_id, self.job)
        return True  # changes follow even if no initial row is wanted

    def _plan_retries(self) -> bool:
        """Plans and processes due failures. Returns False if there are none."""
        due = self.services.catalog.failures.due(self.job.id, datetime.now(UTC), _RETRY_FILES)
        if not due:
            return False
        stream = self.services.stream(self.job)
        covered = self.services.reader.pin_newest(stream)
        if covered is None:
            return False
        unwanted = self.services.planner.excluded(self.services.session, self.job, covered, due)
        if unwanted:
            self.services.catalog.failures.forget(self.job, unwanted)
            due = [failure for failure in due if failure.path not in unwanted]
        if not due:
            return True  # there may be more
        self.make_table()
        with self.planning(PlanKind.RETRY) as traced:
            open_plan, batches = traced(self.services.planner.of_retries(self.services.session, self.job, covered, due))
        paths = [failure.path for failure in due]
        planned = plan.contained_paths(open_plan.location, paths)
        unplanned = [failure for failure in due if failure.path not in planned]
        self.services.catalog.failures.postpone(self.job, unplanned, datetime.now(UTC))
        self.open(open_plan, batches, stream)
        return True


# The replay of a job: delivered files are processed again.


class ReplayRun(Run):
    """Processes delivered files again."""

    def replay(self, where: str | None, is_cancelled: Callable[[], bool], among: Sequence[str] | None = None) -> None:
        """Recovers, finishes any open plan, then plans and processes previously delivered files."""
        self.begin(fills=where is None and among is None)
        fingerprint = self.job.fingerprint
        unfinished = self.services.catalog.consumptions.open_plan(self.job.stream_id)
        if unfinished is not None and unfinished.kind is PlanKind.REPLAY:
            self._drop(unfinished)  # its first batches may have run with other code
        elif unfinished is not None:
            self.process(unfinished)
        stream = self.services.stream(self.job)
        covered = None if self.ended else self.services.reader.delivered(stream)
        if covered is None:
            return
        self.make_table()
        with self.planning(PlanKind.REPLAY) as traced:
            open_plan, batches = traced(self.services.planner.of_replay(self.services.session, self.job, covered, where, among))
        if among is None and has_steps(self.source):  # stale files need only the results of their new code
            forget_replayed(self.services.warehouse, self.job, open_plan, all_files=where is None)
        if where is None:
            self.job = self.services.catalog.jobs.change(self.job, fingerprint=self.source.behaviour)
            self.report.progress.code_changed = False
        # From now on the table may have rows of any file.
        self.job = self.services.catalog.jobs.change(self.job, clean=False)
        self.open(open_plan, batches, stream)
        if self.stop and is_cancelled():
            remaining = self.services.catalog.consumptions.open_plan(self.job.stream_id)
            if remaining is not None and remaining.id == open_plan.id:
                self._drop(remaining)
                self.job = self.services.catalog.jobs.change(self.job, fingerprint=fingerprint)

    def _drop(self, open_plan: Plan) -> None:
        self.services.catalog.consumptions.drop_plan(open_plan)
        places.discard(open_plan.location)


# The verification of a job's table: comparison (``verify``) and repair.


class VerifyRun(Run):
    """Compares the table with the files, and reprocesses wrong files."""

    def verify(self, *, fix: bool, heal: bool, outputs: bool) -> Verification:
        """Recovers and compares. With ``fix``, reprocesses wrong files."""
        consumptions, results = self.services.catalog.consumptions, self.services.results
        damages = results.damages(self.job, whole=heal)
        if damages and not fix:
            return self._record(Verification(damages=damages, unit=self.job.unit))
        for damage in damages:
            results.mend(self.job, damage)
            self._stop_attempt(damage)
        fills = not self.job.takes_files  # else the files of lost rows have left the volume
        if not fix:
            self.report.recovered = recover(self.services, self.job)
            self.stream = self.services.stream(self.job)
            if not (fills or results.exists(self.job)):
                self._check_not_lost()
        else:
            self.begin(fills=fills)
            unfinished = consumptions.open_plan(self.job.stream_id)
            if unfinished is not None:
                self.process(unfinished)
        unfinished = consumptions.open_plan(self.job.stream_id)
        if unfinished is not None and not self.services.has_files(self.job, unfinished):
            unfinished = None  # the next run drops it
        stream = self.services.stream(self.job)
        try:
            covered, kind = self.services.reader.delivered(stream), PlanKind.REPAIR
        except StreamStaleError:
            if not heal:
                raise
            covered, kind = self.services.reader.present(stream), PlanKind.STREAM
        if covered is None:
            raise InvalidStateError(
                f"The job {self.job.name} has not finished its first run, so there is nothing to compare.",
                f"Run: volstream run-job {self.job.name}",
            )
        if self.report.paused is not None:
            raise InvalidStateError(
                f"The job {self.job.name} was paused before its table was compared: {self.report.paused}",
                f"Fix the cause, then run: volstream resume {self.job.name}",
            )
        if self.ended:
            return Verification()
        outputs_compared = None
        if outputs:
            outputs_compared = compared_outputs(self.services.catalog, self.services.settings, self.job)
        planned: Planned | None = None
        with self.services.session() as session, places.staged(self.services.warehouse, "verify") as folder:
            comparison = compared(
                self.services, session, self.job, covered, unfinished, folder, outputs_compared, recreated=kind is PlanKind.STREAM
            )
            found = comparison.found
            if fix and (found.count or kind is PlanKind.STREAM):
                self.make_table()
                # If the plan's files are lost, the whole range is planned, with rows that exist.
                self.job = self.services.catalog.jobs.change(self.job, clean=False)
                delivered = covered if kind is PlanKind.REPAIR else replace(covered, from_version=None)
                planned = self.services.planner.of_repair(self.job, kind, delivered, comparison.repair(), found.count)
        failed_before = self.report.progress.failed
        if planned is not None and not self.open(*planned, stream) and kind is PlanKind.STREAM:
            consumptions.advance(stream, covered.to_version, covered.table_id, self.job)
        if kind is PlanKind.STREAM and stream.began_after is not None and not self.ended:
            current = self.services.stream(self.job)
            self.services.catalog.streams.change(current, began_after=covered.to_version)
        failed = self.report.progress.failed - failed_before
        if fix and not self.ended:
            found = replace(found, damages=damages, fixed=found.count - failed)
        return found if self.ended else self._record(found, comparison.version, failed)

    def _stop_attempt(self, damage: Damage) -> None:
        """Abandons an attempt that a dead run left open if the log that recorded its outcome is lost.

        Damage to a ledger or a checkpoint leaves that log intact.
        """
        intent = self.services.catalog.consumptions.open_intent(self.job.stream_id)
        of_table = damage.location == self.services.results.location_of(self.job)
        if intent is not None and damage.log and of_table and not is_table(damage.location):
            self.services.catalog.consumptions.abort(intent, f"The table is damaged: {damage}.")

    def _record(self, found: Verification, version: int | None = None, failed: int = 0) -> Verification:
        """Records and returns the result.

        Args:
            version: of the table, if it was compared.
            failed: files that failed during the repair. From now on, the job's failures list them.
        """
        known = {"verified_version": version} if version is not None and found.is_proven else {}
        self.job = self.services.catalog.jobs.change(self.job, verified_on=datetime.now(UTC), **known)
        is_known = found.fixed is not None and replace(found, fixed=found.fixed + failed).is_right
        reason = None if found.is_right or is_known else f"does not match the files: {found.text}"
        self.services.catalog.conditions.note(ConditionKind.PROOF, self.job.id, reason)
        return found


# Previews of a job's run, without its effects.

#: Maximum number of due failures that are counted.
_MAX_RETRIES = 10_000


@dataclass(frozen=True)
class Preview:
    """The expected work of a run.

    Attributes:
        load: total of the open plan's batches and of the batches for the stream's changes.
        unfinished: number of batches in the open plan.
        retries: failed files that are due. Not in ``load``.
        seconds: expected duration of ``load`` by the job's past rates, or None if unknown.
        listed: whether the volume was ever listed. If not, a run lists it first.
    """

    load: Load
    unfinished: int
    retries: int
    seconds: float | None
    listed: bool


def preview(services: JobServices, job: FileJob) -> Preview:
    """Plans a run and discards the plan. Raises StreamStaleError."""
    catalog, stream = services.catalog, services.stream(job)
    volume = catalog.volumes.by_id(stream.source_id)
    unfinished = catalog.reports.waiting(job.id)
    load = unfinished + _changes(services, job, stream)
    rate = sizing.typical_rate(catalog.reports.largest(job.id))
    return Preview(
        load=load,
        unfinished=unfinished.batches,
        retries=len(catalog.failures.due(job.id, datetime.now(UTC), _MAX_RETRIES)),
        seconds=None if rate is None else rate.seconds(load.files + load.removals, load.bytes),
        listed=volume is not None and volume.last_listing is not None,
    )


def _changes(services: JobServices, job: FileJob, stream: Stream) -> Load:
    """Returns the load of the stream's changes that no plan covers yet."""
    open_plan = services.catalog.consumptions.open_plan(stream.id)
    if open_plan is not None and open_plan.kind is PlanKind.STREAM:
        stream = dataclasses.replace(stream, offset=open_plan.to_version, table_id=open_plan.table_id, initial=False)
    covered = services.reader.pin_news(stream)
    if covered is None or covered.empty:
        return Load()
    plan, batches = services.planner.of_range(services.session, job, covered)
    places.discard(plan.location)
    return Load.of(batches)


# Runs of file jobs, of each kind: they hold the job's lease, and report errors in the user's terms.

#: volstream's errors that a damaged table may cause.
_TABLE_ERRORS = (DependencyError, StorageError, SqlError)


R = TypeVar("R", bound=Run)


class FileRunner:
    """Runs a file job; a :class:`~volstream.jobs.runs.lease.Runner`.

    Catalog and logs show whether there is work. Only then does it attach to the engine.
    """

    def __init__(self, services: JobServices, job: FileJob) -> None:
        self._services = services
        self._job = job

    def run(
        self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None, owner: str | None = None
    ) -> RunReport:
        """Processes the stream's current changes and due failures. See :class:`Runner`."""
        return self._lead(StreamRun, stop, observe, lambda run: run.go(until_empty=until_empty), owner)

    def replay(
        self,
        where: str | None = None,
        *,
        among: Sequence[str] | None = None,
        stop: Stop | None = None,
        observe: Observer | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> RunReport:
        """Reprocesses the delivered files that have not changed since, and replaces their results.

        Newer files come through the stream, whose offset stays. A replay of all files accepts the function's
        current code. An interrupted replay resumes with the next run. Another replay starts over.

        Args:
            where: SQL condition on the directory's columns, in addition to the job's own.
            among: only files with these paths, or sets with these keys.
            is_cancelled: called once the replay was stopped. If True, the rest is dropped and the next run
                does not resume it.

        Raises:
            As :meth:`run`.
        """
        return self._lead(ReplayRun, stop, observe, lambda run: run.replay(where, is_cancelled, among))

    def verify(
        self,
        *,
        fix: bool = False,
        heal: bool = False,
        outputs: bool = False,
        stop: Stop | None = None,
        observe: Observer | None = None,
    ) -> Verification:
        """Compares the table with the delivered files. Calls the function only to fix wrong files.

        Args:
            fix: reprocess wrong files, and remove rows without a file.
            heal: fix, too. And if the directory no longer has the versions that the stream needs, compare
                with its present files, and let the stream continue from these.
            outputs: also compare the files that the function made with their volume.

        Raises:
            InvalidValueError: ``outputs``, but the job makes no files.
            See :meth:`run` for the rest.
        """
        found = Verification()

        def act(run: VerifyRun) -> None:
            nonlocal found
            found = run.verify(fix=fix or heal, heal=heal, outputs=outputs)

        if fix or heal:
            self._lead(VerifyRun, stop, observe, act)
            return found
        services = self._services
        with held(services.catalog, self._job.id, self._job.name, services.settings.lease_seconds) as owner:
            self._perform(VerifyRun(services, self._job, owner, stop or Stop(), observe or (lambda _: None)), act)
        return found

    def preview(self) -> Preview:
        """Returns what a run would do now, without doing it."""
        return preview(self._services, self._job)

    def free(self) -> None:
        """Settles an attempt that a dead run left open. Uses Spark only if the table's writer must be fenced
        off.

        Raises:
            StreamBusyError: a run is in progress.
            As :meth:`Consumer.settle`.
        """
        services = self._services
        with (
            held(services.catalog, self._job.id, self._job.name, services.settings.lease_seconds),
            services.gateway.explaining(),
            as_sql_errors(),
            reached(services.warehouse),
        ):
            services.consumer.settle(self._job.stream_id)

    def compact(self, stop: Stop) -> None:
        """Compacts the result table, and removes old files, while the job is idle. Failures are logged."""
        services = self._services
        with reached(services.warehouse):
            services.results.compact(self._job, 0, stop)

    def has_work(self) -> bool:
        """See :class:`Runner`."""
        stream = self._services.stream(self._job)
        return (
            self._services.reader.has_data(stream)
            or self._services.catalog.consumptions.open_plan(stream.id) is not None
            or (self._job.may_have_strays and self._services.reader.pin(stream) is not None)
            or bool(self._services.catalog.failures.due(self._job.id, datetime.now(UTC), 1))
        )

    def _lead(
        self, kind: type[R], stop: Stop | None, observe: Observer | None, act: Callable[[R], None], owner: str | None = None
    ) -> RunReport:
        """Runs the job while holding its lease, and records the run in the catalog."""
        services = self._services
        with lease(services.catalog, self._job, services.settings.lease_seconds, owner) as leased:
            run = kind(services, leased.job, leased.owner, Stop() if stop is None else stop, observe or (lambda _: None))
            with resumable(run.stop):
                self._perform(run, act)
            leased.summary = run.summary()
            return run.report

    def _perform(self, run: R, act: Callable[[R], None]) -> None:
        services = self._services
        with (
            services.gateway.explaining(),
            as_sql_errors(),
            reached(services.warehouse),
            span("job", job=str(self._job.name)) as current,
            self._naming_damage(),
        ):
            while True:
                try:
                    act(run)
                    break
                except JobChangedError:
                    run.renew()
            done = run.report.progress
            current.set(batches=done.batches, files=done.done_files, rows=done.rows, bytes=done.done_bytes)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Replaces the error of a run if a damaged table caused it."""
        try:
            yield
        except Exception as error:
            if isinstance(error, VolstreamError) and type(error) not in _TABLE_ERRORS:
                raise
            damages: Sequence[Damage] = ()
            unread = (condition_of(error) or "").startswith("FAILED_READ_FILE")
            with suppress(Exception):  # the original error says more
                damages = self._services.results.damages(self._job, whole=unread)
            if not damages:
                raise
            raise DependencyError(
                f"The table {self._job.into} is damaged: {'; '.join(map(str, damages))}.",
                f"Repair it: volstream verify {self._job.name} --fix",
            ) from error
