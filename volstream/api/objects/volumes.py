"""Volumes, and refreshes of their directory tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from volstream.api.objects.collections import Collection, Streams
from volstream.api.objects.dynamic import DynamicTables
from volstream.api.objects.jobs import Jobs
from volstream.base.definitions import DynamicJob, FileJob, Volume, VolumeSpec
from volstream.base.definitions.options import read, to_alter, to_create
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, Failure, PlanKind
from volstream.base.threads import Stop
from volstream.errors import InvalidStateError, NotFoundError
from volstream.files.volumes import definitions as volume_rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.base.definitions.keywords import VolumeKeywords
    from volstream.changes.directory.keeper import RefreshResult
    from volstream.changes.directory.reconcile import ComparedDirectory
    from volstream.home import Home


@checked
class Volumes(Collection[Volume]):
    """Volumes and their directory tables."""

    _spec, _revertible = VolumeSpec, frozenset({*to_alter(VolumeSpec), "connection_id"})

    def __init__(self, home: Home, streams: Streams, jobs: Jobs, dynamic_tables: DynamicTables) -> None:
        super().__init__(home, home.catalog.volumes)
        self._streams = streams
        self._jobs = jobs
        self._dynamic_tables = dynamic_tables

    @takes(to_create(VolumeSpec, "location"))
    def create(
        self,
        name: str,
        location: str,
        *,
        or_replace: bool = False,
        if_not_exists: bool = False,
        check: bool = True,
        **options: Unpack[VolumeKeywords],
    ) -> Volume:
        """Creates a volume. Options are those of :class:`~volstream.base.definitions.VolumeSpec`. Its files
        are not listed yet.

        Args:
            check: first check that the directory or bucket, and the queue, can be reached.
            or_replace: replace an existing volume of that name. The streams on the old one become stale.

        Raises:
            InvalidValueError: an invalid location, connection, glob, limit or queue.
            AlreadyExistsError: the name is taken.
            ObjectInUseError: a job writes its outputs to the volume that would be replaced.
            NotFoundError: the directory or the connection does not exist.
            StorageError, QueueError: with ``check``, the bucket or the queue cannot be reached.
            StorageDeniedError: with ``check``, access was denied.
        """
        spec = VolumeSpec(name=Name.parse(name), location=location, **read(VolumeSpec, options))
        return volume_rules.create_volume(
            self._home.catalog, self._home.settings, spec, or_replace=or_replace, if_not_exists=if_not_exists, check=check
        )

    def files(self, name: str) -> DataFrame:
        """Returns the files of a volume, from its directory table. Raises NotFoundError, SqlError."""
        return self.frame(name)

    def _relation(self, definition: Volume) -> str:
        return f"DIRECTORY(VOLUME {definition.name.qualified})"

    def matching(self, name: str) -> tuple[int, int, bool]:
        """Returns the number of files that belong to a volume, the number of examined files, and whether all
        were examined.

        Lists some of the files and stores nothing. Raises NotFoundError, StorageError.
        """
        return volume_rules.matching(self._home.catalog, self._home.settings, Name.parse(name))

    @takes(to_alter(VolumeSpec), changes=True)
    def alter(self, name: str, *, check: bool = True, **changes: Unpack[VolumeKeywords]) -> Volume:
        """Changes a volume: options of :meth:`create`.

        The next full listing applies new patterns: files that they exclude are removed, files that they
        include are new.

        Args:
            check: first check that the directory or bucket, and the queue, can be reached.

        Raises:
            NotFoundError: no such volume.
            Otherwise as :meth:`create`.
        """
        catalog, settings = self._home.catalog, self._home.settings
        values = read(VolumeSpec, changes)
        return volume_rules.alter_volume(catalog, settings, Name.parse(name), check=check, **values)

    def _put_back(self, current: Volume, changes: Mapping[str, Any]) -> Volume:
        catalog, values = self._home.catalog, dict(changes)
        if "connection_id" in values:
            connection = catalog.connections.by_id(values.pop("connection_id"))
            values["connection"] = None if connection is None else connection.name
        return volume_rules.alter_volume(catalog, self._home.settings, current.name, check=False, **values)

    def drop(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> bool:
        """Drops a volume. Its files stay, its streams become stale.

        Returns False if it does not exist and ``if_exists`` is set.

        Args:
            cascade: also drop the streams on it, the jobs and dynamic tables that consume them, and jobs that
                write their outputs there. Result tables stay.

        Raises:
            NotFoundError: no such volume, without ``if_exists``.
            ObjectInUseError: a job processes its files, or writes its outputs there. Not with ``cascade``.
        """
        volume = self._home.catalog.volumes.find(Name.parse(name)) if cascade else None
        if volume is not None:
            for job in volume_rules.jobs_using(self._home.catalog, volume):
                (self._dynamic_tables if isinstance(job, DynamicJob) else self._jobs).drop(str(job.name))
            for stream in volume_rules.streams_on(self._home.catalog, volume):
                self._streams.drop(str(stream.name))
        return volume_rules.drop_volume(self._home.catalog, Name.parse(name), if_exists=if_exists)

    def verify(self, name: str, *, stop: Stop | None = None) -> ComparedDirectory:
        """Lists the volume and compares the directory table with the listing. Changes nothing.

        Raises:
            StorageError: the listing did not complete.
            NotFoundError: there is no such volume, or it was never listed.
        """
        from volstream.changes.directory.reconcile import compared

        return compared(self._home.catalog, self._home.settings, self.get(name), Stop() if stop is None else stop)

    def refresh(
        self,
        name: str,
        subdirectory: str = "",
        *,
        accept_removals: bool = False,
        inventory: str | None = None,
        stop: Stop | None = None,
    ) -> RefreshResult:
        """Lists the volume, or a subdirectory of it, and brings the directory table up to date.

        If a daemon keeps the volume, requests the refresh from it and waits.

        Args:
            accept_removals: apply removals beyond the volume's limit.
            inventory: URI of an inventory report of the bucket, or of the folder with the reports, to read
                the newest instead of listing the bucket. The directory table is then up to date as of the
                report.

        Raises:
            StorageError: the listing did not complete, or the report is damaged. Nothing was changed.
            NotFoundError: the subdirectory has no files, and none were known, or there is no report.
            InvalidValueError: the report is about something else, or lacks a field.
            InvalidStateError: the directory table is newer than the report, or a daemon keeps the volume and
                a report is given.
        """
        from volstream.changes.directory.keeper import refresh

        return refresh(
            self._home.catalog,
            self._home.settings,
            self.get(name),
            subdirectory,
            accept_removals=accept_removals,
            inventory=inventory,
            stop=stop,
        )


# Batches: files that were or will be consumed together.


@checked
class Batches:
    """Slices of streams' ranges that jobs processed or will process together, identified by id."""

    def __init__(self, home: Home, jobs: Jobs) -> None:
        self._home = home
        self._jobs = jobs

    def list(self, job: str | None = None, *, limit: int = 1000) -> Sequence[Batch]:
        """Returns the newest batches, of one job or of all."""
        job_id = self._jobs.get(job).id if job else None
        return self._home.catalog.reports.batches_of(job_id, limit=limit)

    def get(self, identity: str) -> Batch:
        """Returns the batch with that id. Raises NotFoundError."""
        batch = self._home.catalog.reports.batch(identity)
        if batch is None:
            raise NotFoundError(f"There is no batch {identity!r}.", "See: volstream list batches.")
        return batch

    def failures(self, identity: str) -> Sequence[Failure]:
        """Returns the failures of a batch's files that have neither changed nor been processed since."""
        batch = self.get(identity)
        after, until = batch.paths
        return self._home.catalog.failures.active(batch.job_id, after=after, until=until, batch_id=batch.id)

    def read(self, identity: str) -> DataFrame:
        """Returns the files of a batch, the same at each call.

        Columns are the directory's, ``commit_version``, the file's ``action``, and ``old_path`` of a moved
        file. For a batch of a statement, returns the stream's rows.

        Raises:
            NotFoundError: no such batch.
            InvalidStateError: a batch of retries has ended, its stream was dropped, or its history was
                deleted.
        """
        batch = self.get(identity)
        plan = self._home.catalog.reports.plan(batch.plan_id)
        stream = self._home.catalog.streams.by_id(batch.stream_id)
        assert plan is not None, "a batch refers to its plan"
        if stream is None:
            raise InvalidStateError(f"The stream of batch {identity} was dropped.")
        if plan.kind is PlanKind.STATEMENT:
            reader = self._home.reader
            return reader.frame(self._home.spark, reader.range_of(plan, stream))
        job = self._home.catalog.jobs.by_id(batch.job_id) if batch.job_id else None
        assert isinstance(job, FileJob), "except for those of statements, batches belong to a job, and are removed with it"
        services = self._jobs.services
        with services.session(self._home.spark) as session:  # so that its frames can be joined with others
            return services.planner.files_of(session, job, plan, batch, stream)
