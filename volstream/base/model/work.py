"""Records of the work on definitions: refreshes, plans, batches, intents, failures, and what was requested
from the console."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, TypeVar

from volstream.errors import InvalidValueError

# Numbers that functions count, by name, and their sums. Pure.

#: Maximum number of names in a sum; each is a series of metrics.
MOST_NAMES = 100

#: The name under which counts of further names are added.
OTHERS = "(other names)"


def add_counts(sums: dict[str, float], counted: Mapping[str, float]) -> None:
    """Adds counts to sums, by name."""
    for name, number in counted.items():
        kept = name if name in sums or len(sums) < MOST_NAMES else OTHERS
        sums[kept] = sums.get(kept, 0.0) + number


def total_counts(*parts: Mapping[str, float]) -> dict[str, float]:
    """Returns the sums of counts."""
    sums: dict[str, float] = {}
    for part in parts:
        add_counts(sums, part)
    return sums


def shown_counts(counted: Mapping[str, float]) -> str:
    """Returns counts for people, such as ``calls 12, 'unexpected: words < 8' 1``."""
    return ", ".join(f"{_name(name)} {_number(number)}" for name, number in sorted(counted.items()))


def _name(name: str) -> str:
    """Returns a name in quotes if it is more than a word, so that its number is not read as a part of it."""
    return f"'{name}'" if " " in name else name


def _number(number: float) -> str:
    """Returns a count for people: an integer if whole, else with its significant digits."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.6g}" if number < 1e5 else f"{number:,.2f}"


#: Maximum difference between hosts' clocks. A wrong clock recorded any time further in the future.
CLOCK_SKEW = timedelta(minutes=1)


@dataclass(frozen=True)
class Refresh:
    """One commit of a directory; its rows carry its ``number`` as ``refresh_id``.

    Attributes:
        cause: ``events``, ``first-listing``, ``listing``, or why subtrees were listed; ``recovered``: a crash
            occurred between the commit and this record.
        bytes: size of the new and changed files.
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
    """The result of comparing a full listing of a volume with its previous directory table.

    Attributes:
        cause: ``first-listing``, ``listing``, or the reason for the request.
        listed: number of listed files, with ``bytes`` in total.
        added_by_listing: listed files that the directory lacked, because no event had reported them; 0 in a
            first listing.
        changed_by_listing: listed files that were different in the directory.
        removed_by_listing: files in the directory that no longer exist.
        late_events: added and changed files so recent that their events may still have been under way.
        findings: number of names that cannot be rows.
    """

    volume_id: str
    began_on: datetime
    seconds: float
    cause: str
    listed: int
    bytes: int
    added_by_listing: int
    changed_by_listing: int
    removed_by_listing: int
    late_events: int
    findings: int


class PlanKind(StrEnum):
    """The contents of a plan. For a job: a stream's range, failed files due for a retry, current files to run
    again, removed files whose removal the stream does not report, or files about which the table is wrong.
    For a statement or a block of Python: a stream's range."""

    STREAM = "stream"
    RETRY = "retry"
    REPLAY = "replay"
    STRAYS = "strays"
    REPAIR = "repair"
    STATEMENT = "statement"


class PlanState(StrEnum):
    """A plan is open until its last batch is committed or it is dropped."""

    OPEN = "open"
    DONE = "done"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One consumption of a stream: by a job, divided into batches, or by a statement, as one batch.

    Attributes:
        job_id: None: a statement without a job.
        from_version: excluded; None: EMPTY.
        to_version: included.
        table_id: Delta's id of the table that the versions belong to; the versions of a volume are refreshes.
        initial: the plan holds the rows at ``to_version``, not changes.
        location: folder of the plan's Parquet files, sorted by path; empty for a statement, which reads the
            range itself.
        where: the job's SQL condition at planning time, which may change later; None: all files.
    """

    id: str
    kind: PlanKind
    state: PlanState = PlanState.OPEN
    job_id: str | None
    stream_id: str
    table_id: str
    from_version: int | None
    to_version: int
    initial: bool
    location: str = ""
    where: str | None = None
    files: int = 0
    bytes: int = 0
    created_on: datetime


class BatchState(StrEnum):
    """PLANNED becomes INTENT when an attempt begins, and then COMMITTED, or PLANNED again if it is
    aborted."""

    PLANNED = "planned"
    INTENT = "intent"
    COMMITTED = "committed"
    DROPPED = "dropped"


#: From which times are counted.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _position(path: str, time: datetime | None) -> tuple[timedelta, bytes]:
    """Returns what a plan is sorted by. ``time`` None: by paths alone."""
    return timedelta(0) if time is None else EPOCH - time, path.encode()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A slice of a plan: files with ``after_path < path <= until_path`` in UTF-8 byte order; for a statement,
    all files.

    Attributes:
        after_time, until_time: the modification times that belong to ``after_path`` and ``until_path``, if
            the plan is sorted by time, newest first, and then by path.
        number: position in the plan, from 1.
        files: number of new and changed files, which the function processes.
        replaced: number of these that have an earlier version, whose rows are removed.
        removals: number of deleted files, whose rows are removed.
        moves: number of moved files in ``files``; the old path's rows are removed, or carried over to the new
            path.
        sequence: number of the newest attempt in the stream's sequence; None before the first.
        attempts: number of its INTENTs.
        seconds: time from INTENT to commit; None: not committed, or recorded by another process.
        counted: what the function counted, by name; None: nothing.
        files_per_call: number of files that the function takes; None: unknown.
        code: number of the version of the job's code that it ran; None: unknown.
        carried: other versions, of rows that followed moved files, by path.
    """

    id: str
    plan_id: str
    job_id: str | None
    stream_id: str
    number: int
    state: BatchState = BatchState.PLANNED
    after_path: str | None = None
    until_path: str | None = None
    after_time: datetime | None = None
    until_time: datetime | None = None
    files: int = 0
    replaced: int = 0
    removals: int = 0
    moves: int = 0
    bytes: int = 0
    sequence: int | None = None
    attempts: int = 0
    succeeded: int = 0
    failed: int = 0
    rows: int = 0
    created_on: datetime
    committed_on: datetime | None = None
    seconds: float | None = None
    counted: Mapping[str, float] | None = None
    files_per_call: int | None = None
    code: int | None = None
    carried: Mapping[str, int | None] | None = None

    @property
    def paths(self) -> tuple[str | None, str | None]:
        """The bounds of its files' paths, where None means unbounded."""
        return (self.after_path, self.until_path) if self.until_time is None else (None, None)

    def covers(self, path: str, modified: datetime | None) -> bool:
        """True if a file of its plan is in it. ``modified``: its time in the plan."""
        here = _position(path, self.until_time and modified)
        is_after = self.after_path is None or _position(self.after_path, self.after_time) < here
        return is_after and (self.until_path is None or here <= _position(self.until_path, self.until_time))

    @property
    def rate(self) -> float | None:
        """Files per second, including removals; None if not measured."""
        return (self.files + self.removals) / self.seconds if self.seconds else None


@dataclass(frozen=True)
class Load:
    """The amount of work in a set of batches."""

    batches: int = 0
    files: int = 0
    removals: int = 0
    moves: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Load:
        """Sums up the load of batches."""
        return sum((Load(1, batch.files, batch.removals, batch.moves, batch.bytes) for batch in batches), start=cls())

    def __add__(self, other: Load) -> Load:
        return Load(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class WaitingBatches:
    """The waiting batches at the end of an open plan. Sums count removals as files.

    Attributes:
        first: the first of these batches.
        most_files: files in the largest batch.
        most_bytes: bytes in the largest batch with several files.
    """

    first: Batch
    count: int
    files: int
    bytes: int
    most_files: int
    most_bytes: int


@dataclass(frozen=True)
class Target:
    """A table that a statement of an attempt writes, as of its INTENT.

    Attributes:
        streams: ids of the streams that the statement reads; empty: all of the attempt.
    """

    location: str
    table_id: str
    version: int
    streams: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", tuple(self.streams))  # a row has a list


@dataclass(frozen=True)
class Intent:
    """An attempt at a batch, and the marker of its commits in the targets' logs.

    Attributes:
        attempt: uuid in the commits' user metadata. An attempt that consumes several streams has one intent
            per stream.
        sequence: the intent's number in its stream's sequence.
        marker_stream_id, marker_sequence: the stream and number that mark the attempt's commits: the intent's
            own, or those of another intent of the attempt.
        targets: the tables that the attempt's statements write, in order.
        generation: of the job with which the attempt works. None: the attempt belongs to no job on files.
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
    generation: int | None = None

    def app_id(self, statement: int = 0) -> str:
        """Returns the ``txnAppId`` of a statement's commit, numbered from 0; its ``txnVersion`` is the
        marker's number."""
        return app_id(self.marker_stream_id, statement)


def app_id(stream_id: str, statement: int = 0) -> str:
    """Returns the ``txnAppId`` of a stream's consumptions: one per statement of a transaction."""
    return f"volstream:{stream_id}#{statement}"


class FailureState(StrEnum):
    """PENDING belongs to an uncommitted attempt; WAITING ends when the file changes or returns; users see the
    other states."""

    PENDING = "pending"
    RETRYING = "retrying"
    WAITING = "waiting"
    QUARANTINED = "quarantined"
    SKIPPED = "skipped"


#: States of failures that count. An attempt's failures are pending until it is committed.
ACTIVE = (FailureState.RETRYING, FailureState.WAITING, FailureState.QUARANTINED, FailureState.SKIPPED)


#: States of failed files that may need attention: not skipped by a person, and not waiting for the directory.
FAILING = (FailureState.RETRYING, FailureState.QUARANTINED)


class FailureKind(StrEnum):
    """Why a file has no new rows. ``SET_UP`` is not a file's fault: it ends the run, and is never stored as a
    failure. ``CODE``: a module that the function imports could not be compiled or found. ``MALFORMED`` and
    ``NEW_COLUMNS`` concern files that a job loads: they do not have its format, or have columns that its
    table lacks. ``RETRY_LATER``: the function asked to be called again later. ``STORE``: the store gives
    nothing, or gets too many requests, so that the file waits. ``HELD``: the function was not called, because
    a set of files is not complete, or has just changed. ``UNEXPECTED``: the rows break what the job expects
    of them."""

    SET_UP = "set-up"
    RAISED = "raised"
    TIMED_OUT = "timed-out"
    UNREADABLE = "unreadable"
    DENIED = "denied"
    CODE = "code"
    WRONG_RESULT = "wrong-result"
    TOO_LARGE = "too-large"
    UNEXPECTED = "unexpected"
    WORKER_DIED = "worker-died"
    OUT_OF_MEMORY = "out-of-memory"
    MALFORMED = "malformed"
    NEW_COLUMNS = "new-columns"
    RETRY_LATER = "retry-later"
    STORE = "store"
    HELD = "held"
    VANISHED = "vanished"
    CHANGED = "changed"


#: Failures that no retry can fix while code and file stay the same.
PERMANENT = (FailureKind.CODE, FailureKind.WRONG_RESULT, FailureKind.TOO_LARGE, FailureKind.MALFORMED, FailureKind.NEW_COLUMNS)

#: The file changed or disappeared before its turn, which does not count as a failure. It usually returns
#: through the stream, but may also return unchanged.
SUPERSEDED = (FailureKind.VANISHED, FailureKind.CHANGED)


def count_unsuccessful(kinds: Mapping[str, int]) -> dict[str, Any]:
    """Returns how many files failed, and how many wait and why, from the number of files without rows by
    kind."""
    overtaken = sum(kinds.get(kind, 0) for kind in SUPERSEDED)
    later = kinds.get(FailureKind.RETRY_LATER, 0) + kinds.get(FailureKind.STORE, 0)
    held = kinds.get(FailureKind.HELD, 0)
    failed = sum(kinds.values()) - overtaken - later - held
    return {"failed": failed, "overtaken": overtaken, "later": later, "held": held}


#: Files that neither succeeded nor failed, and are processed later.
WAITING = (*SUPERSEDED, FailureKind.RETRY_LATER, FailureKind.STORE, FailureKind.HELD)


@dataclass(frozen=True)
class Failure:
    """A version of a file that a job could not process.

    Attributes:
        file_version: store's version id or etag of the content that failed.
        attempts: number of failed attempts at this version.
        next_try: time of the next retry; None: no automatic retry.
        waiting_since: when the function first asked to be called later, without another outcome since; None:
            it did not ask.
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
    waiting_since: datetime | None = None


class ActionState(StrEnum):
    """``queued`` is also what waits for another run of its job."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: In a definition: what an object reads and writes, by name, which no change alters. Versions of 0.2 lack
#: these.
ENDS = ("into", "volume", "table", "stream")


@dataclass(frozen=True)
class DefinitionVersion:
    """What an object was defined as from a moment on.

    Attributes:
        object_id: id of the object; another object may have its name by now.
        saved_by: the user and the machine.
        definition: its options and its function, as the catalog stores them, or None if the object was
            dropped.
    """

    id: int
    object_id: str
    saved_on: datetime
    saved_by: str
    definition: Mapping[str, Any] | None
    pickled: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class AuditEntry:
    """An action on an object of the home, by a person or program: done at once, or a task, which a daemon
    does in the background.

    Attributes:
        action: a verb, such as ``retry``.
        object: kind and name of the target, such as ``job sizes``.
        who: origin, such as ``console 127.0.0.1``.
        cluster: the virtual cluster whose daemons do the task; None: it was done at once.
        parameters: of the request, those that were given.
        cancelled: a user asked for its end.
        step: what is being done, or waited for.
        done, files: how many of how many; None: unknown.
        attempts: how many daemons have begun it and were killed.
        plan_id: the plan that a replay has made, with which another daemon goes on.
        ended_on: None: it has not ended; if it was done at once, its process died first.
        result: how it ended, in a sentence.
        error: the class of the error if it failed by one of volstream's.
        remedy: what helps if it failed.
    """

    id: int
    action: str
    object: str
    who: str
    cluster: str | None
    parameters: Mapping[str, str] | None
    state: ActionState
    cancelled: bool
    step: str | None
    done: int | None
    files: int | None
    attempts: int
    plan_id: str | None
    began_on: datetime
    ended_on: datetime | None
    result: str | None
    error: str | None
    remedy: str | None

    @property
    def page(self) -> Sequence[str]:
        """The parts of the path of a task's page."""
        if self.action == "compare":
            return "jobs", self.object.partition(" ")[2], "compare", str(self.id)
        return "tasks", str(self.id)


# Limits for the number of files that a full listing may remove from a directory without confirmation. Pure.
#
# An empty mount point, or a prefix emptied by mistake, looks like a directory whose files were all deleted.

#: Minimum directory sizes at which a share is meaningful, and at which removing all files is suspicious.
_SHARE_OF, _ALL_OF = 100, 10

_WRITTEN = re.compile(r"\s*(?:(\d{1,3}(?:\.\d+)?)\s*%)?\s*,?\s*(\d{1,15})?\s*")


@dataclass(frozen=True)
class RemovalLimit:
    """The number of removals allowed to one listing; unlimited if neither attribute is set.

    Attributes:
        share: from 0 to 1, of a directory with at least 100 files; below 1, also not all files of one with at
            least 10.
        count: number of files.
    """

    share: float | None = 0.5
    count: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> RemovalLimit:
        """Parses ``50%``, ``1000``, both (``50%,1000``), or ``all``; None: the default. Raises
        InvalidValueError."""
        if text is None:
            return cls()
        if text.strip().lower() == "all":
            return cls(None, None)
        match = _WRITTEN.fullmatch(text)
        share = float(match[1]) / 100 if match and match[1] else None
        count = int(match[2]) if match and match[2] else None
        if (share is None and count is None) or (share is not None and share > 1):
            raise InvalidValueError(
                f"{text!r} is not a limit for removed files.", "Write for example 50%, 1000, 50%,1000 or all."
            )
        return cls(share, count)

    def holds(self, removed: int, of: int, *, replaced: bool = False) -> bool:
        """True if this many removals from a directory of this many files need confirmation.

        Args:
            replaced: another directory is at the path of the former, as while a share is not mounted. Then
                the share applies to directories of any size.
        """
        if self.count is not None and removed > self.count:
            return True
        if self.share is None:
            return False
        return ((of >= _SHARE_OF or replaced) and removed > self.share * of) or (self.share < 1 and removed == of >= _ALL_OF)


# The results of checks, such as those of ``volstream doctor``.


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        what: subject, such as ``queue``.
        said: the finding.
        fix: what to do about it; empty if nothing is wrong.
    """

    what: str
    state: CheckState
    said: str
    fix: str = ""


# Splits work into portions.

T = TypeVar("T")


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields items in lists of ``size`` (the last may be shorter, but not empty); reads items only when
    needed."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
