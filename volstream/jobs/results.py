"""The result table: created or checked before any file is processed; each batch is committed to it by one statement."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import FileJob, OnMove, SourceKind, StreamMode, Write
from volstream.base.lifecycle.stop import Stop
from volstream.base.log import get
from volstream.base.model.work import Batch, Plan
from volstream.catalog import Catalog
from volstream.errors import InvalidStateError, InvalidValueError, reason_of
from volstream.functions.schema import PROVENANCE, key_column, of_job, of_table, provenance_of, to_ddl, type_named
from volstream.functions.types.widen import fields_added
from volstream.jobs import ledger
from volstream.jobs.load import loads
from volstream.jobs.plan import MOVE, REMOVE, Moved, moved, of_files, of_origins, removed_paths, slice_of
from volstream.jobs.staged import SETTLED, Staged
from volstream.jobs.target import check_target
from volstream.spark.frames import relation
from volstream.sql.text import MAX_NAMED, literal, one_of, quote_column, table_at, type_of
from volstream.tables.delta import direct, folders, foreign, upkeep
from volstream.tables.delta.damage import Damage, damage_of, drop_checkpoints, remove_files
from volstream.tables.delta.keeper import UPKEEP, is_open, keeper_of
from volstream.tables.delta.log import DeltaLog, types_of
from volstream.tables.delta.marker import OWNER, Marker
from volstream.tables.delta.writer import DeltaWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.jobs.home import Home

_log = get("jobs")

#: The rows of up to this many files go into one data file; beyond that, the tasks that hold the rows write them.
_ONE_FILE = 1000

#: Stops Parquet's writer from keeping minimum and maximum values. It keeps them in full for all row groups until a file ends,
#: so that a file of large rows would be in memory twice.
_WITHOUT_STATISTICS = {"parquet.column.statistics.enabled": "false"}

#: Columns of the table that say which content of a file its rows are of, and when they were made.
_OF_CONTENT = ("_file_path", "_file_version", "_processed_at")

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

    def exists(self, job: FileJob) -> bool:
        """Returns whether the job's table exists, judging by its log."""
        return DeltaLog(folders.table_location(self._warehouse, job.into)).exists()

    def prepare(self, job: FileJob) -> FileJob:
        """Creates the job's table, or checks that the job may write to it; returns the job, with ``clean`` up to date.

        Uses Spark only to create or change the table.

        Raises:
            InvalidStateError: the table belongs to another job or to no job, or has expressions.
            InvalidValueError: a column's type differs from the function's.
        """
        location = folders.table_location(self._warehouse, job.into)
        log = DeltaLog(location)
        wanted = of_table(job)
        existing = log.columns()
        if not existing:
            properties = {OWNER: job.id} if job.write is Write.UPSERT else {UPKEEP: "on"}
            if not direct.create(location, wanted, properties):
                self._delta.create(location, to_ddl(wanted), properties | {"delta.enableDeletionVectors": "true"})
            if job.write is Write.UPSERT and log.properties().get(OWNER) == job.id:
                return self._catalog.jobs.change(job, clean=self._shows_deletes(job), verified_version=None)
            existing = log.columns()  # a log; or another job created the table first and owns it
        log.check_plain(job.into)
        if not loads(job):
            check_target(self._catalog, job.into, location, of_job(job).names)
        properties = log.properties()
        owner = properties.get(OWNER)
        taken = job.write is Write.UPSERT and owner != job.id
        if taken:
            self._check_owner(job, owner)
        self._fit(job, location, existing, wanted)
        if taken:
            self._delta.set_properties(location, {OWNER: job.id})
            return self._catalog.jobs.change(job, clean=False, may_have_strays=True)
        if job.clean and is_open(properties):
            return self._catalog.jobs.change(job, clean=False)
        return job

    def damages(self, job: FileJob, *, whole: bool = False) -> Sequence[Damage]:
        """Returns what of the job's table, and of its ledger, cannot be read. See :func:`damage_of`."""
        table, entries = folders.table_location(self._warehouse, job.into), ledger.location_of(self._warehouse, job.id)
        found = damage_of(table, "table", whole=whole), damage_of(entries, "ledger")
        return [damage for damage in found if damage is not None]

    def mend(self, job: FileJob, damage: Damage) -> None:
        """Makes the job's table, or its ledger, readable again. What cannot be read of it is lost.

        Raises:
            InvalidStateError: the table may have rows that the job cannot make again.
        """
        location = damage.location
        if location == ledger.location_of(self._warehouse, job.id):
            folders.remove(location)
        elif damage.files:
            remove_files(location, damage.files, (key_column(job), "_batch_id"))
        elif not drop_checkpoints(location):
            if job.write is Write.APPEND or location != folders.own_location(self._warehouse, job.into):
                raise InvalidStateError(
                    f"The table {job.into} may have rows that its job cannot make again, but {damage}.",
                    f"Restore the log from a backup, or delete {location} and run: volstream verify {job.name} --fix",
                )
            folders.remove(f"{location}/_delta_log")

    def keep_light(self, job: FileJob, commits: int, stop: Stop) -> None:
        """Puts small files of the table together, if there are many, and begins with no more after a second. A failure is logged.

        Args:
            commits: number of the commits since the last call; 0: the job rests, so that rows deleted from small files are left
                out, too.
        """
        location = folders.table_location(self._warehouse, job.into)
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
        owner = keeper_of(self._catalog, location)
        if owner is None:
            upkeep.clean(location, until, lambda *_: True)
            return
        if owner.id != job.id or not isinstance(owner, FileJob):
            upkeep.clean(location, until)  # only the owner's runs know what may be forgotten
            return
        own = OwnCommits(self._catalog, owner)
        proven = -1 if owner.verified_version is None else owner.verified_version

        def may_go(number: int, actions: Sequence[Mapping[str, Any]]) -> bool:
            return number <= proven or not foreign.may_change(actions, own)

        def note(first: int, begin: int) -> None:
            if first <= proven + 1 < begin:
                self._catalog.jobs.replace(owner, "verified_version", begin - 1)

        upkeep.clean(location, until, may_go, note)

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

    def _fit(self, job: FileJob, location: str, existing: dict[str, str], wanted: pa.Schema) -> None:
        present = {name.lower(): kind for name, kind in existing.items()}
        missing: list[str] = []
        for field, kind in zip(wanted, types_of(wanted), strict=True):
            current = present.get(field.name.lower())
            if current is None:
                missing.append(to_ddl(pa.schema([field])))
            elif current != kind:
                there, returned = (type_of(json.loads(one)) for one in (current, kind))
                nested = pa.types.is_nested(field.type)
                if nested and (more := fields_added(type_named(there), field)):
                    missing += more
                    continue
                raise InvalidValueError(
                    f"Column {field.name} of table {job.into} is {there}, but the function returns {returned}.",
                    "Let the job write another table, or change the function's columns.",
                )
        if missing:
            self._delta.add_columns(location, ", ".join(missing))


def followed(files: Sequence[Moved], location: str, births: Mapping[str, datetime]) -> Sequence[str] | None:
    """Returns the moved files whose rows can follow, as :func:`without_followed` finds them, but without Spark; None: only Spark
    can tell."""
    rows = direct.rows_of(location, "_file_path", {file.old_path for file in files}, list(_OF_CONTENT))
    if rows is None:
        return None
    paths, versions, processed = (rows[name].to_pylist() for name in _OF_CONTENT)
    present = dict(zip(zip(paths, versions, strict=True), processed, strict=True))

    def follows(file: Moved) -> bool:
        content = (file.old_path, file.old_version)
        if content not in present:
            return False
        processed_at, made = present[content], births.get(file.path)
        return processed_at is None or made is None or made <= processed_at

    return [file.path for file in files if follows(file)]


def without_followed(
    session: SparkSession, files: DataFrame, location: str, origins: str, births: Mapping[str, datetime]
) -> DataFrame:
    """Removes from a batch's ``files`` the moved ones whose rows can follow: the old path has rows of this content, and the file
    was there when they were made: an inode that was free again, with a time that was set, has the same version.

    Args:
        location: of the result table.
        origins: SQL condition on the table's rows ``t`` that selects the rows of the old paths.
        births: when the moved files were made, by path, where that is known.
    """
    files.createOrReplaceTempView("volstream_files")
    times = [pa.array([*births], pa.string()), pa.array([*births.values()], pa.timestamp("us", tz="UTC"))]
    relation(session, pa.table(times, ["path", "born"])).createOrReplaceTempView("volstream_births")
    return session.sql(
        "SELECT f.* FROM volstream_files f LEFT JOIN volstream_births b ON b.path = f.relative_path "
        f"LEFT ANTI JOIN {table_at(location)} t ON f.action = '{MOVE}' AND t._file_path = f.old_path "
        f"AND t._file_version = f.old_version AND coalesce(b.born <= t._processed_at, true) AND {origins}"
    )


def put_batch(job: FileJob, plan: Plan, batch: Batch, location: str, staged: Staged, marker: Marker) -> bool:
    """Commits like :func:`write_batch`, without Spark; does nothing and returns False if Spark is needed."""
    gone = None if _is_blind(job, batch) else [*removed_paths(plan.location, batch), *staged.settled()]
    follow: dict[str, Mapping[str, Any]] = {}
    if batch.moves and job.on_move is OnMove.REKEY and gone is not None:
        called = staged.paths()
        for file in moved(plan.location, batch):
            if file.path not in called:
                gone.append(file.path)  # after a reset of the stream it may have rows
                follow[file.old_path] = {
                    "_file_path": file.path,
                    "_file_version": file.version,
                    "_refresh_id": file.commit_version,
                    "_batch_id": batch.id,
                }
    changes = direct.RowChanges([staged.inline()], of_table(job), key_column(job), gone, staged.files(), follow)
    return direct.commit(location, marker, changes)


def _is_blind(job: FileJob, batch: Batch) -> bool:
    """Returns whether the batch only adds rows: the table has no rows of its files, or none of them must be removed."""
    return job.write is Write.APPEND or (job.clean and not (batch.replaced or batch.removals or batch.moves))


@contextmanager
def _small_footers(session: SparkSession, staged: Staged) -> Iterator[None]:
    """Omits statistics from the footers of files written in the block if rows, and hence statistics, are very large."""
    settings = _WITHOUT_STATISTICS if staged.has_large_rows() else {}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


def write_batch(
    session: SparkSession, delta: DeltaWriter, job: FileJob, plan: Plan, batch: Batch, location: str, staged: Staged
) -> None:
    """Commits a batch's outcomes in one statement, or in none if every file failed.

    Args:
        session: marked for this attempt.
        plan: of the batch.
        location: of the result table.
        staged: the attempt's outcomes.
    """
    with _small_footers(session, staged):
        _write_batch(session, delta, job, plan, batch, location, staged)


def _write_batch(
    session: SparkSession, delta: DeltaWriter, job: FileJob, plan: Plan, batch: Batch, location: str, staged: Staged
) -> None:
    rows = staged.rows(session)
    own = [field.name for field in of_job(job)]
    key, provenance = key_column(job), provenance_of(job).names
    columns = ", ".join(quote_column(name) for name in (*own, *provenance))
    if _is_blind(job, batch):
        delta.append(session, rows.coalesce(1) if batch.files <= _ONE_FILE else rows, location)
        return
    if batch.files + batch.removals + batch.moves <= MAX_NAMED and not (batch.moves and job.on_move is OnMove.REKEY):
        # Removes the rows of removed and processed files; failed files keep their rows.
        paths = [*removed_paths(plan.location, batch), *staged.settled()]
        if paths:
            delta.replace(session, rows.coalesce(1), location, one_of(key, paths))
        return
    slice_of(session, plan, batch).createOrReplaceTempView("planned")
    rows.createOrReplaceTempView("new_rows")
    staged.files_with_rows(session).createOrReplaceTempView("staged")
    # As above.
    gone = (
        f"SELECT relative_path AS gone FROM planned WHERE action = '{REMOVE}' "
        f"UNION ALL SELECT path AS gone FROM staged WHERE {SETTLED}"
    )
    empty = ", ".join(f"NULL AS {quote_column(name)}" for name in (*own, *provenance))
    source = (
        f"SELECT CAST(NULL AS STRING) AS gone, {columns} FROM new_rows UNION ALL SELECT gone, {empty} FROM ({gone})"
    )
    within, origins = (of(f"t.{key}", plan.location, batch) for of in (of_files, of_origins))
    follow = ""
    if origins is not None:
        source += f" UNION ALL {_moved(own, batch)}"
        # After a reset of the stream the new path may have rows, too.
        source += (
            f" UNION ALL SELECT relative_path AS gone, {empty} FROM planned "
            f"LEFT ANTI JOIN staged ON path = relative_path WHERE action = '{MOVE}'"
        )
        within = f"(({within}) OR ({origins}))"
        changes = ", ".join(f"{name} = s.{name}" for name in provenance if name != "_processed_at")
        follow = f"WHEN MATCHED AND s._file_path IS NOT NULL THEN UPDATE SET {changes} "
    delta.merge(
        session,
        f"MERGE INTO {table_at(location)} t USING ({source}) s ON t.{key} = s.gone AND {within} {follow}"
        "WHEN MATCHED THEN DELETE "
        f"WHEN NOT MATCHED AND s.gone IS NULL THEN INSERT ({columns}) "
        f"VALUES ({', '.join(f's.{quote_column(name)}' for name in (*own, *provenance))})",
    )


def _moved(own: Sequence[str], batch: Batch) -> str:
    """Returns SQL: the old path of each moved file as ``gone``, with the new provenance if its rows follow.

    The rows follow if the function was not called, as :func:`without_followed` decided and the staged outcomes show.
    """
    follows = f"p.action = '{MOVE}' AND s.path IS NULL"
    new = {
        "_file_path": "p.relative_path",
        "_file_version": "coalesce(p.version_id, p.etag)",
        "_refresh_id": "p.commit_version",
        "_batch_id": literal(batch.id),
    }
    columns = [f"NULL AS {quote_column(name)}" for name in own]
    columns += [
        f"IF({follows}, {new[name]}, NULL) AS {name}" if name in new else f"NULL AS {name}" for name in PROVENANCE.names
    ]
    return (
        f"SELECT p.old_path AS gone, {', '.join(columns)} FROM planned p "
        "LEFT JOIN staged s ON s.path = p.relative_path WHERE p.old_path IS NOT NULL"
    )
