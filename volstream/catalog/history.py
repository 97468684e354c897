"""Deletes the history of work that ended long ago. Keeps open work and whatever a stream still reads from; all-time totals are
stored separately."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select

from volstream.base.model.work import PlanState
from volstream.catalog import codes
from volstream.catalog.database import Database
from volstream.catalog.refreshes import Refreshes
from volstream.catalog.tables import audit, batches, intents, plans, refreshes, volumes

#: Rows or plans deleted per transaction, which other writers wait for.
_CHUNK = 500


class History:
    """Old rows of ``refreshes``, ``plans``, ``batches``, ``intents`` and ``audit``."""

    def __init__(self, database: Database, refreshes_: Refreshes) -> None:
        self._database = database
        self._refreshes = refreshes_

    def forget(self, before: datetime, *, kept: int) -> int:
        """Deletes history older than ``before``; returns the number of rows, not counting attempts.

        Args:
            kept: number of each volume's newest refreshes to keep regardless of age.
        """
        forgotten = 0
        while removed := self._forget_plans(before):
            forgotten += removed
        with self._database.transaction() as transaction:
            forgotten += transaction.execute(delete(audit).where(audit.c.began_on < before)).rowcount
        for volume_id, count in self._database.rows(select(volumes.c.id, volumes.c.refresh_count)):
            needed = self._refreshes.needed_after(volume_id)
            until = count - kept if needed is None else min(count - kept, needed)
            while removed := self._forget_refreshes(volume_id, until, before):
                forgotten += removed
        return forgotten

    def _forget_plans(self, before: datetime) -> int:
        """Deletes some ended plans, or some of their batches, with the attempts; returns the number of rows."""
        ended = plans.c.state.in_([PlanState.DONE, PlanState.DROPPED])
        with self._database.transaction() as transaction:
            query = select(plans.c.id).where(ended, plans.c.created_on < before).limit(_CHUNK)
            ids = transaction.execute(query).scalars().all()
            mine = select(batches.c.id).where(batches.c.plan_id.in_(ids)).limit(_CHUNK)
            some = transaction.execute(mine).scalars().all()
            codes.keep(transaction, some)
            transaction.execute(delete(intents).where(intents.c.batch_id.in_(some)))
            transaction.execute(delete(batches).where(batches.c.id.in_(some)))
            remaining = select(batches.c.id).where(batches.c.plan_id == plans.c.id)
            gone = transaction.execute(delete(plans).where(plans.c.id.in_(ids), ~remaining.exists())).rowcount
            return len(some) + gone

    def _forget_refreshes(self, volume_id: str, until: int, before: datetime) -> int:
        mine = refreshes.c.volume_id == volume_id
        with self._database.transaction() as transaction:
            first = transaction.execute(select(func.min(refreshes.c.number)).where(mine)).scalar()
            if first is None or first > until:
                return 0
            some = refreshes.c.number.between(first, min(until, first + 10 * _CHUNK))
            return transaction.execute(delete(refreshes).where(mine, some, refreshes.c.committed_on < before)).rowcount
