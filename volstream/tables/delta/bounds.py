"""Bounds of columns from the statistics of data files, as far as they are reliable.

delta-rs decodes the JSON escape of a character in plane 2, 4, ..., 16 to the character 0x10000 below it, in the previous plane.
Logs written by volstream before 0.2 contain such escapes; the next commit replaces them (``direct``). Until then a bound with a
character of plane 1, 3, ..., 15 may be too small: as a lower bound it still holds; as an upper bound it is raised.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from volstream.tables.delta.datafile import open_file
from volstream.tables.delta.places import files_of

#: A character that delta-rs may have decoded instead of another one.
_DOUBTFUL = re.compile(
    "[" + "".join(f"{chr(plane << 16)}-{chr((plane << 16) + 0xFFFF)}" for plane in range(1, 16, 2)) + "]"
)

#: The JSON escape of a character beyond U+FFFF.
_ESCAPE = re.compile(r"(?<!\\)(\\\\)*\\u[dD][89abAB]")


def bounds_of(files: pa.Table, column: str) -> tuple[list[Any], list[Any]]:
    """Returns a lower and an upper bound of a column for each data file; None: unknown.

    Args:
        files: the table's files, from ``get_add_actions(flatten=True)``.
    """
    minimum, maximum = (
        files[name].to_pylist() if files.column_names.count(name) == 1 else [None] * files.num_rows
        for name in (f"min.{column}", f"max.{column}")
    )
    return minimum, [_raised(value) if isinstance(value, str) else value for value in maximum]


def doubtful_files(table: DeltaTable) -> Sequence[str]:
    """Returns the paths of data files with a text bound that may be too small."""
    files = files_of(table)
    doubtful = pa.repeat(False, files.num_rows)
    for at, name in enumerate(files.column_names):
        if name.startswith(("min.", "max.")) and pa.types.is_string(files.schema.field(at).type):
            matches = pc.match_substring_regex(files.column(at).combine_chunks(), _DOUBTFUL.pattern).fill_null(False)
            doubtful = pc.or_(doubtful, matches)
    return list(files["path"].filter(doubtful).to_pylist())


def has_escapes(statistics: str) -> bool:
    """True if delta-rs misreads the text of statistics."""
    return _ESCAPE.search(statistics) is not None


def is_doubtful(bound: Any) -> bool:
    """True if a bound may be too small."""
    return isinstance(bound, str) and _DOUBTFUL.search(bound) is not None


@functools.lru_cache(maxsize=10_000)
def exact_bounds(location: str, path: str, column: str) -> tuple[str, str]:
    """Returns the smallest and greatest text of a column without NULL, from the data file itself, which never changes."""
    with open_file(location, path) as file:
        groups = [group_bounds(file.metadata.row_group(number), column) for number in range(file.num_row_groups)]
        minimum, maximum = (
            [low for low, _ in groups if low is not None],
            [high for _, high in groups if high is not None],
        )
        if len(minimum) < len(groups) or len(maximum) < len(groups):  # texts are too long for Parquet's statistics
            read = pc.min_max(file.read(columns=[column])[column]).as_py()
            return str(read["min"]), str(read["max"])
    return min(minimum), max(maximum)


def group_bounds(group: pq.RowGroupMetaData, column: str) -> tuple[Any, Any]:
    """Returns a lower and an upper bound of a column in a row group; None: unknown."""
    columns = map(group.column, range(group.num_columns))
    statistics = next((chunk.statistics for chunk in columns if chunk.path_in_schema == column), None)
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else (None, None)


def _raised(bound: str) -> str:
    return _DOUBTFUL.sub(lambda character: chr(ord(character[0]) + 0x10000), bound)
