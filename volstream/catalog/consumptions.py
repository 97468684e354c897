"""Plans, batches and intents: the catalog's side of "exactly once" (docs/exactly-once.md).

The transactions here are the steps of that protocol. What is looked for in a target's log, and when, is
``streams.recover``'s; what a batch does is ``jobs.run``'s.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, case, delete, func, insert, select, update
from sqlalchemy import Connection as Transaction

from volstream.catalog.database import Database
from volstream.catalog.failures import activate, drop_pending
from volstream.catalog.tables import batches, intents, job_totals, jobs, plans, streams
from volstream.errors import FencedError, StreamBusyError
from volstream.model.objects import JobState, SourceKind, Stream
from volstream.model.work import Batch, BatchState, Intent, Load, Plan, PlanKind, PlanState, Target, Waiting

#: What is summed up of a job's batches.
_TOTALS = ("batches", "succeeded", "failed", "rows", "bytes")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an attempt at a batch came to.

    Attributes:
        superseded: paths whose earlier failures end with this batch, whatever became of them in it.
        seconds: how long the attempt took; None: not known.
        overtaken: files that were gone or another version before their turn, which neither succeeded nor failed.
    """

    succeeded: int
    failed: int
    rows: int
    superseded: Sequence[str] = ()
    seconds: float | None = None
    overtaken: int = 0

    def told(self) -> dict[str, int]:
        """What the commit says of it, for whoever has to recover."""
        return {"succeeded": self.succeeded, "failed": self.failed, "rows": self.rows}


class Consumptions:
    """Rows of ``plans``, ``batches`` and ``intents``, and the offsets that move with them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, *made: tuple[Plan, Sequence[Batch], Stream]) -> None:
        """Stores plans and their batches: the one open consumption of each of the streams.

        Raises:
            StreamBusyError: another one is open.
            FencedError: a stream moved since the plan was made, or was dropped.
        """
        with self._database.transaction() as transaction:
            for plan, slices, stream in made:
                row = self._locked(transaction, stream.id)
                if row is None or row.offset != stream.offset or row.initial != stream.initial:
                    raise FencedError(f"The stream {stream.name} was moved while its changes were being planned.")
                other = self._open_plan(transaction, stream.id)
                if other is not None:
                    raise StreamBusyError(
                        f"Another consumption of stream {stream.name} is open: plan {other.id} of {other.created_on:%F %T}.",
                        "Wait for it, or run its job to the end.",
                    )
                transaction.execute(insert(plans).values(**_columns(plan)))
                transaction.execute(insert(batches), [_columns(batch) for batch in slices])

    def open_plan(self, stream_id: str) -> Plan | None:
        """The stream's open plan, or None."""
        with self._database.reading() as transaction:
            return self._open_plan(transaction, stream_id)

    def next_batch(self, plan: Plan) -> Batch | None:
        """The first batch of an open plan that is not committed, or None."""
        mine = batches.c.plan_id == plan.id
        with self._database.reading() as transaction:
            # One look in the index for each state: however many batches were committed.
            firsts = [
                transaction.execute(select(func.min(batches.c.number)).where(mine, batches.c.state == state)).scalar()
                for state in (BatchState.PLANNED, BatchState.INTENT)
            ]
            number = min((one for one in firsts if one is not None), default=None)
            if number is None:
                return None
            return _batch(transaction.execute(select(batches).where(mine, batches.c.number == number)).one())

    def following(self, batch: Batch) -> Batch | None:
        """The batch after another one of its plan, where nobody ever began it."""
        query = select(batches).where(
            batches.c.plan_id == batch.plan_id,
            batches.c.number == batch.number + 1,
            batches.c.state == BatchState.PLANNED,
            batches.c.attempts == 0,
        )
        with self._database.reading() as transaction:
            row = transaction.execute(query).one_or_none()
            return None if row is None else _batch(row)

    def unbegun(self, plan: Plan) -> Waiting | None:
        """The end of an open plan of which no batch was ever begun, or None."""
        rows = batches.c.files + batches.c.removals
        several = case((batches.c.files > 1, batches.c.bytes), else_=0)
        sums = [func.count(), func.sum(rows), func.sum(batches.c.bytes), func.max(rows), func.max(several)]
        with self._database.reading() as transaction:
            first = transaction.execute(
                select(batches).where(_unbegun(plan)).order_by(batches.c.number).limit(1)
            ).one_or_none()
            if first is None:
                return None
            numbers = transaction.execute(select(*sums).where(_unbegun(plan))).one()
            return Waiting(_batch(first), *(int(number) for number in numbers))

    def recut(self, plan: Plan, slices: Sequence[Batch]) -> None:
        """Puts other batches in the place of those that :meth:`unbegun` told of.

        Raises:
            FencedError: one of these was begun meanwhile, or the plan is not open any more.
        """
        with self._database.transaction() as transaction:
            self._locked(transaction, plan.stream_id)
            open_plan = self._open_plan(transaction, plan.stream_id)
            kept = select(func.max(batches.c.number), func.max(batches.c.until_path)).where(
                batches.c.plan_id == plan.id, ~_unbegun(plan)
            )
            number, until = transaction.execute(kept).one()
            last = transaction.execute(
                select(batches.c.until_path).where(_unbegun(plan)).order_by(batches.c.number.desc()).limit(1)
            ).scalar_one_or_none()
            # The bounds hold every path still: they start after the last batch that is kept, and end where they ended.
            same = (slices[0].number - 1, slices[0].after_path, slices[-1].until_path) == (number or 0, until, last)
            if open_plan is None or open_plan.id != plan.id or not same:
                raise FencedError(f"The batches of plan {plan.id} are not those that were to be cut anew.")
            transaction.execute(delete(batches).where(_unbegun(plan)))
            transaction.execute(insert(batches), [_columns(one) for one in slices])

    def begin(self, *these: Batch, owner: str, target: Target) -> Intent:
        """Writes an INTENT, with the next number of its stream, for each of some batches: one attempt at all of them.

        Returns:
            The first batch's intent, under whose number the attempt's commits are marked.

        Raises:
            StreamBusyError: a stream has an INTENT that is neither committed nor aborted.
            FencedError: a batch was committed or dropped by someone else.
        """
        with self._database.transaction() as transaction:
            first: Intent | None = None
            for batch in these:
                made = self._begin(transaction, batch, first, owner, [target])
                first = made if first is None else first
            assert first is not None, "there is a batch"
            return first

    def join(self, intent: Intent, *these: Batch) -> None:
        """Adds batches of other streams to an attempt that is open. Raises as :meth:`begin`."""
        with self._database.transaction() as transaction:
            for batch in these:
                self._begin(transaction, batch, intent, intent.owner, intent.targets)

    def add_target(self, intent: Intent, target: Target) -> Intent:
        """Adds the target of one more statement to an attempt that is open. Raises FencedError where it is not."""
        widened = dataclasses.replace(intent, targets=[*intent.targets, target])
        with self._database.transaction() as transaction:
            changed = transaction.execute(
                update(intents)
                .where(intents.c.attempt == intent.attempt, intents.c.state == "intent")
                .values(targets=_listed(widened.targets))
            )
            if changed.rowcount < 1:
                raise FencedError(f"The attempt {intent.attempt} was settled by another process.")
        return widened

    def _begin(
        self, transaction: Transaction, batch: Batch, first: Intent | None, owner: str, targets: Sequence[Target]
    ) -> Intent:
        row = self._locked(transaction, batch.stream_id)
        state = transaction.execute(select(batches.c.state).where(batches.c.id == batch.id)).scalar_one_or_none()
        if row is None or state != BatchState.PLANNED:
            raise FencedError(f"The batch {batch.id} is not waiting any more (it is {state or 'gone'}).")
        if self._open_intent(transaction, batch.stream_id) is not None:
            raise StreamBusyError(f"Another attempt at a batch of stream {row.name} is open.")
        number = row.sequence + 1
        intent = Intent(
            stream_id=batch.stream_id,
            sequence=number,
            batch_id=batch.id,
            owner=owner,
            targets=list(targets),
            attempt=uuid.uuid4().hex if first is None else first.attempt,
            marker_stream_id=batch.stream_id if first is None else first.marker_stream_id,
            marker_sequence=number if first is None else first.marker_sequence,
            started_on=datetime.now(UTC),
        )
        transaction.execute(update(streams).where(streams.c.id == batch.stream_id).values(sequence=number))
        values = {**_columns(intent), "targets": _listed(targets)}
        transaction.execute(insert(intents).values(**values, state="intent"))
        transaction.execute(
            update(batches)
            .where(batches.c.id == batch.id)
            .values(state=BatchState.INTENT, sequence=number, attempts=batches.c.attempts + 1)
        )
        return intent

    def open_intent(self, stream_id: str) -> Intent | None:
        """The stream's INTENT that is neither committed nor aborted, or None."""
        with self._database.reading() as transaction:
            return self._open_intent(transaction, stream_id)

    def commit(self, intent: Intent, outcome: Outcome) -> None:
        """INTENT -> COMMITTED: failures become active, the plan moves on, and at its last batch the offset.

        The same for all batches of the attempt, at once.

        Raises:
            FencedError: the intent is not open any more.
        """
        with self._database.transaction() as transaction:
            for batch_id in self._end_attempt(transaction, intent, "committed"):
                batch = _batch(transaction.execute(select(batches).where(batches.c.id == batch_id)).one())
                if batch.job_id is not None:
                    activate(transaction, batch.job_id, intent.attempt, outcome.superseded)
                self._commit_batch(transaction, batch, outcome)

    def finish(self, batch: Batch) -> None:
        """Commits a batch of which no table was written: what it did is elsewhere. Raises FencedError."""
        with self._database.transaction() as transaction:
            self._locked(transaction, batch.stream_id)
            state = transaction.execute(select(batches.c.state).where(batches.c.id == batch.id)).scalar_one_or_none()
            if state != BatchState.PLANNED:
                raise FencedError(f"The batch {batch.id} is not waiting any more (it is {state or 'gone'}).")
            self._commit_batch(transaction, batch, Outcome(0, 0, 0))

    def abort(self, intent: Intent) -> None:
        """INTENT -> ABORTED: its failures are dropped, its batches wait again. Raises FencedError as ``commit``."""
        with self._database.transaction() as transaction:
            ended = self._end_attempt(transaction, intent, "aborted")
            drop_pending(transaction, intent.attempt)
            transaction.execute(update(batches).where(batches.c.id.in_(ended)).values(state=BatchState.PLANNED))

    def drop_plan(self, plan: Plan) -> None:
        """Ends a plan before its last batch: what was committed stays, the offset too.

        Raises:
            FencedError: it is not open any more, or an attempt at a batch of it is.
        """
        with self._database.transaction() as transaction:
            self._locked(transaction, plan.stream_id)
            current = self._open_plan(transaction, plan.stream_id)
            if current is None or current.id != plan.id or self._open_intent(transaction, plan.stream_id) is not None:
                raise FencedError(f"The plan {plan.id} is in other hands.")
            waiting = (batches.c.plan_id == plan.id) & (batches.c.state == BatchState.PLANNED)
            transaction.execute(update(batches).where(waiting).values(state=BatchState.DROPPED))
            transaction.execute(update(plans).where(plans.c.id == plan.id).values(state=PlanState.DROPPED))

    def move(self, stream: Stream, to: int, table_id: str) -> Stream:
        """Sets a stream's offset: a range comes again, or never, to its job, whose table may have rows of new paths then.

        Raises:
            StreamBusyError: a consumption is open.
            FencedError: the stream moved since it was read, or was dropped.
        """
        values: dict[str, Any] = {"offset": to, "initial": False, "table_id": table_id}
        with self._database.transaction() as transaction:
            row = self._locked(transaction, stream.id)
            if row is None or (row.offset, row.initial) != (stream.offset, stream.initial):
                raise FencedError(f"The stream {stream.name} was moved by someone else meanwhile.")
            plan = self._open_plan(transaction, stream.id)
            if plan is not None:
                raise StreamBusyError(
                    f"The stream {stream.name} is being consumed: plan {plan.id} is open since {plan.created_on:%F %T}.",
                    "Run its job to the end first.",
                )
            transaction.execute(update(streams).where(streams.c.id == stream.id).values(**values))
            transaction.execute(update(jobs).where(jobs.c.stream_id == stream.id).values(clean=False))
        return dataclasses.replace(stream, **values)

    def soil(self, volume_id: str) -> None:
        """Notes that the tables of a volume's jobs may have rows of files that are new to their streams."""
        mine = select(streams.c.id).where(streams.c.source_kind == SourceKind.VOLUME, streams.c.source_id == volume_id)
        with self._database.transaction() as transaction:
            transaction.execute(update(jobs).where(jobs.c.stream_id.in_(mine)).values(clean=False))

    def advance(self, stream: Stream, to: int, table_id: str) -> None:
        """Moves the offset over a range that holds nothing for its consumer. Nothing where it moved already."""
        with self._database.transaction() as transaction:
            row = self._locked(transaction, stream.id)
            if row is not None and row.offset == stream.offset and self._open_plan(transaction, stream.id) is None:
                values = {"offset": to, "initial": False, "table_id": table_id}
                transaction.execute(update(streams).where(streams.c.id == stream.id).values(**values))

    def batch(self, identity: str) -> Batch | None:
        """The batch of that id, or None."""
        with self._database.reading() as transaction:
            row = transaction.execute(select(batches).where(batches.c.id == identity)).one_or_none()
            return None if row is None else _batch(row)

    def plan(self, identity: str) -> Plan | None:
        """The plan of that id, or None."""
        with self._database.reading() as transaction:
            row = transaction.execute(select(plans).where(plans.c.id == identity)).one_or_none()
            return None if row is None else _plan(row)

    def measured(self, job_id: str, *, plan_id: str | None = None, limit: int = 20) -> Sequence[Batch]:
        """The newest batches of a job, or of a plan of it, of which it is known how long they took."""
        query = (
            select(batches)
            .where(batches.c.job_id == job_id, batches.c.seconds.is_not(None))
            .order_by(batches.c.committed_on.desc(), batches.c.number.desc())
            .limit(limit)
        )
        if plan_id is not None:
            query = query.where(batches.c.plan_id == plan_id)
        with self._database.reading() as transaction:
            return [_batch(row) for row in transaction.execute(query)]

    def batches_of(
        self, job_id: str | None = None, *, covering: str | None = None, limit: int = 1000
    ) -> Sequence[Batch]:
        """The newest batches, of one job or of all, or those whose bounds hold the path ``covering``."""
        query = select(batches).order_by(batches.c.created_on.desc(), batches.c.number.desc()).limit(limit)
        if job_id is not None:
            query = query.where(batches.c.job_id == job_id)
        if covering is not None:
            query = query.where(
                (batches.c.after_path.is_(None)) | (batches.c.after_path < covering), batches.c.until_path >= covering
            )
        with self._database.reading() as transaction:
            return [_batch(row) for row in transaction.execute(query)]

    def waiting(self, job_id: str) -> Load:
        """What a job's open plans hold that is not committed."""
        sums = [func.coalesce(func.sum(batches.c[one.name]), 0) for one in dataclasses.fields(Load)[1:]]
        query = select(func.count(), *sums).where(
            batches.c.job_id == job_id, batches.c.state.in_([BatchState.PLANNED, BatchState.INTENT])
        )
        with self._database.reading() as transaction:
            return Load(*(int(number) for number in transaction.execute(query).one()))

    def totals(self, job_id: str) -> dict[str, int]:
        """Sums over a job's committed batches: ``batches``, ``succeeded``, ``failed``, ``rows``, ``bytes``."""
        query = select(*(job_totals.c[name] for name in _TOTALS)).where(job_totals.c.job_id == job_id)
        with self._database.reading() as transaction:
            row = transaction.execute(query).one_or_none()
            return dict.fromkeys(_TOTALS, 0) if row is None else {name: int(row._mapping[name]) for name in _TOTALS}

    def forget(self, transaction: Transaction, job_id: str) -> None:
        """Deletes the intents of a job's batches, in the transaction that drops the job. Their numbers stay used up."""
        mine = select(batches.c.id).where(batches.c.job_id == job_id)
        transaction.execute(delete(intents).where(intents.c.batch_id.in_(mine)))

    def open_plans(self) -> Sequence[str]:
        """Ids of the plans whose files may still be needed."""
        with self._database.reading() as transaction:
            return transaction.execute(select(plans.c.id).where(plans.c.state == PlanState.OPEN)).scalars().all()

    def _locked(self, transaction: Transaction, stream_id: str) -> Row[Any] | None:
        return transaction.execute(select(streams).where(streams.c.id == stream_id).with_for_update()).one_or_none()

    def _open_plan(self, transaction: Transaction, stream_id: str) -> Plan | None:
        query = select(plans).where(plans.c.stream_id == stream_id, plans.c.state == PlanState.OPEN)
        row = transaction.execute(query).one_or_none()
        return None if row is None else _plan(row)

    def _open_intent(self, transaction: Transaction, stream_id: str) -> Intent | None:
        query = select(intents).where(intents.c.stream_id == stream_id, intents.c.state == "intent")
        row = transaction.execute(query).one_or_none()
        if row is None:
            return None
        columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(Intent)}
        return Intent(**{**columns, "targets": [Target(**target) for target in row.targets]})

    def _end_attempt(self, transaction: Transaction, intent: Intent, state: str) -> Sequence[str]:
        """Ends all intents of an attempt; their batches."""
        open_ones = (intents.c.attempt == intent.attempt) & (intents.c.state == "intent")
        found = transaction.execute(select(intents.c.batch_id).where(open_ones).order_by(intents.c.stream_id))
        ended = found.scalars().all()
        changed = transaction.execute(update(intents).where(open_ones).values(state=state, ended_on=datetime.now(UTC)))
        if not ended or changed.rowcount != len(ended):
            raise FencedError(f"The attempt {intent.attempt} was settled by another process.")
        return ended

    def _commit_batch(self, transaction: Transaction, batch: Batch, outcome: Outcome) -> None:
        transaction.execute(
            update(batches)
            .where(batches.c.id == batch.id)
            .values(
                state=BatchState.COMMITTED,
                committed_on=datetime.now(UTC),
                succeeded=outcome.succeeded,
                failed=outcome.failed,
                rows=outcome.rows,
                seconds=outcome.seconds,
            )
        )
        if batch.job_id is not None:
            sums = {
                "job_id": batch.job_id,
                "batches": 1,
                "succeeded": outcome.succeeded,
                "failed": outcome.failed,
                "rows": outcome.rows,
                "bytes": batch.bytes,
            }
            self._database.add_up(transaction, job_totals, ["job_id"], [sums], sums=_TOTALS)
        plan = _plan(transaction.execute(select(plans).where(plans.c.id == batch.plan_id)).one())
        if plan.kind in (PlanKind.STREAM, PlanKind.REPLAY):  # a few bad files say nothing about the job
            self._count_failed(transaction, batch, outcome)
        self._finish(transaction, plan)

    def _count_failed(self, transaction: Transaction, batch: Batch, outcome: Outcome) -> None:
        """Counts batches in a row in which every file failed, and pauses the job at its limit."""
        if not outcome.succeeded + outcome.failed:
            return
        job = transaction.execute(select(jobs).where(jobs.c.id == batch.job_id)).one()
        values: dict[str, Any] = {"failed_batches": job.failed_batches + 1 if outcome.succeeded == 0 else 0}
        if job.pause_after and values["failed_batches"] >= job.pause_after:
            reason = f"every file failed in {values['failed_batches']} batches in a row"
            values = {"failed_batches": 0, "state": JobState.PAUSED, "state_reason": reason}
        transaction.execute(update(jobs).where(jobs.c.id == batch.job_id).values(**values))

    def _finish(self, transaction: Transaction, plan: Plan) -> None:
        """Closes the plan, and moves the offset, where no batch of it is left."""
        left = select(batches.c.id).where(
            batches.c.plan_id == plan.id, batches.c.state.in_([BatchState.PLANNED, BatchState.INTENT])
        )
        if transaction.execute(left.limit(1)).first() is not None:
            return
        transaction.execute(update(plans).where(plans.c.id == plan.id).values(state=PlanState.DONE))
        if plan.kind in (PlanKind.STREAM, PlanKind.STATEMENT):
            moved = {"offset": plan.to_version, "table_id": plan.table_id, "initial": False}
            transaction.execute(update(streams).where(streams.c.id == plan.stream_id).values(**moved))


def _unbegun(plan: Plan) -> ColumnElement[bool]:
    """Batches of a plan without any attempt. An aborted attempt refers to its batch, and its bounds stay for that."""
    return and_(batches.c.plan_id == plan.id, batches.c.state == BatchState.PLANNED, batches.c.attempts == 0)


def _listed(targets: Sequence[Target]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(target) for target in targets]


def _columns(value: Plan | Batch | Intent) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plan(row: Row[Any]) -> Plan:
    return Plan(**{**row._mapping, "kind": PlanKind(row.kind), "state": PlanState(row.state)})


def _batch(row: Row[Any]) -> Batch:
    return Batch(**{**row._mapping, "state": BatchState(row.state)})
