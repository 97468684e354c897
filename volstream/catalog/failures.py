"""Failed files: pending while their attempt is open, then retried, waiting, quarantined or skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, Select, and_, bindparam, case, delete, func, insert, select, update
from sqlalchemy import Connection as Transaction

from volstream.base.definitions import Job
from volstream.base.model.work import ACTIVE, CLOCK_SKEW, WAITING, Failure, FailureKind, FailureState, groups
from volstream.catalog.database import MAX_BOUND, Database
from volstream.catalog.definitions import check_current
from volstream.catalog.tables import digest, failures, intents, to_row, writable
from volstream.errors import FencedError

#: States of failures that are retried automatically.
DUE = (FailureState.RETRYING, FailureState.WAITING)

#: Numbers of failures by job, state and kind.
_COUNTS = (
    select(failures.c.state, failures.c.kind, func.count().label("number"))
    .where(failures.c.state != FailureState.PENDING)
    .group_by(failures.c.job_id, failures.c.state, failures.c.kind)
)

#: Values that change with the failures of a job, by state.
MARKS = (
    select(failures.c.job_id, failures.c.state, func.count(), func.max(failures.c.id))
    .group_by(failures.c.job_id, failures.c.state)
    .order_by(failures.c.job_id, failures.c.state)
)

#: Minimum and maximum delay before a waiting failure is checked again.
_MIN_DELAY, _MAX_DELAY = timedelta(seconds=10), timedelta(hours=1)


@dataclass(frozen=True)
class FailureFilter:
    """A filter for failures.

    Attributes:
        kinds: all by default.
        like: an SQL LIKE pattern for the path. All by default.
    """

    states: Sequence[FailureState] = ACTIVE
    kinds: Sequence[FailureKind] = ()
    like: str | None = None


class BriefFailure(NamedTuple):
    """The fields by which failures are grouped. ``id`` grows with time. A tuple, because memory holds
    thousands."""

    id: int
    path: str
    state: str
    kind: str
    message: str
    failed_on: datetime
    job_id: str


#: All active failures.
ANY = FailureFilter()


class Failures:
    """Rows of ``failures``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_pending(self, pending: Iterable[Failure]) -> None:
        """Stores failures of an attempt that is not committed yet.

        Raises:
            FencedError: another process considered this one dead and ended the attempt. The failures would
                stay forever.
        """
        # One transaction per chunk: ``pending`` may be slow, and other writers would wait.
        for chunk in groups(pending, MAX_BOUND):
            attempts = {failure.attempt for failure in chunk}
            open_attempts = select(intents.c.attempt).where(intents.c.attempt.in_(attempts), intents.c.state == "intent")
            with self._database.transaction() as transaction:
                # Locked, so that another process ends the attempt either before this check or after these
                # rows.
                if attempts - {*transaction.execute(open_attempts.with_for_update()).scalars()}:
                    raise FencedError("The attempt was already ended by another process.")
                transaction.execute(insert(failures), [_columns(failure) for failure in chunk])

    def active(
        self,
        job_id: str | None = None,
        *,
        wanted: FailureFilter = ANY,
        after: str | None = None,
        until: str | None = None,
        path: str | None = None,
        batch_id: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Failure]:
        """Returns active failures by path: of a job, by filter, with ``after < path <= until``, of a path or
        a batch."""
        query = select(failures).where(self._matches(wanted)).order_by(failures.c.job_id, failures.c.path)
        if job_id is not None:
            query = query.where(failures.c.job_id == job_id)
        if after is not None:
            query = query.where(failures.c.path > after)
        if until is not None:
            query = query.where(failures.c.path <= until)
        if path is not None:
            query = query.where(failures.c.path_digest == digest(path))
        if batch_id is not None:
            query = query.where(failures.c.batch_id == batch_id)
        return self._database.all(query.limit(limit), Failure)

    def briefly(self, job_id: str | None, *, limit: int, before: int | None = None) -> Sequence[BriefFailure]:
        """Returns the newest active failures, of one job or all, newest first, without tracebacks.

        ``before`` limits them to lower ids.
        """
        columns = [failures.c[name] for name in BriefFailure._fields]
        query = select(*columns).where(failures.c.state.in_(ACTIVE)).order_by(failures.c.id.desc()).limit(limit)
        if job_id is not None:
            query = query.where(failures.c.job_id == job_id)
        if before is not None:
            query = query.where(failures.c.id < before)
        return [BriefFailure(*row) for row in self._database.rows(query)]

    def marks(self) -> Sequence[Any]:
        """Returns values that change if any failure does."""
        return self._database.rows(MARKS)

    def by_id(self, ids: Sequence[int]) -> Sequence[Failure]:
        """Returns a few failures, by id, newest first."""
        query = select(failures).where(failures.c.id.in_(ids))
        return self._database.all(query.order_by(failures.c.id.desc()), Failure)

    def count(self, job_id: str | None, wanted: FailureFilter) -> int:
        """Returns the number of failures that match a filter, of one job or all."""
        if job_id is not None and wanted.like is None:
            kinds = wanted.kinds or tuple(FailureKind)
            counts = self._database.rows_of(_COUNTS, failures.c.job_id, job_id)
            return sum(row.number for row in counts if row.state in wanted.states and row.kind in kinds)
        query = select(func.count()).select_from(failures).where(self._matches(wanted))
        if job_id is not None:
            query = query.where(failures.c.job_id == job_id)
        return int(self._database.value(query))

    def _matches(self, wanted: FailureFilter) -> ColumnElement[bool]:
        condition: ColumnElement[bool] = failures.c.state.in_(wanted.states)
        if wanted.kinds:
            condition &= failures.c.kind.in_(wanted.kinds)
        if wanted.like is None:
            return condition
        if self._database.is_embedded:  # SQLite's LIKE is not case-sensitive
            return condition & failures.c.path.op("GLOB", is_comparison=True)(_as_glob(wanted.like))
        # LIKE takes a trailing backslash literally, which PostgreSQL otherwise refuses.
        bare = (len(wanted.like) - len(wanted.like.rstrip("\\"))) % 2
        return condition & failures.c.path.like(wanted.like + "\\" * bare)

    def due(self, job_id: str, now: datetime, limit: int) -> Sequence[Failure]:
        """Returns failures due for a retry, the longest overdue first, including files that may have returned
        unchanged.

        Failures recorded or postponed while a clock was ahead are due immediately, because the time of their
        retry is wrong.
        """
        return self._database.all(_DUE, Failure, job=job_id, most=limit, **times(now))

    def next_due(self, job_id: str) -> datetime | None:
        """Returns the time of the job's next retry, or None. See :meth:`due`."""
        if self._database.moment is not None:  # most jobs have none, which the snapshot shows
            counts = self._database.rows_of(_COUNTS, failures.c.job_id, job_id)
            if not any(row.state in DUE for row in counts):
                return None
        due: datetime | None = self._database.value(_FIRST_DUE, job=job_id, **times(datetime.now(UTC)))
        return due

    def counts(self, job_id: str) -> dict[str, int]:
        """Returns the number of a job's failures by state."""
        counts: Counter[str] = Counter()
        for row in self._database.rows_of(_COUNTS, failures.c.job_id, job_id):
            counts[row.state] += row.number
        return dict(counts)

    def set_state(
        self,
        transaction: Transaction,
        job_id: str,
        state: FailureState,
        *,
        paths: Sequence[str] | None,
        wanted: FailureFilter = ANY,
    ) -> Sequence[str]:
        """Moves active failures to another state: of some paths or all, and by filter. Returns the paths
        found.

        Retried failures are due as of the time they failed, so that a clock that is ahead delays nothing.
        """
        query = (
            select(failures.c.id, failures.c.path)
            .where(failures.c.job_id == job_id, self._matches(wanted))
            .order_by(failures.c.path)
        )
        if paths is None and state is FailureState.RETRYING and wanted.states == ACTIVE:
            query = query.where(failures.c.state != FailureState.SKIPPED)  # skipped on purpose
        if paths is None:
            rows: list[Any] = list(transaction.execute(query))
        else:
            rows = [row for chunk in groups(paths, MAX_BOUND) for row in transaction.execute(query.where(_among(chunk)))]
        for chunk in groups(rows, MAX_BOUND):
            chosen = failures.c.id.in_([row.id for row in chunk])
            # A file that waits for others or for later has not failed, and a check does not make it fail.
            waits = failures.c.kind.in_(WAITING) & (failures.c.state == FailureState.WAITING)
            new_state = case((waits, FailureState.WAITING), else_=state) if state is FailureState.RETRYING else state
            due = failures.c.failed_on if state is FailureState.RETRYING else None
            transaction.execute(update(failures).where(chosen).values(state=new_state, next_try=due))
        return [row.path for row in rows]

    def forget(self, job: Job, paths: Sequence[str]) -> None:
        """Deletes the active failures of files that the job no longer wants. Raises JobChangedError if it was
        altered since."""
        active = (failures.c.job_id == job.id, failures.c.state.in_(ACTIVE))
        with self._database.transaction() as transaction:
            check_current(transaction, job)
            for chunk in groups(paths, MAX_BOUND):
                transaction.execute(delete(failures).where(*active, _among(chunk)))

    def postpone(self, job: Job, postponed: Sequence[Failure], now: datetime) -> None:
        """Makes a job's failures wait because their files were changed or removed.

        New versions arrive through the stream. A file may also return unchanged, which no stream reports, so
        these failures are checked again at growing intervals. Raises JobChangedError if the job was altered
        since it was read, or its failures are to be retried.
        """
        with self._database.transaction() as transaction:
            check_current(transaction, job)
            for failure in postponed:
                later = now + min(max(now - failure.failed_on, _MIN_DELAY), _MAX_DELAY)
                of_file = (failures.c.job_id == failure.job_id, failures.c.path_digest == digest(failure.path))
                waiting = {"state": FailureState.WAITING, "next_try": later, "failed_on": min(failure.failed_on, now)}
                transaction.execute(update(failures).where(*of_file, failures.c.state.in_(DUE)).values(waiting))


def earliest_try(job_id: ColumnElement[str]) -> Select[tuple[datetime | None]]:
    """Returns the query for the time of a job's next retry. Its parameters are :func:`times`."""
    when = case((_AHEAD, bindparam("now", type_=_TIME)), else_=failures.c.next_try)
    return select(func.min(when)).where(failures.c.job_id == job_id, failures.c.state.in_(DUE))


def times(now: datetime) -> dict[str, datetime]:
    """Returns the parameters of queries for due failures."""
    return {"now": now, "skewed": now + CLOCK_SKEW, "farthest": now + _MAX_DELAY + CLOCK_SKEW}


_TIME = failures.c.next_try.type

#: The clock was ahead when the failure was recorded or postponed.
_AHEAD = (failures.c.failed_on > bindparam("skewed", type_=_TIME)) | (
    (failures.c.state == FailureState.WAITING)
    & failures.c.kind.not_in(WAITING)
    & (failures.c.next_try > bindparam("farthest", type_=_TIME))
)

_JOB: BindParameter[str] = bindparam("job")
_FIRST_DUE = earliest_try(_JOB)
_DUE = (
    select(failures)
    .where(failures.c.job_id == _JOB, failures.c.state.in_(DUE), (failures.c.next_try <= bindparam("now", type_=_TIME)) | _AHEAD)
    .order_by(failures.c.next_try, failures.c.path)
    .limit(bindparam("most"))
)

#: The steps of :func:`activate`.
_OLD = (failures.c.job_id == _JOB) & failures.c.state.in_(ACTIVE)
_OTHER = failures.alias()
_DROP_REPLACED = delete(failures).where(
    _OLD,
    failures.c.path_digest.in_(
        select(_OTHER.c.path_digest).where(_OTHER.c.attempt == bindparam("ended"), _OTHER.c.state == FailureState.PENDING)
    ),
)
_PENDING = and_(failures.c.attempt == bindparam("ended"), failures.c.state == FailureState.PENDING)
_HAS_PENDING = select(failures.c.id).where(_PENDING).limit(1)
_SKIPPED = select(_OTHER.c.id).where(
    _OTHER.c.job_id == failures.c.job_id,
    _OTHER.c.path_digest == failures.c.path_digest,
    _OTHER.c.file_version == failures.c.file_version,
    _OTHER.c.state == FailureState.SKIPPED,
)
_DROP_SKIPPED = delete(failures).where(_PENDING, _SKIPPED.exists()).returning(failures.c.path)
_ACTIVATE = (
    update(failures)
    .where(_PENDING)
    .values(
        state=case(
            (failures.c.kind.in_(WAITING), FailureState.WAITING.value),
            (failures.c.next_try.is_not(None), FailureState.RETRYING.value),
            else_=FailureState.QUARANTINED.value,
        )
    )
)


def make_due(transaction: Transaction, attempt: str) -> None:
    """Makes an attempt's pending failures due once they are active, with all of their retries left."""
    transaction.execute(update(failures).where(_PENDING).values(next_try=failures.c.failed_on, attempts=0), {"ended": attempt})


def activate(transaction: Transaction, job_id: str, attempt: str, superseded: Sequence[str]) -> None:
    """Activates an attempt's pending failures. They replace earlier failures of the same files.

    Skipped versions of files stay skipped: they may have been skipped since the attempt began.
    """
    skipped: set[str] = set()
    failed = transaction.execute(_HAS_PENDING, {"ended": attempt}).first() is not None
    if failed:
        skipped.update(transaction.execute(_DROP_SKIPPED, {"ended": attempt}).scalars())
    for chunk in groups([path for path in superseded if path not in skipped], MAX_BOUND):
        transaction.execute(delete(failures).where(_OLD, _among(chunk)), {"job": job_id})
    if failed:
        transaction.execute(_DROP_REPLACED, {"job": job_id, "ended": attempt})
        transaction.execute(_ACTIVATE, {"ended": attempt})


def drop_pending(transaction: Transaction, attempt: str) -> None:
    """Deletes the pending failures of an aborted attempt."""
    transaction.execute(delete(failures).where(failures.c.attempt == attempt, failures.c.state == FailureState.PENDING))


def cut(text: str, limit: int = 8000) -> str:
    """Returns ``text`` in a form that a database can store. Beyond ``limit`` characters, cuts out the
    middle."""
    text = writable(text)
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"


def _as_glob(pattern: str) -> str:
    """Converts a LIKE pattern to SQLite's case-sensitive GLOB. A backslash escapes a wildcard."""
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        plain = next(characters, "\\") if character == "\\" else None
        if plain is None and character in "%_":
            parts.append("*" if character == "%" else "?")
        else:
            letter = plain or character
            parts.append(f"[{letter}]" if letter in "*?[" else letter)
    return "".join(parts)


def _among(paths: Sequence[str]) -> ColumnElement[bool]:
    return failures.c.path_digest.in_([digest(path) for path in paths])


def _columns(failure: Failure) -> dict[str, Any]:
    return {
        **to_row(failure),
        "path_digest": digest(failure.path),
        "message": cut(failure.message, 2000),
        "traceback": failure.traceback and cut(failure.traceback),
    }
