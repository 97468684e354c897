"""The tables that a home registered in a metastore."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import and_, delete, insert, select

from volstream.base.model.names import Name
from volstream.catalog.database import Database
from volstream.catalog.tables import registrations


class Registrations:
    """Rows of ``registrations``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, metastore: str) -> Mapping[Name, str]:
        """Returns the locations of the tables registered in a metastore, by name."""
        query = select(registrations).where(registrations.c.metastore == metastore)
        return {Name.parse(row.name): row.location for row in self._database.rows(query)}

    def put(self, metastore: str, name: Name, location: str | None) -> None:
        """Records that a table is registered with a location; None: no longer."""
        key = and_(registrations.c.metastore == metastore, registrations.c.name == str(name))
        with self._database.transaction() as transaction:
            transaction.execute(delete(registrations).where(key))
            if location is not None:
                row = {"metastore": metastore, "name": str(name), "location": location}
                transaction.execute(insert(registrations).values(**row))
