"""The state of volumes, streams, jobs and tables, from ``ops.inspection.status``, with names for
templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from volstream.base.definitions import JobState, QueueType, TriggerKind
from volstream.base.model.work import FailureState
from volstream.ops.inspection.status import Problem


@dataclass(frozen=True)
class VolumeRow:
    """The completeness of a volume's directory.

    Attributes:
        files: None before the first listing.
        quiet: seconds without a new file, if that is too long.
    """

    volume: str
    location: str
    queue: QueueType
    files: int | None
    last_listing: datetime | None
    listed: int | None
    listed_bytes: int | None
    added_by_listing: int | None
    changed_by_listing: int | None
    removed_by_listing: int | None
    late_events: int | None
    rejected: int
    held_removals: int
    trouble: str | None
    quiet: float | None
    expect_every: float | None
    note: str | None


@dataclass(frozen=True)
class ListedVolume(VolumeRow):
    """A volume on the overview.

    ``lag_seconds``: since the last full listing, which found ``missed_events``.
    """

    problem: Problem | None
    missed_events: int | None
    lag_seconds: float | None


@dataclass(frozen=True)
class ListedStream:
    """How far a stream is behind its source.

    Attributes:
        note: why it cannot be read. ``stale``: it never will be again.
        made_by: the job for which it was created.
    """

    stream: str
    source: str
    offset: int | None
    unread: int | None
    unread_bytes: int | None
    has_data: bool | None
    note: str | None
    stale: bool
    stale_after: datetime | None
    stale_soon: bool
    problem: Problem | None
    made_by: str | None


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job's waiting and failed work, and the result of its last run.

    Attributes:
        unit: the unit of the numbers of failures.
        files, done, share: of the volume, or None if unknown, or if the job is not about files.
        endless: start of the current batch, if the job has no time limit.
        reason: why it paused itself.
        trouble: why its last run failed.
        code: why its function cannot be found.
        wrong: the findings of the last verification.
        left: why a loaded file is still in its volume.
    """

    job: str
    state: JobState
    reason: str | None
    unit: str | None
    trigger: TriggerKind
    schedule: str
    running: bool
    trouble: str | None
    interrupted: bool
    code: str | None
    wrong: str | None
    left: str | None
    endless: datetime | None
    files: int | None
    done: int | None
    share: float | None
    where: str | None
    waiting_since: datetime | None
    waiting: int
    failed: int
    skipped: int
    failures: Mapping[FailureState, int]
    last_run: datetime | None
    outcome: str | None
    next_retry: datetime | None
    source_stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class ListedJob(JobRow):
    """A job on the overview, with its speed, its next run, and the number of files with rows of older
    code."""

    problem: Problem | None
    into: str
    last_ended: datetime | None
    files_per_second: float | None
    next_run: datetime | None
    runs: str
    run_done: float | None
    seconds_left: float | None
    older_code: int


@dataclass(frozen=True)
class ListedTail:
    """The number of rows that have arrived for a table and are not committed. ``note``: why not."""

    table: str
    not_committed: int | None
    note: str | None
    problem: Problem | None
