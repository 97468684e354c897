"""Detects cheaply which objects of a catalog have changed since the last check, in any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, exists, func, select

from volstream.base.definitions import Job
from volstream.base.model.names import Name
from volstream.base.model.work import BatchState, PlanState, groups
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.database import MAX_BOUND, Database, Version
from volstream.catalog.definitions import DefinitionCache, Definitions
from volstream.catalog.failures import MARKS, earliest_try, times
from volstream.catalog.tables import (
    audit,
    batches,
    conditions,
    job_totals,
    jobs,
    plans,
    rejected,
    sources,
    streams,
    tails,
    volumes,
)

#: The topics of everything that does not belong to a volume or job, and of background tasks.
HOME, TASKS = "home", "tasks"


class Changes:
    """Polls a catalog. For use by one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._version: Version | None = None
        self._marks: Mapping[str, object] = {}

    def since_last(self) -> set[str]:
        """Returns the topics whose facts changed: ``volume:NAME``, ``job:NAME``, :data:`HOME`, :data:`TASKS`.

        The first call returns all topics.

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
    work = [_by_first(rows(query)) for query in (opened, MARKS, select(job_totals))]
    problems = rows(select(conditions.c.subject, conditions.c.about, conditions.c.cause).order_by(conditions.c.subject))
    causes = _by_first(problems)
    others = [row for row in problems if row.about in (ConditionKind.SOURCE, ConditionKind.TABLE, ConditionKind.METASTORE)]
    marks: dict[str, object] = {
        f"volume:{Name(row.schema_name, row.name)}": (row, unusable.get(row.id), causes.get(row.id)) for row in of_volumes
    } | {f"job:{Name(row.schema_name, row.name)}": (row, *(by_job.get(row.id) for by_job in (*work, causes))) for row in of_jobs}
    last_action = rows(select(func.max(audit.c.id), func.max(audit.c.ended_on)))
    marks[HOME] = [others, last_action, *(rows(select(table)) for table in (streams, sources, tails))]
    progress = select(audit.c.id, audit.c.state, audit.c.step, audit.c.done)
    marks[TASKS] = [last_action, *rows(progress.where(audit.c.cluster.is_not(None), audit.c.ended_on.is_(None)))]
    return {topic: repr(mark) for topic, mark in marks.items()}


def _by_first(rows: Sequence[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return groups


# Finds jobs that may have work, from any process: one query for all jobs, run only after a commit.


class AgendaEntry(NamedTuple):
    """The facts that decide whether a job has work.

    Attributes:
        offset, initial: of its stream.
        source_id, newest: its volume and the volume's newest refresh. None if it reads no volume, or the
            volume was dropped.
        has_plan: True if a plan is open.
        next_try: time of the next retry of a failed file, if any.
        has_condition: True if a problem of the job is recorded.
    """

    id: str
    revision: int
    offset: int | None
    initial: bool | None
    source_id: str | None
    newest: int | None
    has_plan: bool
    next_try: datetime | None
    has_condition: bool

    @property
    def has_news(self) -> bool:
        """True if the volume was refreshed since the stream was read."""
        return self.newest is not None and self.newest > (self.offset or 0)

    def may_have_work(self, now: datetime) -> bool:
        """True if there may be work. Does not consider rows of files that left the volume unnoticed."""
        return (
            self.newest is None
            or self.has_news
            or bool(self.initial and self.offset is not None)
            or self.has_plan
            or self.is_due(now)
        )

    def is_due(self, now: datetime) -> bool:
        """True if a retry of a failed file is due."""
        return self.next_try is not None and self.next_try <= now


class Agenda:
    """The jobs of a catalog, and which of them may have new work. For use by one thread.

    Attributes:
        jobs: by id, as of the last read of all jobs.
        entries: by job id, as of the last read of each.
    """

    def __init__(self, database: Database, definitions: Definitions[Job]) -> None:
        self.jobs: Mapping[str, Job] = {}
        self.entries: dict[str, AgendaEntry] = {}
        self._database = database
        self._copies = DefinitionCache(definitions)
        self._of_volumes: Mapping[str, set[str]] = {}
        self._version: Version | None = None

    def changed(self) -> Set[str]:
        """Reads all jobs if there was a commit. Returns the ids of jobs that may have new work. Raises
        CatalogError."""
        version = self._database.version()
        if version == self._version:
            return set()
        rows = self._database.rows(_ENTRIES, **times(datetime.now(UTC)))
        found = {entry.id: entry for entry in map(AgendaEntry._make, rows)}
        self._copies.follow({entry.id: entry.revision for entry in found.values()})
        self.jobs = self._copies.all
        before, self.entries = self.entries, found
        self._version = version
        self._of_volumes = {}
        for entry in self.entries.values():
            if entry.source_id is not None:
                self._of_volumes.setdefault(entry.source_id, set()).add(entry.id)
        return {identity for identity, entry in self.entries.items() if before.get(identity) != entry}

    def look(self, ids: Set[str]) -> None:
        """Reads some jobs. Raises CatalogError."""
        for some in groups(ids, MAX_BOUND):
            found = map(AgendaEntry._make, self._database.rows(_SOME_ENTRIES, some=some, **times(datetime.now(UTC))))
            self.entries |= {entry.id: entry for entry in found}

    def in_turn(self, since: Mapping[str, float]) -> Sequence[Job]:
        """Returns jobs in the order in which to run them: by priority, then the longest waiting first.

        Args:
            since: when each job began to wait, by id.
        """
        known = [(-self.jobs[job_id].priority, at, job_id) for job_id, at in since.items() if job_id in self.jobs]
        return [self.jobs[job_id] for _, _, job_id in sorted(known)]

    def is_outdated(self, job_id: str) -> bool:
        """True if a job in ``jobs`` is known to have changed since it was read."""
        entry = self.entries.get(job_id)
        return entry is not None and entry.revision != self._copies.revisions.get(job_id)

    def of_volumes(self, ids: Set[str]) -> Set[str]:
        """Returns the ids of the jobs that read some volumes."""
        return {job_id for volume_id in ids for job_id in self._of_volumes.get(volume_id, ())}


_ENTRIES = (
    select(
        jobs.c.id,
        jobs.c.revision,
        streams.c.offset,
        streams.c.initial,
        volumes.c.id.label("source_id"),
        volumes.c.refresh_count.label("newest"),
        exists().where(plans.c.stream_id == jobs.c.stream_id, plans.c.state == PlanState.OPEN).label("has_plan"),
        earliest_try(jobs.c.id).scalar_subquery().label("next_try"),
        exists().where(conditions.c.about == ConditionKind.JOB, conditions.c.subject == jobs.c.id).label("has_condition"),
    )
    .outerjoin(streams, streams.c.id == jobs.c.stream_id)
    .outerjoin(volumes, volumes.c.id == streams.c.source_id)
)
_SOME_ENTRIES = _ENTRIES.where(jobs.c.id.in_(bindparam("some", expanding=True)))
