"""New data files of a commit: the rows of each combination of partition values go to files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import groupby
from typing import Any

import pyarrow as pa

from volstream.tables.delta.datafile import AddedFile, NewFile

#: Types of partition columns whose values are written the same by everyone.
_TYPES = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})

#: Bytes buffered in memory per data file, and files that are written at once.
_FILE_BYTES, _OPEN = 256 << 20, 50


def can_partition(type_: Any) -> bool:
    """True if a table with a partition column of this type, in Delta's JSON, can be written here."""
    return isinstance(type_, str) and type_ in _TYPES


class NewFiles:
    """Writes rows to data files, to which nothing refers yet.

    Args:
        begin: begins a file in a folder, for rows without the partition columns.
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
        """Adds rows. The data files store all of their columns, in this order, except the partition columns."""
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
        """Makes the content durable; the commit does so for the names."""
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
    """Yields the rows of each combination of some columns' values, without these columns."""
    if not columns:
        yield (), rows
        return
    ordered = rows.sort_by([(name, "ascending") for name in columns])
    kept, start = ordered.drop_columns(list(columns)), 0
    for values, group in groupby(zip(*(ordered[name].to_pylist() for name in columns), strict=True)):
        count = sum(1 for _ in group)
        yield values, kept.slice(start, count)
        start += count


def _text(value: Any) -> str | None:
    """Returns a partition value as the log has it. An empty text is NULL, as in Delta."""
    match value:
        case bool():
            return str(value).lower()
        case date():
            return value.isoformat()
    return None if value is None else str(value) or None


def with_values(rows: pa.Table, partition: Mapping[str, Any]) -> pa.Table:
    """Returns rows of a data file with the values of the partition columns that they have."""
    for name, value in partition.items():
        if name in rows.column_names:
            at = rows.column_names.index(name)
            rows = rows.set_column(at, rows.field(at), pa.array([value] * rows.num_rows, rows.field(at).type))
    return rows
