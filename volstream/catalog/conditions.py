"""Current problems that are known only where they occur: recorded there, and cleared by the next success.

What does not belong here: problems that follow from a home's state, such as a stale stream; remedies (``inspection.problems``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy import Connection as Transaction

from volstream.catalog.database import Database
from volstream.catalog.tables import conditions, jobs, sources, volumes


class ConditionKind(StrEnum):
    """The kind of condition: a volume cannot be refreshed, a topic cannot be read, rows that arrived for a table cannot be
    committed, the run of a job failed as a whole, a verification found its table wrong, files that were loaded into a table
    cannot be taken away, or tables cannot be registered in the metastore."""

    VOLUME = "volume"
    SOURCE = "source"
    TABLE = "table"
    JOB = "job"
    PROOF = "proof"
    TAKING = "taking"
    METASTORE = "metastore"


#: The tables of objects whose ids are subjects.
_TABLES = {ConditionKind.VOLUME: volumes, ConditionKind.SOURCE: sources, ConditionKind.JOB: jobs, ConditionKind.PROOF: jobs}


@dataclass(frozen=True)
class Condition:
    """A current problem.

    Attributes:
        since: when it was first recorded.
        cause: its current cause.
    """

    since: datetime
    cause: str


class Conditions:
    """Rows of ``conditions``: at most one per object."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, about: ConditionKind, subject: str, cause: str | None) -> None:
        """Records an object's problem; None clears it.

        Args:
            subject: the object's id; for a table or a metastore, its name.
        """
        with self._database.transaction() as transaction:
            note(transaction, about, subject, cause)

    def of(self, about: ConditionKind) -> Mapping[str, Condition]:
        """Returns the problems of a kind, by subject."""
        query = select(conditions).where(conditions.c.about == about)
        return {row.subject: Condition(row.since, row.cause) for row in self._database.rows(query)}

    def causes(self, about: ConditionKind) -> Mapping[str, str]:
        """Returns the causes of :meth:`of`, by subject."""
        return {subject: condition.cause for subject, condition in self.of(about).items()}

    def cause(self, about: ConditionKind, subject: str) -> str | None:
        """Returns the cause of an object's problem; None: no problem."""
        query = select(conditions.c.cause).where(_of(about, subject))
        cause: str | None = self._database.value(query)
        return cause


def note(transaction: Transaction, about: ConditionKind, subject: str, cause: str | None) -> None:
    """Like :meth:`Conditions.note`, as part of a transaction."""
    if cause is None:
        transaction.execute(delete(conditions).where(_of(about, subject)))
    elif not transaction.execute(update(conditions).where(_of(about, subject)).values(cause=cause)).rowcount:
        table = _TABLES.get(about)
        if table is None or transaction.scalar(select(table.c.id).where(table.c.id == subject)):  # else it was dropped meanwhile
            row = {"about": about, "subject": subject, "since": datetime.now(UTC), "cause": cause}
            transaction.execute(conditions.insert().values(**row))


def _of(about: ConditionKind, subject: str) -> ColumnElement[bool]:
    return and_(conditions.c.about == about, conditions.c.subject == subject)
