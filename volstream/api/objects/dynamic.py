"""Dynamic tables: tables that a job keeps equal to a query's result."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack, cast

from volstream.api.objects.collections import Collection
from volstream.api.objects.jobs import Jobs
from volstream.base.definitions import DynamicJob, DynamicJobSpec, DynamicTableOptions
from volstream.base.definitions.options import read, to_create
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name, similar
from volstream.catalog.definitions import Definitions, check_exclusive
from volstream.errors import AlreadyExistsError, NotFoundError

if TYPE_CHECKING:
    from volstream.base.definitions.keywords import DynamicTableKeywords
    from volstream.home import Home


@checked
class DynamicTables(Collection[DynamicJob]):
    """Tables that hold a query's result.

    Each is kept by a job of the same name, which can be paused, run and listed.
    """

    kind = "dynamic table"

    def __init__(self, home: Home, jobs: Jobs) -> None:
        super().__init__(home, cast("Definitions[DynamicJob]", home.catalog.jobs))
        self._jobs = jobs

    @takes(to_create(DynamicTableOptions, "query"))
    def create(
        self,
        name: str,
        query: str,
        *,
        or_replace: bool = False,
        if_not_exists: bool = False,
        **options: Unpack[DynamicTableKeywords],
    ) -> DynamicJob:
        """Creates a dynamic table, fills it, and creates the job that keeps it.

        Args:
            query: reads tables whose changes are tracked, and directories of volumes.
            options: when the daemon refreshes it (``on_change``, ``every``, ``cron``; without them only
                :meth:`refresh` does), and a ``comment``.

        Raises:
            SqlError: it is not a query, Spark rejects it, it reads a stream, or it reads no table or volume
                of the home.
            NotFoundError: a table does not exist.
            InvalidStateError: the changes of a table are not tracked.
            AlreadyExistsError: the name is taken.
        """
        from volstream.api.statements import dynamic
        from volstream.jobs.rules.definitions import create_job
        from volstream.jobs.runs.lease import held
        from volstream.tables.delta import places
        from volstream.tables.delta.places import is_table

        values = read(DynamicTableOptions, options)
        check_exclusive(or_replace=or_replace, if_not_exists=if_not_exists)
        catalog, table = self._home.catalog, Name.parse(name)
        existing = catalog.jobs.find(table)
        replaced = isinstance(existing, DynamicJob)
        if isinstance(existing, DynamicJob) and if_not_exists:
            return existing
        spec = DynamicJobSpec(
            name=table, into=table, query=query, own_streams=dynamic.stream_specs(self._home, table, query), **values
        )
        if replaced and or_replace:
            dynamic.check_query(self._home, table, query)
            self.drop(name)
        elif (
            existing is not None
            or catalog.streams.find(table) is not None
            or is_table(places.table_location(self._home.warehouse, table))
        ):
            raise AlreadyExistsError(f"There is already a table, stream or job {table}.", "Choose another name.")
        job_id = str(uuid.uuid4())
        # No daemon may run the job from before it exists until its table is filled.
        with held(catalog, job_id, table, self._home.settings.lease_seconds) as owner:
            job = create_job(self._home, spec, job_id=job_id)
            try:
                assert isinstance(job, DynamicJob), "made from a DynamicJobSpec"
                dynamic.make_table(self._home, job)
                self._jobs.run(name, owner=owner)
            except BaseException:
                self.drop(name)
                raise
        return job

    def find(self, name: str) -> DynamicJob:
        """Returns the job that keeps the table. Raises NotFoundError."""
        self._home.check_open()
        job = self._home.catalog.jobs.find(Name.parse(name))
        if not isinstance(job, DynamicJob):
            suggestions = similar(Name.parse(name), (table.name for table in self.list()))
            raise NotFoundError(f"There is no dynamic table {name}.", f"{suggestions}See: SHOW DYNAMIC TABLES.")
        return job

    def list(self) -> Sequence[DynamicJob]:
        """Returns the jobs that keep dynamic tables, ordered by name."""
        self._home.check_open()
        return self._definitions.list(cls=DynamicJob.__name__)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and isinstance(self._definitions.find(Name.parse(name)), DynamicJob)

    def refresh(self, name: str) -> int:
        """Brings the table up to date.

        Returns the number of rows written, if known. Raises as :meth:`Jobs.run`.
        """
        return self._jobs.run(str(self.get(name).name)).progress.rows

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a dynamic table with its rows and its job. Returns False if it does not exist and
        ``if_exists`` is set.

        Raises:
            NotFoundError: no such dynamic table, without ``if_exists``.
            StreamBusyError: a run is processing a batch.
        """
        from volstream.api.statements import dynamic

        try:
            job = self.get(name)
        except NotFoundError:
            if if_exists:
                return False
            raise
        self._jobs.drop_of_any_kind(str(job.name))
        dynamic.drop_table(self._home, job.into)
        return True
