"""Reads files into frames with snake_case names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from volstream.base.model.arguments import checked
from volstream.compat.frame import DataFrame
from volstream.spark.errors import as_sql_errors

if TYPE_CHECKING:
    from pyspark.sql.connect.readwriter import DataFrameReader

    from volstream.home import Home


@checked
class Reader:
    """Reads files, as PySpark's reader does. Files of volumes are loaded by jobs: ``create_table_from_volume``."""

    def __init__(self, home: Home, reader: DataFrameReader) -> None:
        self._home = home
        self._reader = reader

    def option(self, key: str, value: Any) -> Self:
        """Sets an option of the format, such as ``header``."""
        self._reader.option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Sets options of the format."""
        self._reader.options(**options)
        return self

    def schema(self, schema: Any) -> Self:
        """Sets the columns: DDL, or a StructType."""
        with as_sql_errors():
            self._reader.schema(schema)
        return self

    def csv(self, path: str) -> DataFrame:
        """Reads csv files."""
        return self._made("csv", path)

    def json(self, path: str) -> DataFrame:
        """Reads files with a JSON value per line."""
        return self._made("json", path)

    def parquet(self, path: str) -> DataFrame:
        """Reads Parquet files."""
        return self._made("parquet", path)

    def orc(self, path: str) -> DataFrame:
        """Reads ORC files."""
        return self._made("orc", path)

    def _made(self, format_: str, path: str) -> DataFrame:
        with as_sql_errors():
            return DataFrame(self._home, self._reader.format(format_).load(path))
