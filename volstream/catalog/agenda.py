"""Notices which jobs may have work, whichever process gave it to them: by one query for all of them, and only after a commit."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from sqlalchemy import exists, func, select

from volstream.base.definitions import Job
from volstream.base.model.work import PlanState
from volstream.catalog.database import Database
from volstream.catalog.definitions import Copies, Definitions
from volstream.catalog.failures import DUE
from volstream.catalog.tables import failures, jobs, plans, streams, volumes

#: What decides whether a job of files has work: its definition, its stream's offset, the refreshes of its volume, an open plan,
#: and when a failed file is due.
_MARKS = (
    select(
        jobs.c.id,
        jobs.c.revision,
        streams.c.offset,
        streams.c.initial,
        volumes.c.refresh_count,
        exists().where(plans.c.stream_id == jobs.c.stream_id, plans.c.state == PlanState.OPEN),
        select(func.min(failures.c.next_try)).where(failures.c.job_id == jobs.c.id, failures.c.state.in_(DUE)).scalar_subquery(),
    )
    .outerjoin(streams, streams.c.id == jobs.c.stream_id)
    .outerjoin(volumes, volumes.c.id == streams.c.source_id)
)


class Agenda:
    """The jobs of a catalog, and which of them may have new work. For use by one thread."""

    def __init__(self, database: Database, definitions: Definitions[Job]) -> None:
        self._database = database
        self._jobs = Copies(definitions)
        self._version: int | None = None
        self._marks: Mapping[str, Any] = {}

    @property
    def jobs(self) -> list[Job]:
        """The jobs as of the last look, those of high priority first."""
        return sorted(self._jobs.all.values(), key=lambda job: -job.priority)

    def changed(self) -> Set[str]:
        """Returns the ids of the jobs that may have new work since the last look. Raises CatalogError."""
        version = self._database.version()
        if version is not None and version == self._version:
            return set()
        self._jobs.follow()
        before, self._marks = self._marks, {row[0]: tuple(row) for row in self._database.rows(_MARKS)}
        self._version = version
        return {identity for identity, mark in self._marks.items() if before.get(identity) != mark}
