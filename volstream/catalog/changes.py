"""Detects cheaply which objects of a catalog have changed since the last look, whichever process changed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select

from volstream.base.model.names import Name
from volstream.base.model.work import BatchState
from volstream.catalog.conditions import ConditionKind
from volstream.catalog.database import Database, Version
from volstream.catalog.tables import (
    audit,
    batches,
    conditions,
    failures,
    job_totals,
    jobs,
    rejected,
    sources,
    streams,
    tails,
    volumes,
)

#: The topics of everything that belongs to no volume or job, and of what is done in the background.
HOME, TASKS = "home", "tasks"


class Changes:
    """Polls a catalog. For use by one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._version: Version | None = None
        self._marks: Mapping[str, object] = {}

    def since_last(self) -> set[str]:
        """Returns the topics whose facts changed: ``volume:NAME``, ``job:NAME``, :data:`HOME`,
        :data:`TASKS`. The first call returns all.

        Raises:
            CatalogError: the database failed.
        """
        version = self._database.version()
        if version == self._version:
            return set()
        with self._database.reading() as transaction:
            marks = _marks(transaction)
        before, self._version, self._marks = self._marks, version, marks
        return {topic for topic in {*before, *marks} if before.get(topic) != marks.get(topic)}


def _marks(transaction: Connection) -> dict[str, object]:
    """Returns, by topic, a value that changes with the topic's facts. Reads indexes and small tables."""

    def rows(query: Select[Any]) -> Sequence[Any]:
        return transaction.execute(query).all()

    of_volumes, of_jobs = rows(select(volumes)), rows(select(jobs))
    unusable = _by_first(rows(select(rejected.c.volume_id, func.max(rejected.c.last_seen)).group_by(rejected.c.volume_id)))
    waiting = (BatchState.PLANNED, BatchState.INTENT)
    opened = (
        select(batches.c.job_id, batches.c.state, func.count(), func.sum(batches.c.attempts))
        .where(batches.c.job_id.in_([row.id for row in of_jobs]), batches.c.state.in_(waiting))
        .group_by(batches.c.job_id, batches.c.state)
    )
    failed = select(failures.c.job_id, failures.c.state, func.count(), func.max(failures.c.id)).group_by(
        failures.c.job_id, failures.c.state
    )
    work = [_by_first(rows(query)) for query in (opened, failed.order_by(failures.c.state), select(job_totals))]
    wrong = rows(select(conditions.c.subject, conditions.c.about, conditions.c.cause).order_by(conditions.c.subject))
    wrong_with = _by_first(wrong)
    elsewhere = [row for row in wrong if row.about in (ConditionKind.SOURCE, ConditionKind.TABLE, ConditionKind.METASTORE)]
    marks: dict[str, object] = {
        f"volume:{Name(row.schema_name, row.name)}": (row, unusable.get(row.id), wrong_with.get(row.id)) for row in of_volumes
    } | {
        f"job:{Name(row.schema_name, row.name)}": (row, *(by_job.get(row.id) for by_job in (*work, wrong_with)))
        for row in of_jobs
    }
    acted = rows(select(func.max(audit.c.id), func.max(audit.c.ended_on)))
    marks[HOME] = [elsewhere, acted, *(rows(select(table)) for table in (streams, sources, tails))]
    progress = select(audit.c.id, audit.c.state, audit.c.step, audit.c.done)
    marks[TASKS] = [acted, *rows(progress.where(audit.c.cluster.is_not(None), audit.c.ended_on.is_(None)))]
    return {topic: repr(mark) for topic, mark in marks.items()}


def _by_first(rows: Sequence[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return groups
