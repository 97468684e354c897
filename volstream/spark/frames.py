"""Frames of a session, made from small local tables or from another session's frames."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import DataType, StructType


def bound_to(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Returns a frame of another session in one that was copied from it."""
    from pyspark.sql.connect.dataframe import DataFrame as Connected

    return Connected(cast(Any, frame)._plan, session)


def warning(frame: DataFrame, message: str) -> DataFrame:
    """Returns the frame, which warns with ``message`` when it is written directly; frames derived from it do not."""
    from pyspark.sql.connect.dataframe import DataFrame as Connected

    class Unconsumed(Connected):
        @property
        def write(self) -> Any:
            warnings.warn(message, UserWarning, stacklevel=2)
            return super().write

    assert isinstance(frame, Connected), "the gateway has no other frames"
    frame.__class__ = Unconsumed
    return frame


def show_in_notebooks(session: SparkSession) -> None:
    """Makes a notebook show the rows of a session's frames, as a table."""
    session.conf.set("spark.sql.repl.eagerEval.enabled", "true")
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        from pyspark.sql.connect.dataframe import DataFrame as Connected

        # IPython takes a frame of Spark Connect, which has a column of any name, for one without methods of its own.
        shell.display_formatter.formatters["text/html"].for_type(Connected, Connected._repr_html_)


def batches(frame: DataFrame) -> Iterator[pa.Table]:
    """Yields the rows of a frame as they come from Spark, some thousands at a time."""
    inside = cast(Any, frame)
    client = inside._session.client
    for part in client.to_table_as_iterator(inside._plan.to_proto(client), inside._plan.observations):
        if isinstance(part, pa.Table):  # the first part is the schema
            yield part


def relation(session: SparkSession, table: pa.Table) -> DataFrame:
    """Returns the rows of ``table`` with its column types, even if it is empty; a timestamp without a zone stays one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    types = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    frame = session.createDataFrame(table if table.num_rows else [], types)
    cast(Any, frame)._cached_schema = types  # what Spark would answer, in 10 ms
    return frame


def mapped(frame: DataFrame, function: Any, schema: pa.Schema, profile: Any = None) -> DataFrame:
    """Returns ``frame.mapInArrow`` with a result of Arrow's types: as DDL, Spark would have to be asked what they mean."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return frame.mapInArrow(function, from_arrow_schema(schema), profile=profile)


def without_collations(schema: pa.Schema) -> StructType:
    """Returns Spark's types without collations. Spark Connect sends a collation for each text in a result's type; Delta writes it
    into the schema of a table of such results, where other readers do not support it."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    def strip(kind: DataType) -> None:
        match kind:
            case StringType():
                kind.collation = ""
            case ArrayType():
                strip(kind.elementType)
            case MapType():
                strip(kind.keyType)
                strip(kind.valueType)
            case StructType():
                for field in kind.fields:
                    strip(field.dataType)

    parsed = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    strip(parsed)
    return parsed
