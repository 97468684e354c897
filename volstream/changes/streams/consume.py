"""Consuming a stream exactly once: INTENT, marked commit, verification, COMMITTED, and recovery (docs/exactly-once.md).

The marker in the target's log decides the outcome, never an exception or a lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any

from volstream.base import faults
from volstream.base.definitions import Job
from volstream.base.model.work import Batch, Intent, Target, app_id
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import FencedError, InvalidStateError, StorageError, TargetLostError
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
        """Writes the INTENT for an attempt at batches whose first statement writes to the table at ``location``.

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
        """Records another statement of an attempt in the catalog before it runs. Raises as :meth:`begin`."""
        return self._catalog.consumptions.add_target(intent, self._target(location, streams))

    def write(
        self,
        intent: Intent,
        metadata: Mapping[str, Any],
        statement: Callable[[SparkSession], None],
        number: int = 0,
        *,
        apart: bool = False,
        like: Any = None,
        directly: Callable[[Marker], bool] = lambda _: False,
    ) -> Commit:
        """Makes one commit of an attempt, by a DML statement or without Spark, and verifies it in the target's log.

        Args:
            metadata: added to the commit's user metadata.
            number: number of the attempt's statement, from 0.
            apart: the statement is a user's and gets a separate session from :meth:`DeltaWriter.marked`.
            like: the statement writes a frame of this session and gets a copy of it from :meth:`DeltaWriter.marked`.
            directly: does the statement's work without Spark, if possible; returns True if it did.

        Raises:
            FencedError: another attempt took over; the table has no rows of this one.
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
            with self._delta.marked(marker, intent.targets[number].location, apart=apart, like=like) as session:
                statement(session)
        faults.point("batch.written")
        outcome = self.look(intent, number)
        if outcome.what is FoundCommit.NOTHING:
            place = intent.targets[number].location
            if is_direct:
                raise StorageError(
                    f"Another writer replaced the commit of batch {intent.batch_id} to {place}; the next run repeats it.",
                    "Have other writers use a log store that replaces nothing: docs/operations/cluster.md, Spark elsewhere.",
                )
            self._delta.fence(place, marker)  # a statement without effect makes no commit
            outcome = self.look(intent, number)
        if outcome.what is not FoundCommit.COMMIT or outcome.commit is None:
            raise FencedError(f"Batch {intent.batch_id}, attempt {intent.attempt}: another process took it over.")
        _keep(intent.targets[number], outcome.commit)
        return outcome.commit

    def settle(
        self, stream_id: str, superseded: Callable[[Batch], list[str]] = lambda _: [], why: str = "Its process ended."
    ) -> bool | None:
        """Recovers a stream's INTENT whose owner died: rolls it forward if it was committed, else fences it off.

        Of several statements, those that were committed to their targets' logs move the offsets of the streams that they read.

        Args:
            superseded: returns the paths whose earlier failures end with a batch, if that was committed.
            why: recorded as the reason if the attempt was not committed.

        Returns:
            True if it was committed, False if not; None if there was no INTENT.

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
        """Returns the commits of an attempt's statements in their targets' logs, by their numbers; its other statements can no
        longer commit."""
        commits: dict[int, Commit] = {}
        for number, target in enumerate(intent.targets):
            finding = self.look(intent, number)
            if finding.what is FoundCommit.NOTHING:
                metadata = {"fence": intent.marker_sequence, "stream": intent.marker_stream_id, "statement": number}
                faults.point("recover.fence")
                self._delta.fence(target.location, Marker(intent.app_id(number), intent.marker_sequence, metadata))
                finding = self.look(intent, number)
            if finding.what is FoundCommit.COMMIT and finding.commit is not None:
                _keep(target, finding.commit)
                commits[number] = finding.commit
        return commits

    def look(self, intent: Intent, number: int = 0) -> CommitFinding:
        """Searches a target's log for the marker of an attempt's statement.

        Raises:
            TargetLostError: the target was dropped or replaced; or the number is used, and no log entry shows by whom.
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
                self._decide(intent),
            )
        used = table.transaction(intent.app_id(number))
        if used is not None and used >= intent.marker_sequence:
            raise TargetLostError(
                f"Consumption {intent.marker_sequence} of stream {intent.marker_stream_id} is already committed in "
                f"{target.location}, but its log does not identify the writer.",
                self._decide(intent),
            )
        return CommitFinding(FoundCommit.NOTHING)

    def _decide(self, intent: Intent) -> str:
        """Returns what to do if the outcome of an attempt cannot be determined."""
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


def _keep(target: Target, commit: Commit) -> None:
    """Makes a commit durable, which Spark's commits are not, before the catalog records it."""
    durable.sync(target.location, target.table_id, commit.version)


def is_unused(catalog: Catalog, location: str, streams: Iterable[str]) -> bool:
    """True if a table created for a failed consumption is empty, and nothing can write to it any more.

    After an interruption the commit may exist, and then counts; the statement may even still be running.

    Args:
        streams: ids of the streams that were to be consumed.
    """
    if any(catalog.consumptions.open_intent(stream_id) is not None for stream_id in streams):
        return False
    return all("fence" in commit.metadata for commit in DeltaLog(location).commits_after(0))
