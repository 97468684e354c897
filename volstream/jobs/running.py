"""One run of a job: what all kinds of runs do. A plan is made once, and its batches are processed and committed exactly once
(docs/exactly-once.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from volstream.base import faults
from volstream.base.definitions import FileJob, Stream, Volume
from volstream.base.log import get
from volstream.base.model.text import counted
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.base.threads import Stop
from volstream.base.tracing import span
from volstream.errors import InvalidStateError, JobChangedError, NotFoundError
from volstream.functions.pickled import code_of
from volstream.jobs.ahead import LONG_WAIT_SECONDS
from volstream.jobs.attempt import BatchExecutor
from volstream.jobs.environments import with_environment
from volstream.jobs.failing import recover
from volstream.jobs.lease import LOOK_SECONDS, BatchStoppedError, RunReport, present
from volstream.jobs.output_checks import has_outputs
from volstream.jobs.outputs import finish
from volstream.jobs.progress import Observer
from volstream.jobs.services import JobServices
from volstream.jobs.sizing import Limits
from volstream.jobs.version import version_of
from volstream.tables.delta import places

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
        """Takes over the current definition of the job, for a run that begins again. Raises FencedError if it was dropped."""
        current = present(self.services.catalog, self.job)
        assert isinstance(current, FileJob), "an id belongs to one job"
        self.job = current
        self.report.paused = current.paused
        self._has_table = False
        self._code = None

    def begin(self, *, fills: bool = False) -> None:
        """Recovers, and loads what the run needs. Uses Spark only if an attempt must be fenced off or the table altered.

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
        """Raises InvalidStateError if the table that is missing had rows of files that the run would not process."""
        catalog = self.services.catalog
        goes_on = catalog.consumptions.open_plan(self.stream.id) is not None
        if (goes_on or (self.stream.offset and not self.stream.initial)) and catalog.reports.totals(self.job.id)["batches"]:
            remedy = f"Restore it, or make its rows again: volstream heal {self.job.name}. Then run the job."
            if self.job.takes_files:
                remedy = (
                    "The files of its rows have left the volume: restore the table, or load the archive by another job. To "
                    f"continue without these rows, run: volstream replay {self.job.name}."
                )
            raise InvalidStateError(
                f"The table {self.job.into}, to which the job {self.job.name} has committed rows, is missing: "
                f"{self.services.table_of(self.job)} does not exist.",
                remedy,
            )

    def make_table(self) -> None:
        """Creates or checks the result table, once per run, before any file is planned; called only if there is work."""
        if not self._has_table:
            self.job = self.services.results.prepare(self.job)
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
        """Wraps the planning in a span; the yielded function adds the plan's numbers to it."""
        with span("plan", job=str(self.job.name), kind=str(kind)) as current:

            def noted(result: Planned) -> Planned:
                open_plan, batches = result
                current.set(plan=open_plan.id, files=open_plan.files, bytes=open_plan.bytes, batches=len(batches))
                return result

            yield noted

    def open(self, open_plan: Plan, batches: Sequence[Batch], stream: Stream) -> bool:
        """Opens a plan and processes its batches; discards it and returns False if it has none."""
        if not batches:
            places.discard(open_plan.location)
            return False
        self.services.catalog.consumptions.open((open_plan, batches, stream), job=self.job)
        # From now on the stream cannot be moved, so the job's current record shows whether it was, and old rows may exist.
        current = self.services.catalog.jobs.by_id(self.job.id)
        self.job = replace(self.job, clean=isinstance(current, FileJob) and current.clean)
        faults.point("plan.opened")
        self.process(open_plan, batches[0] if len(batches) == 1 else None)
        return True

    def process(self, open_plan: Plan, only: Batch | None = None) -> None:
        """Processes the uncommitted batches of an open plan, in order.

        Args:
            only: the plan has just been opened, with this single batch.
        """
        if not self.services.has_files(self.job, open_plan):
            self.services.catalog.consumptions.drop_plan(open_plan)
            return
        self.make_table()
        progress = self.report.progress
        waiting = only or self.services.catalog.reports.waiting(self.job.id)
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
        too_fast = False
        with closing(attempts):
            while not self.ended:
                if only is None:
                    cut_by = self.services.planner.resize(self.job, open_plan, cut_by, after=attempts.ahead.begun_until)
                    batch = self.services.catalog.consumptions.next_batch(open_plan)
                else:
                    batch = None if only.id in self._committed else only
                if batch is None:
                    places.discard(open_plan.location)
                    return
                if too_fast:
                    too_fast = False
                    self._slow_down()
                    continue
                if batch.files and batch.number > attempts.ahead.begun_until and not self._has_turn(attempts):
                    continue
                waited = progress.later
                with suppress(BatchStoppedError):
                    attempts.process(open_plan, batch)
                self.observe(progress)
                too_fast = progress.later - waited > batch.files / 2
                self._look_at_job(attempts)

    def _has_turn(self, attempts: BatchExecutor) -> bool:
        """Waits until the job's rate allows another call; returns False if the run ends before that."""
        while (wait := attempts.stager.seconds_to_turn) > LONG_WAIT_SECONDS and not self.ended:
            self.stop.wait(min(wait, LOOK_SECONDS))
            self._look_at_job(attempts)
        return not self.ended

    def _slow_down(self) -> None:
        """Waits before the next batch if most calls of the last one asked to be called later."""
        seconds = self.services.settings.retry_first_seconds
        _log.warning("slowed_down", job=str(self.job.name), seconds=seconds, cause="most calls ask to be made later")
        self.stop.wait(seconds)

    def _look_at_job(self, attempts: BatchExecutor) -> None:
        """Checks that the job may continue: it may have been dropped or paused, possibly by a batch.

        Raises:
            JobChangedError: it was altered, or its failures are to be tried again, so that the run has to begin again.
        """
        current = present(self.services.catalog, self.job)
        self.job = attempts.job
        if current.paused is not None:
            self.report.paused = current.paused
        elif current.generation != self.job.generation:
            raise JobChangedError(f"The job {self.job.name} was changed while it ran.")
