"""Writes and reads Parquet files of Delta tables, with the statistics that let readers skip files.

Files may come from any writer: Spark stores times as INT96, polars stores text as ``string_view``. Rows are
converted to the table's types on reading.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from json import dumps  # functions may replace it in its module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from volstream.tables.delta.places import filesystem_of, make_durable, open_below, remove_file

#: The greatest character in UTF-8 order; appending it to a truncated text gives an upper bound.
_GREATEST = "\U0010ffff"

#: Rows per row group of a table with any columns. Smaller groups speed up the search for a key, and slow down
#: full scans.
GROUP_ROWS = 5_000

#: Maximum number of columns with statistics, and maximum length of text in them, as in Delta.
_TRACKED_COLUMNS, _LONGEST = 32, 32

#: The last time that the log can store, in milliseconds.
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_000)


@dataclass(frozen=True)
class AddedFile:
    """A complete data file in a table's folder, which a commit can add.

    Attributes:
        path: relative to the table.
        size: in bytes.
        modification_time: in milliseconds.
        stats: statistics, as in the log.
        partition: values of the partition columns, as in the log.
    """

    path: str
    size: int
    modification_time: int
    stats: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


class NewFile:
    """A data file being written. Nothing refers to it until it is committed.

    Args:
        location: of the table, or of another folder.
        tracked: columns with statistics. Columns whose type has none are ignored.
        plain: columns with mostly distinct values, for which a dictionary would be a second copy.
        group_rows: rows per row group. Looking up a key decodes a whole group.
        longest: maximum length of text in the statistics, in characters. Unlimited by default.
    """

    def __init__(
        self,
        location: str,
        schema: pa.Schema,
        *,
        tracked: Collection[str],
        plain: Collection[str] = (),
        group_rows: int,
        longest: int | None = None,
    ) -> None:
        self.rows = 0
        self.bytes = 0  #: size of the buffered rows
        self._location = location
        self._filesystem, self._root = filesystem_of(location)
        self._name = _new_name()
        self._schema = schema
        self._group_rows = group_rows
        self._longest = longest
        self._minimum: dict[str, Any] = {}
        self._maximum: dict[str, Any] = {}
        self._nulls = {name: 0 for name in tracked if _is_comparable(schema.field(name).type)}
        self._writer = pq.ParquetWriter(
            f"{self._root}/{self._name}",
            schema,
            filesystem=self._filesystem,
            compression="zstd",
            use_dictionary=[
                field.name
                for field in schema
                # Spark does not find 0.0 in a dictionary with -0.0 and skips the rows.
                if field.name not in plain and not pa.types.is_floating(field.type)
            ],
            write_page_index=True,
            write_page_checksum=True,
            write_statistics=with_statistics(schema),
        )

    def write(self, rows: pa.Table) -> None:
        """Adds rows. Their columns are in the schema's order."""
        if not rows.num_rows:
            return
        rows = rows.cast(self._schema)
        self._writer.write_table(rows, row_group_size=self._group_rows)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        for name in list(self._nulls):
            self._nulls[name] += rows[name].null_count
            try:
                extremes = pc.min_max(rows[name]).as_py()
            except (OverflowError, ValueError):  # a time outside datetime's range
                del self._nulls[name]
                continue
            if extremes["min"] is None:
                continue
            if isinstance(extremes["min"], float) and not _is_ordinary(rows[name]):
                del self._nulls[name]  # NaN sorts last in Spark, and is outside every range in Arrow
                continue
            self._minimum[name] = min(self._minimum.get(name, extremes["min"]), extremes["min"])
            self._maximum[name] = max(self._maximum.get(name, extremes["max"]), extremes["max"])

    def close(self) -> AddedFile:
        """Makes the content durable. The commit makes the name durable."""
        self._writer.close()
        path = f"{self._root}/{self._name}"
        make_durable(self._filesystem, path, folders=False)
        bounded = [name for name in self._minimum if name in self._nulls]
        greatest = {name: _maximum(self._maximum[name], self._longest) for name in bounded}
        statistics = {
            "numRecords": self.rows,
            "minValues": {name: _minimum(self._minimum[name], self._longest) for name in bounded},
            "maxValues": {name: value for name, value in greatest.items() if value is not None},
            "nullCount": self._nulls,
        }
        size = self._filesystem.get_file_info(path).size
        return AddedFile(self._name, size, int(time.time() * 1000), statistics_text(statistics))

    def drop(self) -> None:
        """Discards the file."""
        with suppress(OSError):
            self._writer.close()
        remove_file(self._location, self._name)


def of_rows(location: str, schema: pa.Schema, key: str, unlisted: Collection[str] = ()) -> NewFile:
    """Creates a data file for a table of any columns, with statistics as in Delta.

    Args:
        key: the column by which rows are looked up.
        unlisted: additional columns that the table's schema lacks.
    """
    listed = [name for name in schema.names if name not in unlisted]
    return NewFile(location, schema, tracked=listed[-_TRACKED_COLUMNS:], plain=(key,), group_rows=GROUP_ROWS, longest=_LONGEST)


@dataclass(frozen=True)
class FinishedFile:
    """A complete data file outside of a table's folder.

    Attributes:
        size: in bytes.
        stats: as in a table's log.
    """

    folder: str
    name: str
    size: int
    stats: str

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yields the rows, or some columns of them, one row group at a time."""
        with open_file(self.folder, self.name) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=columns if columns is None else list(columns))

    def put(self, location: str) -> AddedFile:
        """Links the file into a table's folder in the same store. The commit makes the new name durable.

        Copies the file in an object store, if the folders are on different disks, or if another user's file
        cannot be linked.
        """
        (_, source), (filesystem, root) = filesystem_of(self.folder), filesystem_of(location)
        name = _new_name()
        if not isinstance(filesystem, fs.LocalFileSystem):
            filesystem.copy_file(f"{source}/{self.name}", f"{root}/{name}")
            return AddedFile(name, self.size, int(time.time() * 1000), self.stats)
        try:
            os.link(f"{source}/{self.name}", f"{root}/{name}", follow_symlinks=False)
            if os.path.islink(f"{root}/{name}"):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.name)
            # else a vacuum could take it for a leftover of a crash
            os.utime(f"{root}/{name}", follow_symlinks=False)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(f"{root}/{name}")
            try:
                with open_below(self.folder, self.name) as read, Path(f"{root}/{name}").open("xb") as copy:
                    shutil.copyfileobj(read, copy, 1 << 20)
                make_durable(filesystem, f"{root}/{name}", folders=False)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(f"{root}/{name}")
                raise
        return AddedFile(name, self.size, int(time.time() * 1000), self.stats)


def statistics_text(statistics: Mapping[str, Any]) -> str:
    """Returns statistics in the log's format.

    Does not escape non-ASCII characters: delta-rs decodes escapes from planes 2, 4, ..., 16 to smaller
    characters.
    """
    return dumps(statistics, ensure_ascii=False)


def open_file(location: str, path: str) -> pq.ParquetFile:
    """Opens a data file of the table at ``location``, with times in microseconds, like the table's.

    By default, INT96 is decoded to nanoseconds, which cannot hold years before 1677 and after 2262.
    """
    filesystem, root = filesystem_of(location)
    return pq.ParquetFile(
        filesystem.open_input_file(f"{root}/{path}"), coerce_int96_timestamp_unit="us", page_checksum_verification=True
    )


def is_damage(error: BaseException) -> bool:
    """True if an error means that a file is missing, or that its content or disk is damaged.

    False if the file may be readable at another time or by another user.
    """
    if isinstance(error, OSError):
        damaged = error.errno == errno.EIO or (error.errno is None and "AWS Error" not in str(error))
        return isinstance(error, FileNotFoundError) or damaged
    return isinstance(error, ValueError)


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Converts rows of a data file to the columns and types of ``schema``. Missing columns are NULL."""
    names = {name.lower(): name for name in rows.column_names}
    columns = [
        rows[names[field.name.lower()]].cast(field.type) if field.name.lower() in names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _new_name() -> str:
    return f"part-{uuid.uuid4().hex}.parquet"


def _is_comparable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def with_statistics(schema: pa.Schema) -> Sequence[str]:
    """Returns the Parquet paths of the columns that get statistics in the file: all but floating-point
    columns.

    Arrow ignores NaN in statistics. In Spark, NaN is greater than all numbers, so it would skip these rows.
    """

    def leaves(path: str, kind: pa.DataType) -> Iterator[str]:
        if pa.types.is_struct(kind):
            for field in kind:
                yield from leaves(f"{path}.{field.name}", field.type)
        elif pa.types.is_map(kind):
            yield from leaves(f"{path}.key_value.key", kind.key_type)
            yield from leaves(f"{path}.key_value.value", kind.item_type)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            yield from leaves(f"{path}.list.element", kind.value_type)
        elif not pa.types.is_floating(kind):
            yield path

    return [path for field in schema for path in leaves(field.name, field.type)]


def _is_ordinary(column: pa.ChunkedArray) -> bool:
    return bool(pc.all(pc.is_finite(column), skip_nulls=True).as_py())


def _minimum(value: Any, longest: int | None) -> Any:
    """Returns a lower bound of ``value`` for the statistics."""
    match value:
        case datetime():
            return _instant(value)
        case date():
            return value.isoformat()
        case str() if longest is not None:
            return value[:longest]
        case float() if value == 0:
            return -0.0  # readers that order zeros put -0.0 first
    return value


def _maximum(value: Any, longest: int | None) -> Any:
    """Returns an upper bound of ``value`` for the statistics, or None if there is no such bound."""
    match value:
        case datetime() if value.microsecond % 1000:
            if value.replace(tzinfo=None) > _LAST:
                return None
            return _instant(value + timedelta(microseconds=1000 - value.microsecond % 1000))
        case str() if longest is not None and len(value) > longest:
            end = next((at for at in range(longest, 2 * longest) if value[at : at + 1] != _GREATEST), None)
            if end is None:
                return None
            return value[:end] + _GREATEST if end < len(value) else value
        case float() if value == 0:
            return 0.0
    return _minimum(value, longest)


def _instant(value: datetime) -> str:
    """Formats a time as Delta does, with a zone if it has one."""
    zoned = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return zoned.isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")


# New data files of a commit: each combination of partition values gets separate files.

#: Types of partition columns whose values all writers format alike.
_TYPES = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})

#: Bytes buffered in memory per data file, and maximum number of open files.
_FILE_BYTES, _OPEN = 256 << 20, 50


def can_partition(type_: Any) -> bool:
    """True if this module can write a partition column of this type (Delta's JSON)."""
    return isinstance(type_, str) and type_ in _TYPES


class NewFiles:
    """Writes rows to data files. Nothing refers to them until they are committed.

    Args:
        begin: creates a file for rows without the partition columns.
        partitions: the partition columns of the rows.
    """

    def __init__(self, begin: Callable[[], NewFile], partitions: Sequence[str]) -> None:
        self.rows = 0
        self._begin = begin
        self._partitions = partitions
        self._begun: list[NewFile] = []
        self._open: dict[tuple[Any, ...], NewFile] = {}
        self._closed: list[AddedFile] = []

    def write(self, rows: pa.Table) -> None:
        """Adds rows. The data files store their columns in this order, without the partition columns."""
        if not rows.num_rows:
            return
        for values, part in _split(rows, self._partitions):
            file = self._open.pop(values, None)
            if file is None:
                file = self._begin()
                self._begun.append(file)
            self._open[values] = file
            file.write(part)
            if file.bytes >= _FILE_BYTES:
                self._close(values)
        while len(self._open) > _OPEN:
            self._close(next(iter(self._open)))
        self.rows += rows.num_rows

    def close(self) -> Sequence[AddedFile]:
        """Makes the content durable. The commit makes the names durable."""
        for values in list(self._open):
            self._close(values)
        return self._closed

    def drop(self) -> None:
        """Discards all files."""
        for file in self._begun:
            file.drop()

    def _close(self, values: tuple[Any, ...]) -> None:
        partition = dict(zip(self._partitions, map(_text, values), strict=True))
        self._closed.append(replace(self._open.pop(values).close(), partition=partition))


def _split(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yields each combination of the columns' values with its rows, which no longer have these columns."""
    if not columns:
        yield (), rows
        return
    ordered = rows.sort_by([(name, "ascending") for name in columns])
    remaining, start = ordered.drop_columns(list(columns)), 0
    for values, group in groupby(zip(*(ordered[name].to_pylist() for name in columns), strict=True)):
        count = sum(1 for _ in group)
        yield values, remaining.slice(start, count)
        start += count


def _text(value: Any) -> str | None:
    """Returns a partition value as in the log. An empty string is NULL, as in Delta."""
    match value:
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
    return None if value is None else str(value) or None


def with_values(rows: pa.Table, partition: Mapping[str, Any]) -> pa.Table:
    """Fills the partition columns among a data file's rows with their values."""
    for name, value in partition.items():
        if name in rows.column_names:
            at = rows.column_names.index(name)
            rows = rows.set_column(at, rows.field(at), pa.array([value] * rows.num_rows, rows.field(at).type))
    return rows
