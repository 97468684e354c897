"""Reads rows of a table without a JVM, through deltalake's query engine. For results that fit in memory.

The engine supports deletion vectors and skips files and pages by statistics: tens of milliseconds, where Spark takes seconds.
Spark reads what the engine does not support, such as tables whose columns were widened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import QueryBuilder

from volstream.errors import DependencyError, DiskError, StorageError
from volstream.spark.errors import map_spark_errors
from volstream.sql.text import literal, quote_column, table_at
from volstream.tables.delta.places import mapped, open_table

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


def read(
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
        spark: returns a session for tables that deltalake cannot read; None: they are errors.

    Raises:
        DependencyError: the table cannot be read.
    """
    return _selected(location, version, schema.names, equals, None, spark).cast(schema)


def sample(
    location: str,
    version: int,
    limit: int,
    equals: tuple[str, str] | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> pa.Table:
    """Returns some of the table's rows, with all columns.

    Args:
        limit: maximum number of rows.
        equals, spark: as for :func:`read`.

    Raises:
        DependencyError: the table cannot be read.
    """
    return _selected(location, version, (), equals, limit, spark)


def _selected(
    location: str,
    version: int,
    columns: Sequence[str],
    equals: tuple[str, str] | None,
    limit: int | None,
    spark: Callable[[], SparkSession] | None,
) -> pa.Table:
    """Returns these columns, or all if there are none."""

    def query(table: str, quoted: Callable[[str], str], text: Callable[[str], str]) -> str:
        where = "" if equals is None else f" WHERE {quoted(equals[0])} = {text(equals[1])}"
        ending = "" if limit is None else f" LIMIT {limit}"
        return f"SELECT {', '.join(map(quoted, columns)) or '*'} FROM {table}{where}{ending}"

    try:
        return queried(location, query("rows", standard_name, standard_literal), version)
    except DependencyError as error:
        if spark is None or isinstance(error, StorageError | DiskError):
            raise
    with map_spark_errors():
        found: pa.Table = spark().sql(query(f"{table_at(location)} VERSION AS OF {version}", quote_column, literal)).toArrow()
    return found


def queried(location: str, query: str, version: int | None = None) -> pa.Table:
    """Returns the result of a query on a version of the table, which it calls ``rows``.

    Args:
        query: in standard SQL: see :func:`standard_name` and :func:`standard_literal`.
        version: None: the newest.

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
