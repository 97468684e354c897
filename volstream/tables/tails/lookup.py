"""Finds single rows of a table and its tail by key, without Spark.

Data files never change, so the key columns of searched files are cached up to a limit. A search then compares
in memory and reads one row group.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volstream.errors import InvalidStateError, NotFoundError
from volstream.tables.delta.datafile import fitted, open_file
from volstream.tables.delta.lookup import bounds_of
from volstream.tables.delta.native import NativeTable
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import mapped
from volstream.tables.tails.tail import (
    ARRIVAL,
    DELETE,
    OPERATION,
    OWN,
    POSITION,
    Tail,
    existing_tail,
    tail_exists,
    tail_location,
    unfitting,
)

#: Maximum bytes of cached key columns.
_MAX_CACHED_BYTES = 256 << 20

#: Attempts to read both tables consistently, because a move may be committed between the two reads.
_ATTEMPTS = 10


class Lookup:
    """Searches the table at ``location``. Thread-safe.

    Args:
        key: the columns that identify a row.
        version: a Delta version of the table to search, without the tail. By default, searches the newest,
            including arrived rows.

    Raises:
        NotFoundError: there is no table.
        DependencyError: the table cannot be read.
    """

    def __init__(self, location: str, key: Sequence[str], version: int | None = None) -> None:
        self._location = location
        self._key = list(key)
        self._lock = threading.Lock()
        self._keys = _Keys(location)
        self._pinned = None if version is None else _present(location, OpenTable.at(location, version))
        self._cached_bounds: tuple[OpenTable | None, tuple[list[Any], list[Any]]] = None, ([], [])
        self._tail: NativeTable | None = None
        self._tail_keys = _Keys(tail_location(location))

    def get(self, *values: Any) -> Mapping[str, Any] | None:
        """Returns the row with these stored key values, by column, or None if no row has the key.

        Raises:
            InvalidStateError: several rows have the key, or columns were renamed.
            DependencyError: the table cannot be read.
        """
        with self._lock, mapped(self._location):
            if self._pinned is not None:
                return self._in_base(self._pinned, values)
            for _ in range(_ATTEMPTS):
                # Read the tail first: rows that move into the table afterwards are still found.
                tail = self._newest_tail()
                base = _present(self._location, OpenTable.newest(self._location))
                if tail is None:
                    return self._in_base(base, values)
                moved = tail.moved(base.transaction(tail.move_id))
                if moved is not None:
                    row = self._in_tail(tail, moved, values)
                    if row is None:
                        return self._in_base(base, values)
                    values_by_column = {name: value for name, value in row.items() if name not in OWN}
                    return None if row[OPERATION] == DELETE else values_by_column
        raise unfitting(self._location)

    def _newest_tail(self) -> Tail | None:
        if self._tail is None:
            present = existing_tail(self._location) if tail_exists(self._location) else None
            if present is None:
                return None
            self._tail = NativeTable(present[0])
        try:
            return Tail.of(self._tail.open(creates=False))
        except NotFoundError:
            self._tail = None
            return None

    def _in_tail(self, tail: Tail, moved: int, values: Sequence[Any]) -> Mapping[str, Any] | None:
        newest: tuple[tuple[int, int], str, int] | None = None
        for file in tail.files(moved):
            columns = self._tail_keys.of(file.path, tail.view.spec.schema, [*self._key, ARRIVAL, POSITION])
            for at in _matching_positions(columns, self._key, values):
                order = columns[ARRIVAL][at].as_py(), columns[POSITION][at].as_py()
                if order[0] > moved and (newest is None or order > newest[0]):
                    newest = order, file.path, int(at)
        return None if newest is None else self._tail_keys.row(newest[1], tail.view.spec.schema, newest[2])

    def _in_base(self, base: OpenTable, values: Sequence[Any]) -> Mapping[str, Any] | None:
        hits: list[tuple[str, int]] = []
        for path in self._candidates(base, values[0]):
            positions = _matching_positions(self._keys.of(path, base.fields, self._key), self._key, values)
            if positions.size:
                deleted = base.deleted(path)
                hits += [(path, int(at)) for at in positions if deleted is None or at not in deleted]
        if len(hits) > 1:
            raise InvalidStateError(f"{len(hits)} rows of the table at {self._location} have the key {values[0]!r}.")
        return self._keys.row(hits[0][0], base.fields, hits[0][1]) if hits else None

    def _candidates(self, base: OpenTable, value: Any) -> Iterator[str]:
        """Yields the files that by their statistics may contain a value of the key's first column."""
        if self._cached_bounds[0] is not base:
            self._cached_bounds = base, bounds_of(base.files, self._key[0])
        for path, low, high in zip(base.paths, *self._cached_bounds[1], strict=True):
            if (low is None or low <= value) and (high is None or value <= high):
                yield path


def _present(location: str, table: OpenTable | None) -> OpenTable:
    """Returns the table. Raises NotFoundError if missing, InvalidStateError if data files rename columns."""
    if table is None:
        raise NotFoundError(f"There is no table at {location}.")
    columns = table.schema.columns
    if [*table.schema.ids_of(columns)] != [*columns]:
        raise InvalidStateError(f"Columns of the table at {location} are mapped to others in its files.", "Read it by SQL.")
    return table


class _Keys:
    """Reads a table's data files. Caches the key columns of the latest searches."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._columns: OrderedDict[str, pa.Table] = OrderedDict()
        self._bytes = 0

    def of(self, path: str, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        """Returns columns of a file with the types of ``schema``. All calls must pass the same columns."""
        if path in self._columns:
            self._columns.move_to_end(path)
            return self._columns[path]
        with open_file(self._location, path) as file:
            wanted = pa.schema([schema.field(name) for name in columns])
            read = self._columns[path] = fitted(file.read(columns=wanted.names), wanted).combine_chunks()
        self._bytes += read.nbytes
        while self._bytes > _MAX_CACHED_BYTES and len(self._columns) > 1:
            _, evicted = self._columns.popitem(last=False)
            self._bytes -= evicted.nbytes
        return read

    def row(self, path: str, schema: pa.Schema, at: int) -> Mapping[str, Any]:
        """Returns one row of a file, by column of ``schema``."""
        with open_file(self._location, path) as file:
            for number in range(file.num_row_groups):
                count = file.metadata.row_group(number).num_rows
                if at < count:
                    group = fitted(file.read_row_group(number).slice(at, 1), schema)
                    row: Mapping[str, Any] = group.to_pylist()[0]
                    return row
                at -= count
        raise IndexError(f"{path} has fewer rows.")


def _matching_positions(columns: pa.Table, key: Sequence[str], values: Sequence[Any]) -> np.ndarray:
    """Returns the positions of the rows with these key values."""
    same: np.ndarray | None = None
    for name, value in zip(key, values, strict=True):
        column = columns[name]
        equal = pc.equal(column, pa.scalar(value, column.type)).fill_null(False).to_numpy(zero_copy_only=False)
        same = equal if same is None else same & equal
    assert same is not None, "a key has columns"
    return np.flatnonzero(same)
