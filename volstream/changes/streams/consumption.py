"""Consumes streams by statements or by a block of Python: pins each stream's range once, writes each result once, and moves the
offsets at the end (docs/streams.md).

A job's batches use the same protocol differently (``jobs.run``); the protocol itself is in ``streams.consume``.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from volstream.base import faults
from volstream.base.definitions import Job, Stream
from volstream.base.model.work import Batch, Intent, Plan, PlanKind
from volstream.base.processes import host_of, new_owner
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.leases import lease, of_stream
from volstream.changes.streams.consume import Consumer, FoundCommit
from volstream.changes.streams.read import Range, StreamReader
from volstream.errors import NotFoundError, StreamBusyError, VolstreamError, reason_of

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

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

    If one of its statements was committed and a later one fails, the offsets of the streams that the first one read still move,
    because the tables have the rows. Threads may write: they take turns, and the end waits for a write in progress.

    Args:
        again: resume a range that an earlier consumption left unfinished, as the same batch.
        timeout: seconds to wait for a stream that another process consumes.
        job: which runs the statement; the batches then belong to it.
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
        self._held = ExitStack()
        self._pinned: dict[str, Range | None] = {}
        self._taken: dict[str, ConsumedBatch] = {}
        self._intent: Intent | None = None
        self._begun = 0  # statements
        self._written = 0  # how many of them were committed
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        with self._turn, self._held:
            if kind is None:
                self._commit()
            else:
                self._undo("" if error is None else reason_of(error))

    def pin(self, stream: Stream) -> Range | None:
        """Returns the range of the stream's reads in this consumption. Raises as :meth:`StreamReader.pin`."""
        if stream.id not in self._pinned:
            self._pinned[stream.id] = self._reader.pin(stream)
        return self._pinned[stream.id]

    def take(self, *streams: Stream) -> Mapping[str, ConsumedBatch]:
        """Adds streams, whose offsets move at the end. Returns them by id, without those on volumes that were never listed.

        Raises:
            StreamBusyError: another consumption of one of the streams is open.
            StreamStaleError, StreamSchemaChangedError: one of the streams cannot be read.
            JobChangedError: the job was dropped.
        """
        new = sorted((stream for stream in streams if stream.id not in self._taken), key=lambda stream: stream.id)
        for stream in new:
            self._hold(stream)
        taken = [entry for entry in map(self._plan, new) if entry is not None]
        fresh = [entry for entry in taken if entry.batch.attempts == 0 and self._catalog.reports.plan(entry.plan.id) is None]
        if fresh:
            self._catalog.consumptions.open(*((entry.plan, [entry.batch], entry.stream) for entry in fresh), job=self._job)
        faults.point("plan.opened")
        self._taken |= {entry.stream.id: entry for entry in taken}
        if self._intent is not None and taken:
            self._catalog.consumptions.join(self._intent, *(entry.batch for entry in taken))
        return {stream.id: self._taken[stream.id] for stream in streams if stream.id in self._taken}

    def free(self, stream: Stream) -> None:
        """Ends what an earlier consumer of the stream left open: recovers it, and drops its plan if nothing was committed.

        Raises:
            StreamBusyError: the consumer is active, or a job has an unfinished run.
        """
        self._hold(stream)
        self._drop_left(stream)

    def write(
        self,
        location: str,
        statement: Callable[[SparkSession], None],
        *,
        streams: Iterable[Stream] | None = None,
        like: Any = None,
    ) -> int | None:
        """Runs a DML statement on the table at ``location`` at most once; returns the number of rows written, if known.

        Args:
            streams: what it reads; None: all that were taken.
            like: session of the frame that the statement writes; it runs in a copy.

        Raises:
            FencedError: another process took over the streams; the table has no rows of this statement.
        """
        with self._turn:
            self._begun += 1
            batches = [entry.batch for entry in self._taken.values()]
            read = [*self._taken] if streams is None else [stream.id for stream in streams if stream.id in self._taken]
            if self._intent is None:
                self._intent = self._consumer.begin(*batches, owner=self._owner, location=location, streams=read)
            else:
                self._intent = self._consumer.add_statement(self._intent, location, read)
            number = len(self._intent.targets) - 1
            metadata = {"streams": {str(entry.stream.name): entry.covered.to_version for entry in self._taken.values()}}
            try:
                commit = self._consumer.write(self._intent, metadata, statement, number, apart=True, like=like)
            except Exception:
                # The log decides the outcome, whatever the command reported.
                outcome = self._consumer.look(self._intent, number)
                if outcome.what is not FoundCommit.COMMIT or outcome.commit is None:
                    raise
                commit = outcome.commit
            self._written += 1
            self._rows += commit.rows or 0
            return commit.rows

    def _hold(self, stream: Stream) -> None:
        name, purpose = of_stream(stream.id), f"consumption of stream {stream.name}"
        while True:
            held = lease(self._catalog.leases, name, self._owner, purpose, self._lease_seconds)
            with ExitStack() as attempt:
                other = attempt.enter_context(held)
                busy = self._busy(stream) if other is None else f"it is being consumed, on {host_of(other.owner)}"
                if busy is None:
                    self._held.push(attempt.pop_all())
                    return
            if time.monotonic() >= self._deadline:
                raise StreamBusyError(f"The stream {stream.name} is busy: {busy}.", "Wait for it to end.")
            time.sleep(_ASK_SECONDS)

    def _busy(self, stream: Stream) -> str | None:
        """Returns why the stream is busy although its lease is free: a job's plan is open. Settles an attempt left open."""
        plan = self._catalog.consumptions.open_plan(stream.id)
        if plan is None:
            return None
        if plan.job_id is not None and plan.kind is not PlanKind.STATEMENT:
            job = self._catalog.jobs.by_id(plan.job_id)
            return f"job {job.name if job else plan.job_id} has an unfinished run"
        self._consumer.settle(stream.id)
        return None

    def _left(self, stream: Stream) -> Plan | None:
        """Returns the plan that an earlier consumer left open. Raises StreamBusyError if it is a job's plan: jobs do not hold
        the stream's lease."""
        plan = self._catalog.consumptions.open_plan(stream.id)
        if plan is not None and plan.kind is not PlanKind.STATEMENT:
            raise StreamBusyError(f"The stream {stream.name} is busy: its job has started a run.", "Wait for it to end.")
        return plan

    def _drop_left(self, stream: Stream) -> None:
        unfinished = self._left(stream)
        if unfinished is not None:
            self._catalog.consumptions.drop_plan(unfinished)

    def _plan(self, stream: Stream) -> ConsumedBatch | None:
        """Returns the stream's range as a plan of one batch: an earlier consumption's range, or the current one."""
        current = self._catalog.streams.by_id(stream.id)
        if current is None:
            raise NotFoundError(f"The stream {stream.name} was dropped.")
        unfinished = self._left(stream)
        covered = self._reader.range_of(unfinished, current) if unfinished is not None and self._again else None
        if unfinished is not None and covered is not None and not covered.outdated:
            batch = self._catalog.consumptions.next_batch(unfinished)
            assert batch is not None, "an open plan has a batch that is not committed"
            self._pinned[stream.id] = covered
            return ConsumedBatch(current, covered, unfinished, batch)
        self._drop_left(stream)
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
        if not self._begun:
            for entry in self._taken.values():
                self._catalog.consumptions.finish(entry.batch)
        elif self._intent is not None and self._written == self._begun:
            self._catalog.consumptions.commit(self._intent, BatchOutcome(0, 0, self._rows))
        else:  # the block has caught the error of a statement, which may still come
            self._undo("A statement failed.")
        faults.point("batch.committed")

    def _undo(self, why: str) -> None:
        """Cleans up after an exception: rolls committed statements forward; what they did not read is not consumed."""
        with suppress(VolstreamError):  # the next consumer does what fails now
            if self._intent is not None:
                self._consumer.settle(self._intent.stream_id, why=why)
            if self._again:
                return  # the next consumption takes the same range as the same batch
            for entry in self._taken.values():
                plan = self._catalog.consumptions.open_plan(entry.stream.id)
                if plan is not None and plan.id == entry.plan.id:
                    self._catalog.consumptions.drop_plan(plan)
