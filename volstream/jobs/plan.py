"""Planning: which files a run processes, written once to Parquet files sorted by path, and cut into batches.

The plan has one row a file, in Spark only; the catalog gets a row a batch. Batches are known by their bounds, which still
name the same files when the plan's files are gone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from volstream.delta.writer import literal, table_at
from volstream.directory.table import COLUMNS, CONTENT
from volstream.jobs.sizing import Limits
from volstream.model.objects import Job
from volstream.model.work import Batch, BatchState, Plan, PlanKind, PlanState
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import relation
from volstream.streams.few import FEW
from volstream.streams.read import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

#: What happens to a file of a plan.
INSERT, REPLACE, REMOVE = "insert", "replace", "remove"

#: Columns of a plan's files. Given when they are read: finding them out would cost Spark a job.
_DDL = (
    "relative_path STRING, url STRING, size BIGINT, last_modified_time TIMESTAMP, etag STRING, version_id STRING, "
    "content_type STRING, commit_version BIGINT, action STRING"
)


def stream_files(session: SparkSession, covered: Range, versions: pa.Table, where: str | None) -> DataFrame:
    """The files of a range's net changes, as a plan has them.

    Files that are new or changed and pass ``where`` are work; files that are gone, and changed ones that do not pass, are
    removals.

    Args:
        versions: which Delta version each refresh wrote, for ranges that show rows as they are, not their changes.
        where: SQL condition on the directory's columns; None: all files.
    """
    columns = ", ".join(f"image.{name} AS {name}" for name in COLUMNS)
    flat = (
        f"SELECT {columns}, coalesce(c.version, r.version) AS commit_version, had, has FROM ("
        "SELECT version, old IS NOT NULL AS had, new IS NOT NULL AS has, "
        f"{'new' if covered.initial or covered.append_only else 'coalesce(new, old)'} AS image FROM ({covered.changes()})) c "
        f"LEFT JOIN {_view_of(session, covered, versions)} r ON r.refresh_id = c.image.refresh_id AND c.version IS NULL"
    )
    return _with_actions(session, f"({flat})", where)


def few_files(session: SparkSession, changed: pa.Table, where: str | None) -> DataFrame:
    """As :func:`stream_files`, of net changes that :mod:`volstream.streams.few` found."""
    relation(session, changed).createOrReplaceTempView("volstream_few")
    return _with_actions(session, "volstream_few", where)


def retry_files(session: SparkSession, directory: str, version: int, failed: pa.Table) -> DataFrame:
    """Failed files whose version the directory still shows; newer ones come through the stream.

    Args:
        directory: location of the directory table, read at ``version``.
        failed: columns ``path``, ``file_version``, ``commit_version``.
    """
    relation(session, failed).createOrReplaceTempView("volstream_failed")
    paths = failed["path"].to_pylist()
    columns = ", ".join(f"d.{name}" for name in COLUMNS)
    return session.sql(
        f"SELECT {columns}, f.commit_version, '{REPLACE}' AS action FROM {table_at(directory)} VERSION AS OF {version} d "
        "JOIN volstream_failed f ON d.relative_path = f.path AND coalesce(d.version_id, d.etag) = f.file_version "
        f"WHERE d.relative_path IN ({', '.join(literal(path) for path in paths)})"
    )


def replay_files(session: SparkSession, covered: Range, versions: pa.Table, where: str | None) -> DataFrame:
    """The files that the directory had at the start of a range and has still, as they were, at its end.

    Args:
        versions, where: as for :func:`stream_files`.
    """
    directory = table_at(covered.location)
    columns = ", ".join(f"d.{name}" for name in COLUMNS)
    planned = (
        f"SELECT {columns}, r.version AS commit_version, '{REPLACE}' AS action "
        f"FROM {directory} VERSION AS OF {covered.from_version} d "
        f"LEFT JOIN {_view_of(session, covered, versions)} r ON r.refresh_id = d.refresh_id"
    )
    if covered.to_version != covered.from_version:
        same = " AND ".join(f"n.{name} <=> d.{name}" for name in ("relative_path", *CONTENT))
        planned += f" LEFT SEMI JOIN {directory} VERSION AS OF {covered.to_version} n ON {same}"
    return session.sql(f"SELECT * FROM ({planned})" + (f" WHERE ({where})" if where else ""))


def write(planned: DataFrame, location: str, at_most: int) -> None:
    """Writes the files of a plan, sorted by path: few rows from here, more by Spark.

    Args:
        at_most: no fewer than the rows there are.
    """
    with map_spark_errors():
        if at_most > FEW:
            planned.sort("relative_path").write.mode("overwrite").parquet(location)
            return
        rows = planned.toArrow()
    filesystem, path = fs.FileSystem.from_uri(location)
    filesystem.create_dir(path)
    pq.write_table(rows.sort_by("relative_path"), f"{path}/part-00000.parquet", filesystem=filesystem)
    filesystem.open_output_stream(f"{path}/_SUCCESS").close()


def cut(
    plan_id: str, job: Job, kind: PlanKind, covered: Range, location: str, limits: Limits, *,
    first: Limits | None = None, where: str | None = None,
) -> tuple[Plan, Sequence[Batch]]:  # fmt: skip
    """Reads a plan's files once, in order, and cuts them into batches. One row of memory a batch.

    Args:
        first: limits of the first batch; None: as of the others.
        where: the condition that the files met, to be kept with the plan.
    """
    plan = Plan(
        id=plan_id, kind=kind, state=PlanState.OPEN, job_id=job.id, stream_id=job.stream_id, table_id=covered.table_id,
        from_version=covered.from_version, to_version=covered.to_version, initial=covered.initial, location=location,
        where=where, files=0, bytes=0, created_on=datetime.now(UTC),
    )  # fmt: skip
    batches = list(_cut(plan, 1, None, first or limits, limits))
    files, size = sum(batch.files for batch in batches), sum(batch.bytes for batch in batches)
    return replace(plan, files=files, bytes=size), batches


def recut(plan: Plan, first: Batch, limits: Limits) -> Sequence[Batch]:
    """Cuts the end of a plan, from a batch on, as :func:`cut`; reads nothing of what is before."""
    return list(_cut(plan, first.number, first.after_path, limits, limits))


def _cut(plan: Plan, number: int, after: str | None, first: Limits, limits: Limits) -> Iterator[Batch]:
    now = datetime.now(UTC)
    for group in _groups(_rows(plan.location, after), limits, first):
        yield Batch(
            id=uuid.uuid4().hex[:16], plan_id=plan.id, job_id=plan.job_id, stream_id=plan.stream_id, number=number,
            state=BatchState.PLANNED, after_path=after, until_path=group.until, files=group.files,
            replaced=group.replaced, removals=group.removals, bytes=group.bytes, sequence=None, attempts=0,
            succeeded=0, failed=0, rows=0, created_on=now, committed_on=None,
        )  # fmt: skip
        after, number = group.until, number + 1


def slice_of(session: SparkSession, plan: Plan, batch: Batch) -> DataFrame:
    """The rows of a plan's files that belong to a batch."""
    return within(session.read.schema(_DDL).parquet(plan.location), batch)


def within(planned: DataFrame, batch: Batch) -> DataFrame:
    """The rows of a plan that belong to a batch."""
    bounds = f"relative_path <= {literal(batch.until_path)}"
    if batch.after_path is not None:
        bounds += f" AND relative_path > {literal(batch.after_path)}"
    return planned.where(bounds)


def among(location: str, wanted: Iterable[str], batch: Batch | None = None) -> set[str]:
    """Which of some paths a plan has, or a batch of it."""
    condition = ds.field("relative_path").isin(list(wanted))
    if batch is not None:
        condition &= ds.field("relative_path") <= batch.until_path
        if batch.after_path is not None:
            condition &= ds.field("relative_path") > batch.after_path
    filesystem, path = fs.FileSystem.from_uri(location)
    found = ds.dataset(path, filesystem=filesystem, format="parquet").scanner(["relative_path"], filter=condition)
    return set(found.to_table()["relative_path"].to_pylist())


def exists(location: str) -> bool:
    """Whether the files of a plan are there."""
    filesystem, path = fs.FileSystem.from_uri(location)
    return bool(filesystem.get_file_info(f"{path}/_SUCCESS").type == fs.FileType.File)


def remove(location: str) -> None:
    """Deletes a folder of plan or staged files, where it is."""
    filesystem, path = fs.FileSystem.from_uri(location)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        filesystem.delete_dir(path)


def folders(location: str) -> Sequence[str]:
    """Names of the folders directly below ``location``; none where it is not there."""
    filesystem, path = fs.FileSystem.from_uri(location)
    selector = fs.FileSelector(path, allow_not_found=True)
    return [info.base_name for info in filesystem.get_file_info(selector) if info.type == fs.FileType.Directory]


def _with_actions(session: SparkSession, flat: str, where: str | None) -> DataFrame:
    wanted = f"has AND ({where})" if where else "has"
    action = f"CASE WHEN {wanted} THEN IF(had, '{REPLACE}', '{INSERT}') WHEN had THEN '{REMOVE}' END"
    planned = session.sql(f"SELECT {', '.join(COLUMNS)}, commit_version, {action} AS action FROM {flat}")
    return planned.where("action IS NOT NULL")


def _view_of(session: SparkSession, covered: Range, versions: pa.Table) -> str:
    """A view of ``versions``; of the volume's own name, for frames look it up when they are run."""
    name = f"volstream_refreshes_{covered.volume_id.replace('-', '_')}"
    relation(session, versions).createOrReplaceTempView(name)
    return name


@dataclass
class _Group:
    until: str = ""
    files: int = 0
    replaced: int = 0
    removals: int = 0
    bytes: int = 0


def _groups(rows: Iterable[tuple[str, int, str]], limits: Limits, first: Limits | None = None) -> Iterator[_Group]:
    group, most = _Group(), first or limits
    for path, size, action in rows:
        working = 0 if action == REMOVE else size
        full = group.files + group.removals >= most.files or (group.files and group.bytes + working > most.bytes)
        if full and group.until:
            yield group
            group, most = _Group(), limits
        group.until = path
        group.files += action != REMOVE
        group.replaced += action == REPLACE
        group.removals += action == REMOVE
        group.bytes += working
    if group.until:
        yield group


def _rows(location: str, after: str | None) -> Iterator[tuple[str, int, str]]:
    """(path, size, action) of a plan in its order, after a path: Spark names the parts of a sorted frame in order.

    What is not after it is left out by the statistics of the files, a row group at a time.
    """
    filesystem, path = fs.FileSystem.from_uri(location)
    infos = filesystem.get_file_info(fs.FileSelector(path))
    parts = sorted(info.path for info in infos if info.base_name.endswith(".parquet"))
    later = None if after is None else ds.field("relative_path") > after
    for part in parts:
        dataset = ds.dataset(part, filesystem=filesystem, format="parquet")
        for batch in dataset.to_batches(columns=["relative_path", "size", "action"], filter=later):
            yield from zip(*(batch.column(index).to_pylist() for index in range(3)), strict=True)
