"""The definitions that the catalog keeps: connections, volumes, streams, jobs, functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from volstream.model.arguments import checked
from volstream.model.names import Name
from volstream.model.selection import DEFAULT_IGNORES, Selection


class QueueType(StrEnum):
    """The mechanism that notifies a volume of changes."""

    LOCAL = "local"
    POLL = "poll"
    SQS = "sqs"
    MNS = "mns"
    MEMORY = "memory"
    NONE = "none"


class SourceKind(StrEnum):
    """The source of a stream."""

    VOLUME = "volume"
    TABLE = "table"


class Mode(StrEnum):
    """The rows that a stream returns: net changes, or inserted rows only."""

    STANDARD = "standard"
    APPEND_ONLY = "append-only"


class Write(StrEnum):
    """A job's way of writing its result table: one state per file, or a log of every processed version."""

    UPSERT = "upsert"
    APPEND = "append"


class OnMove(StrEnum):
    """A job's treatment of a file moved within its volume: call the function again, or let the rows follow."""

    RERUN = "rerun"
    REKEY = "rekey"


class TriggerKind(StrEnum):
    """The occasions on which the daemon runs a job."""

    MANUAL = "manual"
    ON_CHANGE = "on-change"
    EVERY = "every"
    CRON = "cron"


class JobState(StrEnum):
    """The state of a job, which tells whether the daemon and ``run-job`` may run it."""

    ACTIVE = "active"
    PAUSED = "paused"


@dataclass(frozen=True)
class Connection:
    """Location and credentials of a store; credentials by reference only, no secret is stored."""

    id: str
    name: Name
    type: str
    region: str | None
    endpoint: str | None
    role_arn: str | None
    external_id: str
    credentials: str
    comment: str | None
    created_on: datetime


@dataclass(frozen=True)
class Volume:
    """A location whose files are mirrored in a directory table.

    Attributes:
        location: URI.
        table_id: Delta's id of the directory's tail; None until the first refresh creates it.
        refresh_count: number of the newest refresh.
        trouble: current problem as reported by its writer; None if there is none.
        max_removals: limit for removals by a full listing, in the syntax of :class:`~volstream.model.removals.RemovalLimit`;
            None: the default.
        held_removals: rows that the newest full listing found gone, kept until the removals are accepted.
        accept_removals: the removals were accepted: the next full listing may remove what it finds gone.
    """

    id: str
    name: Name
    location: str
    connection_id: str | None
    queue_type: QueueType
    queue_name: str | None
    virtual_cluster: str
    recursive: bool
    patterns: Sequence[str]
    ignores: Sequence[str]
    comment: str | None
    created_on: datetime
    table_id: str | None = None
    refresh_count: int = 0
    reconciled_on: datetime | None = None
    trouble: str | None = None
    max_removals: str | None = None
    held_removals: int = 0
    accept_removals: bool = False

    @property
    def definition(self) -> Sequence[object]:
        """The alterable attributes that determine how the volume is kept."""
        return (self.connection_id, self.queue_type, self.queue_name, self.selection)

    @property
    def selection(self) -> Selection:
        """The rule for which of the location's paths belong to the volume."""
        return Selection(self.recursive, tuple(self.patterns), tuple(self.ignores))


@dataclass(frozen=True)
class Stream:
    """A cursor over the refreshes of a volume's directory, or over the versions of a table.

    Attributes:
        source_id: the volume's id, or the table's name.
        table_id: Delta's id of the table that the offset belongs to; None while the offset is EMPTY.
        offset: refresh or version up to which, inclusively, all changes are consumed; None: EMPTY, before the first.
        initial: until the first committed consumption, the rows present at ``offset`` are returned.
        sequence: number of the last INTENT.
        identity: columns that identify a table's rows; empty: Delta's row ids do.
    """

    id: str
    name: Name
    source_kind: SourceKind
    source_id: str
    source_name: Name
    table_id: str | None
    mode: Mode
    offset: int | None
    initial: bool
    sequence: int
    comment: str | None
    created_on: datetime
    identity: Sequence[str] = ()


@dataclass(frozen=True)
class Trigger:
    """The schedule of a job: ``every`` in seconds, ``cron`` as a five-field expression."""

    kind: TriggerKind = TriggerKind.MANUAL
    every: float | None = None
    cron: str | None = None


def on_change() -> Trigger:
    """Returns a trigger that runs a job as soon as the volume's files change."""
    return Trigger(TriggerKind.ON_CHANGE)


@checked
def every(seconds: float) -> Trigger:
    """Returns a trigger that runs a job periodically."""
    return Trigger(TriggerKind.EVERY, every=seconds)


@checked
def on_cron(line: str) -> Trigger:
    """Returns a trigger that runs a job by a five-field cron expression."""
    return Trigger(TriggerKind.CRON, cron=line)


#: What the outcome of a run begins with that failed as a whole.
FAILED = "failed: "

#: The reason of a pause that a person asked for.
PAUSED_BY_USER = "paused by the user"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What consumes streams and fills a table: a :class:`FileJob`, a :class:`StatementJob` or a :class:`DynamicJob`.

    Attributes:
        stream_id: the stream's; the first one's, if a statement reads several.
        other_stream_ids: the other streams that a statement reads.
        into: the table.
        owns_stream: the streams were made for this job and are dropped with it.
        last_started, last_ended: times of the last run; ``last_ended`` is None while a run is in progress, and stays so if its
            process died or could not write the catalog.
        last_outcome: a line about the last run that ended and had work; ``failed: ...`` until another run ends well.
        alert: names of those who get alerts about it; empty: nobody; None: those of the home's settings.
    """

    id: str
    name: Name
    stream_id: str
    other_stream_ids: Sequence[str] = ()
    into: Name
    trigger: Trigger
    state: JobState
    state_reason: str | None
    owns_stream: bool
    comment: str | None
    created_on: datetime
    last_started: datetime | None = None
    last_ended: datetime | None = None
    last_outcome: str | None = None
    alert: Sequence[str] | None = None

    @property
    def stream_ids(self) -> Sequence[str]:
        """The ids of all streams that the job consumes."""
        return (self.stream_id, *self.other_stream_ids)

    @property
    def trouble(self) -> str | None:
        """Why the last run that ended failed as a whole; None: it did not."""
        outcome = self.last_outcome or ""
        return outcome.removeprefix(FAILED) if outcome.startswith(FAILED) else None

    @property
    def unended(self) -> bool:
        """True if a run began whose end is not known: it is in progress, or was interrupted."""
        # 0.1 wrote this outcome, and left it there if the process died.
        return self.last_started is not None and (self.last_ended is None or self.last_outcome == "running")

    @property
    def paused_itself(self) -> str | None:
        """Why the job paused itself; None: it is active, or was paused by a person."""
        return self.state_reason if self.state is JobState.PAUSED and self.state_reason != PAUSED_BY_USER else None


@dataclass(frozen=True, kw_only=True)
class FileJob(Job):
    """Runs a function on each file of a volume's stream, into a result table.

    Attributes:
        function: ``/abs/file.py:func`` or ``pkg.mod:func``.
        search_path: folder to import ``pkg.mod`` from if it is not installed; None: installed.
        fingerprint: hash of the function's source files when the job was made or altered.
        returns: the result's own columns as DDL, for example ``label STRING, score DOUBLE``.
        declared: ``returns`` is what the function declares, not what the user gave besides.
        clean: the result table was made empty by this job, and nothing but its first pass wrote to it.
        may_have_strays: the result table may have rows of files that left the volume unseen by the stream: it was reset, or
            another job wrote them. The next run looks for them.
        failed_batches: batches in a row of which every file failed.
    """

    function: str
    search_path: str | None
    fingerprint: str
    returns: str
    declared: bool = False
    where: str | None
    write: Write
    on_move: OnMove
    retries: int
    pause_after: int
    timeout_seconds: float | None
    isolate: bool
    max_files: int | None
    max_bytes: int | None
    arguments: Mapping[str, str]
    clean: bool
    may_have_strays: bool = False
    failed_batches: int


@dataclass(frozen=True, kw_only=True)
class StatementJob(Job):
    """Runs DML that consumes its streams."""

    statement: str


@dataclass(frozen=True, kw_only=True)
class DynamicJob(Job):
    """Keeps a dynamic table, ``into``, equal to a query. The streams on what the query reads are its own."""

    query: str


@dataclass(frozen=True)
class Function:
    """A Python function on values that SQL statements call by name.

    Attributes:
        location: ``/abs/file.py:func`` or ``pkg.mod:func``.
        search_path: folder from which ``pkg.mod`` is imported if it is not installed; None: installed.
        returns: the SQL type of its value.
        of_items: takes an item of a keyed table as a dict, and returns one; in SQL both are JSON.
    """

    id: str
    name: Name
    location: str
    search_path: str | None
    returns: str
    of_items: bool
    comment: str | None
    created_on: datetime


class FeedKind(StrEnum):
    """What fills a table: events, items by key, uploaded files, or a Kafka topic."""

    EVENTS = "events"
    ITEMS = "items"
    FILES = "files"
    KAFKA = "kafka"


@dataclass(frozen=True)
class FeedTable:
    """A table that is filled through ``session.source`` or ``session.connector``.

    Attributes:
        primary_key: column that identifies an item; None: rows are only added.
        retention_seconds: age at which events are deleted; None: never.
        immutable: only whole versions are added.
        options: what its kind needs besides; of Kafka ``brokers``, ``topic``, ``format`` and ``properties``, and
            once it was read ``topic_id`` and ``tail_id``, which its offsets belong to; of an immutable
            table ``versions``, the Delta versions of its own.
        error: what is wrong with its source at present, and since when; None: nothing.
    """

    id: str
    name: Name
    kind: FeedKind
    primary_key: str | None
    retention_seconds: int | None
    immutable: bool
    options: Mapping[str, Any]
    error: str | None
    error_on: datetime | None
    comment: str | None
    created_on: datetime


#: The virtual cluster of ``create_volume`` if the user names none.
DEFAULT_VIRTUAL_CLUSTER = "DEFAULT"


@dataclass(frozen=True)
class VolumeSpec:
    """A user's definition of a volume to be created."""

    name: Name
    location: str
    connection: Name | None = None
    queue_type: QueueType | None = None
    queue_name: str | None = None
    virtual_cluster: str = DEFAULT_VIRTUAL_CLUSTER
    recursive: bool = True
    patterns: Sequence[str] = ()
    ignores: Sequence[str] = DEFAULT_IGNORES
    max_removals: str | None = None
    comment: str | None = None


@dataclass(frozen=True)
class StreamSpec:
    """A user's definition of a stream to be created: exactly one source, at most one of the two points in time.

    Attributes:
        identity: columns that identify the table's rows; empty: its primary key, or Delta's row ids.
    """

    name: Name
    volume: Name | None = None
    table: Name | None = None
    mode: Mode = Mode.STANDARD
    show_initial_rows: bool = False
    at_version: int | None = None
    at_timestamp: datetime | None = None
    identity: Sequence[str] = ()
    comment: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The definition of a job that is to be made."""

    name: Name
    into: Name
    trigger: Trigger = Trigger()
    comment: str | None = None
    alert: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class FileJobSpec(JobSpec):
    """The definition of a :class:`FileJob`: with one of ``stream`` and ``volume``."""

    function: str
    stream: Name | None = None
    volume: Name | None = None
    returns: str | None = None
    where: str | None = None
    write: Write = Write.UPSERT
    on_move: OnMove = OnMove.RERUN
    retries: int = 3
    pause_after: int = 3
    timeout_seconds: float | None = None
    isolate: bool = False
    max_files: int | None = None
    max_bytes: int | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StatementJobSpec(JobSpec):
    """The definition of a :class:`StatementJob`: the streams that its statement reads, the first one by which it is known."""

    statement: str
    streams: Sequence[Name]


@dataclass(frozen=True, kw_only=True)
class DynamicJobSpec(JobSpec):
    """The definition of a :class:`DynamicJob`: the streams to make, one on each relation that its query reads."""

    query: str
    own_streams: Sequence[StreamSpec]
