"""What is wrong at present and is known only where it happens: recorded there, and cleared by the success that ends it.

What does not belong here: what follows from a home's state, such as a stale stream, and what helps (``inspection.problems``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy import Connection as Transaction

from volstream.catalog.database import Database
from volstream.catalog.tables import conditions


class About(StrEnum):
    """What a condition is about: a volume cannot be kept, a topic cannot be read, rows that arrived for a table cannot be
    committed, the run of a job failed as a whole."""

    VOLUME = "volume"
    SOURCE = "source"
    TABLE = "table"
    JOB = "job"


@dataclass(frozen=True)
class Condition:
    """Something that is wrong.

    Attributes:
        since: when it was first recorded.
        cause: what it is at present.
    """

    since: datetime
    cause: str


class Conditions:
    """Rows of ``conditions``: one for each object at most."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, about: About, subject: str, cause: str | None) -> None:
        """Records what is wrong with an object; None: nothing is, any more.

        Args:
            subject: the object's id; of a table its name.
        """
        with self._database.transaction() as transaction:
            note(transaction, about, subject, cause)

    def of(self, about: About) -> Mapping[str, Condition]:
        """Returns what is wrong with objects of a kind, by subject."""
        query = select(conditions).where(conditions.c.about == about)
        with self._database.reading() as transaction:
            return {row.subject: Condition(row.since, row.cause) for row in transaction.execute(query)}

    def causes(self, about: About) -> Mapping[str, str]:
        """Returns only the causes of :meth:`of`."""
        return {subject: condition.cause for subject, condition in self.of(about).items()}

    def cause(self, about: About, subject: str) -> str | None:
        """Returns what is wrong with an object; None: nothing."""
        query = select(conditions.c.cause).where(_of(about, subject))
        with self._database.reading() as transaction:
            return transaction.execute(query).scalar_one_or_none()


def note(transaction: Transaction, about: About, subject: str, cause: str | None) -> None:
    """Does what :meth:`Conditions.note` does, as a part of a transaction."""
    if cause is None:
        transaction.execute(delete(conditions).where(_of(about, subject)))
    elif not transaction.execute(update(conditions).where(_of(about, subject)).values(cause=cause)).rowcount:
        row = {"about": about, "subject": subject, "since": datetime.now(UTC), "cause": cause}
        transaction.execute(conditions.insert().values(**row))


def _of(about: About, subject: str) -> ColumnElement[bool]:
    return and_(conditions.c.about == about, conditions.c.subject == subject)
