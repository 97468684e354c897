"""Consuming a stream exactly once: INTENT, marked commit, verification, COMMITTED, and recovery (streams.md, section 6).

The outcome is decided by the marker in the target's log, never by an exception or a lease.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from volstream.catalog import Catalog
from volstream.catalog.consumptions import Outcome
from volstream.delta.log import Commit, DeltaLog
from volstream.delta.writer import DeltaWriter, Marker
from volstream.errors import FencedError, InvalidStateError, TargetLostError
from volstream.lifecycle import faults
from volstream.model.work import Batch, Intent, Target, app_id

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class Found(Enum):
    """What the target's log says of an intent."""

    NOTHING = "nothing"
    COMMIT = "commit"
    FENCE = "fence"


@dataclass(frozen=True)
class Finding:
    """What the target's log says of an intent, and the commit that says it."""

    what: Found
    commit: Commit | None = None


class Consumer:
    """Runs and recovers the commits of batches."""

    def __init__(self, catalog: Catalog, delta: DeltaWriter) -> None:
        self._catalog = catalog
        self._delta = delta

    def begin(self, batch: Batch, owner: str, location: str) -> Intent:
        """Writes the INTENT of a batch whose target is the table at ``location``.

        Raises:
            StreamBusyError, FencedError: another process has this stream or took the batch.
            TargetLostError: the target is gone, or its log is ahead of the catalog's sequence.
        """
        log = DeltaLog(location)
        head = log.head()
        if head is None:
            raise TargetLostError(f"The result table at {location} is gone.", "Replace the job, or restore the table.")
        stream = self._catalog.streams.by_id(batch.stream_id)
        used = log.last_transaction(app_id(batch.stream_id))
        if stream is not None and used is not None and used > stream.sequence:
            raise InvalidStateError(
                f"The table at {location} has already seen consumption {used} of stream {stream.name}, and the catalog "
                f"only {stream.sequence}: the catalog is older than the table.",
                "Was it restored from a backup? Restore the newer catalog, or replace the stream and its job.",
            )
        intent = self._catalog.consumptions.begin(batch, owner, Target(location, head[1], head[0]))
        faults.point("batch.intent")
        return intent

    def write(self, intent: Intent, batch: Batch, outcome: Outcome, statement: Callable[[SparkSession], None]) -> None:
        """Runs the one DML statement of an intent, and verifies that this attempt's commit is in the target's log.

        Raises:
            FencedError: another attempt took over; nothing of this one is in the table.
        """
        marker = Marker(
            intent.app_id,
            intent.sequence,
            {
                "stream": intent.stream_id, "sequence": intent.sequence, "attempt": intent.attempt, "batch": batch.id,
                "succeeded": outcome.succeeded, "failed": outcome.failed, "rows": outcome.rows,
            },
        )  # fmt: skip
        with self._delta.marked(marker) as session:
            statement(session)
        faults.point("batch.written")
        found = self.look(intent)
        if found.what is Found.NOTHING:  # a statement that had nothing to do made no commit
            self._delta.fence(intent.target.location, marker)
            found = self.look(intent)
        if found.what is not Found.COMMIT:
            raise FencedError(f"Batch {batch.id}, attempt {intent.attempt}: another process took it over.")

    def settle(self, stream_id: str, superseded: Callable[[Batch], list[str]]) -> bool:
        """Recovers the INTENT of a stream whose owner is gone: rolled forward where its commit is there, else fenced off.

        Args:
            superseded: for a batch that turns out to be committed, the paths whose earlier failures it ends.

        Returns:
            Whether there was one.

        Raises:
            TargetLostError: the target is gone or another table, so that nothing can be known.
        """
        intent = self._catalog.consumptions.open_intent(stream_id)
        if intent is None:
            return False
        found = self.look(intent)
        if found.what is Found.NOTHING:
            marker = Marker(intent.app_id, intent.sequence, {"fence": intent.sequence, "stream": intent.stream_id})
            faults.point("recover.fence")
            self._delta.fence(intent.target.location, marker)
            found = self.look(intent)
        faults.point("recover.fenced")
        batch = self._catalog.consumptions.batch(intent.batch_id)
        assert batch is not None, "an intent refers to its batch"
        with suppress(FencedError):  # another recoverer reached the same end first
            if found.what is Found.COMMIT and found.commit is not None:
                told = found.commit.metadata
                outcome = Outcome(told["succeeded"], told["failed"], told["rows"], superseded(batch))
                self._catalog.consumptions.commit(intent, outcome)
            else:
                self._catalog.consumptions.abort(intent)
        return True

    def look(self, intent: Intent) -> Finding:
        """Searches the target's log for the intent's number.

        Raises:
            TargetLostError: the target is gone or another table; or the number is used up and no entry says by whom.
        """
        log = DeltaLog(intent.target.location)
        for commit in log.commits_after(intent.target.version):
            if commit.metadata.get("attempt") == intent.attempt:
                return Finding(Found.COMMIT, commit)
            if commit.metadata.get("stream") == intent.stream_id and commit.metadata.get("fence") == intent.sequence:
                return Finding(Found.FENCE, commit)
        if log.table_id() != intent.target.table_id:
            raise TargetLostError(
                f"The result table at {intent.target.location} is gone or was made anew while a batch was being written.",
                "Decide by hand: volstream resolve STREAM committed|aborted.",
            )
        used = log.last_transaction(intent.app_id)
        if used is not None and used >= intent.sequence:
            raise TargetLostError(
                f"Consumption {intent.sequence} of stream {intent.stream_id} is used up in {intent.target.location}, "
                "and its log does not say by whom.",
                "Decide by hand: volstream resolve STREAM committed|aborted.",
            )
        return Finding(Found.NOTHING)
