"""Records who did what from the console, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import insert, select, update

from volstream.catalog.database import Database
from volstream.catalog.tables import audit


@dataclass(frozen=True)
class AuditEntry:
    """An action of a person or program on an object of the home.

    Attributes:
        action: a verb, such as ``retry``.
        object: kind and name of the target, such as ``job sizes``.
        who: origin, such as ``console 127.0.0.1``.
        ended_on: None: not finished, or its process died first.
        result: one line; before the end, what the action waits for, if anything.
    """

    id: int
    action: str
    object: str
    who: str
    began_on: datetime
    ended_on: datetime | None
    result: str | None


class Audit:
    """Rows of ``audit``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, action: str, object_: str, who: str) -> int:
        """Records that an action begins; returns the entry's id."""
        values = {"action": action, "object": object_, "who": who, "began_on": datetime.now(UTC)}
        with self._database.transaction() as transaction:
            key = transaction.execute(insert(audit).values(**values)).inserted_primary_key
            assert key is not None, "a row was inserted"
            return int(key[0])

    def queued(self, entry: int, why: str) -> None:
        """Records what an action waits for."""
        self._database.write(update(audit).where(audit.c.id == entry).values(result=why))

    def end(self, entry: int, result: str) -> None:
        """Records how an action ended."""
        self._database.write(update(audit).where(audit.c.id == entry).values(result=result, ended_on=datetime.now(UTC)))

    def entry(self, identity: int) -> AuditEntry | None:
        """Returns the entry with this id, or None."""
        return self._database.one(select(audit).where(audit.c.id == identity), AuditEntry)

    def newest(self, *, before: int | None = None, limit: int = 50) -> Sequence[AuditEntry]:
        """Returns the newest entries, newest first; with ``before``, only those older than the entry with this id."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        return self._database.all(query, AuditEntry)
