"""What happens to definitions: refreshes, plans, batches, intents, failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True)
class Refresh:
    """One commit of a directory; its rows carry its ``number`` as ``refresh_id``.

    Attributes:
        cause: ``events``, ``bootstrap``, ``reconcile``, or why subtrees were listed; ``recovered``: a crash came between the
            commit and this record.
        bytes: of the files that are new or changed.
    """

    volume_id: str
    number: int
    cause: str
    inserted: int
    updated: int
    deleted: int
    bytes: int
    committed_on: datetime


@dataclass(frozen=True)
class Completeness:
    """What a full listing of a volume found, compared with its directory table as it was before.

    Attributes:
        cause: ``bootstrap``, ``reconcile``, or why it was asked for.
        listed: files, ``bytes`` of them.
        missing: of these, those that the directory lacked: no event had told of them. None in the first listing of a volume.
        changed: those that it showed otherwise.
        phantom: files that it showed, and that are gone.
        late: of the missing and changed, those that are so new that their events may have been under way.
        findings: names that cannot be rows.
    """

    volume_id: str
    began_on: datetime
    seconds: float
    cause: str
    listed: int
    bytes: int
    missing: int
    changed: int
    phantom: int
    late: int
    findings: int


class PlanKind(StrEnum):
    """What a plan holds: a stream's range, failed files due again, or current files run again, for a job; or a stream's
    range for a statement or a block of Python."""

    STREAM = "stream"
    RETRY = "retry"
    REPLAY = "replay"
    STATEMENT = "statement"


class PlanState(StrEnum):
    """A plan is open from its first batch to its last."""

    OPEN = "open"
    DONE = "done"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Plan:
    """One consumption of a stream: by a job, cut into batches, or by a statement, in one.

    Attributes:
        job_id: None: a statement's that is no job's.
        from_version: excluded; None: EMPTY.
        to_version: included.
        table_id: Delta's id of the table that the versions belong to; of a volume's, refreshes.
        initial: the rows present at ``to_version``, not changes.
        location: folder of the plan's Parquet files, sorted by path; empty for a statement, which reads the range itself.
        where: SQL condition that the planned files met; kept, since the job's may change. None: all files.
    """

    id: str
    kind: PlanKind
    state: PlanState
    job_id: str | None
    stream_id: str
    table_id: str
    from_version: int | None
    to_version: int
    initial: bool
    location: str
    where: str | None
    files: int
    bytes: int
    created_on: datetime


class BatchState(StrEnum):
    """PLANNED becomes INTENT when an attempt begins, and COMMITTED, or PLANNED again when it was aborted."""

    PLANNED = "planned"
    INTENT = "intent"
    COMMITTED = "committed"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Batch:
    """A slice of a plan: the files with ``after_path < path <= until_path`` in UTF-8 byte order; all of a statement's.

    Attributes:
        number: position in the plan, from 1.
        files: new and changed ones, on which the function runs.
        replaced: how many of these had a version before, whose rows go.
        removals: files that are gone, whose rows go.
        moves: how many of ``files`` are moved ones; the old path's rows go with the new path, or to it.
        sequence: number in the stream's sequence of the newest attempt; None before the first.
        attempts: how many INTENTs it has had.
        seconds: from the INTENT to the commit; None: not committed, or by another process than the one that recorded it.
    """

    id: str
    plan_id: str
    job_id: str | None
    stream_id: str
    number: int
    state: BatchState
    after_path: str | None
    until_path: str | None
    files: int
    replaced: int
    removals: int
    moves: int
    bytes: int
    sequence: int | None
    attempts: int
    succeeded: int
    failed: int
    rows: int
    created_on: datetime
    committed_on: datetime | None
    seconds: float | None = None

    @property
    def rate(self) -> float | None:
        """Files a second, removals counted as such; None where that was not measured."""
        return (self.files + self.removals) / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Load:
    """How much work some batches are together."""

    batches: int = 0
    files: int = 0
    removals: int = 0
    moves: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Load:
        """The load of some batches."""
        return sum((Load(1, one.files, one.removals, one.moves, one.bytes) for one in batches), start=cls())

    def __add__(self, other: Load) -> Load:
        return Load(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True)
class Waiting:
    """The batches of an open plan that nobody began: the end of the plan. Sums count removals as files.

    Attributes:
        first: the first of them.
        most_files: of the largest one.
        most_bytes: of the largest one that has several files.
    """

    first: Batch
    count: int
    files: int
    bytes: int
    most_files: int
    most_bytes: int


@dataclass(frozen=True)
class Target:
    """The table that an attempt writes, as it was at INTENT."""

    location: str
    table_id: str
    version: int


@dataclass(frozen=True)
class Intent:
    """One attempt at a batch: what the targets' logs are searched for.

    Attributes:
        attempt: uuid that the commits' user metadata carries. An attempt that consumes several streams has an intent for
            each of them.
        sequence: the intent's number in its stream's sequence.
        marker_stream_id, marker_sequence: the stream and number under which the attempt's commits are marked: the
            intent's own, or those of another one of the attempt.
        targets: the tables that the attempt's statements write, in their order.
    """

    stream_id: str
    sequence: int
    batch_id: str
    attempt: str
    marker_stream_id: str
    marker_sequence: int
    owner: str
    targets: Sequence[Target]
    started_on: datetime

    def app_id(self, statement: int = 0) -> str:
        """The ``txnAppId`` of the commit of a statement, numbered from 0; its ``txnVersion`` is the marker's number."""
        return app_id(self.marker_stream_id, statement)


def app_id(stream_id: str, statement: int = 0) -> str:
    """The ``txnAppId`` of a stream's consumptions: one per statement of a transaction."""
    return f"volstream:{stream_id}#{statement}"


class FailureState(StrEnum):
    """PENDING belongs to an attempt that is not committed; WAITING needs the file to move, or to be back; the rest are
    visible."""

    PENDING = "pending"
    RETRYING = "retrying"
    WAITING = "waiting"
    QUARANTINED = "quarantined"
    SKIPPED = "skipped"


class FailureKind(StrEnum):
    """Why a file has no new rows. ``SET_UP`` is no file's fault: it ends the run, and is never kept as a failure. ``CODE``: what
    the function imported could not be compiled or found."""

    SET_UP = "set-up"
    RAISED = "raised"
    TIMED_OUT = "timed-out"
    UNREADABLE = "unreadable"
    DENIED = "denied"
    CODE = "code"
    WRONG_RESULT = "wrong-result"
    TOO_LARGE = "too-large"
    WORKER_DIED = "worker-died"
    OUT_OF_MEMORY = "out-of-memory"
    VANISHED = "vanished"
    CHANGED = "changed"


#: Another try ends the same way, as long as neither code nor file is another.
LASTING = (FailureKind.CODE, FailureKind.WRONG_RESULT, FailureKind.TOO_LARGE)

#: The file is another one by now, or gone: it was overtaken, and nobody failed. It mostly comes through the stream, but may be
#: back as it was.
OVERTAKEN = (FailureKind.VANISHED, FailureKind.CHANGED)


@dataclass(frozen=True)
class Failure:
    """A version of a file that a job could not process.

    Attributes:
        file_version: store's version id or etag of the content that failed.
        attempts: failed attempts at this version.
        next_try: when the next is due; None: never by itself.
    """

    job_id: str
    path: str
    file_version: str
    commit_version: int
    state: FailureState
    kind: FailureKind
    message: str
    traceback: str | None
    attempts: int
    next_try: datetime | None
    batch_id: str
    attempt: str
    failed_on: datetime
