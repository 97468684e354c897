"""Deletes old history, and copies the rows of a catalog into another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, Table, and_, bindparam, delete, func, insert, or_, select, text

from volstream.base.model.work import PlanState
from volstream.catalog import reports
from volstream.catalog.database import Database
from volstream.catalog.refreshes import Refreshes
from volstream.catalog.tables import (
    alerts,
    audit,
    batches,
    conditions,
    definition_versions,
    identity,
    intents,
    leases,
    metadata,
    plans,
    refreshes,
    registrations,
    volumes,
)

# Deletes the history of work that ended long ago. Keeps open work and history that streams still read.
# All-time totals are stored separately.

#: Rows or plans deleted per transaction. Other writers wait for it.
_CHUNK = 500


_NEWER = definition_versions.alias()

#: Definitions that were replaced, and objects that were dropped, before a time.
_SUPERSEDED = delete(definition_versions).where(
    or_(
        select(_NEWER.c.id)
        .where(
            _NEWER.c.object_id == definition_versions.c.object_id,
            _NEWER.c.id > definition_versions.c.id,
            _NEWER.c.saved_on < bindparam("before"),
        )
        .exists(),
        and_(definition_versions.c.definition.is_(None), definition_versions.c.saved_on < bindparam("before")),
    )
)


class History:
    """Old rows of ``refreshes``, ``plans``, ``batches``, ``intents`` and ``audit``."""

    def __init__(self, database: Database, refreshes_: Refreshes) -> None:
        self._database = database
        self._refreshes = refreshes_

    def forget(self, before: datetime, *, kept: int) -> int:
        """Deletes history older than ``before``. Returns the number of rows, not counting attempts.

        Args:
            kept: number of each volume's newest refreshes to keep, regardless of age.
        """
        forgotten = 0
        while removed := self._forget_plans(before):
            forgotten += removed
        with self._database.transaction() as transaction:
            forgotten += transaction.execute(delete(audit).where(audit.c.began_on < before)).rowcount
            forgotten += transaction.execute(_SUPERSEDED, {"before": before}).rowcount
        for volume_id, count in self._database.rows(select(volumes.c.id, volumes.c.refresh_count)):
            needed = self._refreshes.needed_after(volume_id)
            until = count - kept if needed is None else min(count - kept, needed)
            while removed := self._forget_refreshes(volume_id, until, before):
                forgotten += removed
        return forgotten

    def _forget_plans(self, before: datetime) -> int:
        """Deletes some ended plans, or some of their batches, with their attempts. Returns the number of
        rows."""
        ended = plans.c.state.in_([PlanState.DONE, PlanState.DROPPED])
        with self._database.transaction() as transaction:
            query = select(plans.c.id).where(ended, plans.c.created_on < before).limit(_CHUNK)
            ids = transaction.execute(query).scalars().all()
            old_batches = select(batches.c.id).where(batches.c.plan_id.in_(ids)).limit(_CHUNK)
            batch_ids = transaction.execute(old_batches).scalars().all()
            reports.keep(transaction, batch_ids)
            transaction.execute(delete(intents).where(intents.c.batch_id.in_(batch_ids)))
            transaction.execute(delete(batches).where(batches.c.id.in_(batch_ids)))
            remaining = select(batches.c.id).where(batches.c.plan_id == plans.c.id)
            deleted = transaction.execute(delete(plans).where(plans.c.id.in_(ids), ~remaining.exists())).rowcount
            return len(batch_ids) + deleted

    def _forget_refreshes(self, volume_id: str, until: int, before: datetime) -> int:
        of_volume = refreshes.c.volume_id == volume_id
        with self._database.transaction() as transaction:
            first = transaction.execute(select(func.min(refreshes.c.number)).where(of_volume)).scalar()
            if first is None or first > until:
                return 0
            chunk = refreshes.c.number.between(first, min(until, first + 10 * _CHUNK))
            return transaction.execute(delete(refreshes).where(of_volume, chunk, refreshes.c.committed_on < before)).rowcount


# Copies the rows of a catalog into another one, possibly on a different kind of database.

#: Rows in memory at a time.
_COPIED_ROWS = 1000

#: Not copied: leases and conditions, which describe running processes; waiting alerts, which their receivers
#: would get twice; and the identity and registrations, because a copy is a separate catalog, and entries in a
#: metastore still belong to the original. Only ended audit entries are copied, or a copy would also do the
#: tasks.
_COPIED = [table for table in metadata.sorted_tables if table not in (leases, conditions, alerts, identity, registrations)]

Row = Mapping[str, Any]


def copy(source: Connection, target: Connection, changed: Callable[[str, Row], Row] = lambda _, row: row) -> dict[str, int]:
    """Copies all rows, with the exceptions above, into an empty catalog. Returns the number of rows by table.

    Args:
        changed: maps a table's name and a row to the row to write.
    """
    counts: dict[str, int] = {}
    for table in _COPIED:
        counts[table.name] = 0
        query = select(table).where(audit.c.ended_on.is_not(None)) if table is audit else select(table)
        result = source.execute(query.execution_options(yield_per=_COPIED_ROWS))
        for part in result.mappings().partitions():
            rows = [dict(changed(table.name, {column.key: row[column] for column in table.c})) for row in part]
            target.execute(insert(table), rows)
            counts[table.name] += len(rows)
        _continue_numbers(target, table)
    return counts


def is_empty(catalog: Connection) -> bool:
    """True if a catalog has no rows that would conflict with :func:`copy`."""
    return not any(catalog.execute(select(table).limit(1)).first() for table in _COPIED)


def _continue_numbers(target: Connection, table: Table) -> None:
    """Makes PostgreSQL number new rows after the copied ones, which keep their numbers. SQLite always
    does."""
    column = table.autoincrement_column
    if target.dialect.name != "postgresql" or column is None or not isinstance(column.type, BigInteger):
        return
    last = target.execute(select(func.max(column))).scalar()
    if last is not None:
        sequence = {"table": table.name, "column": column.name, "last": last}
        target.execute(text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)"), sequence)
