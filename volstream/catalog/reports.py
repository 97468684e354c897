"""Reports on plans, batches and attempts, for people: reads the rows that ``consumptions`` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection as Transaction
from sqlalchemy import FromClause, Integer, Select, bindparam, cast, delete, extract, func, insert, select, tuple_, update

from volstream.base.definitions import Job
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, BatchState, FailureState, Load, Plan, PlanKind, groups
from volstream.catalog.database import MAX_BOUND, Database
from volstream.catalog.definitions import check_current
from volstream.catalog.tables import (
    batches,
    code_versions,
    failures,
    forgotten_batches,
    from_row,
    intents,
    job_counts,
    job_totals,
    jobs,
    plans,
    refreshes,
    rejected,
    streams,
    to_row,
    volumes,
)

#: Columns that are summed over a job's batches.
TOTALS = ("batches", "succeeded", "failed", "rows", "bytes")

#: States of batches that are still to be committed.
UNFINISHED = (BatchState.PLANNED, BatchState.INTENT)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt at a batch. ``state`` is ``intent`` while open, then ``committed`` or ``aborted``."""

    attempt: str
    sequence: int
    owner: str
    state: str
    started_on: datetime
    ended_on: datetime | None


@dataclasses.dataclass(frozen=True)
class Work:
    """Batches of a job that were committed close together, with the numbers of batches and files."""

    began_on: datetime
    ended_on: datetime
    batches: int
    files: int
    failed: int


#: The uncommitted load by job.
_LOAD: Sequence[Any] = [func.count(), *(func.sum(batches.c[field.name]) for field in dataclasses.fields(Load)[1:])]
_WAITING = select(*_LOAD).where(batches.c.state.in_(UNFINISHED)).group_by(batches.c.job_id)

_MEASURED = (
    select(batches)
    .where(batches.c.job_id == bindparam("job"), batches.c.seconds.is_not(None))
    .order_by(batches.c.committed_on.desc(), batches.c.number.desc())
    .limit(bindparam("most"))
)

_NEWEST = _MEASURED.subquery()

#: The largest of the newest batches.
_LARGEST = select(_NEWEST).order_by((_NEWEST.c.files + _NEWEST.c.removals).desc(), _NEWEST.c.committed_on.desc()).limit(1)

#: When the oldest change of a batch's plan was found. For a stream's first plan and for a replay, when it was
#: planned.
_OLDEST_CHANGE = func.coalesce(refreshes.c.committed_on, plans.c.created_on)

#: Batches of volumes' streams with that time.
_WITH_CHANGES = (
    select(batches.c.id)
    .join(plans, plans.c.id == batches.c.plan_id)
    .join(streams, streams.c.id == batches.c.stream_id)
    .outerjoin(
        refreshes,
        (plans.c.kind == PlanKind.STREAM)
        & (refreshes.c.volume_id == streams.c.source_id)
        & (refreshes.c.number == plans.c.from_version + 1)
        & (refreshes.c.number <= plans.c.to_version),  # a plan may have no changes
    )
)


class Reports:
    """Reads rows of ``plans``, ``batches``, ``intents`` and their sums."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def batch(self, identity: str) -> Batch | None:
        """Returns the batch with that id, or None."""
        return self._database.one(select(batches).where(batches.c.id == identity), Batch)

    def attempts_at(self, batch_id: str) -> Sequence[Attempt]:
        """Returns the attempts at a batch on record, oldest first."""
        query = select(intents).where(intents.c.batch_id == batch_id).order_by(intents.c.sequence)
        return self._database.all(query, Attempt)

    def batches_in(self, attempt: str) -> Sequence[Batch]:
        """Returns the batches of an attempt: several if it consumes several streams."""
        ids = select(intents.c.batch_id).where(intents.c.attempt == attempt)
        query = select(batches).where(batches.c.id.in_(ids)).order_by(batches.c.stream_id)
        return self._database.all(query, Batch)

    def plan(self, identity: str) -> Plan | None:
        """Returns the plan with that id, or None."""
        return self._database.one(select(plans).where(plans.c.id == identity), Plan)

    def plans(self, identities: Iterable[str]) -> Mapping[str, Plan]:
        """Returns the plans that exist among these ids, by id."""
        rows = self._database.rows_in(select(plans), plans.c.id, identities)
        return {row.id: from_row(Plan, row._mapping) for row in rows}

    def measured(self, job_id: str, *, plan_id: str | None = None, limit: int = 20) -> Sequence[Batch]:
        """Returns the newest batches with a known duration, of a job or of one of its plans."""
        query = _MEASURED if plan_id is None else _MEASURED.where(batches.c.plan_id == plan_id)
        return self._database.all(query, Batch, job=job_id, most=limit)

    def largest(self, job_id: str, limit: int = 20) -> Sequence[Batch]:
        """Returns the largest of the batches of :meth:`measured`, if any: one row instead of all."""
        return self._database.all(_LARGEST, Batch, job=job_id, most=limit)

    def worked_on(self, job_id: str, limit: int) -> Sequence[Batch]:
        """Returns a job's batches in progress and the last committed ones, newest first, without waiting
        ones."""
        of_job = select(batches).where(batches.c.job_id == job_id).limit(limit)
        in_progress = of_job.where(batches.c.state == BatchState.INTENT)
        ended = of_job.where(batches.c.committed_on.is_not(None)).order_by(batches.c.committed_on.desc())
        return [batch for query in (in_progress, ended) for batch in self._database.all(query, Batch)][:limit]

    def worked_in(self, job_ids: Iterable[str], since: datetime, slot: timedelta) -> Mapping[str, Sequence[Work]]:
        """Returns the work of jobs since a time, by job id, in the order of time.

        Batches committed in the same slot are one piece of work.
        """
        committed = extract("epoch", batches.c.committed_on)
        number = cast((committed - since.timestamp()) / slot.total_seconds(), Integer)
        sums = (func.sum(batches.c[name]) for name in ("files", "failed"))
        began, ended = func.min(committed - func.coalesce(batches.c.seconds, 0)), func.max(committed)
        query = (
            select(batches.c.job_id, began, ended, func.count(), *sums)
            .where(batches.c.committed_on >= since)
            .group_by(batches.c.job_id, number)
            .order_by(batches.c.job_id, number)
        )
        found: dict[str, list[Work]] = {}
        for job_id, *times, count, files, failed in self._database.rows_in(query, batches.c.job_id, job_ids):
            first, last = (datetime.fromtimestamp(float(time), UTC) for time in times)
            found.setdefault(job_id, []).append(Work(first, last, int(count), int(files), int(failed)))
        return found

    def batches_of(
        self, job_id: str | None = None, *, covering: str | None = None, before: Batch | None = None, limit: int = 1000
    ) -> Sequence[Batch]:
        """Returns the newest batches of one job or of all.

        Args:
            covering: only batches whose bounds may include this path: see :meth:`Batch.covers`.
            before: the last batch of an earlier result. Returns the batches after it in that order.
        """
        order = (batches.c.created_on, batches.c.number, batches.c.id)
        query = select(batches).order_by(*(column.desc() for column in order)).limit(limit)
        if before is not None:
            query = query.where(tuple_(*order) < (before.created_on, before.number, before.id))
        if job_id is not None:
            query = query.where(batches.c.job_id == job_id)
        if covering is not None:
            by_path = ((batches.c.after_path.is_(None)) | (batches.c.after_path < covering)) & (batches.c.until_path >= covering)
            query = query.where(by_path | batches.c.until_time.is_not(None))
        return self._database.all(query, Batch)

    def waiting(self, job_id: str) -> Load:
        """Returns the uncommitted load of a job's open plans."""
        (row,) = self._database.rows_of(_WAITING, batches.c.job_id, job_id) or [()]
        return Load(*map(int, row[: len(dataclasses.fields(Load))]))

    def totals(self, job_id: str) -> dict[str, int]:
        """Returns sums over a job's committed batches: ``batches``, ``succeeded``, ``failed``, ``rows``,
        ``bytes``."""
        query = select(*(job_totals.c[name] for name in TOTALS)).where(job_totals.c.job_id == job_id)
        numbers = next(iter(self._database.rows(query)), (0,) * len(TOTALS))
        return {name: int(number) for name, number in zip(TOTALS, numbers, strict=True)}

    def counted(self, job_id: str) -> dict[str, float]:
        """Returns the sums of a job's function's counters over its committed batches, by name."""
        return {row.name: row.number for row in self._database.rows(counted_by(job_id))}

    def counted_since(self, job_id: str, day: date) -> Sequence[tuple[str, date, float]]:
        """Returns the counters of a job's function since a day in UTC: name, day and number, by name and
        day."""
        counted = select(job_counts.c.name, job_counts.c.day, job_counts.c.number)
        sums = counted.where(job_counts.c.job_id == job_id, job_counts.c.day >= day).order_by(job_counts.c.name, job_counts.c.day)
        return [(row.name, row.day, row.number) for row in self._database.rows(sums)]

    def waited(self, committed: Iterable[Batch]) -> Mapping[str, float]:
        """Returns, by batch id, the seconds from the oldest change of a batch's plan to its commit."""
        query = _WITH_CHANGES.with_only_columns(batches.c.id, batches.c.committed_on, _OLDEST_CHANGE)
        rows = self._database.rows_in(query, batches.c.id, (batch.id for batch in committed))
        return {identity: (ended - began).total_seconds() for identity, ended, began in rows}

    def waited_in(self, job_ids: Iterable[str], since: datetime, slot: timedelta) -> Sequence[tuple[int, int, int]]:
        """Returns how many files of jobs' batches waited, as triples: first slot, last slot, number of files.

        Slots count from ``since``. Includes batches committed since then. A batch waits from the oldest
        change of its plan.
        """
        first, last = (
            cast((extract("epoch", moment) - since.timestamp()) / slot.total_seconds(), Integer)
            for moment in (_OLDEST_CHANGE, batches.c.committed_on)
        )
        sums = [first, last, func.sum(batches.c.files + batches.c.removals)]
        query = _WITH_CHANGES.with_only_columns(*sums).where(batches.c.committed_on >= since).group_by(first, last)
        rows = self._database.rows_in(query, batches.c.job_id, job_ids)
        return [(int(begin), int(end), int(files)) for begin, end, files in rows]


def counted_by(job_id: str) -> Select[Any]:
    """Selects the sums of a job's function's counters, by name."""
    number = func.sum(job_counts.c.number).label("number")
    return select(job_counts.c.name, number).where(job_counts.c.job_id == job_id).group_by(job_counts.c.name)


# Versions of jobs' code, and the version that each batch ran, for as long as rows of the batch may exist.


@dataclass(frozen=True, kw_only=True)
class CodeVersion:
    """The code that made rows of a job, with everything else that the rows depend on besides the files.

    Attributes:
        number: from 1, in the order of first use. 0 if not used yet.
        digest: of the function's code, arguments, columns and environment. Differs between a job's versions.
        source: text of the modules, by path. None if the code is installed, or too long to keep.
        made_by, made_on: who ran it first, and when.
    """

    job_id: str
    number: int = 0
    digest: str
    function: str
    arguments: Mapping[str, str]
    returns: str
    environment: str | None
    source: Mapping[str, str] | None
    made_by: str
    made_on: datetime


@dataclass(frozen=True)
class BatchCode:
    """The version of code that a batch ran.

    Attributes:
        carried: other versions of rows that followed moved files into the batch, by path. None if unknown.
    """

    code: int | None
    carried: Mapping[str, int | None]

    def of(self, path: str) -> int | None:
        """Returns the version that made the rows of a file, or None if unknown."""
        return self.carried.get(path, self.code)


_NUMBER = select(code_versions.c.number).where(
    code_versions.c.job_id == bindparam("job"), code_versions.c.digest == bindparam("digest")
)


class Codes:
    """Rows of ``code_versions``, and the versions in ``batches`` and ``forgotten_batches``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def versions(self, job_id: str) -> Sequence[CodeVersion]:
        """Returns the versions of a job's code, ordered by number."""
        query = select(code_versions).where(code_versions.c.job_id == job_id).order_by(code_versions.c.number)
        return self._database.all(query, CodeVersion)

    def number_of(self, job: Job, version: CodeVersion) -> int:
        """Returns the number of a version of a job's code. Records a new version.

        Raises JobChangedError if the job was altered or dropped since it was read.
        """
        existing = self._database.value(_NUMBER, job=version.job_id, digest=version.digest)
        if existing is not None:
            return int(existing)
        with self._database.transaction() as transaction:
            check_current(transaction, job)
            last = select(func.max(code_versions.c.number)).where(code_versions.c.job_id == version.job_id)
            number = int(transaction.execute(last).scalar() or 0) + 1
            used = replace(version, number=number, made_on=datetime.now(UTC))
            transaction.execute(insert(code_versions).values(to_row(used)))
        return number

    def of_batches(self, ids: Iterable[str]) -> Mapping[str, BatchCode]:
        """Returns the code that batches ran, by batch id, as far as known."""
        found: dict[str, BatchCode] = {}
        ids = {*ids}
        for table in (batches, forgotten_batches):
            query = select(table.c.id, table.c.code, table.c.carried).where(table.c.code.is_not(None))
            rows = self._database.rows_in(query, table.c.id, ids)
            found |= {row.id: BatchCode(int(row.code), row.carried or {}) for row in rows}
        return found

    def note_carried(self, batch: Batch, carried: Mapping[str, int | None]) -> None:
        """Records, before a batch's commit, the versions of rows that follow moved files in it."""
        self._database.write(update(batches).where(batches.c.id == batch.id).values(carried=dict(carried)))

    def forgotten(self, job_id: str) -> Sequence[str]:
        """Returns the ids of a job's batches that are kept only for their code."""
        known = select(forgotten_batches.c.id).where(forgotten_batches.c.job_id == job_id)
        return [row.id for row in self._database.rows(known)]

    def forget(self, ids: Iterable[str]) -> None:
        """Deletes the records of batches without remaining rows."""
        for chunk in groups(ids, MAX_BOUND):
            self._database.write(delete(forgotten_batches).where(forgotten_batches.c.id.in_(chunk)))


def keep(transaction: Transaction, ids: Sequence[str]) -> None:
    """Preserves the code versions of batches that are about to be deleted."""
    columns = ("id", "job_id", "code", "carried")
    known = select(*(batches.c[name] for name in columns)).where(
        batches.c.id.in_(ids), batches.c.code.is_not(None), batches.c.job_id.is_not(None)
    )
    transaction.execute(insert(forgotten_batches).from_select(columns, known))


# The catalog's facts as relations for SQL: failures, batches, refreshes, rejected messages.

#: Columns that users know by another name.
_USER_NAMES = {"commit_version": "refresh_id"}

#: Rows in memory at a time.
_CHUNK = 1000


def _facts(owner: FromClause, of: FromClause, key: str, columns: str) -> Select[Any]:
    """Selects facts. The first two columns are the name of the job or volume that ``key`` refers to."""
    selected = (of.c[name].label(_USER_NAMES.get(name, name)) for name in columns.split())
    return select(owner.c.schema_name, owner.c.name, *selected).select_from(of.outerjoin(owner, of.c[key] == owner.c.id))


#: By name: the kind of object that the facts concern, and the query. Its first two columns are the object's
#: name.
FACTS: Mapping[str, tuple[str, Select[Any]]] = {
    "failures": (
        "job",
        _facts(
            jobs,
            failures,
            "job_id",
            "path file_version commit_version state kind message traceback attempts next_try batch_id failed_on",
        ).where(failures.c.state != FailureState.PENDING),
    ),
    "batches": (
        "job",
        _facts(
            jobs,
            batches,
            "job_id",
            "id state files replaced removals moves bytes attempts succeeded failed rows seconds created_on committed_on code",
        ),
    ),
    "code_versions": ("job", _facts(jobs, code_versions, "job_id", "number digest function returns environment made_by made_on")),
    "counts": ("job", _facts(jobs, job_counts, "job_id", "name day number")),
    "refreshes": ("volume", _facts(volumes, refreshes, "volume_id", "number cause inserted updated deleted bytes committed_on")),
    "rejected": ("volume", _facts(volumes, rejected, "volume_id", "subject reason count first_seen last_seen")),
}


def fact_types(name: str) -> Mapping[str, type]:
    """Returns the columns of a relation in :data:`FACTS`, each with its Python type."""
    of, query = FACTS[name]
    columns = list(query.selected_columns)[2:]
    return {of: str, **{column.name: column.type.python_type for column in columns}}


def fact_rows(database: Database, name: str) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yields the rows of a relation in chunks."""
    of, query = FACTS[name]
    columns = list(fact_types(name))[1:]
    with database.reading() as transaction:
        result = transaction.execute(query.execution_options(yield_per=_CHUNK))
        for part in result.partitions():
            yield [
                {of: None if owner is None else str(Name(schema, owner)), **dict(zip(columns, row, strict=True))}
                for schema, owner, *row in part
            ]
