"""Finds rows by key in a table's data files without a JVM, using the statistics of files and row groups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from volstream.errors import DependencyError, DiskError, StorageError
from volstream.spark.errors import map_spark_errors
from volstream.sql.text import literal, quote_column, table_at
from volstream.tables.delta.commits import NeedsSparkError
from volstream.tables.delta.datafile import fitted, open_file, with_values
from volstream.tables.delta.log import own_file
from volstream.tables.delta.places import files_of, mapped, open_table
from volstream.tables.delta.vectors import deleted_rows

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

# Bounds of columns from the statistics of data files and row groups.
#
# delta-rs decodes the JSON escape of a character in plane 2, 4, ..., 16 to the character 0x10000 below it. No
# known writer escapes such characters: not Delta for Spark 4.2, in logs and checkpoints, not delta-rs 1.6,
# not ``datafile.statistics_text``.


def bounds_of(files: pa.Table, column: str) -> tuple[list[Any], list[Any]]:
    """Returns lower and upper bounds of a column for each data file. A bound is None if unknown.

    Args:
        files: the table's files, from ``get_add_actions(flatten=True)``.
    """
    minimum, maximum = (
        files[name].to_pylist() if files.column_names.count(name) == 1 else [None] * files.num_rows
        for name in (f"min.{column}", f"max.{column}")
    )
    return minimum, [value + _TRUNCATION if isinstance(value, datetime) else value for value in maximum]


#: Delta truncates times in statistics to milliseconds.
_TRUNCATION = timedelta(milliseconds=1)


def group_bounds(group: pq.RowGroupMetaData, column: str) -> tuple[Any, Any]:
    """Returns a lower and an upper bound of a column in a row group. Both are None if unknown."""
    columns = map(group.column, range(group.num_columns))
    statistics = next((chunk.statistics for chunk in columns if chunk.path_in_schema == column), None)
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)


@dataclass(frozen=True)
class FoundRows:
    """Rows of a data file.

    Attributes:
        path: of the file, as in the log.
        positions: of the rows in the file, ascending.
        deleted: positions of rows already deleted.
        length: number of rows in the file.
        partition: values of the partition columns.
    """

    location: str
    path: str
    positions: np.ndarray
    deleted: np.ndarray
    length: int
    partition: Mapping[str, Any]

    def read(self, columns: pa.Schema) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yields some columns of the rows, with their positions, one row group at a time."""
        first = 0
        with open_file(self.location, own_file(self.path) or "") as file:
            present = [name for name in columns.names if name in file.schema_arrow.names]
            for number in range(file.num_row_groups):
                count = file.metadata.row_group(number).num_rows
                low, high = np.searchsorted(self.positions, [first, first + count])
                if low < high:
                    at = self.positions[low:high]
                    rows = fitted(file.read_row_group(number, columns=present), columns).take(at - first)
                    yield with_values(rows, self.partition), at
                first += count


def find(location: str, table: DeltaTable, key: str, values: Collection[str]) -> Sequence[FoundRows]:
    """Finds the rows of keys in a version of a table. Skips data files without matching rows.

    Args:
        key: a text column.

    Raises:
        NeedsSparkError: the table has data files elsewhere, like a shallow clone.
    """
    keys = sorted(values)
    files = files_of(table)
    paths = files["path"].to_pylist()
    parts = {name: files[f"partition.{name}"].to_pylist() for name in table.metadata().partition_columns}
    ranges = zip(*bounds_of(files, key), strict=True)
    candidates = [number for number, (low, high) in enumerate(ranges) if _overlaps(keys, low, high)]
    deleted = deleted_rows(table, [paths[number] for number in candidates])
    found = []
    for number in candidates:
        path, deleted_before = paths[number], deleted.get(paths[number], np.empty(0, np.int64))
        at, length = _positions(location, path, key, keys)
        at = np.setdiff1d(at, deleted_before, assume_unique=True)
        if at.size:
            partition = {name: of_files[number] for name, of_files in parts.items()}
            found.append(FoundRows(location, path, at, deleted_before, length, partition))
    return found


def _positions(location: str, path: str, key: str, wanted: Sequence[str]) -> tuple[np.ndarray, int]:
    """Returns the positions of a file's rows with any of the sorted keys, and the file's number of rows."""
    file_path = own_file(path)
    if file_path is None:
        raise NeedsSparkError
    positions = [np.empty(0, np.int64)]
    first = 0
    with open_file(location, file_path) as file:
        # A file older than the key's column has no row with a key.
        groups = file.num_row_groups if key in file.schema_arrow.names else 0
        for number in range(groups):
            group = file.metadata.row_group(number)
            if _overlaps(wanted, *group_bounds(group, key)):
                keys = file.read_row_group(number, columns=[key])[key].cast(pa.string())
                matches = pc.is_in(keys, value_set=pa.array(wanted, pa.string()))
                positions.append(np.flatnonzero(matches.to_numpy()) + first)
            first += group.num_rows
        return np.concatenate(positions), file.metadata.num_rows


def _overlaps(values: Sequence[str], low: str | None, high: str | None) -> bool:
    """True if any of the sorted values may be in a range. An end of None is open."""
    at = 0 if low is None else bisect_left(values, low)
    return at < len(values) and (high is None or values[at] <= high)


# Reads rows of a table through deltalake's query engine, without a JVM. For results that fit in memory.
#
# The engine supports deletion vectors and skips files and pages by statistics: it takes tens of milliseconds
# where Spark takes seconds. Spark reads tables that the engine does not support, such as tables with widened
# columns.


def read_rows(
    location: str,
    version: int,
    schema: pa.Schema,
    equals: tuple[str, str] | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> pa.Table:
    """Returns rows of the table at a version.

    Args:
        schema: the columns to read, with the types to convert them to.
        equals: a column and the text that it must have.
        spark: returns a session for tables that deltalake cannot read. Without it, such tables raise
            DependencyError.

    Raises:
        DependencyError: the table cannot be read.
    """
    return _query_rows(location, version, schema.names, equals, None, spark).cast(schema)


def sample_rows(
    location: str,
    version: int,
    limit: int,
    equals: tuple[str, str] | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> pa.Table:
    """Returns some of the table's rows, with all columns.

    Args:
        limit: maximum number of rows.
        equals, spark: as for :func:`read_rows`.

    Raises:
        DependencyError: the table cannot be read.
    """
    return _query_rows(location, version, (), equals, limit, spark)


def _query_rows(
    location: str,
    version: int,
    columns: Sequence[str],
    equals: tuple[str, str] | None,
    limit: int | None,
    spark: Callable[[], SparkSession] | None,
) -> pa.Table:
    """Returns rows with some columns. Without ``columns``, returns all."""

    def query(table: str, quoted: Callable[[str], str], text: Callable[[str], str]) -> str:
        where = "" if equals is None else f" WHERE {quoted(equals[0])} = {text(equals[1])}"
        ending = "" if limit is None else f" LIMIT {limit}"
        return f"SELECT {', '.join(map(quoted, columns)) or '*'} FROM {table}{where}{ending}"

    try:
        return queried_rows(location, query("rows", standard_name, standard_literal), version)
    except DependencyError as error:
        if spark is None or isinstance(error, StorageError | DiskError):
            raise
    with map_spark_errors():
        found: pa.Table = spark().sql(query(f"{table_at(location)} VERSION AS OF {version}", quote_column, literal)).toArrow()
    return found


def queried_rows(location: str, query: str, version: int | None = None) -> pa.Table:
    """Returns the result of a query on a version of the table. The query names the table ``rows``.

    Args:
        query: in standard SQL; see :func:`standard_name` and :func:`standard_literal`.
        version: defaults to the newest.

    Raises:
        DependencyError: the table cannot be read.
    """
    with mapped(location):
        result = QueryBuilder().register("rows", open_table(location, version)).execute(query)
        return pa.RecordBatchReader.from_stream(result).read_all()


def standard_name(name: str) -> str:
    """Returns a column's name in standard SQL, quoted so that its case is kept."""
    return '"' + name.replace('"', '""') + '"'


def standard_literal(text: str) -> str:
    """Returns a literal in standard SQL, where a backslash is an ordinary character."""
    return "'" + text.replace("'", "''") + "'"
