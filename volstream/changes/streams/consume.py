"""Consumes a stream exactly once: INTENT, marked commit, verification, COMMITTED, recovery
(docs/exactly-once.md).

The marker in the target's log decides the outcome, never an exception or a lease.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from volstream.base import faults
from volstream.base.definitions import Job, Stream
from volstream.base.model.work import Batch, Intent, Plan, PlanKind, Target, app_id
from volstream.base.processes import host_of, new_owner
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.leases import lease, of_stream
from volstream.changes.streams.read import Range, StreamReader
from volstream.errors import (
    FencedError,
    InvalidStateError,
    NotFoundError,
    StorageError,
    StreamBusyError,
    TargetLostError,
    VolstreamError,
    reason_of,
)
from volstream.tables.delta import durable
from volstream.tables.delta.log import Commit, DeltaLog
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.writer import DeltaWriter

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class FoundCommit(Enum):
    """The status of an intent according to the target's log."""

    NOTHING = "nothing"
    COMMIT = "commit"
    FENCE = "fence"


@dataclass(frozen=True)
class CommitFinding:
    """The status of an intent according to the target's log, with the commit that proves it."""

    what: FoundCommit
    commit: Commit | None = None


class Consumer:
    """Runs and recovers the commits of consumptions."""

    def __init__(self, catalog: Catalog, delta: DeltaWriter) -> None:
        self._catalog = catalog
        self._delta = delta

    def begin(self, *batches: Batch, owner: str, location: str, streams: Sequence[str] = (), job: Job | None = None) -> Intent:
        """Writes the INTENT for an attempt at batches. Its first statement writes to the table at
        ``location``.

        Args:
            streams: see :class:`Target`.
            job: see :meth:`Consumptions.begin`.

        Raises:
            StreamBusyError, FencedError: another process uses a stream or took a batch.
            JobChangedError: the job was altered since it was read.
            TargetLostError: the target was dropped, or its log is ahead of the catalog's sequence.
        """
        target = self._target(location, streams)
        table = OpenTable.newest(location)
        for batch in batches:
            stream = self._catalog.streams.by_id(batch.stream_id)
            used = None if table is None else table.transaction(app_id(batch.stream_id))
            if stream is not None and used is not None and used > stream.sequence:
                raise InvalidStateError(
                    f"The table at {location} has already seen consumption {used} of stream {stream.name}, but the "
                    f"catalog only {stream.sequence}: the catalog is older than the table.",
                    "Was it restored from a backup? Restore the newer catalog, or replace the stream and its job.",
                )
        intent = self._catalog.consumptions.begin(*batches, owner=owner, target=target, job=job)
        faults.point("batch.intent")
        return intent

    def add_statement(self, intent: Intent, location: str, streams: Sequence[str]) -> Intent:
        """Records another statement of an attempt in the catalog before it runs. Raises like
        :meth:`begin`."""
        return self._catalog.consumptions.add_target(intent, self._target(location, streams))

    def write(
        self,
        intent: Intent,
        metadata: Mapping[str, Any],
        statement: Callable[[SparkSession], None],
        number: int = 0,
        *,
        separate: bool = False,
        like: Any = None,
        directly: Callable[[Marker], bool] = lambda _: False,
    ) -> Commit:
        """Makes one commit of an attempt, with a DML statement or without Spark, and verifies it in the
        target's log.

        Args:
            metadata: added to the commit's user metadata.
            number: number of the attempt's statement, from 0.
            separate: the statement is a user's and gets a separate session from :meth:`DeltaWriter.marked`.
            like: the statement writes a frame of this session and runs in a copy of it from
                :meth:`DeltaWriter.marked`.
            directly: does the statement's work without Spark if possible. Returns True if it did.

        Raises:
            FencedError: another attempt took over. The table has no rows of this one.
        """
        marker = Marker(
            intent.app_id(number),
            intent.marker_sequence,
            {
                "stream": intent.marker_stream_id,
                "sequence": intent.marker_sequence,
                "statement": number,
                "attempt": intent.attempt,
                "batch": intent.batch_id,
                **metadata,
            },
        )
        is_direct = directly(marker)
        if not is_direct:
            with self._delta.marked(marker, intent.targets[number].location, separate=separate, like=like) as session:
                statement(session)
        faults.point("batch.written")
        outcome = self.find_commit(intent, number)
        if outcome.what is FoundCommit.NOTHING:
            place = intent.targets[number].location
            if is_direct:
                raise StorageError(
                    f"Another writer replaced the commit of batch {intent.batch_id} to {place}; the next run repeats it.",
                    "Have other writers use a log store that replaces nothing: docs/operations/cluster.md, Spark elsewhere.",
                )
            self._delta.fence(place, marker)  # a statement without changes makes no commit
            outcome = self.find_commit(intent, number)
        if outcome.what is not FoundCommit.COMMIT or outcome.commit is None:
            raise FencedError(f"Batch {intent.batch_id}, attempt {intent.attempt}: another process took it over.")
        _sync_commit(intent.targets[number], outcome.commit)
        return outcome.commit

    def settle(
        self, stream_id: str, superseded: Callable[[Batch], list[str]] = lambda _: [], why: str = "Its process ended."
    ) -> bool | None:
        """Recovers a stream's INTENT whose owner died: rolls it forward if it was committed, else fences it
        off.

        Of several statements, each that committed to its target's log moves the offsets of the streams that
        it read.

        Args:
            superseded: returns the paths whose earlier failures a committed batch ends.
            why: recorded as the reason if the attempt was not committed.

        Returns:
            True if it was committed, False if not, None if there was no INTENT.

        Raises:
            TargetLostError: a target was dropped or replaced, so that the outcome cannot be determined.
        """
        intent = self._catalog.consumptions.open_intent(stream_id)
        if intent is None:
            return None
        commits = self._commits(intent)
        faults.point("recover.fenced")
        batch = self._catalog.reports.batch(intent.batch_id)
        assert batch is not None, "an intent refers to its batch"
        with suppress(FencedError):  # another process recovered it first, with the same result
            if commits:
                metadata = next(iter(commits.values())).metadata
                rows = metadata["rows"] if "rows" in metadata else sum(commit.rows or 0 for commit in commits.values())
                read = [intent.targets[number].streams for number in commits]
                outcome = BatchOutcome(
                    metadata.get("succeeded", 0),
                    metadata.get("failed", 0),
                    rows,
                    superseded(batch),
                    counted=metadata.get("counted", {}),
                    code=metadata.get("code"),
                )
                self._catalog.consumptions.commit(intent, outcome, {*chain(*read)} if all(read) else None)
            else:
                self._catalog.consumptions.abort(intent, why)
        return bool(commits)

    def _commits(self, intent: Intent) -> Mapping[int, Commit]:
        """Returns the commits of an attempt's statements in their targets' logs, by number. Fences off its
        other statements."""
        commits: dict[int, Commit] = {}
        for number, target in enumerate(intent.targets):
            finding = self.find_commit(intent, number)
            if finding.what is FoundCommit.NOTHING:
                metadata = {"fence": intent.marker_sequence, "stream": intent.marker_stream_id, "statement": number}
                faults.point("recover.fence")
                self._delta.fence(target.location, Marker(intent.app_id(number), intent.marker_sequence, metadata))
                finding = self.find_commit(intent, number)
            if finding.what is FoundCommit.COMMIT and finding.commit is not None:
                _sync_commit(target, finding.commit)
                commits[number] = finding.commit
        return commits

    def find_commit(self, intent: Intent, number: int = 0) -> CommitFinding:
        """Searches a target's log for the marker of an attempt's statement.

        Raises:
            TargetLostError: the target was dropped or replaced, or the number is used and no log entry shows
                its writer.
        """
        target = intent.targets[number]
        for commit in DeltaLog(target.location).commits_after(target.version):
            metadata = commit.metadata
            if metadata.get("attempt") == intent.attempt and metadata.get("statement", 0) == number:
                return CommitFinding(FoundCommit.COMMIT, commit)
            ours = metadata.get("stream") == intent.marker_stream_id and metadata.get("statement", 0) == number
            if ours and metadata.get("fence") == intent.marker_sequence:
                return CommitFinding(FoundCommit.FENCE, commit)
        table = OpenTable.newest(target.location)
        if table is None or table.id != target.table_id:
            raise TargetLostError(
                f"The table at {target.location} was dropped or re-created while a consumption was writing it.",
                self._remedy(intent),
            )
        used = table.transaction(intent.app_id(number))
        if used is not None and used >= intent.marker_sequence:
            raise TargetLostError(
                f"Consumption {intent.marker_sequence} of stream {intent.marker_stream_id} is already committed in "
                f"{target.location}, but its log does not identify the writer.",
                self._remedy(intent),
            )
        return CommitFinding(FoundCommit.NOTHING)

    def _remedy(self, intent: Intent) -> str:
        """Returns the remedy if the outcome of an attempt cannot be determined."""
        stream = self._catalog.streams.by_id(intent.stream_id)
        name = intent.stream_id if stream is None else stream.name
        return (
            f"If the table had the rows that stream {name} delivered, run: volstream resolve {name} committed. "
            f"To have them delivered again: volstream resolve {name} aborted."
        )

    @staticmethod
    def _target(location: str, streams: Sequence[str]) -> Target:
        table = OpenTable.newest(location)
        if table is None:
            raise TargetLostError(f"The table at {location} no longer exists.", "Replace the job, or restore the table.")
        return Target(location, table.id, table.version, streams)


def _sync_commit(target: Target, commit: Commit) -> None:
    """Syncs a commit to disk before the catalog records it, because Spark does not."""
    durable.sync(target.location, target.table_id, commit.version)


def is_unused(catalog: Catalog, location: str, streams: Iterable[str]) -> bool:
    """True if a table created for a failed consumption is empty and no statement can write to it any more.

    After an interruption the commit may exist, and then it counts. The statement may even be still running.

    Args:
        streams: ids of the streams to be consumed.
    """
    if any(catalog.consumptions.open_intent(stream_id) is not None for stream_id in streams):
        return False
    return all("fence" in commit.metadata for commit in DeltaLog(location).commits_after(0))


# Consumes streams by statements or by a block of Python: pins each stream's range once, writes each result
# once, and moves the offsets at the end (docs/streams.md).
#
# A job's batches use the same protocol differently (``runs.run``).

#: How often to check a busy stream while waiting for it.
_ASK_SECONDS = 0.2


@dataclass(frozen=True)
class ConsumedBatch:
    """A stream being consumed over a range, as a batch."""

    stream: Stream
    covered: Range
    plan: Plan
    batch: Batch


class Consumption:
    """One consumption of one or several streams. A context manager: it completes, or consumes nothing.

    If a statement was committed and a later one fails, the offsets of the streams read by the first still
    move, because the tables have the rows. Threads may write: they take turns, and the end waits for a write
    in progress.

    Args:
        again: resume a range that an earlier consumption left unfinished, as the same batch.
        timeout: seconds to wait for a stream that another process consumes.
        job: the job that runs the statement, if any. The batches belong to it.
    """

    def __init__(
        self,
        catalog: Catalog,
        reader: StreamReader,
        consumer: Consumer,
        *,
        lease_seconds: float,
        again: bool = False,
        timeout: float = 0.0,
        job: Job | None = None,
    ) -> None:
        self._catalog = catalog
        self._reader = reader
        self._consumer = consumer
        self._lease_seconds = lease_seconds
        self._again = again
        self._job = job
        self._deadline = time.monotonic() + timeout
        self._owner = new_owner()
        self._turn = threading.Lock()
        self._leases = ExitStack()
        self._pinned: dict[str, Range | None] = {}
        self._batches: dict[str, ConsumedBatch] = {}
        self._intent: Intent | None = None
        self._begun_statements = 0
        self._committed_statements = 0
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        with self._turn, self._leases:
            if kind is None:
                self._commit()
            else:
                self._undo("" if error is None else reason_of(error))

    def pin(self, stream: Stream) -> Range | None:
        """Returns the range of the stream's reads in this consumption. Raises like
        :meth:`StreamReader.pin`."""
        if stream.id not in self._pinned:
            self._pinned[stream.id] = self._reader.pin(stream)
        return self._pinned[stream.id]

    def take(self, *streams: Stream) -> Mapping[str, ConsumedBatch]:
        """Adds streams. Their offsets move at the end. Returns their batches by id, without streams on
        volumes never listed.

        Raises:
            StreamBusyError: another consumption of a stream is open.
            StreamStaleError, StreamSchemaChangedError: a stream cannot be read.
            JobChangedError: the job was dropped.
        """
        new = sorted((stream for stream in streams if stream.id not in self._batches), key=lambda stream: stream.id)
        for stream in new:
            self._take_lease(stream)
        added = [entry for entry in map(self._plan, new) if entry is not None]
        fresh = [entry for entry in added if entry.batch.attempts == 0 and self._catalog.reports.plan(entry.plan.id) is None]
        if fresh:
            self._catalog.consumptions.open(*((entry.plan, [entry.batch], entry.stream) for entry in fresh), job=self._job)
        faults.point("plan.opened")
        self._batches |= {entry.stream.id: entry for entry in added}
        if self._intent is not None and added:
            self._catalog.consumptions.join(self._intent, *(entry.batch for entry in added))
        return {stream.id: self._batches[stream.id] for stream in streams if stream.id in self._batches}

    def free(self, stream: Stream) -> None:
        """Recovers a consumption of the stream that was left open, and drops its plan if nothing was
        committed.

        Raises:
            StreamBusyError: the consumer is active, or a job has an unfinished run.
        """
        self._take_lease(stream)
        self._drop_open_plan(stream)

    def write(
        self,
        location: str,
        statement: Callable[[SparkSession], None],
        *,
        streams: Iterable[Stream] | None = None,
        like: Any = None,
    ) -> int | None:
        """Runs a DML statement on the table at ``location`` at most once. Returns the number of rows written,
        if known.

        Args:
            streams: the streams that it reads. Defaults to all streams of this consumption.
            like: session of the frame that the statement writes. It runs in a copy.

        Raises:
            FencedError: another process took over the streams. The table has no rows of this statement.
        """
        with self._turn:
            self._begun_statements += 1
            batches = [entry.batch for entry in self._batches.values()]
            read = [*self._batches] if streams is None else [stream.id for stream in streams if stream.id in self._batches]
            if self._intent is None:
                self._intent = self._consumer.begin(*batches, owner=self._owner, location=location, streams=read)
            else:
                self._intent = self._consumer.add_statement(self._intent, location, read)
            number = len(self._intent.targets) - 1
            metadata = {"streams": {str(entry.stream.name): entry.covered.to_version for entry in self._batches.values()}}
            try:
                commit = self._consumer.write(self._intent, metadata, statement, number, separate=True, like=like)
            except Exception:
                # The log decides the outcome, whatever the command reported.
                outcome = self._consumer.find_commit(self._intent, number)
                if outcome.what is not FoundCommit.COMMIT or outcome.commit is None:
                    raise
                commit = outcome.commit
            self._committed_statements += 1
            self._rows += commit.rows or 0
            return commit.rows

    def _take_lease(self, stream: Stream) -> None:
        name, purpose = of_stream(stream.id), f"consumption of stream {stream.name}"
        while True:
            lease_context = lease(self._catalog.leases, name, self._owner, purpose, self._lease_seconds)
            with ExitStack() as attempt:
                other = attempt.enter_context(lease_context)
                busy = self._busy(stream) if other is None else f"it is being consumed, on {host_of(other.owner)}"
                if busy is None:
                    self._leases.push(attempt.pop_all())
                    return
            if time.monotonic() >= self._deadline:
                raise StreamBusyError(f"The stream {stream.name} is busy: {busy}.", "Wait for it to end.")
            time.sleep(_ASK_SECONDS)

    def _busy(self, stream: Stream) -> str | None:
        """Returns why the stream is busy although its lease is free: a job's plan is open. Recovers an open
        attempt."""
        plan = self._catalog.consumptions.open_plan(stream.id)
        if plan is None:
            return None
        if plan.job_id is not None and plan.kind is not PlanKind.STATEMENT:
            job = self._catalog.jobs.by_id(plan.job_id)
            return f"job {job.name if job else plan.job_id} has an unfinished run"
        self._consumer.settle(stream.id)
        return None

    def _open_plan(self, stream: Stream) -> Plan | None:
        """Returns the plan that an earlier consumer left open.

        Raises StreamBusyError for a job's plan: jobs do not hold the stream's lease.
        """
        plan = self._catalog.consumptions.open_plan(stream.id)
        if plan is not None and plan.kind is not PlanKind.STATEMENT:
            raise StreamBusyError(f"The stream {stream.name} is busy: its job has started a run.", "Wait for it to end.")
        return plan

    def _drop_open_plan(self, stream: Stream) -> None:
        unfinished = self._open_plan(stream)
        if unfinished is not None:
            self._catalog.consumptions.drop_plan(unfinished)

    def _plan(self, stream: Stream) -> ConsumedBatch | None:
        """Returns a plan of one batch: the range of an unfinished consumption, or the stream's current
        range."""
        current = self._catalog.streams.by_id(stream.id)
        if current is None:
            raise NotFoundError(f"The stream {stream.name} was dropped.")
        unfinished = self._open_plan(stream)
        covered = self._reader.range_of(unfinished, current) if unfinished is not None and self._again else None
        if unfinished is not None and covered is not None and not covered.outdated:
            batch = self._catalog.consumptions.next_batch(unfinished)
            assert batch is not None, "an open plan has a batch that is not committed"
            self._pinned[stream.id] = covered
            return ConsumedBatch(current, covered, unfinished, batch)
        self._drop_open_plan(stream)
        pinned = self.pin(current)
        if pinned is None:
            return None
        job_id = None if self._job is None else self._job.id
        pinned.source.make_durable(pinned.table_id, pinned.to_version)
        plan = Plan(
            id=str(uuid.uuid4()),
            kind=PlanKind.STATEMENT,
            job_id=job_id,
            stream_id=stream.id,
            table_id=pinned.table_id,
            from_version=pinned.from_version,
            to_version=pinned.to_version,
            initial=pinned.initial,
            created_on=datetime.now(UTC),
        )
        batch = Batch(
            id=str(uuid.uuid4()), plan_id=plan.id, job_id=job_id, stream_id=stream.id, number=1, created_on=plan.created_on
        )
        return ConsumedBatch(current, pinned, plan, batch)

    def _commit(self) -> None:
        if not self._begun_statements:
            for entry in self._batches.values():
                self._catalog.consumptions.finish(entry.batch)
        elif self._intent is not None and self._committed_statements == self._begun_statements:
            self._catalog.consumptions.commit(self._intent, BatchOutcome(0, 0, self._rows))
        else:  # the block has caught an error of a statement that may still commit
            self._undo("A statement failed.")
        faults.point("batch.committed")

    def _undo(self, why: str) -> None:
        """Cleans up after an exception: rolls committed statements forward. Streams that they did not read
        stay unconsumed."""
        with suppress(VolstreamError):  # the next consumer repeats what fails now
            if self._intent is not None:
                self._consumer.settle(self._intent.stream_id, why=why)
            if self._again:
                return  # the next consumption takes the same range as the same batch
            for entry in self._batches.values():
                plan = self._catalog.consumptions.open_plan(entry.stream.id)
                if plan is not None and plan.id == entry.plan.id:
                    self._catalog.consumptions.drop_plan(plan)
