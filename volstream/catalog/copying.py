"""Copies the rows of a catalog into another one, possibly on a different kind of database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import BigInteger, Connection, Table, func, insert, select, text

from volstream.catalog.tables import alerts, audit, conditions, identity, leases, metadata, registrations

#: Rows in memory at a time.
_CHUNK = 1000

#: Not copied: leases and conditions, which describe running processes; waiting alerts, which their receivers would get twice;
#: and the identity and registrations, because a copy is a separate catalog: entries in a metastore stay its original's. Of the
#: audit only what has ended, or a copy would do the tasks, too.
_COPIED = [table for table in metadata.sorted_tables if table not in (leases, conditions, alerts, identity, registrations)]

Row = Mapping[str, Any]


def copy(source: Connection, target: Connection, changed: Callable[[str, Row], Row] = lambda _, row: row) -> dict[str, int]:
    """Copies all rows, except those named above, into an empty catalog; returns the number of rows by table.

    Args:
        changed: maps a table's name and a row to the row to write.
    """
    counts: dict[str, int] = {}
    for table in _COPIED:
        counts[table.name] = 0
        query = select(table).where(audit.c.ended_on.is_not(None)) if table is audit else select(table)
        result = source.execute(query.execution_options(yield_per=_CHUNK))
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
    """Makes PostgreSQL number new rows after the copied ones, which keep their numbers; SQLite always does."""
    column = table.autoincrement_column
    if target.dialect.name != "postgresql" or column is None or not isinstance(column.type, BigInteger):
        return
    last = target.execute(select(func.max(column))).scalar()
    if last is not None:
        sequence = {"table": table.name, "column": column.name, "last": last}
        target.execute(text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)"), sequence)
