"""Where tables are, by name: those outside of the warehouse, those for which rows arrive one by one, those in a metastore."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Table, delete, select

from volstream.base.model.names import Name
from volstream.catalog.conditions import ConditionKind, note
from volstream.catalog.database import Database
from volstream.catalog.tables import tails


class Locations:
    """Rows of ``links``, ``tails`` or ``registrations``.

    ``where`` is the metastore, for ``registrations``. Links are not in the warehouse: writers there must not choose where jobs
    write.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table

    def list(self, **where: str) -> Mapping[Name, str]:
        """Returns the locations of the tables, by name."""
        query = select(self._table).filter_by(**where).order_by("name")
        return {Name.parse(row.name): row.location for row in self._database.rows(query)}

    def put(self, name: Name, location: str, **where: str) -> None:
        """Records where a table is."""
        key = {"name": str(name), **where}
        other = delete(self._table).filter_by(**key).where(self._table.c.location != location)
        with self._database.transaction() as transaction:
            transaction.execute(other)
            self._database.add_missing(transaction, self._table, [*key], [{**key, "location": location}])

    def remove(self, name: Name, **where: str) -> None:
        """Removes a table's record, if there is one."""
        with self._database.transaction() as transaction:
            transaction.execute(delete(self._table).filter_by(name=str(name), **where))
            if self._table is tails:
                note(transaction, ConditionKind.TABLE, str(name), None)
