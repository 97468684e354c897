"""Records who did what from the console, and the result. Long actions are tasks, which the daemon fetches
from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert, select, update

from volstream.base.model.work import ActionState, AuditEntry
from volstream.catalog.database import Database
from volstream.catalog.tables import audit
from volstream.errors import InvalidStateError, NotFoundError

#: Maximum number of a virtual cluster's tasks that have not ended.
_MAX_OPEN = 54

#: Without a task's outcome, which may be long.
_ENTRIES = select(*(column for column in audit.c if column is not audit.c.outcome))
_NEWEST = _ENTRIES.order_by(audit.c.id.desc())


class Audit:
    """Rows of ``audit``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, action: str, object_: str, who: str) -> int:
        """Records the start of an action. Returns the entry's id."""
        values = {"action": action, "object": object_, "who": who, "state": ActionState.RUNNING}
        row = insert(audit).values(**values, began_on=datetime.now(UTC))
        with self._database.transaction() as transaction:
            key = transaction.execute(row).inserted_primary_key
            assert key is not None, "a row was inserted"
            return int(key[0])

    def queue(self, entry: int, parameters: Mapping[str, str], cluster: str) -> AuditEntry:
        """Turns a begun action into a task for the daemons of a virtual cluster.

        Raises:
            InvalidStateError: too many tasks have not ended.
        """
        if len(self.open(cluster)) >= _MAX_OPEN:
            raise InvalidStateError("Too many actions are queued already.", "Wait for some to end, or cancel some.")
        self.note(entry, state=ActionState.QUEUED, parameters=parameters, cluster=cluster)
        return self.task(str(entry))

    def note(self, entry: int, **values: Any) -> None:
        """Records the progress of an action. Does nothing if it has ended."""
        self._database.write(update(audit).where(audit.c.id == entry, audit.c.ended_on.is_(None)).values(**values))

    def end(self, entry: int, state: ActionState, result: str, **values: Any) -> None:
        """Records the end of an action."""
        self.note(entry, state=state, result=result, step=None, ended_on=datetime.now(UTC), **values)

    def cancel(self, task: str) -> AuditEntry:
        """Requests the cancellation of a task, and returns the task.

        Raises:
            NotFoundError: the task does not exist.
            InvalidStateError: the task has ended.
        """
        found = self.task(task)
        if found.ended_on is not None:
            raise InvalidStateError(f"The task {task} has already ended.")
        self.note(found.id, cancelled=True)
        return found

    def entry(self, identity: int) -> AuditEntry | None:
        """Returns the entry with this id, or None."""
        return self._database.one(_ENTRIES.where(audit.c.id == identity), AuditEntry)

    def newest(self, *, before: int | None = None, limit: int = 50) -> Sequence[AuditEntry]:
        """Returns the newest entries, newest first. ``before`` limits them to entries older than this id."""
        query = _NEWEST.limit(limit)
        return self._database.all(query if before is None else query.where(audit.c.id < before), AuditEntry)

    def tasks(self, object_: str | None = None, action: str | None = None, *, limit: int = 50) -> Sequence[AuditEntry]:
        """Returns the newest tasks, newest first, optionally only for an object or an action."""
        query = _NEWEST.where(audit.c.cluster.is_not(None)).limit(limit)
        if object_ is not None:
            query = query.where(audit.c.object == object_)
        if action is not None:
            query = query.where(audit.c.action == action)
        return self._database.all(query, AuditEntry)

    def open(self, cluster: str) -> Sequence[AuditEntry]:
        """Returns the tasks of a virtual cluster that have not ended, oldest first."""
        is_open = audit.c.cluster == cluster, audit.c.ended_on.is_(None)
        return self._database.all(_ENTRIES.where(*is_open).order_by(audit.c.id), AuditEntry)

    def task(self, identity: str) -> AuditEntry:
        """Returns a task. Raises NotFoundError."""
        number = int(identity) if identity.isascii() and identity.isdecimal() and len(identity) < 16 else 0
        found = self.entry(number)
        if found is None or found.cluster is None:
            raise NotFoundError(f"There is no task {identity}.", "The history is kept for history_seconds.")
        return found

    def outcome(self, entry: int) -> Any:
        """Returns a task's outcome as a document, or None without one, or before the task's end."""
        return self._database.value(select(audit.c.outcome).where(audit.c.id == entry))
