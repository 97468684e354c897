"""Decides whether a job may fill a table that it did not create."""

from __future__ import annotations

from collections.abc import Iterable

from volstream.base.definitions import SourceKind
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.errors import InvalidStateError
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.ownership import INCIDENTAL, OWNER, WRITERS, is_open
from volstream.tables.delta.schema import Schema


def check_target(catalog: Catalog, table: Name, location: str, columns: Iterable[str]) -> None:
    """Checks that a job does not add columns to another writer's table unasked.

    A job may fill a table that a job created, one that already has the columns, and an empty one that no stream reads.

    Args:
        columns: returned by the job's function.

    Raises:
        InvalidStateError: the table was not created by a job, is in use, and lacks some of the columns.
    """
    opened = OpenTable.newest(location)
    if opened is None or is_of_job(schema := opened.schema):
        return
    present = {name.lower() for name in schema.columns}
    missing = [name for name in columns if name.lower() not in present]
    if not missing or is_open(schema.properties):
        return
    if opened.rows != 0 or catalog.streams.list(source_kind=SourceKind.TABLE, source_id=str(table)):
        raise InvalidStateError(
            f"The table {table} was not created by a job, and the job would add columns to it: {', '.join(missing)}.",
            f"Name another table. To fill this one nevertheless: ALTER TABLE {table} SET PROPERTIES ('{WRITERS}' = 'any').",
        )


def is_of_job(schema: Schema) -> bool:
    """Returns whether a job made the table."""
    return OWNER in schema.properties or set(schema.columns) >= INCIDENTAL
