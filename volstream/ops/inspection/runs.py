"""A job's runs: the one in progress, with how far it is, the next one, and the throughput so far. From the catalog alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.base.definitions import FileJob, Job, JobState, TriggerKind
from volstream.base.model.text import first_line
from volstream.base.model.units import format_duration
from volstream.base.model.work import FAILING, Batch, FailureKind, FailureState, PlanKind
from volstream.catalog import Catalog
from volstream.catalog.failures import FailureFilter
from volstream.jobs.plans import cutting
from volstream.jobs.runs.lease import LastRuns
from volstream.jobs.runs.schedule import next_due

if TYPE_CHECKING:
    from volstream.home import Home


@dataclass(frozen=True)
class OpenRun:
    """The plan that a job works on, or left unfinished.

    Attributes:
        files, bytes: of the whole plan.
        left_files, left_bytes, left_batches: not committed yet.
        done: the share of the files that is done, from 0 to 1.
        seconds_left: by the job's past rate; None: no batch after a first one was measured yet.
    """

    plan: str
    kind: str
    created_on: datetime
    files: int
    bytes: int
    left_files: int
    left_bytes: int
    left_batches: int
    seconds_left: float | None
    done: float


def open_run(home: Home, job: Job, measured: Sequence[Batch]) -> OpenRun | None:
    """Returns the job's open plan, or None.

    Args:
        measured: the job's newest batches with a known duration.
    """
    plan = home.catalog.consumptions.open_plan(job.stream_id)
    if plan is None or plan.job_id != job.id:
        return None
    waiting = home.catalog.reports.waiting(job.id)
    # The first batch of a plan is small: it finds out how long a file takes, while workers start and functions are set up.
    rate = cutting.typical_rate(batch for batch in measured if batch.number > 1 or not waiting.batches)
    left = waiting.files + waiting.removals
    files = max(plan.files, left)
    return OpenRun(
        plan=plan.id,
        kind=plan.kind,
        created_on=plan.created_on,
        files=files,
        bytes=plan.bytes,
        left_files=left,
        left_bytes=waiting.bytes,
        left_batches=waiting.batches,
        seconds_left=None if rate is None else rate.seconds(left, waiting.bytes),
        done=1 - left / files if files else 0.0,
    )


@dataclass(frozen=True)
class Backlog:
    """What a job of files still owes.

    Attributes:
        files: in the volume.
        owed: of these at most; those that wait in the stream or in an open plan of its changes, those that failed or were
            skipped, and those whose function asked to be called later. A file that is retried or replayed counts as it did
            before. None: unknown, because sets failed or are held back, and the catalog does not record how many files a set
            has.
        waiting_since: when the oldest waiting change was found; None: there is none.
    """

    files: int
    owed: int | None
    waiting_since: datetime | None

    @property
    def done(self) -> int | None:
        """Files that the job has finished, each counted once however often it was tried."""
        return None if self.owed is None else self.files - self.owed

    @property
    def share(self) -> float | None:
        """The share of the files that is done, from 0 to 1."""
        return None if self.done is None else self.done / self.files if self.files else 1.0


def backlog(catalog: Catalog, job: Job) -> Backlog | None:
    """Returns what a job of files still owes; None: it reads no volume, or one that was dropped."""
    stream = catalog.streams.by_id(job.stream_id)
    if stream is None or not isinstance(job, FileJob) or catalog.volumes.by_id(stream.source_id) is None:
        return None
    plan = catalog.consumptions.open_plan(stream.id)
    consumed = None if stream.initial else stream.offset
    in_plan, since = 0, None
    if plan is not None and plan.kind is PlanKind.STREAM:
        in_plan = catalog.reports.waiting(job.id).files
        since = catalog.refreshes.first_after(stream.source_id, plan.from_version)
        consumed = plan.to_version
    unread = 0
    if plan is not None or not catalog.is_at_end(stream):
        unread, _ = catalog.refreshes.changed_after(stream.source_id, consumed)
    if since is None and unread:
        since = catalog.refreshes.first_after(stream.source_id, consumed)
    files = catalog.refreshes.file_count(stream.source_id)
    failed = catalog.failures.count(job.id, FailureFilter((*FAILING, FailureState.SKIPPED)))
    later = catalog.failures.count(job.id, FailureFilter((FailureState.WAITING,), (FailureKind.RETRY_LATER, FailureKind.HELD)))
    sets = job.group_by is not None and failed + later
    owed = None if sets else min(files, unread + in_plan + failed + later)
    return Backlog(files, owed, None if since is None else max(since, stream.created_on))


def outcome(job: Job, open_runs: LastRuns) -> str | None:
    """Returns how the last run of a job went, in a line."""
    if job.id in open_runs.in_hand:
        return "running"
    if job.id in open_runs.interrupted:
        return "interrupted"
    failed = open_runs.failed.get(job.id)
    said = job.last_outcome if failed is None else f"failed: {first_line(failed)}"
    return None if said is None else first_line(said)


def next_retry(home: Home, job: Job) -> datetime | None:
    """Returns when a failed file of the job is retried next; None: no file waits, or only for a manual run."""
    manual = job.trigger.kind is TriggerKind.MANUAL or job.state is JobState.PAUSED
    return None if manual else home.catalog.failures.next_due(job.id)


def next_run(home: Home, job: Job) -> tuple[datetime | None, str]:
    """Returns when the daemon will run the job, if that is known, and in words when."""
    if job.state is JobState.PAUSED:
        return None, "paused"
    due = next_due(job.trigger, job.last_started, job.created_on, home.zone, datetime.now(UTC))
    match job.trigger.kind:
        case TriggerKind.ON_CHANGE:
            return None, f"when {'files' if isinstance(job, FileJob) else 'its sources'} change"
        case TriggerKind.EVERY:
            return due, f"every {format_duration(job.trigger.every or 0.0)}"
        case TriggerKind.CRON:
            return due, f"cron {job.trigger.cron}"
        case _:
            return None, "by hand"


@dataclass(frozen=True)
class MeasuredBatch:
    """Throughput and duration of a committed batch: a point of a chart.

    Attributes:
        waited: seconds from the oldest change of its plan until it was committed; of a replay, from the plan.
    """

    batch: str
    time: datetime
    files: int
    failed: int
    bytes: int
    seconds: float | None
    files_per_second: float | None
    waited: float | None


def history(catalog: Catalog, measured: Sequence[Batch]) -> list[MeasuredBatch]:
    """Returns the points of a chart, oldest first."""
    waited = catalog.reports.waited(measured)
    return [
        MeasuredBatch(
            batch=batch.id,
            time=batch.committed_on,
            files=batch.files + batch.removals,
            failed=batch.failed,
            bytes=batch.bytes,
            seconds=batch.seconds,
            files_per_second=batch.rate,
            waited=waited.get(batch.id),
        )
        for batch in reversed(measured)
        if batch.committed_on is not None
    ]
