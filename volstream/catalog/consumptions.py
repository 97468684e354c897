"""Plans, batches and intents: the catalog's side of "exactly once" (docs/exactly-once.md). See ``reports``
for results.

The transactions here are the steps of that protocol. ``streams.consume`` searches a target's log for commits;
``runs.run`` runs batches.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    union_all,
    update,
)
from sqlalchemy import Connection as Transaction

from volstream.base.definitions import FileJob, Job, JobState, SourceKind, Stream
from volstream.base.model.text import counted
from volstream.base.model.units import local
from volstream.base.model.work import Batch, BatchState, Intent, Plan, PlanKind, PlanState, Target, WaitingBatches, add_counts
from volstream.catalog.database import Database
from volstream.catalog.definitions import CHANGE_JOB, LOCK_JOB, check_current
from volstream.catalog.failures import activate, drop_pending, make_due
from volstream.catalog.reports import TOTALS, UNFINISHED, counted_by
from volstream.catalog.tables import batches, from_row, intents, job_counts, job_totals, jobs, plans, streams, to_row
from volstream.errors import FencedError, InvalidStateError, StreamBusyError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class BatchOutcome:
    """The outcome of an attempt at a batch.

    Attributes:
        superseded: paths whose earlier failures end with this batch, regardless of their new outcome.
        seconds: duration of the attempt, if known.
        overtaken: files that were removed or changed before their turn. Neither succeeded nor failed.
        later: files whose function asked to be called later. Neither succeeded nor failed.
        held: sets of files that are held back. Neither succeeded nor failed.
        counted: the function's counters, by name.
        files_per_call: number of files per call of the function, or None if it was not called.
        code: number of the version of the job's code.
    """

    succeeded: int
    failed: int
    rows: int
    superseded: Sequence[str] = ()
    seconds: float | None = None
    overtaken: int = 0
    later: int = 0
    held: int = 0
    counted: Mapping[str, float] = dataclasses.field(default_factory=dict)
    files_per_call: int | None = None
    code: int | None = None

    @property
    def unsuccessful(self) -> int:
        """Number of files that did not succeed."""
        return self.failed + self.overtaken + self.later + self.held

    def counts(self) -> dict[str, Any]:
        """Returns the counts that the commit stores for recovery."""
        numbers: dict[str, Any] = {"succeeded": self.succeeded, "failed": self.failed, "rows": self.rows}
        if self.code is not None:
            numbers["code"] = self.code
        return {**numbers, "counted": dict(self.counted)} if self.counted else numbers


class AttemptListener(Protocol):
    """Observes attempts once their steps are stored: this process's attempts, and attempts that it recovers.

    Its methods return immediately and do not raise.
    """

    def began(self, intent: Intent) -> None:
        """An attempt began."""

    def ended(self, intent: Intent, outcome: BatchOutcome | None, why: str) -> None:
        """An attempt ended, with an outcome if it was committed, else with the reason."""


class Consumptions:
    """Rows of ``plans``, ``batches`` and ``intents``, and the stream offsets that move with them.

    Attributes:
        listeners: observe attempts.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.listeners: list[AttemptListener] = []

    def open(self, *opened: tuple[Plan, Sequence[Batch], Stream], job: Job | None = None) -> None:
        """Stores plans with their batches. Each plan becomes its stream's only open consumption.

        Args:
            job: the plans' job, as it was when they were made.

        Raises:
            JobChangedError: the job was altered since.
            StreamBusyError: another consumption is open.
            FencedError: a stream was moved or dropped since its plan was made.
        """
        with self._database.transaction() as transaction:
            rows = {stream.id: self._locked(transaction, stream.id) for _, _, stream in opened}
            if job is not None:  # locked after the streams, as on a batch's commit
                check_current(transaction, job)
            for _, _, stream in opened:
                row = rows[stream.id]
                if row is None or row.offset != stream.offset or row.initial != stream.initial:
                    raise FencedError(f"The stream {stream.name} was moved while its changes were being planned.")
                other = _one(transaction, _OPEN_PLAN, Plan, stream=stream.id)
                if other is not None:
                    raise StreamBusyError(
                        f"Another consumption of stream {stream.name} is open: plan {other.id} of {local(other.created_on)}.",
                        "Wait for it, or run its job to the end.",
                    )
            for plan, slices, _ in opened:
                transaction.execute(insert(plans), to_row(plan))
                transaction.execute(insert(batches), [to_row(batch) for batch in slices])

    def open_plan(self, stream_id: str) -> Plan | None:
        """Returns the stream's open plan, or None."""
        found = self._database.rows_of(_OPEN_PLANS, plans.c.stream_id, stream_id)
        return from_row(Plan, found[0]._mapping) if found else None

    def next_batch(self, plan: Plan) -> Batch | None:
        """Returns the first uncommitted batch of an open plan, or None."""
        return self._database.one(_NEXT_BATCH, Batch, plan=plan.id)

    def following(self, batch: Batch) -> Batch | None:
        """Returns a batch's successor in its plan, or None if there is none or it was ever attempted."""
        query = select(batches).where(
            batches.c.plan_id == batch.plan_id,
            batches.c.number == batch.number + 1,
            batches.c.state == BatchState.PLANNED,
            batches.c.attempts == 0,
        )
        return self._database.one(query, Batch)

    def remaining(self, plan: Plan, *, begun: bool, after: int = 0) -> WaitingBatches | None:
        """Returns the totals of the waiting batches at the end of an open plan, or None.

        Args:
            begun: include a batch with a failed attempt.
            after: leave out batches up to this number.
        """
        waiting = and_(_planned(plan), batches.c.number > after)
        if not begun:
            waiting = and_(waiting, batches.c.attempts == 0)
        rows = batches.c.files + batches.c.removals
        several = case((batches.c.files > 1, batches.c.bytes), else_=0)
        sums = [func.count(), func.sum(rows), func.sum(batches.c.bytes), func.max(rows), func.max(several)]
        with self._database.reading() as transaction:
            first = _one(transaction, select(batches).where(waiting).order_by(batches.c.number).limit(1), Batch)
            if first is None:
                return None
            numbers = transaction.execute(select(*sums).where(waiting)).one()
            return WaitingBatches(first, *(int(number) for number in numbers))

    def recut(self, plan: Plan, slices: Sequence[Batch]) -> None:
        """Replaces the batches that :meth:`remaining` returned. A begun batch keeps its id, because its
        attempts refer to it.

        Raises:
            FencedError: another process began one of these batches, or the plan is no longer open.
        """
        replaced = and_(_planned(plan), batches.c.number >= slices[0].number)
        with self._database.transaction() as transaction:
            self._locked(transaction, plan.stream_id)
            open_plan = _one(transaction, _OPEN_PLAN, Plan, stream=plan.stream_id)
            previous = select(batches.c.number, batches.c.until_path).where(batches.c.plan_id == plan.id, ~replaced)
            newest = transaction.execute(previous.order_by(batches.c.number.desc()).limit(1)).one_or_none()
            number, until = newest or (0, None)
            last = transaction.execute(
                select(batches.c.until_path).where(replaced).order_by(batches.c.number.desc()).limit(1)
            ).scalar_one_or_none()
            # The bounds still cover every path: they start after the last unreplaced batch and end where they
            # ended before.
            same = (slices[0].number - 1, slices[0].after_path, slices[-1].until_path) == (number, until, last)
            if open_plan is None or open_plan.id != plan.id or not same:
                raise FencedError(f"The batches of plan {plan.id} changed while they were being divided again.")
            transaction.execute(delete(batches).where(replaced, batches.c.attempts == 0))
            first, *others = map(to_row, slices)
            unchanged = ("id", "attempts", "sequence")
            shorter = {name: value for name, value in first.items() if name not in unchanged}
            begun = update(batches).where(replaced, batches.c.number == slices[0].number)
            if not transaction.execute(begun.values(shorter)).rowcount:
                others.insert(0, first)
            if others:
                transaction.execute(insert(batches), others)

    def begin(self, *attempted: Batch, owner: str, target: Target, job: Job | None = None) -> Intent:
        """Writes one INTENT per batch, each with the next number of its stream: one attempt at all of them.

        Args:
            job: the file job whose definition the attempt follows, if any.

        Returns:
            The first batch's intent. Its number marks the attempt's commits.

        Raises:
            StreamBusyError: a stream has an INTENT that is neither committed nor aborted.
            FencedError: a batch was committed or dropped by another process.
            JobChangedError: the job was altered since it was read.
        """
        generation = None if job is None else job.generation
        with self._database.transaction() as transaction:
            first: Intent | None = None
            for batch in attempted:
                intent = self._begin(transaction, batch, first, owner, [target], generation)
                first = intent if first is None else first
            if job is not None:
                check_current(transaction, job)
            assert first is not None, "there is a batch"
        for listener in self.listeners:
            listener.began(first)
        return first

    def join(self, intent: Intent, *added: Batch) -> None:
        """Adds batches of other streams to an open attempt. Raises the same errors as :meth:`begin`."""
        with self._database.transaction() as transaction:
            for batch in added:
                self._begin(transaction, batch, intent, intent.owner, intent.targets, intent.generation)

    def add_target(self, intent: Intent, target: Target) -> Intent:
        """Adds another statement's target to an open attempt. Raises FencedError if it is no longer open."""
        widened = dataclasses.replace(intent, targets=(*intent.targets, target))
        open_attempt = update(intents).where(intents.c.attempt == intent.attempt, intents.c.state == "intent")
        if not self._database.write(open_attempt.values(targets=to_row(widened)["targets"])):
            raise FencedError(f"The attempt {intent.attempt} was already ended by another process.")
        return widened

    def _begin(
        self,
        transaction: Transaction,
        batch: Batch,
        first: Intent | None,
        owner: str,
        targets: Sequence[Target],
        generation: int | None,
    ) -> Intent:
        row = self._waiting(transaction, batch)
        if _has(transaction, _OPEN_INTENT, stream=batch.stream_id):
            raise StreamBusyError(f"Another attempt at a batch of stream {row.name} is open.")
        number = row.sequence + 1
        intent = Intent(
            stream_id=batch.stream_id,
            sequence=number,
            batch_id=batch.id,
            owner=owner,
            targets=tuple(targets),
            attempt=uuid.uuid4().hex if first is None else first.attempt,
            marker_stream_id=batch.stream_id if first is None else first.marker_stream_id,
            marker_sequence=number if first is None else first.marker_sequence,
            started_on=datetime.now(UTC),
            generation=generation,
        )
        transaction.execute(_CHANGE_STREAM, {"this": batch.stream_id, "sequence": number})
        transaction.execute(insert(intents), {**to_row(intent), "state": "intent"})
        transaction.execute(_BEGIN_BATCH, {"this": batch.id, "taken": number})
        return intent

    def open_intent(self, stream_id: str) -> Intent | None:
        """Returns the stream's INTENT that is neither committed nor aborted, or None."""
        return self._database.one(_OPEN_INTENT, Intent, stream=stream_id)

    def commit(self, intent: Intent, outcome: BatchOutcome, read: Collection[str] | None = None) -> None:
        """INTENT -> COMMITTED: activates failures, advances the plan, and after its last batch moves the
        offset.

        Applies to all batches of the attempt at once. If the job was altered since the attempt began, its
        failures are due again, and do not count against the job.

        Args:
            read: ids of the streams read by the committed statements (default: all). Batches of other streams
                wait again.

        Raises:
            FencedError: the intent is no longer open.
        """
        with self._database.transaction() as transaction:
            self._end_attempt(transaction, intent, "committed")
            for row in transaction.execute(_OF_ATTEMPT, {"ended": intent.attempt}).all():
                batch = from_row(Batch, row._mapping)
                if read is not None and batch.stream_id not in read:
                    transaction.execute(_CHANGE_BATCH, {"this": batch.id, "state": BatchState.PLANNED})
                    of_stream = (intents.c.attempt == intent.attempt) & (intents.c.stream_id == batch.stream_id)
                    transaction.execute(update(intents).where(of_stream).values(state="aborted"))
                    continue
                job: Row[Any] | None = None
                if batch.job_id is not None:
                    job = transaction.execute(LOCK_JOB, {"this": batch.job_id}).one()
                    if intent.generation not in (None, job.generation):
                        make_due(transaction, intent.attempt)
                        job = None
                    activate(transaction, batch.job_id, intent.attempt, outcome.superseded)
                self._commit_batch(transaction, batch, outcome, job)
        for listener in self.listeners:
            listener.ended(intent, outcome, "")

    def finish(self, batch: Batch) -> None:
        """Commits a batch that wrote to no table because its effect is elsewhere. Raises FencedError."""
        with self._database.transaction() as transaction:
            self._waiting(transaction, batch)
            self._commit_batch(transaction, batch, BatchOutcome(0, 0, 0))

    def abort(self, intent: Intent, why: str = "") -> None:
        """INTENT -> ABORTED: drops its failures. Its batches wait again. Raises FencedError like
        ``commit``."""
        with self._database.transaction() as transaction:
            ended = self._end_attempt(transaction, intent, "aborted")
            drop_pending(transaction, intent.attempt)
            transaction.execute(update(batches).where(batches.c.id.in_(ended)).values(state=BatchState.PLANNED))
        for listener in self.listeners:
            listener.ended(intent, None, why)

    def drop_plan(self, plan: Plan) -> None:
        """Ends a plan before its last batch. Committed batches and the offset do not change.

        Raises:
            FencedError: the plan is no longer open, or an attempt at one of its batches is open.
        """
        with self._database.transaction() as transaction:
            self._locked(transaction, plan.stream_id)
            current = _one(transaction, _OPEN_PLAN, Plan, stream=plan.stream_id)
            if current is None or current.id != plan.id or _has(transaction, _OPEN_INTENT, stream=plan.stream_id):
                raise FencedError(f"The plan {plan.id} has ended, or is being worked on by another process.")
            transaction.execute(update(batches).where(_planned(plan)).values(state=BatchState.DROPPED))
            transaction.execute(update(plans).where(plans.c.id == plan.id).values(state=PlanState.DROPPED))

    def move(self, stream: Stream, to: int, table_id: str) -> Stream:
        """Sets a stream's offset, so that its job repeats or skips a range. The job's table may then have
        rows of paths new to the stream.

        Raises:
            StreamBusyError: a consumption is open.
            FencedError: the stream was moved since it was read, or was dropped.
        """
        values: dict[str, Any] = {"offset": to, "initial": False, "table_id": table_id}
        with self._database.transaction() as transaction:
            row = self._locked(transaction, stream.id)
            if row is None or (row.offset, row.initial) != (stream.offset, stream.initial):
                raise FencedError(f"The stream {stream.name} was moved by another process meanwhile.")
            self.check_closed(transaction, stream)
            transaction.execute(update(streams).where(streams.c.id == stream.id).values(**values))
            of_files = update(jobs).where(jobs.c.stream_id == stream.id, jobs.c.cls == FileJob.__name__)
            # A run in progress searches for strays again, and plans from the new offset.
            transaction.execute(of_files.values(clean=False, may_have_strays=True, generation=jobs.c.generation + 1))
        return dataclasses.replace(stream, **values)

    def check_closed(self, transaction: Transaction, stream: Stream) -> None:
        """Raises StreamBusyError if a consumption of a stream is open. None can be opened before the
        transaction ends."""
        self._locked(transaction, stream.id)
        plan = _one(transaction, _OPEN_PLAN, Plan, stream=stream.id)
        if plan is not None:
            raise StreamBusyError(
                f"The stream {stream.name} is being consumed: plan {plan.id} has been open since {local(plan.created_on)}.",
                "Wait for it, or run its job to the end.",
            )

    def mark_unclean(self, volume_id: str) -> None:
        """Records that tables of a volume's jobs may have rows of files that are new to the jobs' streams."""
        stream_ids = select(streams.c.id).where(streams.c.source_kind == SourceKind.VOLUME, streams.c.source_id == volume_id)
        self._database.write(update(jobs).where(jobs.c.stream_id.in_(stream_ids)).values(clean=False))

    def advance(self, stream: Stream, to: int, table_id: str, job: Job | None = None) -> None:
        """Moves the offset past a range without changes for the consumer. Does nothing if it was moved
        already.

        Args:
            job: the job whose definition leaves out all changes. None if any consumer would.

        Raises:
            JobChangedError: the job was altered since it was read.
        """
        with self._database.transaction() as transaction:
            row = self._locked(transaction, stream.id)
            if job is not None:
                check_current(transaction, job)
            if row is not None and row.offset == stream.offset and not _has(transaction, _OPEN_PLAN, stream=stream.id):
                values = {"offset": to, "initial": False, "table_id": table_id}
                transaction.execute(update(streams).where(streams.c.id == stream.id).values(**values))

    def forget(self, transaction: Transaction, job: Job, *, force: bool = False) -> None:
        """Deletes the intents of a job's batches in the transaction that drops the job. No intent begins
        before its end.

        The intents' numbers are not reused.

        Args:
            force: also delete an open intent. Its rows may or may not be in the table.

        Raises:
            InvalidStateError: an attempt at a batch is open.
        """
        transaction.execute(LOCK_JOB, {"this": job.id})
        for stream_id in sorted(job.stream_ids):
            self._locked(transaction, stream_id)
            intent = _one(transaction, _OPEN_INTENT, Intent, stream=stream_id)
            if intent is not None and not force:
                raise InvalidStateError(
                    f"Batch {intent.batch_id} of job {job.name} is being written, or its process died while writing it.",
                    f"Wait for it, or run: volstream run-job {job.name}. "
                    f"To drop it anyway: volstream drop job {job.name} --force.",
                )
        batch_ids = select(batches.c.id).where(batches.c.job_id == job.id)
        transaction.execute(delete(intents).where(intents.c.batch_id.in_(batch_ids)))

    def open_versions(self, location: str) -> Sequence[int]:
        """Returns the versions of the table at a location after which open attempts may have committed to
        it."""
        intents_ = self._database.all(select(intents).where(intents.c.state == "intent"), Intent)
        return [target.version for intent in intents_ for target in intent.targets if target.location == location]

    def open_plans(self) -> Sequence[str]:
        """Returns the ids of plans whose files may still be needed."""
        return [row.id for row in self._database.rows(select(plans.c.id).where(plans.c.state == PlanState.OPEN))]

    def _locked(self, transaction: Transaction, stream_id: str) -> Row[Any] | None:
        return transaction.execute(_LOCKED, {"stream": stream_id}).one_or_none()

    def _waiting(self, transaction: Transaction, batch: Batch) -> Row[Any]:
        """Returns the locked stream of a waiting batch. Raises FencedError."""
        row = self._locked(transaction, batch.stream_id)
        state = transaction.execute(_STATE, {"batch": batch.id}).scalar_one_or_none()
        if row is None or state != BatchState.PLANNED:
            raise FencedError(f"The batch {batch.id} is no longer waiting (it is {state or 'deleted'}).")
        return row

    def _end_attempt(self, transaction: Transaction, intent: Intent, state: str) -> Sequence[str]:
        """Ends all intents of an attempt. Returns the ids of their batches."""
        values = {"ended": intent.attempt, "state": state, "ended_on": datetime.now(UTC)}
        ended = transaction.execute(_END_ATTEMPT, values).scalars().all()
        if not ended:
            raise FencedError(f"The attempt {intent.attempt} was already ended by another process.")
        return ended

    def _commit_batch(self, transaction: Transaction, batch: Batch, outcome: BatchOutcome, job: Row[Any] | None = None) -> None:
        """Records a batch's outcome. May pause ``job``."""
        done = {"succeeded": outcome.succeeded, "failed": outcome.failed, "rows": outcome.rows}
        ended = {
            "state": BatchState.COMMITTED,
            "committed_on": datetime.now(UTC),
            "seconds": outcome.seconds,
            "counted": outcome.counted or None,
            "files_per_call": outcome.files_per_call,
            "code": outcome.code,
        }
        transaction.execute(_CHANGE_BATCH, {"this": batch.id, **done, **ended})
        if batch.job_id is not None:
            sums = {"job_id": batch.job_id, "batches": 1, **done, "bytes": batch.bytes}
            self._database.add_up(transaction, job_totals, ["job_id"], [sums], sums=TOTALS)
            self._count(transaction, batch.job_id, outcome.counted)
        plan = from_row(Plan, transaction.execute(_PLAN_BY_ID, {"plan": batch.plan_id}).one()._mapping)
        # in other plans, a few bad files say little about the job
        if job is not None and plan.kind in (PlanKind.STREAM, PlanKind.REPLAY):
            self._count_failed(transaction, batch, outcome, job)
        self._finish(transaction, plan)

    def _count(self, transaction: Transaction, job_id: str, counted: Mapping[str, float]) -> None:
        """Adds the counters of a job's function to the job's sums of the day."""
        if not counted:
            return
        known = set(transaction.execute(counted_by(job_id)).scalars())
        sums = dict.fromkeys(known, 0.0)
        add_counts(sums, counted)
        rows = [
            {"job_id": job_id, "name": name, "day": datetime.now(UTC).date(), "number": number}
            for name, number in sums.items()
            if number or name not in known
        ]
        self._database.add_up(transaction, job_counts, ["job_id", "name", "day"], rows, sums=("number",))

    def _count_failed(self, transaction: Transaction, batch: Batch, outcome: BatchOutcome, job: Row[Any]) -> None:
        """Counts consecutive batches in which every file failed, and pauses the job at its limit."""
        if not outcome.succeeded + outcome.failed:
            return
        values: dict[str, Any] = {"failed_batches": job.failed_batches + 1 if outcome.succeeded == 0 else 0}
        if job.pause_after and values["failed_batches"] >= job.pause_after:
            reason = f"every file failed in {counted(values['failed_batches'], 'batch', 'batches')} in a row"
            values = {"failed_batches": 0, "state": JobState.PAUSED, "state_reason": reason}
        if values["failed_batches"] != job.failed_batches or "state" in values:
            transaction.execute(CHANGE_JOB, {"this": batch.job_id, **values})

    def _finish(self, transaction: Transaction, plan: Plan) -> None:
        """Closes the plan and moves the offset once no batch is left."""
        if _has(transaction, _UNFINISHED, plan=plan.id):
            return
        transaction.execute(_CHANGE_PLAN, {"this": plan.id, "state": PlanState.DONE})
        if plan.kind in (PlanKind.STREAM, PlanKind.STATEMENT):
            moved = {"offset": plan.to_version, "table_id": plan.table_id, "initial": False}
            transaction.execute(_CHANGE_STREAM, {"this": plan.stream_id, **moved})


def _planned(plan: Plan) -> ColumnElement[bool]:
    """Selects a plan's batches without an open attempt."""
    return and_(batches.c.plan_id == plan.id, batches.c.state == BatchState.PLANNED)


_OPEN_PLANS = select(plans).where(plans.c.state == PlanState.OPEN)

# The statements of every run are built once: building one takes as long as executing it.
_STREAM: BindParameter[str] = bindparam("stream")
_PLAN: BindParameter[str] = bindparam("plan")
_OPEN_PLAN = _OPEN_PLANS.where(plans.c.stream_id == _STREAM)
_OPEN_INTENT = select(intents).where(intents.c.stream_id == _STREAM, intents.c.state == "intent")
_LOCKED = select(streams).where(streams.c.id == _STREAM).with_for_update()
_STATE = select(batches.c.state).where(batches.c.id == bindparam("batch"))
_PLAN_BY_ID = select(plans).where(plans.c.id == _PLAN)
_THIS: BindParameter[str] = bindparam("this")
_CHANGE_BATCH, _CHANGE_PLAN, _CHANGE_STREAM = (update(table).where(table.c.id == _THIS) for table in (batches, plans, streams))
_BEGIN_BATCH = _CHANGE_BATCH.values(state=BatchState.INTENT, sequence=bindparam("taken"), attempts=batches.c.attempts + 1)
_ATTEMPT: BindParameter[str] = bindparam("ended")
_END_ATTEMPT = update(intents).where(intents.c.attempt == _ATTEMPT, intents.c.state == "intent").returning(intents.c.batch_id)
_OF_ATTEMPT = (
    select(batches)
    .join(intents, intents.c.batch_id == batches.c.id)
    .where(intents.c.attempt == _ATTEMPT)
    .order_by(batches.c.stream_id)
)
_UNFINISHED = select(batches.c.id).where(batches.c.plan_id == _PLAN, batches.c.state.in_(UNFINISHED)).limit(1)

#: One index lookup for each state, regardless of the number of committed batches.
_firsts = union_all(
    *(
        select(func.min(batches.c.number).label("number")).where(batches.c.plan_id == _PLAN, batches.c.state == state)
        for state in UNFINISHED
    )
).subquery()
_NEXT_BATCH = select(batches).where(
    batches.c.plan_id == _PLAN, batches.c.number == select(func.min(_firsts.c.number)).scalar_subquery()
)


def _has(transaction: Transaction, query: Select[Any], **values: object) -> bool:
    return transaction.execute(query, values).first() is not None


def _one(transaction: Transaction, query: Select[Any], cls: type[T], **values: object) -> T | None:
    row = transaction.execute(query, values).one_or_none()
    return None if row is None else from_row(cls, row._mapping)
