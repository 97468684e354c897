"""Current problems, causes of alerts, and alerts that wait for delivery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, insert, select, update
from sqlalchemy import Connection as Transaction

from volstream.base.model.work import groups
from volstream.catalog.database import MAX_BOUND, Database
from volstream.catalog.tables import alert_causes, alerts, conditions, jobs, sources, volumes

# Problems that are only known where they occur. They are recorded there and cleared by the next success. Not
# here: problems that follow from a home's state, such as a stale stream; remedies (``inspection.status``).


class ConditionKind(StrEnum):
    """The kind of a condition.

    In order: a volume cannot be refreshed, a topic cannot be read, rows that arrived for a table cannot be
    committed, the run of a job failed as a whole, a verification found its table wrong, files that were
    loaded into a table cannot be removed from the volume, or tables cannot be registered in the metastore.
    """

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
        """Records an object's problem. A cause of None clears it.

        Args:
            subject: the object's id. For a table or a metastore, its name.
        """
        with self._database.transaction() as transaction:
            note_condition(transaction, about, subject, cause)

    def of(self, about: ConditionKind) -> Mapping[str, Condition]:
        """Returns the problems of a kind, by subject."""
        query = select(conditions).where(conditions.c.about == about)
        return {row.subject: Condition(row.since, row.cause) for row in self._database.rows(query)}

    def causes(self, about: ConditionKind) -> Mapping[str, str]:
        """Returns the causes of :meth:`of`, by subject."""
        return {subject: condition.cause for subject, condition in self.of(about).items()}

    def cause(self, about: ConditionKind, subject: str) -> str | None:
        """Returns the cause of an object's problem, or None without a problem."""
        query = select(conditions.c.cause).where(_of(about, subject))
        cause: str | None = self._database.value(query)
        return cause


def note_condition(transaction: Transaction, about: ConditionKind, subject: str, cause: str | None) -> None:
    """Like :meth:`Conditions.note`, as part of a transaction."""
    if cause is None:
        transaction.execute(delete(conditions).where(_of(about, subject)))
    elif not transaction.execute(update(conditions).where(_of(about, subject)).values(cause=cause)).rowcount:
        table = _TABLES.get(about)
        # else it was dropped
        if table is None or transaction.scalar(select(table.c.id).where(table.c.id == subject)):
            row = {"about": about, "subject": subject, "since": datetime.now(UTC), "cause": cause}
            transaction.execute(conditions.insert().values(**row))


def _of(about: ConditionKind, subject: str) -> ColumnElement[bool]:
    return and_(conditions.c.about == about, conditions.c.subject == subject)


#: Maximum number of alerts that wait for one receiver. Beyond it, the oldest are dropped.
MAX_WAITING = 1000


@dataclass(frozen=True)
class AlertCause:
    """The cause of an alert, while it lasts.

    Attributes:
        key: its identity.
        since: when it was first seen.
        alerted_on: when an alert was last sent for it, if ever.
        count: number of failed files reported by alerts.
        note: data for its alert.
    """

    key: str
    since: datetime
    alerted_on: datetime | None = None
    count: int = 0
    note: str = ""


@dataclass(frozen=True)
class WaitingAlert:
    """An alert that waits for delivery.

    Attributes:
        attempts: number of failed deliveries. The newest failed with ``error``.
    """

    id: int
    receiver: str
    payload: Mapping[str, Any]
    created_on: datetime
    attempts: int
    error: str | None


@dataclass(frozen=True)
class UndeliveredAlerts:
    """The alerts waiting for a receiver whose newest delivery failed with ``error``."""

    receiver: str
    count: int
    since: datetime
    error: str


class Alerts:
    """Rows of ``alert_causes`` and ``alerts``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def causes(self) -> Mapping[str, AlertCause]:
        """Returns all causes by their keys."""
        return {cause.key: cause for cause in self._database.all(select(alert_causes), AlertCause)}

    def record(
        self, *, changed: Sequence[AlertCause], gone: Sequence[str], made: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> None:
        """Stores new and changed causes, deletes ended ones, and adds alerts (pairs of receiver and
        payload)."""
        now = datetime.now(UTC)
        rows = [{"receiver": receiver, "payload": dict(payload), "created_on": now, "attempts": 0} for receiver, payload in made]
        with self._database.transaction() as transaction:
            for chunk in groups([*gone, *(cause.key for cause in changed)], MAX_BOUND):
                transaction.execute(delete(alert_causes).where(alert_causes.c.key.in_(chunk)))
            if changed:
                transaction.execute(insert(alert_causes), [asdict(cause) for cause in changed])
            if rows:
                transaction.execute(insert(alerts), rows)

    def next_for(self, receiver: str, limit: int = 1) -> Sequence[WaitingAlert]:
        """Returns the alerts to deliver next: with the fewest failed attempts, then the oldest."""
        query = select(alerts).where(alerts.c.receiver == receiver).order_by(alerts.c.attempts, alerts.c.id).limit(limit)
        return self._database.all(query, WaitingAlert)

    def delivered(self, waiting_alerts: Sequence[WaitingAlert]) -> None:
        """Removes alerts that were delivered."""
        self._database.write(delete(alerts).where(_among(waiting_alerts)))

    def failed(self, waiting_alerts: Sequence[WaitingAlert], error: str) -> None:
        """Records that the delivery of alerts failed."""
        self._database.write(update(alerts).where(_among(waiting_alerts)).values(attempts=alerts.c.attempts + 1, error=error))

    def drop(self, *, receivers: Sequence[str], before: datetime) -> int:
        """Drops alerts for other receivers, alerts older than ``before``, and alerts beyond
        :data:`MAX_WAITING`.

        Returns:
            The number of dropped alerts.
        """
        obsolete: ColumnElement[bool] = alerts.c.receiver.not_in(receivers) | (alerts.c.created_on < before)
        dropped = 0
        with self._database.transaction() as transaction:
            dropped += transaction.execute(delete(alerts).where(obsolete)).rowcount
            for receiver in receivers:
                of_receiver = alerts.c.receiver == receiver
                newest = select(alerts.c.id).where(of_receiver).order_by(alerts.c.id.desc()).offset(MAX_WAITING - 1).limit(1)
                oldest = transaction.execute(newest).scalar_one_or_none()
                if oldest is not None:
                    dropped += transaction.execute(delete(alerts).where(of_receiver, alerts.c.id < oldest)).rowcount
        return dropped

    def waiting(self) -> Mapping[str, int]:
        """Returns the number of waiting alerts by receiver."""
        query = select(alerts.c.receiver, func.count()).group_by(alerts.c.receiver)
        return {receiver: int(count) for receiver, count in self._database.rows(query)}

    def undelivered(self) -> Sequence[UndeliveredAlerts]:
        """Returns the receivers to which deliveries fail."""
        query = select(alerts).where(alerts.c.error.is_not(None)).order_by(alerts.c.receiver, alerts.c.id)
        undelivered: dict[str, UndeliveredAlerts] = {}
        for row in self._database.rows(query):
            first = undelivered.get(row.receiver)
            count, since = (1, row.created_on) if first is None else (first.count + 1, first.since)
            undelivered[row.receiver] = UndeliveredAlerts(row.receiver, count, since, row.error)
        return list(undelivered.values())


def _among(waiting_alerts: Sequence[WaitingAlert]) -> ColumnElement[bool]:
    return alerts.c.id.in_([alert.id for alert in waiting_alerts])
