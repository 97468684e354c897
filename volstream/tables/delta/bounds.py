"""Bounds of columns from the statistics of data files and row groups.

delta-rs decodes the JSON escape of a character in plane 2, 4, ..., 16 to the character 0x10000 below it. No writer that we know
escapes such characters: neither Delta for Spark 4.2, in logs and checkpoints, nor delta-rs 1.6, nor ``datafile.statistics_text``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def bounds_of(files: pa.Table, column: str) -> tuple[list[Any], list[Any]]:
    """Returns a lower and an upper bound of a column for each data file; None: unknown.

    Args:
        files: the table's files, from ``get_add_actions(flatten=True)``.
    """
    minimum, maximum = (
        files[name].to_pylist() if files.column_names.count(name) == 1 else [None] * files.num_rows
        for name in (f"min.{column}", f"max.{column}")
    )
    return minimum, maximum


def group_bounds(group: pq.RowGroupMetaData, column: str) -> tuple[Any, Any]:
    """Returns a lower and an upper bound of a column in a row group; None: unknown."""
    columns = map(group.column, range(group.num_columns))
    statistics = next((chunk.statistics for chunk in columns if chunk.path_in_schema == column), None)
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)
