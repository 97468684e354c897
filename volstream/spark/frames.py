"""Small local tables as relations of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


def relation(session: SparkSession, table: pa.Table) -> DataFrame:
    """The rows of ``table`` with its column types, also where there are none (PySpark cannot type an empty table)."""
    if table.num_rows:
        return session.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.createDataFrame([], from_arrow_schema(table.schema))
