"""Links of names to tables outside of the warehouse, such as those of a metastore."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, insert, select

from volstream.base.model.names import Name
from volstream.catalog.database import Database
from volstream.catalog.tables import links


class Links:
    """Rows of ``links``. They are not in the warehouse: writers there must not choose where jobs write."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> Mapping[str, str]:
        """Returns the locations by the tables' names."""
        return {row.name: row.location for row in self._database.rows(select(links).order_by("name"))}

    def put(self, name: Name, location: str) -> None:
        """Links a name to a location."""
        with self._database.transaction() as transaction:
            transaction.execute(delete(links).where(links.c.name == str(name)))
            transaction.execute(insert(links).values(name=str(name), location=location))

    def remove(self, name: Name) -> None:
        """Removes the link of a name, if there is one."""
        with self._database.transaction() as transaction:
            transaction.execute(delete(links).where(links.c.name == str(name)))
