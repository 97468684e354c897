"""Dates and times that Spark wrote in its former calendar: Julian before 1582-10-15, Gregorian since.

Before Spark 3 it wrote all files so, and since then those of its ``LEGACY`` modes; their metadata say it, as Spark's own
``DataSourceUtils`` reads them. A date is the same day, month and year in both calendars, but another number of days.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volstream.functions.rejection import FileRejectedError

_VERSION, _ZONE = "org.apache.spark.version", "org.apache.spark.timeZone"

#: The days since 1970 from which on a number of days is added, and that number; from Spark's ``RebaseDateTime``.
_SWITCHES = np.array(
    [
        *(-719164, -682945, -646420, -609895, -536845, -500320, -463795),
        *(-390745, -354220, -317695, -244645, -208120, -171595, -141427),
    ]
)
_ADDED = np.array([2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0])

_DAY = 86_400_000_000

#: 1900-01-01 in microseconds since 1970: earlier times depend on the writer's zone, too, which had its own calendar's offsets.
_ZONED = -2_208_988_800_000_000


def is_former(metadata: Mapping[str, str], *, int96: bool = False) -> bool:
    """True if a file's metadata say that values of a column may be of the former calendar.

    Args:
        int96: the column has parquet's INT96, for which Spark has a mode of its own since 3.1.
    """
    version = metadata.get(_VERSION)
    if version is None:
        return False
    before, mark = (("1.", "2.", "3.0."), "INT96") if int96 else (("1.", "2."), "DateTime")
    return version.startswith(before) or f"org.apache.spark.legacy{mark}" in metadata


def rebased(values: pa.Array, metadata: Mapping[str, str]) -> pa.Array:
    """Returns values of a file of the former calendar in that of today.

    Raises:
        FileRejectedError: a value cannot be converted: a date within a nested value, or a time before 1900 whose writer was
            not in UTC.
    """
    if pa.types.is_date32(values.type):
        return _moved(values)
    if pa.types.is_timestamp(values.type):
        if metadata.get(_ZONE, "UTC") not in ("UTC", "Z", "GMT", "Etc/UTC") and _is_before(values, _ZONED):
            raise _refusal("times before 1900 of a writer in another zone than UTC")
        return _moved(values)
    for leaf in _leaves(values):
        if _is_before(leaf, int(_SWITCHES[-1]) * _day(leaf)):
            raise _refusal("dates before 1582-10-15 inside of other values")
    return values


def _moved(values: pa.Array) -> pa.Array:
    day = _day(values)
    if not _is_before(values, int(_SWITCHES[-1]) * day):
        return values
    numbers = pc.fill_null(_numbers(values), 0).to_numpy(zero_copy_only=False)
    at = np.searchsorted(_SWITCHES, numbers // day, side="right") - 1
    added = np.where(numbers // day < _SWITCHES[-1], _ADDED[np.maximum(at, 0)], 0)
    moved = pa.array((numbers + added * day).astype(numbers.dtype), mask=values.is_null().to_numpy(zero_copy_only=False))
    return moved.cast(pa.timestamp("us") if day != 1 else values.type).cast(values.type)


def _day(values: pa.Array) -> int:
    """Returns a day in the unit of :func:`_numbers`."""
    return 1 if pa.types.is_date32(values.type) else _DAY


def _numbers(values: pa.Array) -> pa.Array:
    """Returns dates as days, and times as microseconds."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())


def _is_before(values: pa.Array, bound: int) -> bool:
    least = pc.min(_numbers(values)).as_py()
    return least is not None and least < bound


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        yield values
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from _leaves(part)
    elif pa.types.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(values.flatten())


def _refusal(what: str) -> FileRejectedError:
    return FileRejectedError(
        f"The file has {what}, in the calendar that Spark had before version 3. Read it with Spark, and write it again with "
        "spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite (spark.sql.avro...) set to CORRECTED."
    )
