"""Selects a plan's files and sizes its batches. Reads catalog and directory, and writes the plan's files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base import faults
from volstream.base.definitions import FileJob, FileOrder, OnMove, Stream
from volstream.base.log import get
from volstream.base.model.units import parse_rate
from volstream.base.model.work import Batch, Failure, Plan, PlanKind
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.streams import net_files
from volstream.changes.streams.read import Range
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import InvalidStateError
from volstream.jobs.plans import plan, sets, sizing
from volstream.jobs.plans.plan import cut_plan, recut_plan
from volstream.jobs.plans.sizing import Limits
from volstream.spark.frames import relation
from volstream.spark.jvm.command import compile_in
from volstream.sql.text import one_of
from volstream.tables.delta.writer import compile_if_large

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home

_log = get("jobs")

#: Opens a session on the engine; called only if one is needed.
Spark = Callable[[], "AbstractContextManager[SparkSession]"]


class Planner:
    """Makes plans, which are invisible until opened. Re-creates their files if they were deleted."""

    def __init__(self, home: Home, slots: Callable[[], int]) -> None:
        self._catalog = home.catalog
        self._reader = home.reader
        self._settings = home.settings
        self._slots = slots

    def of_range(self, spark: Spark, job: FileJob, covered: Range) -> tuple[Plan, Sequence[Batch]]:
        """Plans the net changes of a stream's range that meet the job's condition."""
        location = self._new_location()
        self._write_range(spark, job, covered, job.where, location)
        return self._cut(job, PlanKind.STREAM, covered, location, job.where)

    def of_retries(self, spark: Spark, job: FileJob, covered: Range, due: Sequence[Failure]) -> tuple[Plan, Sequence[Batch]]:
        """Plans failed files whose version is still in the directory.

        Newer versions come through the stream, unless it is append-only. Failed sets are planned in their
        current state: the condition, which may have changed, is part of a set's definition.
        """
        failed = {failure.path: failure for failure in due}
        if job.group_by is not None:
            return self._of_sets(spark, job, covered, list(failed))
        entries = _source(covered).snapshot().find(list(failed))
        versions = pc.coalesce(entries["version_id"], entries["etag"]).to_pylist()
        unchanged = [
            covered.append_only or failed[path].file_version == version
            for path, version in zip(entries["relative_path"].to_pylist(), versions, strict=True)
        ]
        rows = entries.filter(pa.array(unchanged, pa.bool_())).sort_by("relative_path")
        commits = pa.array([failed[path].commit_version for path in rows["relative_path"].to_pylist()], pa.int64())
        location = self._new_location()
        plan.write([plan.files_of_rows(rows.append_column("commit_version", commits), plan.REPLACE)], location)
        return self._cut(job, PlanKind.RETRY, covered, location, None)

    def _of_sets(self, spark: Spark, job: FileJob, covered: Range, keys: Sequence[str]) -> tuple[Plan, Sequence[Batch]]:
        location = self._new_location()
        with spark() as session:
            files, at_most = sets.of_keys(session, job, _source(covered).snapshot(), covered.to_version, keys)
            plan.write_frame(files, location, at_most)
        return self._cut(job, PlanKind.RETRY, covered, location, None)

    def unreported(self, job: FileJob, covered: Range) -> Sequence[str]:
        """Returns the failed files whose removal the stream does not report: it is append-only, or the job
        takes files away itself."""
        if job.group_by is not None or not (covered.append_only or job.takes_files):
            return []
        failed = [failure.path for failure in self._catalog.failures.active(job.id)]
        present = {*_source(covered).snapshot().find(failed)["relative_path"].to_pylist()} if failed else ()
        return [path for path in failed if path not in present]

    def excluded(self, spark: Spark, job: FileJob, covered: Range, failed: Sequence[Failure]) -> Sequence[str]:
        """Returns the failed files in the directory that the job's condition, which may have changed,
        excludes."""
        if job.where is None or job.group_by is not None:
            return []
        entries = _source(covered).snapshot().find([failure.path for failure in failed])
        with spark() as session:
            return plan.excluded(session, entries, job.where)

    def of_strays(self, spark: Spark, job: FileJob, covered: Range, table: str) -> tuple[Plan, Sequence[Batch]]:
        """Plans removals of files that have rows in the table at ``table`` but, at the end of the range, are
        not in the directory or do not meet the job's condition."""
        location = self._new_location()
        with spark() as session:
            _compile_if_large(session, covered)
            compile_if_large(session, table)
            snapshot, now = _source(covered).snapshot(), covered.to_version
            if job.group_by is None:
                files = plan.stray_files(session, snapshot, now, job.where or "true", table)
            else:
                files = sets.strays(session, job, snapshot, now, table)
            plan.write_frame(files, location, net_files.FEW + 1)  # their number is unknown
        return self._cut(job, PlanKind.STRAYS, covered, location, job.where)

    def of_replay(
        self, spark: Spark, job: FileJob, covered: Range, where: str | None, among: Sequence[str] | None = None
    ) -> tuple[Plan, Sequence[Batch]]:
        """Plans the delivered files that meet the job's condition and ``where``. For sets, ``relative_path``
        is the key.

        Args:
            among: only files with these paths.
        """
        condition = _replayed(job, where)
        location = self._new_location()
        self._write_replay(spark, job, covered, condition, among, location)
        if among:  # to re-create lost plan files, perhaps with files that are reprocessed needlessly
            condition = " AND ".join(filter(None, (condition, one_of("relative_path", among))))
        return self._cut(job, PlanKind.REPLAY, covered, location, condition)

    def delivered_files(self, session: SparkSession, job: FileJob, covered: Range) -> DataFrame:
        """Returns the rows of a plan for the files that :meth:`of_replay` would plan without a condition,
        lazily."""
        _compile_if_large(session, covered)
        return self._replayed_files(session, job, covered, _replayed(job, None))

    def present_files(self, session: SparkSession, job: FileJob, covered: Range) -> DataFrame:
        """Returns all files at the end of the range, or their sets: ``relative_path`` and more. Ignores the
        job's condition."""
        snapshot = _source(covered).snapshot()
        if job.group_by is not None:
            return sets.present(session, job, snapshot, covered.to_version)
        return session.sql(snapshot.at_query(covered.to_version))

    def directories(self, covered: Range) -> tuple[str, str]:
        """Returns SQL for the directory at the start and at the end of a range."""
        assert covered.from_version is not None, "something was delivered"
        snapshot = _source(covered).snapshot()
        return snapshot.at_query(covered.from_version), snapshot.at_query(covered.to_version)

    def stray_files(self, session: SparkSession, job: FileJob, covered: Range, table: str) -> DataFrame:
        """Returns the rows of a plan that removes files with rows, but not in the directory at the start of
        the range. Lazy."""
        assert covered.from_version is not None, "something was delivered"
        snapshot = _source(covered).snapshot()
        if job.group_by is not None:
            return sets.strays(session, job, snapshot, covered.from_version, table)
        # The rows of files that a narrower condition excludes stay.
        return plan.stray_files(session, snapshot, covered.from_version, "true", table)

    def of_repair(
        self, job: FileJob, kind: PlanKind, covered: Range, files: DataFrame, count: int
    ) -> tuple[Plan, Sequence[Batch]]:
        """Plans files that failed a verification, given as rows of a plan and their number."""
        location = self._new_location()
        plan.write_frame(files, location, count)
        return self._cut(job, kind, covered, location, job.where)

    def sample(self, spark: Spark, job: FileJob, covered: Range, where: str | None, maximum: int) -> tuple[pa.Table, int]:
        """Returns some of the files that :meth:`of_replay` would plan, and the number of all of them.

        Selects the smallest hashes of their paths: the same files at each call, spread over the directory.

        Args:
            maximum: maximum number of rows returned, ordered by path.
        """
        assert covered.from_version is not None, "something was delivered"
        with spark() as session:
            _compile_if_large(session, covered)
            files = self._replayed_files(session, job, covered, _replayed(job, where))
            return plan.least_by_hash(files, maximum), files.count()

    def write_again(self, spark: Spark, job: FileJob, open_plan: Plan, stream: Stream) -> bool:
        """Re-creates a plan's files. Returns False if their content is no longer known."""
        covered = self._reader.range_of(open_plan, stream)
        match open_plan.kind:
            case PlanKind.STREAM:
                self._write_range(spark, job, covered, open_plan.where, open_plan.location)
            case PlanKind.REPLAY:
                self._write_replay(spark, job, covered, open_plan.where, None, open_plan.location)
            case _:
                return False
        return True

    def files_of(self, session: SparkSession, job: FileJob, open_plan: Plan, batch: Batch, stream: Stream) -> DataFrame:
        """Returns the files of a batch, lazily: the directory's columns, ``commit_version``, ``action`` and
        ``old_path``.

        Raises:
            InvalidStateError: the batch retries failures and its plan has ended, or the history of its files
                was deleted.
        """
        if plan.exists(open_plan.location):
            return plan.slice_of(session, open_plan, batch)
        covered = self._reader.range_of(open_plan, stream)
        match open_plan.kind:
            case PlanKind.STREAM:
                return plan.within(self._range_files(session, job, covered, open_plan.where), batch)
            case PlanKind.REPLAY:
                return plan.within(self._replayed_files(session, job, covered, open_plan.where), batch)
            case _:
                raise InvalidStateError(
                    f"The list of files that batch {batch.id} took is not kept after its end.",
                    f"Its rows have _batch_id = '{batch.id}'; for its failures: volstream describe batch {batch.id}.",
                )

    def resize(self, job: FileJob, open_plan: Plan, cut_by: Limits | None, after: int = 0) -> Limits | None:
        """Re-cuts the waiting batches of an open plan if they exceed the job's lowered limits, or would take
        much too long or too short.

        Args:
            after: batches up to this number stay unchanged.
            cut_by: the limits that the last call returned for the plan. Similar limits would give the same
                batches if each file is so large that it is a separate batch.

        Returns:
            The limits by which the plan is now cut, if known.
        """
        target, maximum = self._settings.batch_seconds, self._maximum(job)
        rate = sizing.latest_rate(self._catalog.reports.measured(job.id, plan_id=open_plan.id), target / 2)
        limits = maximum if rate is None else rate.limits(target, maximum)
        # Includes a batch that crashed its engine: with lower limits it may succeed.
        waiting = self._catalog.consumptions.remaining(open_plan, begun=cut_by is None, after=after)
        slowed = job.rate is not None and waiting is not None and waiting.most_files > maximum.files
        if waiting is None or not (slowed or (cut_by is None and sizing.exceeds_limits(waiting, maximum))):
            if waiting is not None and waiting.first.attempts:
                waiting = self._catalog.consumptions.remaining(open_plan, begun=False, after=after)
            if rate is None or waiting is None:
                return cut_by
            if (cut_by is not None and not sizing.limits_differ(limits, cut_by)) or not sizing.misses_target(
                waiting, rate, limits, target
            ):
                return cut_by
        batches = recut_plan(open_plan, waiting.first, limits)
        self._catalog.consumptions.recut(open_plan, batches)
        faults.point("plan.recut")
        _log.info(
            "batches_recut",
            job=str(job.name),
            plan=open_plan.id,
            after=waiting.first.number - 1,
            batches=len(batches),
            before=waiting.count,
            files=limits.files,
            bytes=limits.bytes,
        )
        return limits

    def _cut(
        self, job: FileJob, kind: PlanKind, covered: Range, location: str, where: str | None
    ) -> tuple[Plan, Sequence[Batch]]:
        """Cuts a plan by the job's past rate. If that is unknown, the first batch measures it."""
        maximum, target = self._maximum(job), self._settings.batch_seconds
        rate = sizing.typical_rate(self._catalog.reports.largest(job.id))
        limits = maximum if rate is None else rate.limits(target, maximum)
        first = maximum.first(self._slots()) if rate is None else limits
        identity = location.rpartition("/")[2]
        order = job.order if kind in (PlanKind.STREAM, PlanKind.REPLAY) else FileOrder.PATH
        return cut_plan(identity, job, kind, covered, location, limits, first=first, where=where, order=order)

    def _maximum(self, job: FileJob) -> Limits:
        maximum = sizing.maximum_limits(self._settings, self._slots(), job.max_files, job.max_bytes)
        if job.rate is None:
            return maximum
        measured = self._catalog.reports.measured(job.id)
        files_per_call = next((batch.files_per_call for batch in measured if batch.files_per_call), 1)
        return maximum.paced(parse_rate(job.rate), files_per_call)

    def _new_location(self) -> str:
        return f"{self._settings.warehouse_path}/_plans/{uuid.uuid4().hex}"

    def _write_range(self, spark: Spark, job: FileJob, covered: Range, where: str | None, location: str) -> None:
        if job.group_by is not None:
            self._write_sets(spark, job, covered, location)
            return
        moves, snapshot = self._moves(job, covered), _source(covered).snapshot()
        if covered.is_snapshot and where is None and job.order is FileOrder.PATH:
            rows = net_files.present(snapshot, covered.to_version)
            plan.write((plan.files_of_rows(row, plan.INSERT) for row in rows), location)
            return
        at_most = _at_most(snapshot, covered)
        if covered.is_snapshot or at_most > net_files.FEW:
            with spark() as session:
                _compile_if_large(session, covered)
                plan.write_frame(plan.stream_files(session, covered, where, moves), location, at_most, job.order)
            return
        changed = _changed(snapshot, covered)
        if job.takes_files:  # the job itself took the missing files away
            changed = changed.filter(changed["has"])
        if where is None:
            plan.write([plan.ordered(plan.files_of_changes(changed, moves), job.order)], location)
            return
        with spark() as session:
            plan.write_frame(plan.selected_files(session, changed, where, moves), location, at_most, job.order)

    def _write_sets(self, spark: Spark, job: FileJob, covered: Range, location: str) -> None:
        with spark() as session:
            _compile_if_large(session, covered)
            files, at_most = self._sets_of_range(session, job, covered)
            plan.write_frame(files, location, at_most)

    def _sets_of_range(self, session: SparkSession, job: FileJob, covered: Range) -> tuple[DataFrame, int]:
        """Returns the rows of a plan for a job of sets, and an upper bound of their number of files."""
        snapshot, until = _source(covered).snapshot(), covered.to_version
        if covered.is_snapshot:
            return sets.present(session, job, snapshot, until), snapshot.rows
        if _at_most(snapshot, covered) > net_files.FEW:
            paths = f"SELECT coalesce(new, old).data.relative_path FROM ({covered.changes()})"
            return sets.changed(session, job, snapshot, until, paths)
        return sets.changed(session, job, snapshot, until, _changed(snapshot, covered)["relative_path"].to_pylist())

    def _range_files(self, session: SparkSession, job: FileJob, covered: Range, where: str | None) -> DataFrame:
        if job.group_by is not None:
            return self._sets_of_range(session, job, covered)[0]
        return plan.stream_files(session, covered, where, self._moves(job, covered))

    def _replayed_files(self, session: SparkSession, job: FileJob, covered: Range, where: str | None) -> DataFrame:
        assert covered.from_version is not None, "something was delivered"
        snapshot, since, now = _source(covered).snapshot(), covered.from_version, covered.to_version
        if job.group_by is not None:
            return sets.replayed(session, job, snapshot, since, now, where)
        return plan.replay_files(session, snapshot, since, now, where or "true")

    def _write_replay(
        self, spark: Spark, job: FileJob, covered: Range, where: str | None, among: Sequence[str] | None, location: str
    ) -> None:
        assert covered.from_version is not None, "something was delivered"
        snapshot, since, now = _source(covered).snapshot(), covered.from_version, covered.to_version
        if where is None and job.group_by is None and job.order is FileOrder.PATH:
            rows = net_files.still_there(snapshot, since, now)
            if among is not None:
                wanted = pa.array(among, pa.string())
                rows = (row.filter(pc.is_in(row["relative_path"], value_set=wanted)) for row in rows)
            plan.write((plan.files_of_rows(row, plan.REPLACE) for row in rows), location)
            return
        with spark() as session:
            _compile_if_large(session, covered)
            files = self._replayed_files(session, job, covered, where)
            if among is not None:
                wanted_files = relation(session, pa.table({"relative_path": pa.array(among, pa.string())}))
                files = files.join(wanted_files, "relative_path", "left_semi")
            plan.write_frame(files, location, snapshot.rows, job.order)

    def _moves(self, job: FileJob, covered: Range) -> plan.Moves:
        return plan.Moves(not (covered.is_snapshot or covered.append_only), rekey=job.on_move is OnMove.REKEY)


def _replayed(job: FileJob, where: str | None) -> str | None:
    """Returns the condition of a replay.

    The job's own condition applies to the files of a set, not to the set.
    """
    conditions = (None if job.group_by is not None else job.where, where)
    return " AND ".join(f"({condition})" for condition in conditions if condition) or None


def _source(covered: Range) -> VolumeSource:
    assert isinstance(covered.source, VolumeSource), "jobs of functions process files"
    return covered.source


def _at_most(snapshot: Snapshot, covered: Range) -> int:
    """Returns an upper bound of the number of files, or changed files, in a range."""
    if covered.from_version is None or covered.is_snapshot:
        return snapshot.rows
    return snapshot.changed_rows(covered.from_version, covered.to_version)


def _changed(snapshot: Snapshot, covered: Range) -> pa.Table:
    """Returns the net changes of a range that is not a snapshot, in memory, with columns
    :data:`net_files.NET`."""
    if covered.append_only:
        return net_files.appended(snapshot, covered.from_version, covered.to_version)
    assert covered.from_version is not None, "otherwise it is a snapshot"
    return net_files.changed(snapshot, covered.from_version, covered.to_version)


def _compile_if_large(session: SparkSession, covered: Range) -> None:
    if covered.source.is_large:
        compile_in(session)
