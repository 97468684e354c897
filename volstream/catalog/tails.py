"""The tables for which rows arrive one by one and must be committed from time to time."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select

from volstream.base.model.names import Name
from volstream.catalog.conditions import ConditionKind, note
from volstream.catalog.database import Database
from volstream.catalog.tables import tails


class Tails:
    """Rows of ``tails``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: Name, location: str) -> None:
        """Records that the table at ``location`` has a tail."""
        values = {"name": str(name), "location": location}
        with self._database.transaction() as transaction:
            transaction.execute(delete(tails).where(tails.c.name == str(name), tails.c.location != location))
            self._database.add_missing(transaction, tails, ["name"], [values])

    def list(self) -> Mapping[Name, str]:
        """Returns the locations of the tables, by name."""
        return {Name.parse(row.name): row.location for row in self._database.rows(select(tails).order_by("name"))}

    def remove(self, name: Name) -> None:
        """Removes a table's record."""
        with self._database.transaction() as transaction:
            transaction.execute(delete(tails).where(tails.c.name == str(name)))
            note(transaction, ConditionKind.TABLE, str(name), None)
