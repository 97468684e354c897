"""Attempts at batches, one at a time: the function's results are staged and committed exactly once.

What does not belong here: how the function runs (``stager``, ``ahead`` for the next batch), and which rows change (``results``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from volstream.base import faults
from volstream.base.definitions import FileJob, Volume, Write
from volstream.base.log import get
from volstream.base.model.work import Batch, Failure, Intent, Plan, add_counts
from volstream.base.threads import Stop
from volstream.base.tracing import span
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import CatalogError, FencedError, JobChangedError, VolstreamError, reason_of
from volstream.functions.schema import of_job
from volstream.functions.source import FunctionSource
from volstream.jobs import ledger
from volstream.jobs.after_load import loaded
from volstream.jobs.ahead import LookAhead
from volstream.jobs.expectations import judged
from volstream.jobs.failing import earlier_failures, note_failures, recover
from volstream.jobs.lease import JobWatch
from volstream.jobs.load_columns import adopt
from volstream.jobs.outputs import JobOutputs, finish
from volstream.jobs.progress import Progress
from volstream.jobs.results import changes_of, write_by_spark
from volstream.jobs.services import JobServices
from volstream.jobs.stager import StagedBatch, Stager, about
from volstream.jobs.stores import LEDGER
from volstream.tables.delta import direct, places
from volstream.tables.delta.ownership import Marker

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = get("jobs")


class BatchExecutor:
    """The attempts of one run at the batches of one plan.

    Args:
        owner: holder of the job's lease.
        source: the function's current code.
        progress: updated at each commit.
        committed: ids of the run's batches, added to at each commit.
        code: number of the version of the job's code.
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
        self._owner = owner
        self._volume = volume
        self._stop = stop
        self._progress = progress
        self._location = services.table_of(job)
        self._committed = committed
        self._code = code
        self._watch = JobWatch(services.catalog, job, stop, services.settings.batch_seconds)
        self._outputs = None if job.outputs_to is None else JobOutputs(services.catalog, services.settings, job)
        self.stager = Stager(services, job, source, volume, self._outputs)
        self.ahead = LookAhead(services, self.stager, stop)

    def process(self, open_plan: Plan, batch: Batch) -> None:
        """Runs and commits a batch; at its end, and while it is committed, the function runs on the next one."""
        with span("batch", **about(self.job, batch)):
            intent = self._services.consumer.begin(batch, owner=self._owner, location=self._location, job=self.job)
            try:
                self._process(open_plan, batch, intent)
            except BaseException as error:
                self.ahead.forget()
                if batch.id in self._committed or isinstance(error, FencedError):
                    raise
                if (overtaken := self._overtaken(intent)) is not None:
                    raise overtaken from error
                # If that fails now (the engine died), the next owner settles it.
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
        look = partial(self._look, intent)
        done = self.ahead.staged(open_plan, batch, str(intent.attempt), look)
        # Nothing of the batch is committed yet, so the same files are read again, now with their new columns.
        while done.totals.new_columns and self._adopts(done.staged.new_columns()):
            self.ahead.forget()
            done = self.ahead.staged(open_plan, batch, str(intent.attempt), look)
        done = self._judged(done)
        if self._outputs is not None:
            faults.point("outputs.written")
            checked = self._outputs.checked(open_plan, batch, done.staged)
            done = done if checked is done.staged else replace(done, staged=checked, totals=checked.totals())
        earlier = earlier_failures(self._services, self.job, open_plan, batch)
        outcome = self._note(open_plan, batch, intent, done, earlier)
        if self._outputs is not None:
            self._outputs.note(open_plan, batch, intent, done.staged)
            self._outputs.publish(intent)
        if self.job.takes_files:
            taken = loaded(self.job, self._volume, intent, done.staged)
            self._services.catalog.outputs.note(str(self.job.into), str(intent.attempt), taken, ())
            faults.point("outputs.noted")
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
        """Returns the versions of the code that made the rows that follow moved files, by their new paths, if it is another one
        than that of the batch."""
        if not done.followed:
            return {}
        codes = self._services.catalog.codes.of_batches(batch for _, batch in done.followed.values())
        made_by = {path: codes[batch].of(old) if batch in codes else None for path, (old, batch) in done.followed.items()}
        return {path: number for path, number in made_by.items() if number != self._code}

    def _commit(self, open_plan: Plan, batch: Batch, intent: Intent, done: StagedBatch, outcome: BatchOutcome) -> None:
        """Commits the staged outcomes of a batch, in the table and in the catalog."""
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
        """Adds columns to the job and its table, if the job accepts new columns."""
        changed = adopt(self._services, self.job, columns)
        if changed is None:
            return False
        had = [*of_job(self.job)]
        self._progress.new_columns += [field.name for field in of_job(changed) if field not in had]
        self.stager.job = changed
        return True

    def _look(self, intent: Intent) -> None:
        """Looks, while the function runs, whether the run may go on: a call without a time limit may never return.

        Raises:
            FencedError: another process took the batch over.
            FencedError, BatchStoppedError: as :meth:`JobWatch.look`.
            JobChangedError: the time limit was changed.
        """
        current = self._watch.look()
        if current is None:
            return
        if (overtaken := self._overtaken(intent)) is not None:
            raise overtaken
        if isinstance(current, FileJob) and current.timeout != self.job.timeout:
            raise JobChangedError(f"The time limit of job {self.job.name} was changed.")

    def _overtaken(self, intent: Intent) -> FencedError | None:
        """Returns the error if another process settled this attempt; it may work on the next, which must not be settled."""
        try:
            present = self._services.catalog.consumptions.open_intent(intent.stream_id)
        except CatalogError:
            return None
        if present is not None and present.attempt == intent.attempt:
            return None
        return FencedError(f"Batch {intent.batch_id}: another process took it over; nothing of this run was kept.")

    def _judged(self, done: StagedBatch) -> StagedBatch:
        """Returns the outcomes as the job's expectations have them."""
        if not (self.job.expect or self.job.expect_warn):
            return done
        with self._services.session() as session:
            staged, warned = judged(session, self.job, done.staged)
        totals = staged.totals()
        return replace(done, staged=staged, totals=replace(totals, counted={**totals.counted, **warned}))

    def _note(
        self, open_plan: Plan, batch: Batch, intent: Intent, done: StagedBatch, earlier: Mapping[str, Failure]
    ) -> BatchOutcome:
        """Returns the outcome of an attempt, and records its failures as pending."""
        totals = done.totals
        kept = batch.files - totals.succeeded - totals.failed if batch.moves else 0
        given_up = 0
        if totals.failed:
            given_up = note_failures(self._services, self.job, self._volume, done.staged, (open_plan, batch), intent, earlier)
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
            code=self._code,
        )
