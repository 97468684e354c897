"""A job's run: takes the range, plans it once, and processes and commits each batch exactly once (docs/exactly-once.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

from volstream.base.definitions import PAUSED_BY_USER, FileJob, JobState, Stream, Volume, Write
from volstream.base.lifecycle import faults
from volstream.base.lifecycle.stop import Stop
from volstream.base.log import get
from volstream.base.model.text import counted
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.base.tracing import span
from volstream.catalog.conditions import ConditionKind
from volstream.errors import (
    DependencyError,
    FencedError,
    InvalidStateError,
    NotFoundError,
    SqlError,
    StorageError,
    StreamStaleError,
    VolstreamError,
)
from volstream.functions.pickled import code_of
from volstream.jobs import plan
from volstream.jobs.ahead import LONG_WAIT_SECONDS
from volstream.jobs.attempt import BatchExecutor
from volstream.jobs.environments import equipped
from volstream.jobs.failing import recover
from volstream.jobs.lease import RunReport, held, lease
from volstream.jobs.outputs import compared_outputs, finish
from volstream.jobs.preview import Preview, preview
from volstream.jobs.progress import Observer
from volstream.jobs.services import JobServices
from volstream.jobs.sizing import Limits
from volstream.jobs.verify import Verification, compared
from volstream.spark.errors import as_sql_errors, condition_of
from volstream.tables.delta import folders
from volstream.tables.delta.damage import Damage
from volstream.tables.delta.places import reached

_log = get("jobs")

Planned = tuple[Plan, Sequence[Batch]]

#: Maximum number of files per plan of retries: small, so that a bad file delays few others.
_RETRY_FILES = 1000

#: Errors of ours whose cause may be that a table is damaged.
_OF_TABLES = (DependencyError, StorageError, SqlError)

#: While a run waits for its rate, it looks this often whether the job was changed.
_LOOK_SECONDS = 5.0


class FileRunner:
    """Runs a file job; a :class:`~volstream.jobs.lease.Runner`.

    Catalog and logs show whether there is work; it attaches to the engine only then.
    """

    def __init__(self, services: JobServices, job: FileJob) -> None:
        self._services = services
        self._job = job

    def run(
        self,
        *,
        until_empty: bool = False,
        stop: Stop | None = None,
        observe: Observer | None = None,
        owner: str | None = None,
    ) -> RunReport:
        """Processes the stream's current changes, and the failures that are due. See :class:`Runner`."""
        return self._lead(stop, observe, lambda run: run.go(until_empty=until_empty), owner)

    def replay(
        self,
        where: str | None = None,
        *,
        stop: Stop | None = None,
        observe: Observer | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> RunReport:
        """Reprocesses the delivered files that have not changed since, and replaces their results.

        Newer files come through the stream, whose offset stays. A replay of all files accepts the function's current
        code. An interrupted replay resumes with the next run; another replay starts over.

        Args:
            where: SQL condition on the directory's columns, in addition to the job's own.
            is_cancelled: called once the replay was stopped; True drops its rest, so that the next run does not resume it.

        Raises:
            As :meth:`run`.
        """
        return self._lead(stop, observe, lambda run: run.replay(where, is_cancelled))

    def verify(
        self,
        *,
        fix: bool = False,
        heal: bool = False,
        outputs: bool = False,
        stop: Stop | None = None,
        observe: Observer | None = None,
    ) -> Verification:
        """Compares the table with the files that were delivered; calls the function only to fix what is wrong.

        Args:
            fix: process the files that are wrong again, and remove rows that no file explains.
            heal: fix, too, and if the directory no longer keeps what the stream needs, compare with its present files and let the
                stream continue from these.
            outputs: compare the files that the function made with the volume that has them, too.

        Raises:
            InvalidValueError: ``outputs``, but the job makes no files.
            See :meth:`run` for the rest.
        """
        found = Verification()

        def act(run: _Run) -> None:
            nonlocal found
            found = run.verify(fix=fix or heal, heal=heal, outputs=outputs)

        if fix or heal:
            self._lead(stop, observe, act)
            return found
        services = self._services
        with held(services.catalog, self._job.id, self._job.name, services.settings.lease_seconds) as owner:
            self._do(_Run(services, self._job, owner, stop or Stop(), observe or (lambda _: None)), act)
        return found

    def preview(self) -> Preview:
        """Returns what a run would do now, without doing it."""
        return preview(self._services, self._job)

    def free(self) -> None:
        """Settles an attempt that a dead run left open. Uses Spark only if the table's writer must be fenced off.

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

    def keep_light(self, stop: Stop) -> None:
        """Puts the result table's small files together, and removes old ones, while the job rests. A failure is logged."""
        services = self._services
        with reached(services.warehouse):
            services.results.keep_light(self._job, 0, stop)

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
        self, stop: Stop | None, observe: Observer | None, act: Callable[[_Run], None], owner: str | None = None
    ) -> RunReport:
        """Runs the job while holding its lease, and records the run in the catalog."""
        services = self._services
        with lease(services.catalog, self._job, services.settings.lease_seconds, owner) as lead:
            run = _Run(services, lead.job, lead.owner, Stop() if stop is None else stop, observe or (lambda _: None))
            self._do(run, act)
            lead.summary = run.summary()
            return run.report

    def _do(self, run: _Run, act: Callable[[_Run], None]) -> None:
        services = self._services
        with (
            services.gateway.explaining(),
            as_sql_errors(),
            reached(services.warehouse),
            span("job", job=str(self._job.name)) as current,
            self._naming_damage(),
        ):
            act(run)
            done = run.report.progress
            current.set(batches=done.batches, files=done.done_files, rows=done.rows, bytes=done.done_bytes)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Replaces the error of a run if its cause is that the table is damaged."""
        try:
            yield
        except Exception as error:
            if isinstance(error, VolstreamError) and type(error) not in _OF_TABLES:
                raise
            damages: Sequence[Damage] = ()
            unread = (condition_of(error) or "").startswith("FAILED_READ_FILE")
            with suppress(Exception):  # the first error says more
                damages = self._services.results.damages(self._job, whole=unread)
            if not damages:
                raise
            raise DependencyError(
                f"The table {self._job.into} is damaged: {'; '.join(map(str, damages))}.",
                f"Repair it: volstream verify {self._job.name} --fix",
            ) from error


class _Run:
    """One run of a job, by the holder of its lease."""

    def __init__(self, services: JobServices, job: FileJob, owner: str, stop: Stop, observe: Observer) -> None:
        self.report = RunReport(unit=job.unit)
        self._services = services
        self._job = job
        self._owner = owner
        self._stop = stop
        self._observe = observe
        self._has_table = False
        self._committed: set[str] = set()  # ids of batches

    def go(self, *, until_empty: bool) -> None:
        """Recovers, finishes any open plan, then plans and processes new work."""
        self._begin()
        unfinished = self._services.catalog.consumptions.open_plan(self._job.stream_id)
        if unfinished is not None:
            self._process(unfinished)
        if not self._ended:
            self._plan_strays()
        while not self._ended:
            worked = self._plan_stream()
            if not self._ended:
                worked = self._plan_retries() or worked
            if not (worked and until_empty):
                break
        if batches := self.report.progress.batches:
            self._services.results.keep_light(self._job, batches, self._stop)

    def replay(self, where: str | None, is_cancelled: Callable[[], bool]) -> None:
        """Recovers, finishes any open plan, then plans and processes previously delivered files."""
        self._begin()
        fingerprint = self._job.fingerprint
        unfinished = self._services.catalog.consumptions.open_plan(self._job.stream_id)
        if unfinished is not None and unfinished.kind is PlanKind.REPLAY:
            self._drop(unfinished)  # its beginning may have run with other code
        elif unfinished is not None:
            self._process(unfinished)
        stream = self._services.stream(self._job)
        covered = None if self._ended else self._services.reader.delivered(stream)
        if covered is None:
            return
        self._make_table()
        with self._planning(PlanKind.REPLAY) as noted:
            open_plan, batches = noted(
                self._services.planner.of_replay(self._services.session, self._job, covered, where)
            )
        if where is None:
            self._job = self._services.catalog.jobs.change(self._job, fingerprint=self._source.fingerprint)
            self.report.progress.code_changed = False
        # From now on the table may have rows of any file.
        self._job = self._services.catalog.jobs.change(self._job, clean=False)
        self._open(open_plan, batches, stream)
        if self._stop and is_cancelled():
            remaining = self._services.catalog.consumptions.open_plan(self._job.stream_id)
            if remaining is not None and remaining.id == open_plan.id:
                self._drop(remaining)
                self._job = self._services.catalog.jobs.change(self._job, fingerprint=fingerprint)

    def _drop(self, open_plan: Plan) -> None:
        self._services.catalog.consumptions.drop_plan(open_plan)
        folders.discard(open_plan.location)

    def verify(self, *, fix: bool, heal: bool, outputs: bool) -> Verification:
        """Recovers, compares, and with ``fix`` processes what is wrong."""
        consumptions, results = self._services.catalog.consumptions, self._services.results
        damages = results.damages(self._job, whole=heal)
        if damages and not fix:
            return self._noted(Verification(damages=damages, unit=self._job.unit))
        for damage in damages:
            self._stop_attempt(damage)
            results.mend(self._job, damage)
        if not fix:
            self.report.recovered = recover(self._services, self._job)
        else:
            self._begin()
            unfinished = consumptions.open_plan(self._job.stream_id)
            if unfinished is not None:
                self._process(unfinished)
        unfinished = consumptions.open_plan(self._job.stream_id)
        if unfinished is not None and not self._services.has_files(self._job, unfinished):
            unfinished = None  # the next run drops it
        stream = self._services.stream(self._job)
        try:
            covered, kind = self._services.reader.delivered(stream), PlanKind.REPAIR
        except StreamStaleError:
            if not heal:
                raise
            covered, kind = self._services.reader.present(stream), PlanKind.STREAM
        if covered is None:
            raise InvalidStateError(
                f"The job {self._job.name} has not finished its first run, so there is nothing to compare.",
                f"Run: volstream run-job {self._job.name}",
            )
        if self._ended:
            return Verification()
        made = None
        if outputs:
            made = compared_outputs(self._services.catalog, self._services.settings, self._job)
        planned: Planned | None = None
        with self._services.session() as session, folders.staged(self._services.warehouse, "verify") as folder:
            comparison = compared(
                self._services, session, self._job, covered, unfinished, folder, made, again=kind is PlanKind.STREAM
            )
            found = comparison.found
            if fix and (found.count or kind is PlanKind.STREAM):
                self._make_table()
                # If the plan's files were lost, those of the whole range would be planned, with rows that are there.
                self._job = self._services.catalog.jobs.change(self._job, clean=False)
                delivered = covered if kind is PlanKind.REPAIR else replace(covered, from_version=None)
                planned = self._services.planner.of_repair(self._job, kind, delivered, comparison.repair(), found.count)
        failed_before = self.report.progress.failed
        if planned is not None and not self._open(*planned, stream) and kind is PlanKind.STREAM:
            consumptions.advance(stream, covered.to_version, covered.table_id)
        if kind is PlanKind.STREAM and stream.began_after is not None and not self._ended:
            current = self._services.stream(self._job)
            self._services.catalog.streams.change(current, began_after=covered.to_version)
        if fix and not self._ended:
            fixed = found.count - (self.report.progress.failed - failed_before)
            found = replace(found, damages=damages, fixed=fixed)
        return found if self._ended else self._noted(found, comparison.version)

    def _stop_attempt(self, damage: Damage) -> None:
        """Gives up an attempt that a dead run left open, if its outcome went with the table's log."""
        intent = self._services.catalog.consumptions.open_intent(self._job.stream_id)
        if intent is not None and damage.log:
            self._services.catalog.consumptions.abort(intent, f"The table is damaged: {damage}.")

    def _noted(self, found: Verification, version: int | None = None) -> Verification:
        """Records and returns what was found; ``version``: of the table, if it was compared."""
        known = {"verified_version": version} if version is not None and found.is_proven else {}
        self._job = self._services.catalog.jobs.change(self._job, verified_on=datetime.now(UTC), **known)
        self._services.catalog.conditions.note(
            ConditionKind.PROOF, self._job.id, None if found.is_right else found.text
        )
        return found

    @property
    def _ended(self) -> bool:
        return bool(self._stop) or self.report.paused is not None

    def _begin(self) -> None:
        """Recovers, and loads what the run needs. Uses Spark only if an attempt must be fenced off or the table altered."""
        self.report.recovered = recover(self._services, self._job)
        if self._job.outputs_to is not None:
            finish(self._services.catalog, self._services.settings, str(self._job.into))
        environments = self._services.settings.environments_directory
        self._source = equipped(code_of(self._job), self._job.environment, environments)
        self.report.progress.code_changed = self._source.fingerprint != self._job.fingerprint
        self._volume = self._volume_of(self._services.stream(self._job))
        if self._services.results.exists(self._job):
            self._make_table()

    def _make_table(self) -> None:
        """Creates or checks the result table, once per run, before any file is planned; called only if there is work."""
        if not self._has_table:
            self._job = self._services.results.prepare(self._job)
            self._has_table = True

    def summary(self) -> str | None:
        """Returns a one-line summary for the catalog; None: there was nothing to do."""
        progress = self.report.progress
        if self.report.paused:
            return f"paused: {self.report.paused}"
        if not progress.batches:
            return None
        later = f", {progress.later} to be called later" if progress.later else ""
        held = f", {progress.held} held back" if progress.held else ""
        done = f"{counted(progress.processed, self._job.unit)} done, {progress.failed} failed"
        return f"{done}, {progress.removals} removed{later}{held}"

    def _volume_of(self, stream: Stream) -> Volume:
        volume = self._services.catalog.volumes.by_id(stream.source_id)
        if volume is None:
            self._services.reader.pin(stream)  # raises the reason why the stream is stale
            raise NotFoundError(f"The volume {stream.source_name} was dropped.")
        return volume

    def _plan_strays(self) -> None:
        """Plans and processes the removal of rows whose files no longer exist, if the stream cannot report them."""
        if not self._job.may_have_strays:
            return
        stream = self._services.stream(self._job)
        covered = self._services.reader.pin(stream)
        if covered is None:
            return
        if self._job.write is Write.UPSERT and self._services.results.exists(self._job):
            self._make_table()
            covered = replace(covered, to_version=self._services.reader.latest_version(stream))
            covered.source.make_durable(covered.table_id, covered.to_version)
            table = folders.table_location(self._services.warehouse, self._job.into)
            with self._planning(PlanKind.STRAYS) as noted:
                open_plan, batches = noted(
                    self._services.planner.of_strays(self._services.session, self._job, covered, table)
                )
            self._open(open_plan, batches, stream)
        if not self._ended:
            self._job = self._services.catalog.jobs.change(self._job, may_have_strays=False)

    def _plan_stream(self) -> bool:
        """Plans and processes the stream's range; returns False if it is empty."""
        stream = self._services.stream(self._job)
        if not self._services.reader.has_data(stream):
            return False
        covered = self._services.reader.pin(stream)
        if covered is None or covered.empty:
            return False
        covered.source.make_durable(covered.table_id, covered.to_version)
        if self._services.reader.only_upkeep(covered):
            self._services.catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
            return False
        self._make_table()
        with self._planning(PlanKind.STREAM) as noted:
            open_plan, batches = noted(self._services.planner.of_range(self._services.session, self._job, covered))
        faults.point("plan.written")
        if not self._open(open_plan, batches, stream):
            self._services.catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
        return True  # changes follow even if no initial row is wanted

    def _plan_retries(self) -> bool:
        """Plans and processes the failures that are due; returns False if there are none."""
        due = self._services.catalog.failures.due(self._job.id, datetime.now(UTC), _RETRY_FILES)
        if not due:
            return False
        stream = self._services.stream(self._job)
        covered = self._services.reader.pin(stream)
        if covered is None:
            return False
        covered = replace(covered, to_version=self._services.reader.latest_version(stream))
        unwanted = self._services.planner.excluded(self._services.session, self._job, covered, due)
        if unwanted:
            self._services.catalog.failures.forget(self._job.id, unwanted)
            due = [failure for failure in due if failure.path not in unwanted]
        if not due:
            return True  # there may be more
        self._make_table()
        with self._planning(PlanKind.RETRY) as noted:
            open_plan, batches = noted(
                self._services.planner.of_retries(self._services.session, self._job, covered, due)
            )
        asked = [failure.path for failure in due]
        planned = plan.contained_paths(open_plan.location, asked)
        unplanned = [failure for failure in due if failure.path not in planned]
        self._services.catalog.failures.postpone(unplanned, datetime.now(UTC))
        self._open(open_plan, batches, stream)
        return True

    @contextmanager
    def _planning(self, kind: PlanKind) -> Iterator[Callable[[Planned], Planned]]:
        """Wraps the planning in a span; the yielded function adds the plan's numbers to it."""
        with span("plan", job=str(self._job.name), kind=str(kind)) as current:

            def noted(result: Planned) -> Planned:
                open_plan, batches = result
                current.set(plan=open_plan.id, files=open_plan.files, bytes=open_plan.bytes, batches=len(batches))
                return result

            yield noted

    def _open(self, open_plan: Plan, batches: Sequence[Batch], stream: Stream) -> bool:
        """Opens a plan and processes its batches; discards it and returns False if it has none."""
        if not batches:
            folders.discard(open_plan.location)
            return False
        self._services.catalog.consumptions.open((open_plan, batches, stream))
        # From now on the stream cannot be moved, so the job's current record shows whether it was, and old rows may exist.
        current = self._services.catalog.jobs.by_id(self._job.id)
        self._job = replace(self._job, clean=isinstance(current, FileJob) and current.clean)
        faults.point("plan.opened")
        self._process(open_plan)
        return True

    def _process(self, open_plan: Plan) -> None:
        """Processes the uncommitted batches of an open plan, in order."""
        if not self._services.has_files(self._job, open_plan):
            self._services.catalog.consumptions.drop_plan(open_plan)
            return
        self._make_table()
        progress = self.report.progress
        waiting = self._services.catalog.reports.waiting(self._job.id)
        progress.files += waiting.files
        progress.bytes += waiting.bytes
        self._observe(progress)
        attempts = BatchExecutor(
            self._services,
            self._job,
            self._owner,
            self._source,
            self._volume,
            self._stop,
            progress,
            self._committed,
        )
        cut_by: Limits | None = None
        too_fast = False
        with closing(attempts):
            while not self._ended:
                cut_by = self._services.planner.resize(self._job, open_plan, cut_by, after=attempts.ahead.begun_until)
                batch = self._services.catalog.consumptions.next_batch(open_plan)
                if batch is None:
                    folders.discard(open_plan.location)
                    return
                if too_fast:
                    too_fast = False
                    self._slow_down()
                    continue
                if batch.files and batch.number > attempts.ahead.begun_until and not self._has_turn(attempts):
                    continue
                waited = progress.later
                attempts.process(open_plan, batch)
                self._observe(progress)
                too_fast = progress.later - waited > batch.files / 2
                self._look_at_job(attempts)

    def _has_turn(self, attempts: BatchExecutor) -> bool:
        """Waits until the job's rate allows another call; returns False if the run ends before that."""
        while (wait := attempts.stager.seconds_to_turn) > LONG_WAIT_SECONDS and not self._ended:
            self._stop.wait(min(wait, _LOOK_SECONDS))
            self._look_at_job(attempts)
        return not self._ended

    def _slow_down(self) -> None:
        """Waits before the next batch if most calls of the last one asked to be called later."""
        seconds = self._services.settings.retry_first_seconds
        _log.warning("slowed_down", job=str(self._job.name), seconds=seconds, cause="most calls ask to be made later")
        self._stop.wait(seconds)

    def _look_at_job(self, attempts: BatchExecutor) -> None:
        """Checks that the job may continue: it may have been dropped or paused, possibly by a batch; or have another rate."""
        current = self._services.catalog.jobs.by_id(self._job.id)
        if current is None:
            raise FencedError(f"The job {self._job.name} was dropped while it ran.")
        if current.state is JobState.PAUSED:
            self.report.paused = current.state_reason or PAUSED_BY_USER
        if isinstance(current, FileJob):
            attempts.stager.apply_changes(current)
        self._job = attempts.job
