"""The batch after the current one, on which the function runs once the last calls of the current one leave slots idle, and while
that is committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress

from volstream.base.definitions import JobState
from volstream.base.model.work import Batch, Plan
from volstream.base.threads import Stop
from volstream.errors import FencedError, JobChangedError, VolstreamError
from volstream.functions.schema import key_column
from volstream.jobs.lease import LOOK_SECONDS
from volstream.jobs.needs import most_workers
from volstream.jobs.services import JobServices
from volstream.jobs.stager import StagedBatch, Stager, Staging
from volstream.tables.delta import direct, places

#: A run waits longer than this for the job's rate before a batch; workers, which hold slots of the engine, wait less.
LONG_WAIT_SECONDS = 1.0


class LookAhead:
    """Stages the batches of one plan in order, and begins with the next one where possible."""

    def __init__(self, services: JobServices, stager: Stager, stop: Stop) -> None:
        self._services = services
        self._stager = stager
        self._stop = stop
        self._ahead: Staging | None = None

    @property
    def begun_until(self) -> int:
        """The number of the batch that was begun ahead; 0: none was."""
        return 0 if self._ahead is None else self._ahead.batch.number

    def staged(self, open_plan: Plan, batch: Batch, attempt: str, look: Callable[[], None]) -> StagedBatch:
        """Runs the function on a batch, unless it was begun ahead, and returns the staged outcomes.

        Args:
            look: called again and again while the function runs; what it raises ends the calls.
        """
        ahead = self._ahead
        if ahead is None or ahead.batch.id != batch.id:
            self.forget()
        else:
            self._ahead = None
            try:
                return self._ended(open_plan, ahead, look)
            except (FencedError, JobChangedError):
                raise
            except VolstreamError:  # the batch's own attempt says why
                places.discard(f"{self._services.staging}/{batch.id}")
        return self._ended(open_plan, self._stager.begin(open_plan, batch, attempt), look)

    def forget(self) -> None:
        """Ends the calls on the next batch, and removes its staged outcomes."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.end()
            places.discard(f"{self._services.staging}/{ahead.batch.id}")

    def begin(self, open_plan: Plan, batch: Batch, seconds: float, *, beside: bool = False) -> None:
        """Begins to run the function on the next batch, unless that was done, or is not possible.

        It is not possible after an attempt that died: the function may have caused it, which only counted attempts detect; nor
        if the next batch would take too long, because it is then re-cut; nor for moved files, whose rows are in the
        table; nor if the job's rate allows no call for a while, because waiting would hold slots of the engine; nor if Spark
        commits, which would wait for slots until the calls end.

        Args:
            seconds: how long the function took on all of ``batch``, or on all files but the last ones.
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
            or seconds * _times_as_long(following, batch) > self._services.settings.batch_seconds
            or not direct.can_write(self._services.table_of(self._stager.job), key_column(self._stager.job))
        ):
            return
        self._ahead = self._stager.begin(open_plan, following, "ahead")

    def _ended(self, open_plan: Plan, staging: Staging, look: Callable[[], None]) -> StagedBatch:
        """Waits for a batch's outcomes, and returns them. If it leaves slots idle at its end, the next one begins."""
        try:
            while not staging.changed.wait(LOOK_SECONDS):
                look()
            if not staging.future.done():
                with suppress(VolstreamError):  # the catalog may be away for a moment
                    self.begin(open_plan, staging.batch, time.monotonic() - staging.began, beside=True)
            while wait([staging.future], LOOK_SECONDS).not_done:
                look()
            return staging.future.result()
        finally:
            staging.end()

    def _may_share_slots(self) -> bool:
        """Returns whether two batches may run at a time: both together would exceed a job's limits, and the calls on one would
        keep Spark from looking at what the other's rows should be."""
        job = self._stager.job
        limited = job.rate is not None or most_workers(job, self._services.settings) is not None
        return not (limited or job.expect or job.expect_warn)


def _times_as_long(following: Batch, batch: Batch) -> float:
    """Estimates how many times as long as on one batch the function takes on another."""
    by_files = following.files / batch.files if batch.files else 1.0
    by_bytes = following.bytes / batch.bytes if batch.bytes else 1.0
    return max(by_files, by_bytes)
