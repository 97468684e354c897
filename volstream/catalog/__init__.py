"""The catalog as one object: one part per kind of row, all in the same database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from volstream.base.definitions import Job, SourceKind, StatementJob, Stream, Volume
from volstream.base.model.names import Name
from volstream.catalog import definitions, tables
from volstream.catalog.alerts import Alerts, Conditions
from volstream.catalog.audit import Audit
from volstream.catalog.consumptions import Consumptions
from volstream.catalog.database import Database
from volstream.catalog.definitions import Definitions, Locations
from volstream.catalog.failures import Failures
from volstream.catalog.leases import Leases
from volstream.catalog.outputs import Outputs
from volstream.catalog.refreshes import Refreshes
from volstream.catalog.reports import Codes, Reports
from volstream.catalog.upkeep import History


class Catalog:
    """The catalog of a home. Connects on first use. Several catalogs can share a database, in one process or
    many.

    Attributes:
        by_kind: the objects that users define, by the singular noun of their kind.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.connections = definitions.connections(self.database)
        self.volumes = definitions.volumes(self.database)
        self.streams = definitions.streams(self.database)
        self.jobs = definitions.jobs(self.database)
        self.functions = definitions.functions(self.database)
        self.sources = definitions.sources(self.database)
        objects = (self.connections, self.volumes, self.streams, self.jobs, self.functions, self.sources)
        self.by_kind: Mapping[str, Definitions[Any]] = {definitions_.kind: definitions_ for definitions_ in objects}
        self.refreshes = Refreshes(self.database)
        self.consumptions = Consumptions(self.database)
        self.codes = Codes(self.database)
        self.reports = Reports(self.database)
        self.failures = Failures(self.database)
        self.outputs = Outputs(self.database)
        self.conditions = Conditions(self.database)
        self.tails = Locations(self.database, tables.tails)
        self.links = Locations(self.database, tables.links)
        self.registrations = Locations(self.database, tables.registrations)
        self.leases = Leases(self.database)
        self.audit = Audit(self.database)
        self.alerts = Alerts(self.database)
        self.history = History(self.database, self.refreshes)

    def identity(self) -> str:
        """Returns the catalog's unique id."""
        return str(self.database.value(select(tables.identity.c.id)))

    def job_of(self, stream: Stream) -> Job | None:
        """Returns the job that consumes the stream, or None. A stream serves at most one job."""
        return next((job for job in self.jobs.list() if stream.id in job.stream_ids), None)

    def maker_of(self, table: Name) -> Job | None:
        """Returns the job that creates a table with its first batch, or None. A statement's table must exist
        before."""
        jobs = self.jobs.list(into_schema=table.schema, into_name=table.name)
        return next((job for job in jobs if not isinstance(job, StatementJob)), None)

    def volume_of(self, job: Job) -> Volume | None:
        """Returns the volume whose files a job reads first, or None if it reads a table or the volume was
        dropped."""
        stream = self.streams.by_id(job.stream_id)
        return None if stream is None else self.volumes.by_id(stream.source_id)

    def is_at_end(self, stream: Stream) -> bool:
        """True if a stream on a volume has consumed all refreshes. Then it is not stale."""
        if stream.source_kind is not SourceKind.VOLUME or stream.initial:
            return False
        volume = self.volumes.by_id(stream.source_id)
        return volume is not None and volume.refresh_count == stream.offset

    def close(self) -> None:
        """Closes the database's connections."""
        self.database.close()
