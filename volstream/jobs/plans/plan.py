"""Plans: the files that a run processes, written once to Parquet files sorted by path or by time, and cut
into batches.

A plan's files have one row per file of the volume. The catalog has one row per batch. Batches are identified
by their bounds, which still select the same files after the plan's files are deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from volstream.base.definitions import FileJob, FileOrder
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import EPOCH, Batch, Plan, PlanKind
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import COLUMNS, CONTENT, SCHEMA
from volstream.changes.streams.net_files import FEW
from volstream.changes.streams.read import Range
from volstream.functions.schema import to_ddl
from volstream.functions.types.kinds import name_of
from volstream.jobs.plans.sizing import Limits
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import computing, relation
from volstream.sql.text import literal, table_at
from volstream.tables.delta import places
from volstream.tables.delta.places import filesystem_of, is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

#: Actions on a plan's files. A moved file's row holds its old path, which has no separate row: both are in
#: the same batch. With MOVE the old path's rows follow. To run the function instead, the moved file is
#: planned as an INSERT.
INSERT, REPLACE, REMOVE, MOVE = "insert", "replace", "remove", "move"

#: The files of a set (``plans.sets``), and for how many seconds the set is held back. A single file has no
#: members, and NULL seconds. The empty list is not NULL because Arrow in Java takes quadratic time for NULL
#: lists.
_OF_SETS = (("members", pa.list_(pa.struct([SCHEMA.field(name) for name in FileInfo._fields]))), ("held", pa.float64()))

#: Columns of a plan's files, also as DDL for Spark, which would otherwise run a job to infer them.
_SCHEMA = pa.schema(
    [*SCHEMA, ("commit_version", pa.int64()), *((name, pa.string()) for name in ("action", "old_path", "old_version")), *_OF_SETS]
)
_DDL = to_ddl(_SCHEMA)

#: The sort keys of a plan.
_KEYS: Mapping[FileOrder, list[tuple[str, str]]] = {
    FileOrder.PATH: [("relative_path", "ascending")],
    FileOrder.NEWEST: [("last_modified_time", "descending"), ("relative_path", "ascending")],
}

#: A single file's columns of a set.
_NO_SET = (f"CAST(array() AS {name_of(_OF_SETS[0][1])}) AS members", "CAST(NULL AS DOUBLE) AS held")

#: Rows of up to this many files are embedded in the query. From about 3,000 on, Spark would cache them.
_FEW_FILES = 1000

#: Reading this much takes longer than sorting the files of a batch by size.
_BALANCED_BYTES = 64 << 20

#: Rows per row group: a batch reads only the groups that contain its files.
_GROUP_ROWS = 10_000


@dataclass(frozen=True)
class Moves:
    """Determines how moved files are planned.

    Attributes:
        possible: whether the plan can contain moves.
        rekey: rows follow the moved file. Otherwise the function runs.
    """

    possible: bool
    rekey: bool


def files_of_changes(changed: pa.Table, moves: Moves) -> pa.Table:
    """Converts net changes to rows of a plan. New and changed files are work, removed files are removals.

    A removed and a new file with the same etag and size are a move, unless a third file has these, too.

    Args:
        changed: with the columns :data:`volstream.changes.streams.net_files.NET`.
    """
    origins = _origins(changed) if moves.possible else {}
    moved_away = {path for path, _ in origins.values()}
    rows = zip(*(changed[name].to_pylist() for name in ("relative_path", "had", "has")), strict=True)
    actions: list[str | None] = []
    for path, had, has in rows:
        if path in moved_away:
            actions.append(None)  # covered by the row of the new path
        elif path in origins:
            actions.append(MOVE if moves.rekey else INSERT)
        else:
            actions.append((REPLACE if had else INSERT) if has else REMOVE)
    origin_pairs = [origins.get(path, (None, None)) for path in changed["relative_path"].to_pylist()]
    columns = [*changed.select([*COLUMNS, "commit_version"]).columns, pa.array(actions, pa.string())]
    columns += [pa.array([origin[at] for origin in origin_pairs], pa.string()) for at in (0, 1)]
    columns += _no_sets(len(actions))
    planned = pa.table(columns, schema=_SCHEMA)
    return planned.filter(pc.is_valid(planned["action"]))


def files_of_rows(rows: pa.Table, action: str) -> pa.Table:
    """Converts rows of a directory to rows of a plan, all with one action.

    Args:
        rows: with the directory's columns and ``commit_version``.
    """
    columns = rows.select([*COLUMNS, "commit_version"]).columns
    nulls = pa.nulls(rows.num_rows, pa.string())
    actions = pa.array([action] * rows.num_rows, pa.string())
    return pa.table([*columns, actions, nulls, nulls, *_no_sets(rows.num_rows)], schema=_SCHEMA)


def _no_sets(count: int) -> list[pa.Array]:
    """Returns the columns of sets for single files."""
    (_, members), (_, seconds) = _OF_SETS
    return [pa.array([[]] * count, members), pa.nulls(count, seconds)]


def _origins(changed: pa.Table) -> Mapping[str, tuple[str, str]]:
    """Returns the old path and the content's version of each moved file, by new path."""
    names = ("relative_path", "had", "has", "etag", "size", "version_id")
    by_content: dict[tuple[str, int], tuple[list[tuple[str, str]], list[str]]] = {}
    unpaired = changed.filter(pc.not_equal(changed["had"], changed["has"]))
    for path, had, _, etag, size, version in zip(*(unpaired[name].to_pylist() for name in names), strict=True):
        removed, added = by_content.setdefault((etag, size), ([], []))
        if had:
            removed.append((path, version or etag))
        else:
            added.append(path)
    return {added[0]: removed[0] for removed, added in by_content.values() if len(removed) == len(added) == 1}


def selected_files(session: SparkSession, changed: pa.Table, where: str, moves: Moves) -> DataFrame:
    """Converts changes like :func:`files_of_changes`, for files that meet a condition. Changed files that do
    not meet it are removals.

    Args:
        where: SQL condition on the directory's columns.
    """
    return _with_actions(session, relation(session, changed), where, moves)


def excluded(session: SparkSession, files: pa.Table, where: str) -> Sequence[str]:
    """Returns the paths of the files (rows of a directory) that do not meet a condition."""
    unmet = computing(session, f"NOT coalesce(({where}), false)")
    paths = relation(session, files).where(unmet).select("relative_path")
    with map_spark_errors():
        return [row[0] for row in paths.collect()]


def stream_files(session: SparkSession, covered: Range, where: str | None, moves: Moves) -> DataFrame:
    """Converts changes like :func:`files_of_changes`, with Spark.

    Reads the net changes of a possibly large range, and keeps only files that meet ``where``.
    """
    columns = ", ".join(f"c.image.data.{name} AS {name}" for name in COLUMNS)
    changes = (
        "SELECT old IS NOT NULL AS had, new IS NOT NULL AS has, coalesce(version, new.wrote) AS commit_version, "
        f"{'new' if covered.is_snapshot or covered.append_only else 'coalesce(new, old)'} AS image FROM ({covered.changes()})"
    )
    flat = session.sql(f"SELECT {columns}, commit_version, had, has FROM ({changes}) c")
    return _with_actions(session, flat, where, moves)


def replay_files(session: SparkSession, snapshot: Snapshot, since: int, now: int, where: str) -> DataFrame:
    """Returns the files that were in the directory at one refresh, are unchanged at another, and meet
    ``where``."""
    columns = ", ".join(f"d.{name}" for name in COLUMNS)
    unchanged = " AND ".join(f"n.{name} <=> d.{name}" for name in ("relative_path", *CONTENT))
    planned = (
        f"SELECT {columns}, d.refresh_id AS commit_version, '{REPLACE}' AS action, CAST(NULL AS STRING) AS old_path, "
        f"CAST(NULL AS STRING) AS old_version, {', '.join(_NO_SET)} FROM ({snapshot.at_query(since)}) d "
        f"LEFT SEMI JOIN ({snapshot.at_query(now)}) n ON {unchanged}"
    )
    return session.sql(planned).where(computing(session, where))


def stray_files(session: SparkSession, snapshot: Snapshot, now: int, where: str, location: str) -> DataFrame:
    """Returns removals of files that have rows in a result table, but are not in the directory at this
    refresh, or do not meet ``where``."""
    values_by_name = {"relative_path": "_file_path", "size": "0L", "commit_version": f"{now}L", "action": literal(REMOVE)}
    values = [f"{values_by_name.get(field.name, f'CAST(NULL AS {name_of(field.type)})')} AS {field.name}" for field in _SCHEMA]
    present = session.sql(snapshot.at_query(now)).where(computing(session, where))
    recorded = session.sql(f"SELECT DISTINCT _file_path FROM {table_at(location)} WHERE _file_path IS NOT NULL")
    strays = recorded.join(present, recorded["_file_path"] == present["relative_path"], "left_anti")
    return strays.selectExpr(*values)


def least_by_hash(planned: DataFrame, maximum: int) -> pa.Table:
    """Returns up to ``maximum`` rows of a plan, ordered by path: those with the smallest hashes of their
    paths."""
    hashed = planned.selectExpr("*", "sha2(relative_path, 256) AS hash").sort("hash", "relative_path").limit(maximum)
    with map_spark_errors():
        return hashed.selectExpr(*_SCHEMA.names).toArrow().cast(_SCHEMA).sort_by("relative_path")


def write(planned: Iterable[pa.Table], location: str) -> None:
    """Writes the files of a plan, given in order."""
    with places.written(location, _SCHEMA, write_page_index=True) as writer:
        for rows in planned:
            writer.write_table(rows, row_group_size=_GROUP_ROWS)
    filesystem, path = filesystem_of(location)
    filesystem.open_output_stream(f"{path}/_SUCCESS").close()


def write_frame(planned: DataFrame, location: str, at_most: int, order: FileOrder = FileOrder.PATH) -> None:
    """Writes files from Spark like :func:`write`, given in any order. This process writes few files, Spark
    many.

    Args:
        at_most: upper bound of the number of rows.
    """
    planned = planned.select(*_SCHEMA.names)
    with map_spark_errors():
        if at_most > FEW:
            ascending = [direction == "ascending" for _, direction in _KEYS[order]]
            keys = [column for column, _ in _KEYS[order]]
            planned.sort(*keys, ascending=ascending).write.mode("overwrite").parquet(location)
            return
        rows = planned.toArrow()
    write([ordered(rows.cast(_SCHEMA), order)], location)


def ordered(planned: pa.Table, order: FileOrder) -> pa.Table:
    """Returns the rows of a plan, sorted in its order."""
    return planned.sort_by(_KEYS[order])


def slice_of(session: SparkSession, plan: Plan, batch: Batch) -> DataFrame:
    """Returns the rows of a plan's files that belong to a batch."""
    return within(session.read.schema(_DDL).parquet(plan.location), batch)


def small_batch_rows(plan: Plan, batch: Batch, without: Collection[str] = ()) -> pa.Table | None:
    """Returns the rows of a plan's files in a batch, except removals and some paths, or None if they are
    many."""
    if batch.files > _FEW_FILES:
        return None
    rows = places.dataset(plan.location, _SCHEMA).to_table(filter=_bounds(batch) & (pc.field("action") != REMOVE))
    return rows.filter(pc.invert(pc.is_in(rows["relative_path"], value_set=pa.array([*without], pa.string()))))


def work_of(session: SparkSession, plan: Plan, batch: Batch, without: Collection[str] = ()) -> DataFrame:
    """Returns the rows of :func:`small_batch_rows`, regardless of their number, distributed over the
    processors."""
    few = small_batch_rows(plan, batch, without)
    if few is not None:
        return relation(session, few)
    others = pa.table({"relative_path": pa.array([*without], pa.string())})
    files = slice_of(session, plan, batch).where(f"action <> '{REMOVE}'")
    remaining = files.join(relation(session, others), "relative_path", "left_anti") if without else files
    return _distributed(remaining, batch.bytes)


def work_of_rows(session: SparkSession, planned: pa.Table) -> DataFrame:
    """Distributes rows of a plan over the processors."""
    files = relation(session, planned)
    return files if planned.num_rows <= _FEW_FILES else _distributed(files, pc.sum(planned["size"]).as_py() or 0)


def _distributed(files: DataFrame, size: int) -> DataFrame:
    """Distributes files of ``size`` total bytes over the processors. Above a limit, each gets about as many
    bytes."""
    count = processors(files)
    if size < _BALANCED_BYTES:
        return files.repartition(count)
    order = f"CAST(row_number() OVER (ORDER BY size DESC, relative_path) % {count} AS INT) AS processor"
    return files.selectExpr("*", order).repartitionById(count, "processor").drop("processor")


def processors(files: DataFrame) -> int:
    """Returns how many workers fit in the engine of these rows."""
    return int(files.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)


def within(planned: DataFrame, batch: Batch) -> DataFrame:
    """Returns the rows of a plan that belong to a batch."""
    assert batch.until_path is not None, "a job's batch has bounds"
    until = _beyond(batch.until_time, batch.until_path)
    return planned.where(
        f"NOT {until}" if batch.after_path is None else f"NOT {until} AND {_beyond(batch.after_time, batch.after_path)}"
    )


def removed_paths(location: str, batch: Batch) -> list[str]:
    """Returns the removed paths of a batch and the old paths of its moved files. All in memory."""
    removed = _paths(location, "relative_path", _bounds(batch) & (pc.field("action") == REMOVE)) if batch.removals else ()
    moved = _paths(location, "old_path", _bounds(batch)) if batch.moves else ()
    return [*removed, *moved]


@dataclass(frozen=True)
class Moved:
    """A moved file whose rows may follow."""

    old_path: str
    old_version: str
    path: str
    version: str
    commit_version: int


def moved(location: str, batch: Batch) -> Sequence[Moved]:
    """Returns the moved files of a batch whose rows may follow. All in memory."""
    columns = ["old_path", "old_version", "relative_path", "version_id", "etag", "commit_version"]
    rows = places.dataset(location, _SCHEMA).to_table(columns, _bounds(batch) & (pc.field("action") == MOVE))
    return [
        Moved(old, old_version, path, etag if version is None else version, commit)
        for old, old_version, path, version, etag, commit in zip(*(rows[name].to_pylist() for name in columns), strict=True)
    ]


def contained_paths(
    location: str, wanted: Iterable[str], batch: Batch | None = None, *, column: str = "relative_path"
) -> set[str]:
    """Returns the wanted paths that a plan, or a batch of it, contains.

    With the column ``old_path``, searches the old paths of moved files.
    """
    condition = pc.field(column).isin(pa.array(list(wanted), pa.string()))
    if batch is not None:
        condition &= _bounds(batch)
    return set(_paths(location, column, condition))


def origins(location: str, batch: Batch) -> tuple[str, str] | None:
    """Returns the first and the last old path of a batch's moved files, in byte order, or None without
    moves."""
    if not batch.moves:
        return None
    first = last = None
    for rows in places.dataset(location).to_batches(columns=["old_path"], filter=_bounds(batch)):
        extremes = pc.min_max(rows["old_path"])
        if extremes["min"].is_valid:
            first = min(first or extremes["min"].as_py(), extremes["min"].as_py(), key=str.encode)
            last = max(last or extremes["max"].as_py(), extremes["max"].as_py(), key=str.encode)
    assert first is not None, "a moved file has its old path"
    assert last is not None, "as above"
    return first, last


def files_in_sets(location: str, keys: Sequence[str]) -> Sequence[str]:
    """Returns the paths of the files in some of a plan's sets."""
    condition = pc.field("relative_path").isin(pa.array(keys, pa.string()))
    members = places.dataset(location, _SCHEMA).to_table(columns=["members"], filter=condition)["members"]
    return [member["relative_path"] for files in members.to_pylist() for member in files or ()]


def exists(location: str) -> bool:
    """Returns whether the files of a plan exist and are complete. They are not synced, because they can be
    re-created."""
    import pyarrow.parquet as pq

    filesystem, path = filesystem_of(location)
    if filesystem.get_file_info(f"{path}/_SUCCESS").type != fs.FileType.File:
        return False
    if is_remote(location):
        return True
    try:
        for info in filesystem.get_file_info(fs.FileSelector(path)):
            if info.extension == "parquet":
                pq.read_metadata(info.path, filesystem=filesystem)
    except (OSError, pa.ArrowInvalid):
        return False
    return True


def _with_actions(session: SparkSession, flat: DataFrame, where: str | None, moves: Moves) -> DataFrame:
    """Adds actions to net changes, given as the directory's columns, ``commit_version``, ``had`` and
    ``has``."""
    wanted = computing(session, f"has AND ({where}) AS wanted") if where else "has AS wanted"
    flat = flat.selectExpr("*", wanted)
    if moves.possible:
        alike = "OVER (PARTITION BY etag, size, had = has)"
        flat = flat.selectExpr(
            "*",
            f"count_if(NOT has) {alike} = 1 AND count_if(NOT had) {alike} = 1 AND bool_or(wanted) {alike} AS moved",
            f"max(IF(has, NULL, struct(relative_path, coalesce(version_id, etag) AS version))) {alike} AS origin",
        )
    else:
        flat = flat.selectExpr("*", "false AS moved", "named_struct('relative_path', '', 'version', '') AS origin")
    action = (
        f"CASE WHEN moved THEN IF(has, '{MOVE if moves.rekey else INSERT}', NULL) "
        f"WHEN wanted THEN IF(had, '{REPLACE}', '{INSERT}') WHEN had THEN '{REMOVE}' END AS action"
    )
    planned = flat.selectExpr(
        *COLUMNS,
        "commit_version",
        action,
        "IF(moved, origin.relative_path, NULL) AS old_path",
        "IF(moved, origin.version, NULL) AS old_version",
        *_NO_SET,
    )
    return planned.where("action IS NOT NULL")


def _bounds(batch: Batch) -> Any:
    path, time = pc.field("relative_path"), pc.field("last_modified_time")
    until = path <= batch.until_path
    if batch.until_time is not None:
        until = (time > batch.until_time) | ((time == batch.until_time) & until)
    after = _after(batch)
    return until if after is None else until & after


def _after(batch: Batch) -> Any:
    """Returns the condition for rows after the preceding batches, or None for the first batch."""
    if batch.after_path is None:
        return None
    path, time = pc.field("relative_path"), pc.field("last_modified_time")
    after = path > batch.after_path
    return after if batch.after_time is None else (time < batch.after_time) | ((time == batch.after_time) & after)


def _beyond(time: datetime | None, path: str) -> str:
    """Returns the SQL condition for rows after a position in a plan."""
    after = f"relative_path > {literal(path)}"
    if time is None:
        return f"({after})"
    micros = f"timestamp_micros({(time - EPOCH) // timedelta(microseconds=1)})"
    return f"(last_modified_time < {micros} OR (last_modified_time = {micros} AND {after}))"


def _paths(location: str, column: str, condition: Any) -> Sequence[str]:
    """Returns the values of a plan's column in the rows that meet a condition. There must be few."""
    values = places.dataset(location).scanner([column], filter=condition).to_table()[column]
    paths: list[str] = values.drop_null().to_pylist()
    return paths


def each_path(location: str) -> Iterator[list[str]]:
    """Yields the paths of a plan's files in lists of limited size."""
    for batch in places.dataset(location).scanner(["relative_path"]).to_batches():
        yield batch.column(0).to_pylist()


# Cuts the files of a plan into batches. The files are read once, in order.


def cut_plan(
    plan_id: str,
    job: FileJob,
    kind: PlanKind,
    covered: Range,
    location: str,
    limits: Limits,
    *,
    first: Limits | None = None,
    where: str | None = None,
    order: FileOrder = FileOrder.PATH,
) -> tuple[Plan, Sequence[Batch]]:
    """Reads a plan's files once, in order, and cuts them into batches. Needs memory for one row per batch.

    Args:
        first: limits of the first batch, if they differ.
        where: the condition that selected the files, stored with the plan.
        order: in which they were written.
    """
    plan = Plan(
        id=plan_id,
        kind=kind,
        job_id=job.id,
        stream_id=job.stream_id,
        table_id=covered.table_id,
        from_version=covered.from_version,
        to_version=covered.to_version,
        initial=covered.initial,
        location=location,
        where=where,
        created_on=datetime.now(UTC),
    )
    rows = _rows(location, None, timed=order is FileOrder.NEWEST)
    batches = list(_cut(plan, 1, (None, None), _groups(rows, limits, first)))
    files, size = sum(batch.files for batch in batches), sum(batch.bytes for batch in batches)
    return replace(plan, files=files, bytes=size), batches


def recut_plan(plan: Plan, first: Batch, limits: Limits) -> Sequence[Batch]:
    """Re-cuts a plan like :func:`cut_plan`, starting at a batch. Does not read earlier rows."""
    rows = _rows(plan.location, _after(first), timed=first.until_time is not None)
    return list(_cut(plan, first.number, (first.after_path, first.after_time), _groups(rows, limits)))


def _cut(plan: Plan, number: int, after: tuple[str | None, datetime | None], groups: Iterable[_Group]) -> Iterator[Batch]:
    now = datetime.now(UTC)
    for group in groups:
        yield Batch(
            id=uuid.uuid4().hex[:16],
            plan_id=plan.id,
            job_id=plan.job_id,
            stream_id=plan.stream_id,
            number=number,
            after_path=after[0],
            after_time=after[1],
            created_on=now,
            **vars(group),
        )
        after, number = (group.until_path, group.until_time), number + 1


@dataclass
class _Group:
    """The counts and the upper bound of a batch. Its attributes are fields of :class:`Batch`."""

    until_path: str = ""
    until_time: datetime | None = None
    files: int = 0
    replaced: int = 0
    removals: int = 0
    moves: int = 0
    bytes: int = 0


class PlanRow(NamedTuple):
    """The columns of a plan's row that are needed for cutting."""

    path: str
    size: int
    action: str
    old_path: str | None
    time: datetime | None = None


def _groups(rows: Iterable[PlanRow], limits: Limits, first: Limits | None = None) -> Iterator[_Group]:
    group, maximum = _Group(), first or limits
    for row in rows:
        size = 0 if row.action in (REMOVE, MOVE) else row.size
        full = group.files + group.removals >= maximum.files or (group.files and group.bytes + size > maximum.bytes)
        if full and group.until_path:
            yield group
            group, maximum = _Group(), limits
        group.until_path, group.until_time = row.path, row.time
        group.files += row.action != REMOVE
        group.replaced += row.action == REPLACE
        group.removals += row.action == REMOVE
        group.moves += row.old_path is not None
        group.bytes += size
    if group.until_path:
        yield group


def _rows(location: str, later: Any, *, timed: bool) -> Iterator[PlanRow]:
    """Yields the rows of a plan that meet a condition, in order: Spark names the parts of a sorted DataFrame
    in order.

    The files' statistics allow skipping earlier row groups.

    Args:
        timed: with the files' times.
    """
    filesystem, path = filesystem_of(location)
    infos = filesystem.get_file_info(fs.FileSelector(path))
    parts = sorted(info.path for info in infos if info.base_name.endswith(".parquet"))
    columns = ["relative_path", "size", "action", "old_path", *(["last_modified_time"] if timed else [])]
    for part in parts:
        from pyarrow import dataset as ds  # imports pandas

        dataset = ds.dataset(part, filesystem=filesystem, format="parquet")
        for batch in dataset.to_batches(columns=columns, filter=later):
            yield from starmap(PlanRow, zip(*(batch[name].to_pylist() for name in columns), strict=True))
