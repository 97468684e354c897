"""Sets of files: the files of a volume that share a key, which a function receives together.

In a plan, a set is one row, as a file is for other jobs. Its path is the key, its version is a hash of its
files' paths and versions, and its files are nested. So batches, failures and result rows are by key.

A set is always planned as a whole: the range of the stream only tells which keys have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa

from volstream.base.definitions import FileJob, FileJobSpec
from volstream.base.model.paths import MAX_OF_SET, FileInfo
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import COLUMNS, FILES
from volstream.jobs.plans import plan
from volstream.spark.frames import computing, relation
from volstream.sql.text import literal, table_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

#: A job whose function takes sets, or one to be created.
SetJob: TypeAlias = FileJob | FileJobSpec

#: Folders of up to this many keys are read. The sets of more keys are found in the whole directory.
_MAX_PREFIXES = 1000

#: The infinite waiting time of an incomplete set.
_FOREVER = "double('infinity')"


@dataclass(frozen=True)
class Shorthand:
    """A common key.

    Attributes:
        sql: the key of ``relative_path``.
        key: the same in Python.
        prefix: the common prefix of a set's paths, given its key.
    """

    sql: str
    key: Callable[[str], str]
    prefix: Callable[[str], str]


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _stem(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    stem, dot, _ = name.rpartition(".")
    return f"{folder}{slash}{stem}" if dot and stem else path


#: Keys that have a name or are common, so that the files of a set are found without reading the directory.
SHORTHANDS: Mapping[str, Shorthand] = {
    "folder": Shorthand(
        "coalesce(nullif(regexp_replace(relative_path, r'(?s)/?[^/]*$', ''), ''), '.')",
        _folder,
        lambda key: "" if key == "." else f"{key}/",
    ),
    "stem": Shorthand("regexp_replace(relative_path, r'(?s)(?<=[^/])\\.[^./]*$', '')", _stem, lambda key: key),
    "split(relative_path, '/')[0]": Shorthand(
        "split(relative_path, '/')[0]", lambda path: path.partition("/")[0], lambda key: key
    ),
}


def _key(session: SparkSession, job: SetJob) -> str:
    """Returns the column ``volstream_key``, the key of a file, as SQL."""
    assert job.group_by is not None, "the job has sets"
    shorthand = SHORTHANDS.get(job.group_by)
    text = job.group_by if shorthand is None else shorthand.sql
    return computing(session, f"CAST(({text}) AS STRING) AS volstream_key")


def key_of(session: Callable[[], SparkSession], job: SetJob, path: str) -> str | None:
    """Returns the key of a file, or None if it belongs to no set."""
    shorthand = SHORTHANDS.get(job.group_by or "")
    if shorthand is not None:
        return shorthand.key(path)
    spark = session()
    [row] = relation(spark, pa.table({"relative_path": [path]})).selectExpr(_key(spark, job)).collect()
    return None if row[0] is None else str(row[0])


def present(session: SparkSession, job: SetJob, snapshot: Snapshot, version: int) -> DataFrame:
    """Returns the rows of a plan for all sets of a directory at a refresh, as new sets."""
    return _grouped(job, session.sql(snapshot.at_query(version))).selectExpr("*", *_action(literal(plan.INSERT)))


def changed(
    session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, paths: Sequence[str] | str
) -> tuple[DataFrame, int]:
    """Returns the rows of a plan for the sets of changed and removed files at a refresh, and an upper bound
    of their number of files.

    Args:
        paths: of these files, or SQL for them if they are too many for memory.
    """
    shorthand = SHORTHANDS.get(job.group_by or "")
    if shorthand is not None and not isinstance(paths, str):
        return of_keys(session, job, snapshot, version, sorted({shorthand.key(path) for path in paths}))
    files = session.sql(paths) if isinstance(paths, str) else relation(session, _column("relative_path", paths))
    keys = files.selectExpr(_key(session, job)).distinct()
    return _with_removals(job, session.sql(snapshot.at_query(version)), keys, version), snapshot.rows


def of_keys(session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, keys: Sequence[str]) -> tuple[DataFrame, int]:
    """Returns the rows of a plan for the sets of some keys, like :func:`changed`."""
    files, count = _candidates(session, job, snapshot, version, keys)
    return _with_removals(job, files, relation(session, _column("volstream_key", keys)), version), count


def strays(session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, location: str) -> DataFrame:
    """Returns the rows of a plan for keys that have rows in a result table, but no complete set in the
    directory at a refresh."""
    present = _grouped(job, session.sql(snapshot.at_query(version))).where(f"held IS NULL OR held < {_FOREVER}")
    recorded = session.sql(f"SELECT DISTINCT _group_key AS relative_path FROM {table_at(location)}")
    keys = recorded.join(present, "relative_path", "left_anti").withColumnRenamed("relative_path", "volstream_key")
    return _with_removals(job, relation(session, FILES.empty_table()), keys, version)


def replayed(session: SparkSession, job: SetJob, snapshot: Snapshot, since: int, now: int, where: str | None) -> DataFrame:
    """Returns the rows of a plan for the sets that were in the directory at one refresh and are unchanged at
    another.

    Args:
        where: SQL condition on the sets' rows, whose ``relative_path`` is the key.
    """
    earlier, later = (_grouped(job, session.sql(snapshot.at_query(version))) for version in (since, now))
    unchanged = earlier.join(later.select("relative_path", "etag"), ["relative_path", "etag"], "left_semi")
    return unchanged.where(computing(session, where or "true")).selectExpr("*", *_action(literal(plan.REPLACE)))


def _with_removals(job: SetJob, files: DataFrame, keys: DataFrame, version: int) -> DataFrame:
    """Returns the rows of a plan for some keys: sets to reprocess, and keys without files to remove.

    Args:
        files: rows of the directory that contain all files of these keys.
        keys: the column ``volstream_key``.
    """
    wanted = keys.where("volstream_key <> ''")
    grouped = _grouped(job, files, wanted)
    sets = wanted.join(grouped, wanted["volstream_key"] == grouped["relative_path"], "left")
    expressions = {
        "relative_path": "volstream_key AS relative_path",
        "size": "coalesce(size, 0) AS size",
        "commit_version": f"coalesce(commit_version, {version}) AS commit_version",
    }
    columns = [expressions.get(name, name) for name in (*COLUMNS, "commit_version", "members", "held")]
    return sets.selectExpr(*columns, *_action(f"IF(relative_path IS NULL, '{plan.REMOVE}', '{plan.REPLACE}')"))


def _action(action: str) -> Sequence[str]:
    return f"{action} AS action", "CAST(NULL AS STRING) AS old_path", "CAST(NULL AS STRING) AS old_version"


def _column(name: str, values: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.string())})


def _candidates(
    session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, keys: Sequence[str]
) -> tuple[DataFrame, int]:
    """Returns rows of the directory at a refresh that contain all files of some keys, and the maximum number
    of these files.

    If the key is a prefix of its paths, only that part of the directory is read.
    """
    shorthand = SHORTHANDS.get(job.group_by or "")
    prefixes = set() if shorthand is None else set(map(shorthand.prefix, keys))
    if shorthand is None or "" in prefixes or len(prefixes) > _MAX_PREFIXES:
        return session.sql(snapshot.at_query(version)), snapshot.rows
    rows = pa.concat_tables([FILES.empty_table(), *snapshot.at(version, sorted(prefixes))])
    return relation(session, rows), rows.num_rows


def _grouped(job: SetJob, files: DataFrame, keys: DataFrame | None = None) -> DataFrame:
    """Returns the sets that files form: the columns of a plan without actions.

    Args:
        files: rows of the directory.
        keys: the wanted keys, as the column ``volstream_key``. All keys by default.
    """
    from pyspark.sql.connect.functions import expr

    complete = "true" if job.group_complete is None else f"coalesce(({job.group_complete}), false)"
    quiet = "CAST(NULL AS DOUBLE)"
    if job.group_quiet is not None:
        now = literal(datetime.now(UTC).isoformat())
        age = f"(unix_micros(TIMESTAMP {now}) - unix_micros(max(refreshed_on))) / 1e6D"
        quiet = f"IF({age} < {job.group_quiet}D, {job.group_quiet}D - greatest({age}, 0D), NULL)"
    session = cast("SparkSession", files.sparkSession)
    keyed = files.selectExpr("*", _key(session, job))
    keyed = keyed.where(computing(session, f"volstream_key <> '' AND ({job.where or 'true'})"))
    if keys is not None:
        keyed = keyed.join(keys, "volstream_key", "left_semi")
    rank = "row_number() OVER (PARTITION BY volstream_key ORDER BY relative_path) AS volstream_rank"
    limit = f"FILTER (WHERE volstream_rank <= {MAX_OF_SET + 1})"
    sets = (
        keyed.selectExpr("*", rank)
        .groupBy("volstream_key")
        .agg(
            expr("sum(size) AS total"),
            expr("max(last_modified_time) AS latest"),
            expr("max(refresh_id) AS commit_version"),
            expr(f"sort_array(collect_list(struct({', '.join(FileInfo._fields)})) {limit}) AS members"),
            expr(computing(session, f"IF({complete}, {quiet}, {_FOREVER}) AS held")),
        )
    )
    version = "to_json(transform(members, m -> struct(m.relative_path, coalesce(m.version_id, m.etag))))"
    return sets.selectExpr(
        "volstream_key AS relative_path",
        "CAST(NULL AS STRING) AS url",
        "total AS size",
        "latest AS last_modified_time",
        f"sha2({version}, 256) AS etag",
        "CAST(NULL AS STRING) AS version_id",
        "CAST(NULL AS STRING) AS content_type",
        "commit_version",
        "members",
        "held",
    )
