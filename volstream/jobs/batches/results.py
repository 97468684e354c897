"""The result table: created or checked before any file is processed. Each batch is one commit to it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import FileJob, Job, OnMove, SourceKind, StreamMode, Write
from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, Plan
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.errors import DependencyError, InvalidStateError, reason_of
from volstream.functions.schema import key_column, of_job, of_table, to_ddl
from volstream.jobs.batches.ledger import STORES
from volstream.jobs.batches.staged import Staged
from volstream.jobs.plans.plan import Moved, moved, removed_paths
from volstream.jobs.rules import code
from volstream.jobs.rules.targets import check_target, missing_columns
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import relation
from volstream.sql.text import table_at
from volstream.tables.delta import direct, places, upkeep
from volstream.tables.delta.damage import Damage, damage_of, drop_checkpoints, may_change_rows, remove_files
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.opened import OpenTable, newest_version
from volstream.tables.delta.ownership import OWNER, UPKEEP, is_open, owner_of
from volstream.tables.delta.writer import DeltaWriter

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home

_log = get("jobs")

#: Stops Parquet's writer from keeping minimum and maximum values. It keeps them in full for all row groups
#: until a file ends, so a file of large rows would be in memory twice.
_WITHOUT_STATISTICS = {"parquet.column.statistics.enabled": "false"}

#: Columns that identify the file content of a row, when the row was made, and its batch.
_CONTENT_COLUMNS = ["_file_path", "_file_version", "_processed_at", "_batch_id"]

#: Small files are compacted for about this long at a time.
_UPKEEP_SECONDS = 1.0


class OwnCommits:
    """Recognizes a job's own commits to a table. Returns the batch in their metadata, or None."""

    def __init__(self, catalog: Catalog, job: FileJob) -> None:
        self._catalog = catalog
        self._job = job

    def __call__(self, metadata: Mapping[str, Any]) -> str | None:
        batch = metadata.get("batch")
        if not isinstance(batch, str):
            return None
        if metadata.get("stream") == self._job.stream_id:
            return batch
        known = self._catalog.reports.batch(batch)
        return batch if known is not None and known.job_id == self._job.id else None


class ResultTables:
    """Creates result tables and adapts them to a job's columns."""

    def __init__(self, home: Home) -> None:
        self._catalog = home.catalog
        self._delta = home.delta
        self._warehouse = home.warehouse
        self._locations: dict[Name, str] = {}

    def location_of(self, job: Job) -> str:
        """Returns the location of a job's table, which is constant during this object's life."""
        if job.into not in self._locations:
            self._locations[job.into] = places.table_location(self._warehouse, job.into)
        return self._locations[job.into]

    def exists(self, job: FileJob) -> bool:
        """Returns whether the job's table exists, according to its log."""
        return newest_version(self.location_of(job)) is not None

    def prepare(self, job: FileJob) -> FileJob:
        """Creates the job's table, or checks that the job may write to it. Returns the job with ``clean`` up
        to date.

        Uses Spark only to create or change the table.

        Raises:
            InvalidStateError: the table belongs to another job or to no job, or has expressions.
            InvalidValueError: a column's type differs from the function's.
        """
        location = self.location_of(job)
        wanted = of_table(job)
        table = OpenTable.newest(location)
        if table is None or not table.schema.types:
            properties = {OWNER: job.id} if job.write is Write.UPSERT else {UPKEEP: "on"}
            if not direct.create(location, wanted, properties):
                self._delta.create(location, to_ddl(wanted), properties | {"delta.enableDeletionVectors": "true"})
            table = OpenTable.newest(location)
            if table is None:
                raise DependencyError(f"The table {job.into} was dropped while its job created it.")
            if job.write is Write.UPSERT and table.properties.get(OWNER) == job.id:
                return self._catalog.jobs.change(job, clean=self._shows_deletes(job), verified_version=None)
        table.check_plain(job.into)  # it is a log, or another job created and owns it
        if not job.loads:
            check_target(self._catalog, job.into, location, of_job(job).names)
        owner = table.properties.get(OWNER)
        adopted = job.write is Write.UPSERT and owner != job.id
        if adopted:
            self._check_owner(job, owner)
        self._fit(job, location, table, owner if adopted else job.id)
        if adopted:
            self._delta.set_properties(location, {OWNER: job.id})
            return self._catalog.jobs.change(job, clean=False, may_have_strays=True)
        if job.clean and is_open(table.properties):
            return self._catalog.jobs.change(job, clean=False)
        return job

    def damages(self, job: FileJob, *, whole: bool = False) -> Sequence[Damage]:
        """Returns the damages of the job's table, and of the tables that it keeps beside it. See
        :func:`damage_of`."""
        found = [damage_of(self.location_of(job), "table", whole=whole)]
        found += [damage_of(store.of(self._warehouse, job.id), store.what) for store in STORES if store.is_table]
        return [damage for damage in found if damage is not None]

    def mend(self, job: FileJob, damage: Damage) -> None:
        """Makes the job's table, or one beside it, readable again. Unreadable rows are lost.

        Raises:
            InvalidStateError: the table may have rows that the job cannot produce again.
        """
        location = damage.location
        if location in [store.of(self._warehouse, job.id) for store in STORES]:
            places.remove(location)
        elif damage.files and job.takes_files:
            raise InvalidStateError(
                f"The table {job.into} has rows of files that have left the volume, but {damage}.",
                "Restore the table from a backup; or drop it with its job, and load the archive by another one.",
            )
        elif damage.files:
            remove_files(location, damage.files, (key_column(job), "_batch_id"))
        elif not drop_checkpoints(location):
            if job.write is Write.APPEND or location != places.own_location(self._warehouse, job.into):
                raise InvalidStateError(
                    f"The table {job.into} may have rows that its job cannot produce again, but {damage}.",
                    f"Restore the log from a backup, or delete {location} and run: volstream verify {job.name} --fix",
                )
            places.remove(f"{location}/_delta_log", within=location)

    def compact(self, job: FileJob, commits: int, stop: Stop) -> None:
        """Compacts the table's files if many are small. Starts no further compaction after a second. Failures
        are logged.

        Args:
            commits: number of commits since the last call. 0 means that the job is idle, and also removes
                deleted rows from small files.
        """
        location = self.location_of(job)
        idle = not commits
        if not (idle or upkeep.is_due(location, commits)):
            return
        began = time.monotonic()
        try:
            while upkeep.compact(location, key_column(job), without_vectors=idle):
                if stop or time.monotonic() > began + _UPKEEP_SECONDS:
                    break
            if upkeep.is_old(location, commits):
                self._clean(job, location)
        # The run is over: a table that is not compact is no failure of it.
        except Exception as error:  # noqa: BLE001
            _log.warning("upkeep_failed", job=str(job.name), reason=reason_of(error))

    def _clean(self, job: FileJob, location: str) -> None:
        """Deletes old versions of the table and unneeded files.

        Keeps versions that streams have not consumed, versions that show whether an open attempt was
        committed, and other writers' changes that no ``verify`` has checked.
        """
        streams = self._catalog.streams.list(source_id=str(job.into))
        offsets = [stream.offset for stream in streams if stream.source_kind is SourceKind.TABLE]
        versions = [offset for offset in offsets if offset is not None]
        versions += self._catalog.consumptions.open_versions(location)
        until = min(versions, default=None)
        owner = owner_of(self._catalog, location)
        if owner is None:
            upkeep.clean(location, until, lambda *_: True)
            return
        if owner.id != job.id or not isinstance(owner, FileJob):
            upkeep.clean(location, until)  # only the owner's runs know what may be deleted
            return
        own = OwnCommits(self._catalog, owner)
        proven = -1 if owner.verified_version is None else owner.verified_version

        def may_go(number: int, actions: Sequence[Mapping[str, Any]]) -> bool:
            return number <= proven or not may_change_rows(actions, own)

        def record(first: int, begin: int) -> None:
            if first <= proven + 1 < begin:
                self._catalog.jobs.replace(owner, "verified_version", begin - 1)

        upkeep.clean(location, until, may_go, record)
        code.prune(self._catalog, self._warehouse, owner)

    def _shows_deletes(self, job: FileJob) -> bool:
        """Returns whether the job receives deletes.

        If not, a path that returns is an INSERT although it has old rows.
        """
        stream = self._catalog.streams.by_id(job.stream_id)
        return stream is not None and stream.mode is StreamMode.STANDARD

    def _check_owner(self, job: FileJob, owner: str | None) -> None:
        other = self._catalog.jobs.by_id(owner) if owner else None
        if other is not None:
            raise InvalidStateError(
                f"The table {job.into} mirrors the files of job {other.name}.",
                f"Let {job.name} write another table, or only append to it (write append).",
            )

    def _fit(self, job: FileJob, location: str, table: OpenTable, owner: str | None) -> None:
        missing = missing_columns(job, table, owner)
        if missing is None:
            _log.info("table_replaced", job=str(job.name), table=str(job.into), reason="it is empty, and has other columns")
            self._delta.replace(location, to_ddl(of_table(job)))
        elif missing:
            self._delta.add_columns(location, ", ".join(missing))


def followed(
    session: SparkSession, files: Sequence[Moved], location: str, births: Mapping[str, datetime]
) -> Mapping[str, tuple[str, str]]:
    """Returns the moved files whose rows can follow them, each with its old path and its rows' batch.

    The rows of the old path must be of this content, and no older than the file: a reused inode with a forged
    time has the same version.

    Args:
        location: of the result table.
        births: creation times of the moved files by path, where known.
    """
    rows = direct.rows_of(location, "_file_path", {file.old_path for file in files}, _CONTENT_COLUMNS)
    if rows is None:
        old = relation(session, pa.table({"_file_path": pa.array([file.old_path for file in files], pa.string())}))
        columns = ", ".join(_CONTENT_COLUMNS)
        query = session.sql(f"SELECT {columns} FROM {table_at(location)}").join(old, "_file_path", "left_semi")
        with map_spark_errors():
            rows = query.toArrow()
    columns_of = (rows[name].to_pylist() for name in _CONTENT_COLUMNS)
    present = {(path, version): (made, batch) for path, version, made, batch in zip(*columns_of, strict=True)}
    following: dict[str, tuple[str, str]] = {}
    for file in files:
        processed_at, made_by = present.get((file.old_path, file.old_version), (None, None))
        birth = births.get(file.path)
        if made_by is not None and (processed_at is None or birth is None or birth <= processed_at):
            following[file.path] = file.old_path, made_by
    return following


def changes_of(job: FileJob, plan: Plan, batch: Batch, staged: Staged) -> RowChanges:
    """Returns the changes of a batch to the job's table.

    The rows of processed files are replaced, those of removed files are deleted, and those of moved files
    follow. Failed files keep their rows.
    """
    deleted: list[str] | None = None
    follow: dict[str, Mapping[str, Any]] = {}
    # Otherwise the batch only adds rows: the table has no rows of its files.
    if job.write is not Write.APPEND and (not job.clean or batch.replaced or batch.removals or batch.moves):
        deleted = [*removed_paths(plan.location, batch), *staged.replaced_paths()]
        called = staged.paths() if batch.moves else set()
        for file in moved(plan.location, batch) if batch.moves and job.on_move is OnMove.REKEY else ():
            if file.path not in called:
                deleted.append(file.path)  # it may have rows after a reset of the stream
                follow[file.old_path] = {
                    "_file_path": file.path,
                    "_file_version": file.version,
                    "_refresh_id": file.commit_version,
                    "_batch_id": batch.id,
                }
    return RowChanges([staged.inline()], of_table(job), key_column(job), deleted, staged.files(), follow)


def write_by_spark(session: SparkSession, delta: DeltaWriter, location: str, staged: Staged, changes: RowChanges) -> None:
    """Commits a batch's outcomes to a table that only Spark can write.

    Args:
        session: marked for this attempt.
    """
    rows = staged.rows(session)
    settings = _WITHOUT_STATISTICS if staged.has_large_rows() else {}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        delta.change(session, rows if changes.files else rows.coalesce(1), location, changes)
    finally:
        for key in settings:
            session.conf.unset(key)
