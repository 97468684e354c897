"""The result table: created or checked before any file is processed; each batch is committed to it by one statement."""

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

#: Stops Parquet's writer from keeping minimum and maximum values. It keeps them in full for all row groups until a file ends,
#: so that a file of large rows would be in memory twice.
_WITHOUT_STATISTICS = {"parquet.column.statistics.enabled": "false"}

#: Columns of the table that say which content of a file its rows are of, when they were made, and in which batch.
_OF_CONTENT = ["_file_path", "_file_version", "_processed_at", "_batch_id"]

#: Files are put together for about this long at a time.
_UPKEEP_SECONDS = 1.0


class OwnCommits:
    """Tells which commits to a table are a job's own: returns the batch of their metadata, or None."""

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
        """Returns the location of a job's table, which stays the same while this lives."""
        if job.into not in self._locations:
            self._locations[job.into] = places.table_location(self._warehouse, job.into)
        return self._locations[job.into]

    def exists(self, job: FileJob) -> bool:
        """Returns whether the job's table exists, judging by its log."""
        return newest_version(self.location_of(job)) is not None

    def prepare(self, job: FileJob) -> FileJob:
        """Creates the job's table, or checks that the job may write to it; returns the job, with ``clean`` up to date.

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
        table.check_plain(job.into)  # a log; or another job created the table first and owns it
        if not job.loads:
            check_target(self._catalog, job.into, location, of_job(job).names)
        owner = table.properties.get(OWNER)
        taken = job.write is Write.UPSERT and owner != job.id
        if taken:
            self._check_owner(job, owner)
        self._fit(job, location, table, owner if taken else job.id)
        if taken:
            self._delta.set_properties(location, {OWNER: job.id})
            return self._catalog.jobs.change(job, clean=False, may_have_strays=True)
        if job.clean and is_open(table.properties):
            return self._catalog.jobs.change(job, clean=False)
        return job

    def damages(self, job: FileJob, *, whole: bool = False) -> Sequence[Damage]:
        """Returns what cannot be read of the job's table, and of the tables that it keeps beside it. See :func:`damage_of`."""
        found = [damage_of(self.location_of(job), "table", whole=whole)]
        found += [damage_of(store.of(self._warehouse, job.id), store.what) for store in STORES if store.is_table]
        return [damage for damage in found if damage is not None]

    def mend(self, job: FileJob, damage: Damage) -> None:
        """Makes the job's table, or one beside it, readable again. What cannot be read of it is lost.

        Raises:
            InvalidStateError: the table may have rows that the job cannot make again.
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
        """Puts small files of the table together, if there are many, and begins with no more after a second. A failure is logged.

        Args:
            commits: number of the commits since the last call; 0: the job rests, so that rows deleted from small files are left
                out, too.
        """
        location = self.location_of(job)
        rests = not commits
        if not (rests or upkeep.is_due(location, commits)):
            return
        began = time.monotonic()
        try:
            while upkeep.compact(location, key_column(job), without_vectors=rests):
                if stop or time.monotonic() > began + _UPKEEP_SECONDS:
                    break
            if upkeep.is_old(location, commits):
                self._clean(job, location)
        except Exception as error:  # noqa: BLE001  # the run is over: a table that is not light is no failure of it
            _log.warning("upkeep_failed", job=str(job.name), reason=reason_of(error))

    def _clean(self, job: FileJob, location: str) -> None:
        """Forgets old versions of the table, but for what streams have not consumed, what tells whether an open attempt was
        committed, and changes of other writers that no ``verify`` has seen; and deletes what nothing needs any more."""
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
            upkeep.clean(location, until)  # only the owner's runs know what may be forgotten
            return
        own = OwnCommits(self._catalog, owner)
        proven = -1 if owner.verified_version is None else owner.verified_version

        def may_go(number: int, actions: Sequence[Mapping[str, Any]]) -> bool:
            return number <= proven or not may_change_rows(actions, own)

        def note(first: int, begin: int) -> None:
            if first <= proven + 1 < begin:
                self._catalog.jobs.replace(owner, "verified_version", begin - 1)

        upkeep.clean(location, until, may_go, note)
        code.prune(self._catalog, self._warehouse, owner)

    def _shows_deletes(self, job: FileJob) -> bool:
        """Returns whether the job receives deletes; if not, a path that returns is an INSERT although its old rows exist."""
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
    """Returns the moved files whose rows can follow, each with its old path and its rows' batch.

    The old path has rows of this content, and the file was there when they were made: an inode that was free again, with a time
    that was set, has the same version.

    Args:
        location: of the result table.
        births: when the moved files were made, by path, where that is known.
    """
    rows = direct.rows_of(location, "_file_path", {file.old_path for file in files}, _OF_CONTENT)
    if rows is None:
        old = relation(session, pa.table({"_file_path": pa.array([file.old_path for file in files], pa.string())}))
        columns = ", ".join(_OF_CONTENT)
        found = session.sql(f"SELECT {columns} FROM {table_at(location)}").join(old, "_file_path", "left_semi")
        with map_spark_errors():
            rows = found.toArrow()
    columns_of = (rows[name].to_pylist() for name in _OF_CONTENT)
    present = {(path, version): (made, batch) for path, version, made, batch in zip(*columns_of, strict=True)}
    following: dict[str, tuple[str, str]] = {}
    for file in files:
        processed_at, made_by = present.get((file.old_path, file.old_version), (None, None))
        born = births.get(file.path)
        if made_by is not None and (processed_at is None or born is None or born <= processed_at):
            following[file.path] = file.old_path, made_by
    return following


def changes_of(job: FileJob, plan: Plan, batch: Batch, staged: Staged) -> RowChanges:
    """Returns what a batch's outcomes change in the job's table: the rows of processed files are replaced, those of removed files
    are deleted, and those of moved files follow; failed files keep theirs."""
    gone: list[str] | None = None
    follow: dict[str, Mapping[str, Any]] = {}
    # Otherwise it only adds rows: the table has none of its files.
    if job.write is not Write.APPEND and (not job.clean or batch.replaced or batch.removals or batch.moves):
        gone = [*removed_paths(plan.location, batch), *staged.replaced_paths()]
        called = staged.paths() if batch.moves else set()
        for file in moved(plan.location, batch) if batch.moves and job.on_move is OnMove.REKEY else ():
            if file.path not in called:
                gone.append(file.path)  # after a reset of the stream it may have rows
                follow[file.old_path] = {
                    "_file_path": file.path,
                    "_file_version": file.version,
                    "_refresh_id": file.commit_version,
                    "_batch_id": batch.id,
                }
    return RowChanges([staged.inline()], of_table(job), key_column(job), gone, staged.files(), follow)


def write_by_spark(session: SparkSession, delta: DeltaWriter, location: str, staged: Staged, changes: RowChanges) -> None:
    """Commits a batch's outcomes to a table that requires Spark.

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
