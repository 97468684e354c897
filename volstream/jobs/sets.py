"""Sets of files: the files of a volume that share a key, which a function takes together.

In a plan a set is one row, as a file is for other jobs: its path is the key, its version a hash of its files' paths and versions,
and its files are nested. So batches, failures and result rows are by key.

A set is always planned whole: the range of the stream only tells which keys have changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from volstream.definitions import FileJob, FileJobSpec
from volstream.directory.snapshot import Snapshot
from volstream.directory.table import COLUMNS, FILES
from volstream.jobs import plan
from volstream.model.files import MAX_OF_SET, FileInfo
from volstream.spark.frames import relation
from volstream.spark.plans import check_reads
from volstream.sqltext import literal, table_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

#: A job whose function takes sets, or one to be created.
SetJob: TypeAlias = FileJob | FileJobSpec

#: A set has no path that it was moved from.
_NO_ORIGIN = "CAST(NULL AS STRING) AS old_path, CAST(NULL AS STRING) AS old_version"

#: Folders of up to this many keys are read; the sets of more keys are found in the whole directory.
_MAX_PREFIXES = 1000

#: The infinite time for which a set waits that is not complete.
_FOREVER = "double('infinity')"


@dataclass(frozen=True)
class Shorthand:
    """A usual key.

    Attributes:
        sql: the key of ``relative_path``.
        key: the same in Python.
        prefix: what the paths of a set begin with, given its key.
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


#: Keys that have a name, or are common, so that the files of a set are found without reading the directory.
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


def expression(job: SetJob) -> str:
    """Returns SQL for the key of a file."""
    assert job.group_by is not None, "the job has sets"
    known = SHORTHANDS.get(job.group_by)
    return f"CAST(({job.group_by if known is None else known.sql}) AS STRING)"


def key_of(session: Callable[[], SparkSession], job: SetJob, path: str) -> str | None:
    """Returns the key of a file; None: it belongs to no set."""
    known = SHORTHANDS.get(job.group_by or "")
    if known is not None:
        return known.key(path)
    [row] = relation(session(), pa.table({"relative_path": [path]})).selectExpr(expression(job)).collect()
    return None if row[0] is None else str(row[0])


def present(session: SparkSession, job: SetJob, snapshot: Snapshot, version: int) -> DataFrame:
    """Returns the rows of a plan for all sets of a directory at a refresh, as new ones."""
    _check(session, job)
    return session.sql(f"SELECT *, {_action(plan.INSERT)} FROM ({_grouped(job, snapshot.at_query(version))})")


def changed(
    session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, paths: Sequence[str] | str
) -> tuple[DataFrame, int]:
    """Returns the rows of a plan for the sets, at a refresh, of files that have changed or gone; and an upper bound of how many
    files they have.

    Args:
        paths: of these files; too many for memory: SQL for them.
    """
    _check(session, job)
    known = SHORTHANDS.get(job.group_by or "")
    if isinstance(paths, str):
        keys = f"SELECT DISTINCT {expression(job)} AS key FROM ({paths})"
        return _with_gone(session, job, snapshot.at_query(version), keys, version), snapshot.rows
    if known is not None:
        return of_keys(session, job, snapshot, version, sorted({known.key(path) for path in paths}))
    _show(session, "volstream_changed", pa.table({"relative_path": pa.array(paths, pa.string())}))
    keys = f"SELECT DISTINCT {expression(job)} AS key FROM volstream_changed"
    return _with_gone(session, job, snapshot.at_query(version), keys, version), snapshot.rows


def of_keys(
    session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, keys: Sequence[str]
) -> tuple[DataFrame, int]:
    """Returns the rows of a plan for the sets of some keys, like :func:`changed`."""
    _check(session, job)
    _show(session, "volstream_keys", pa.table({"key": pa.array(keys, pa.string())}))
    files, count = _candidates(session, job, snapshot, version, keys)
    return _with_gone(session, job, files, "SELECT key FROM volstream_keys", version), count


def strays(session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, location: str) -> DataFrame:
    """Returns the rows of a plan for the keys that have rows in a result table, but no set in the directory at a refresh."""
    _check(session, job)
    present = f"SELECT relative_path FROM ({_grouped(job, snapshot.at_query(version))}) WHERE held IS NULL OR held < {_FOREVER}"
    recorded = f"SELECT DISTINCT _group_key AS key FROM {table_at(location)} WHERE _group_key IS NOT NULL"
    keys = f"SELECT key FROM ({recorded}) LEFT ANTI JOIN ({present}) ON relative_path = key"
    nothing = f"{snapshot.at_query(version)} LIMIT 0"
    return _with_gone(session, job, nothing, keys, version)


def replayed(
    session: SparkSession, job: SetJob, snapshot: Snapshot, since: int, now: int, where: str | None
) -> DataFrame:
    """Returns the rows of a plan for the sets that were in the directory at one refresh and are the same at another.

    Args:
        where: SQL condition on the sets' rows, whose ``relative_path`` is the key; None: all sets.
    """
    _check(session, job)
    one, other = (_grouped(job, snapshot.at_query(version)) for version in (since, now))
    same = (
        f"SELECT d.* FROM ({one}) d LEFT SEMI JOIN ({other}) n ON n.relative_path = d.relative_path AND n.etag = d.etag"
    )
    return session.sql(f"SELECT *, {_action(plan.REPLACE)} FROM ({same}) p WHERE ({where or 'true'})")


def _with_gone(session: SparkSession, job: SetJob, files: str, keys: str, version: int) -> DataFrame:
    """Returns the rows of a plan for some keys: sets to process again, and keys without files to remove.

    Args:
        files: SQL for rows of the directory that contain all files of these keys.
        keys: SQL for the keys, as the column ``key``.
    """
    action = f"IF(s.relative_path IS NULL, '{plan.REMOVE}', '{plan.REPLACE}')"
    given = {
        "relative_path": "k.key",
        "size": "coalesce(s.size, 0)",
        "commit_version": f"coalesce(s.commit_version, {version})",
    }
    columns = ", ".join(
        f"{given.get(name, f's.{name}')} AS {name}" for name in (*COLUMNS, "commit_version", "members", "held")
    )
    return session.sql(
        f"SELECT {columns}, {action} AS action, {_NO_ORIGIN} FROM (SELECT key FROM ({keys}) WHERE key <> '') k "
        f"LEFT JOIN ({_grouped(job, files, keys=keys)}) s ON s.relative_path = k.key"
    )


def _action(action: str) -> str:
    return f"'{action}' AS action, {_NO_ORIGIN}"


def _show(session: SparkSession, name: str, rows: pa.Table) -> None:
    relation(session, rows).createOrReplaceTempView(name)


def _check(session: SparkSession, job: SetJob) -> None:
    """Raises SqlError if the job's key or conditions do anything besides computing with the columns of files."""
    view = f"volstream_{uuid.uuid4().hex}"
    _show(session, view, FILES.empty_table())
    check_reads(session.sql(_grouped(job, f"SELECT * FROM {view}")), views=[view])
    session.catalog.dropTempView(view)


def _candidates(
    session: SparkSession, job: SetJob, snapshot: Snapshot, version: int, keys: Sequence[str]
) -> tuple[str, int]:
    """Returns SQL for rows of the directory at a refresh that contain all files of some keys, and at most how many rows.

    With a key that files begin with, only their part of the directory is read.
    """
    known = SHORTHANDS.get(job.group_by or "")
    prefixes = set() if known is None else set(map(known.prefix, keys))
    if known is None or "" in prefixes or len(prefixes) > _MAX_PREFIXES:
        return snapshot.at_query(version), snapshot.rows
    rows = pa.concat_tables([FILES.empty_table(), *snapshot.at(version, sorted(prefixes))])
    _show(session, "volstream_candidates", rows)
    return "SELECT * FROM volstream_candidates", rows.num_rows


def _grouped(job: SetJob, files: str, *, keys: str | None = None) -> str:
    """Returns SQL for the sets that files form: the columns of a plan without actions.

    Args:
        files: SQL for rows of the directory.
        keys: SQL for the wanted keys, as the column ``key``; None: all.
    """
    among = "" if keys is None else f" AND volstream_key IN (SELECT key FROM ({keys}))"
    members = ", ".join(FileInfo._fields)
    complete = "true" if job.group_complete is None else f"coalesce(({job.group_complete}), false)"
    quiet = "CAST(NULL AS DOUBLE)"
    if job.group_quiet is not None:
        now = literal(datetime.now(UTC).isoformat())
        age = f"(unix_micros(TIMESTAMP {now}) - unix_micros(max(refreshed_on))) / 1e6D"
        quiet = f"IF({age} < {job.group_quiet}D, {job.group_quiet}D - greatest({age}, 0D), NULL)"
    version = "sha2(to_json(transform(members, m -> struct(m.relative_path, coalesce(m.version_id, m.etag)))), 256)"
    sets = (
        "SELECT volstream_key, sum(size) AS size, max(last_modified_time) AS last_modified_time, "
        "max(refresh_id) AS commit_version, "
        f"sort_array(collect_list(struct({members})) FILTER (WHERE volstream_rank <= {MAX_OF_SET + 1})) AS members, "
        f"IF({complete}, {quiet}, {_FOREVER}) AS held "
        "FROM (SELECT *, row_number() OVER (PARTITION BY volstream_key ORDER BY relative_path) AS volstream_rank "
        f"FROM (SELECT *, {expression(job)} AS volstream_key FROM ({files}) f) k "
        f"WHERE volstream_key <> '' AND ({job.where or 'true'}){among}) r GROUP BY volstream_key"
    )
    return (
        "SELECT volstream_key AS relative_path, CAST(NULL AS STRING) AS url, size, last_modified_time, "
        f"{version} AS etag, CAST(NULL AS STRING) AS version_id, CAST(NULL AS STRING) AS content_type, commit_version, "
        f"members, held FROM ({sets})"
    )
