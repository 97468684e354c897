"""Reads rows of a table without a JVM, through deltalake's query engine. For results that fit in memory.

The engine supports deletion vectors and skips files and pages by statistics: tens of milliseconds, where Spark takes seconds.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import QueryBuilder

from volstream.delta.places import mapped, open_table


def read(location: str, version: int, schema: pa.Schema, where: str = "true") -> pa.Table:
    """Returns rows of the table at a version.

    Args:
        schema: the columns to read, with the types to convert them to.
        where: SQL in DataFusion's dialect; with literals from :func:`text`.

    Raises:
        DependencyError: the table cannot be read.
    """
    with mapped(location):
        query = QueryBuilder().register("rows", open_table(location, version))
        columns = ", ".join(f'"{name}"' for name in schema.names)
        result = query.execute(f"SELECT {columns} FROM rows WHERE {where}")
        return pa.RecordBatchReader.from_stream(result).read_all().cast(schema)


def sample(location: str, version: int, limit: int, where: str = "true") -> pa.Table:
    """Returns some of the table's rows, with all columns.

    Args:
        limit: maximum number of rows.
        where: as for :func:`read`.

    Raises:
        DependencyError: the table cannot be read.
    """
    with mapped(location):
        query = QueryBuilder().register("rows", open_table(location, version))
        result = query.execute(f"SELECT * FROM rows WHERE {where} LIMIT {limit}")
        return pa.RecordBatchReader.from_stream(result).read_all()


def changes(location: str, first: int, last: int) -> pa.Table:
    """Returns the change feed of versions ``first`` to ``last``, both included.

    Returns:
        The table's columns, ``_change_type``, ``_commit_version`` and others, in no particular order.

    Raises:
        DependencyError: the table cannot be read.
    """
    with mapped(location):
        feed = open_table(location).load_cdf(starting_version=first, ending_version=last)
        return pa.RecordBatchReader.from_stream(feed).read_all()


def text(value: str) -> str:
    """Returns a literal for ``where``, in standard SQL, where a backslash is an ordinary character."""
    return "'" + value.replace("'", "''") + "'"
