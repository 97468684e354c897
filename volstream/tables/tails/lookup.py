"""Finds single rows of a table and its tail by key, without Spark.

Data files never change, so the key columns of searched files are kept in memory, up to a limit. A search then compares in
memory and reads one row group.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError

from volstream.errors import InvalidStateError, NotFoundError
from volstream.tables.delta.bounds import bounds_of
from volstream.tables.delta.datafile import fitted, open_file
from volstream.tables.delta.native import NativeTable, Newest
from volstream.tables.delta.places import files_of, mapped, open_table
from volstream.tables.delta.vectors import deleted_rows
from volstream.tables.tails import table
from volstream.tables.tails.snapshot import Tail
from volstream.tables.tails.table import ARRIVAL, DELETE, OPERATION, OWN, POSITION

#: Bytes of key columns kept.
_KEPT_BYTES = 256 << 20

#: Attempts to see both tables as of one moment, because a move may be committed between the two reads.
_LOOKS = 10


class Lookup:
    """Searches the table at ``location``. Thread-safe.

    Args:
        key: the columns that identify a row.
        version: the Delta version of the table to search, without its tail; None: the newest, including arrived rows.

    Raises:
        NotFoundError: there is no table.
        DependencyError: the table cannot be read.
    """

    def __init__(self, location: str, key: Sequence[str], version: int | None = None) -> None:
        self._location = location
        self._key = list(key)
        self._pinned = version is not None
        self._lock = threading.Lock()
        self._keys = _Keys(location)
        self._base = _Base(location, version)
        self._tail: NativeTable | None = None
        self._tail_keys = _Keys(table.location(location))

    def get(self, *values: Any) -> Mapping[str, Any] | None:
        """Returns the row with these stored values of the key, by column; None if there is none.

        Raises:
            InvalidStateError: several rows have the key.
            DependencyError: the table cannot be read.
        """
        with self._lock, mapped(self._location):
            if self._pinned:
                return self._in_base(values)
            for _ in range(_LOOKS):
                # The tail first: rows that move into the table afterwards are not searched for there.
                tail = self._newest_tail()
                self._base.look()
                if tail is None:
                    return self._in_base(values)
                moved = tail.moved(self._base.transaction(tail.move_id))
                if moved is not None:
                    row = self._in_tail(tail, moved, values)
                    if row is None:
                        return self._in_base(values)
                    own = {name: value for name, value in row.items() if name not in OWN}
                    return None if row[OPERATION] == DELETE else own
        raise table.unfitting(self._location)

    def _newest_tail(self) -> Tail | None:
        if self._tail is None:
            present = table.existing(self._location) if table.exists(self._location) else None
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
            for at in _places(columns, self._key, values):
                order = columns[ARRIVAL][at].as_py(), columns[POSITION][at].as_py()
                if order[0] > moved and (newest is None or order > newest[0]):
                    newest = order, file.path, int(at)
        return None if newest is None else self._tail_keys.row(newest[1], tail.view.spec.schema, newest[2])

    def _in_base(self, values: Sequence[Any]) -> Mapping[str, Any] | None:
        hits: list[tuple[str, int]] = []
        for path in self._base.candidates(self._key, values):
            places = _places(self._keys.of(path, self._base.schema, self._key), self._key, values)
            if places.size:
                deleted = self._base.deleted(path)
                hits += [(path, int(at)) for at in places if deleted is None or at not in deleted]
        if len(hits) > 1:
            raise InvalidStateError(f"{len(hits)} rows of the table at {self._location} have the key {values[0]!r}.")
        return self._keys.row(hits[0][0], self._base.schema, hits[0][1]) if hits else None


class _Base:
    """A version of the table itself, with its files."""

    def __init__(self, location: str, version: int | None) -> None:
        self._location = location
        self._newest = Newest(location)
        with mapped(location):
            self.look(version)

    def look(self, version: int | None = None) -> None:
        """Opens a version, or the newest one. Raises NotFoundError if there is no table."""
        try:
            if version is not None:
                self._newest.handle = open_table(self._location, version)
            elif not self._newest.look():
                return
        except TableNotFoundError:
            raise NotFoundError(f"There is no table at {self._location}.") from None
        try:
            self._read()
        except BaseException:
            self._newest.forget()  # the next look reads it again
            raise

    def transaction(self, app_id: str) -> int | None:
        """Returns the newest transaction version of an application."""
        if app_id not in self._transactions:
            self._transactions[app_id] = self._newest.opened.transaction_version(app_id)
        return self._transactions[app_id]

    def candidates(self, key: Sequence[str], values: Sequence[Any]) -> Iterator[str]:
        """Yields the paths of files that may contain the key, according to their statistics."""
        minimum, maximum = self._ends(key[0])
        for at, path in enumerate(self._paths):
            low, high = minimum[at], maximum[at]
            if (low is None or low <= values[0]) and (high is None or values[0] <= high):
                yield path

    def deleted(self, path: str) -> np.ndarray | None:
        """Returns the positions of a file's deleted rows; None if there are none."""
        if path not in self._deleted:
            self._deleted[path] = deleted_rows(self._newest.opened, [path]).get(path)
        return self._deleted[path]

    def _read(self) -> None:
        self.schema = pa.schema(self._newest.opened.schema().to_arrow())
        self._files = files_of(self._newest.opened)
        self._paths: list[str] = self._files["path"].to_pylist()
        self._transactions: dict[str, int | None] = {}
        self._deleted: dict[str, np.ndarray | None] = {}
        self._known_ends: dict[str, tuple[list[Any], list[Any]]] = {}

    def _ends(self, column: str) -> tuple[list[Any], list[Any]]:
        if column not in self._known_ends:
            self._known_ends[column] = bounds_of(self._files, column)
        return self._known_ends[column]


class _Keys:
    """A table's data files, with the columns searched. Keeps the columns of the latest searches."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._columns: OrderedDict[str, pa.Table] = OrderedDict()
        self._bytes = 0

    def of(self, path: str, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
        """Returns some columns of a file, the same ones in every call, with the types of the table's ``schema``."""
        if path in self._columns:
            self._columns.move_to_end(path)
            return self._columns[path]
        with open_file(self._location, path) as file:
            wanted = pa.schema([schema.field(name) for name in columns])
            read = self._columns[path] = fitted(file.read(columns=wanted.names), wanted).combine_chunks()
        self._bytes += read.nbytes
        while self._bytes > _KEPT_BYTES and len(self._columns) > 1:
            _, gone = self._columns.popitem(last=False)
            self._bytes -= gone.nbytes
        return read

    def row(self, path: str, schema: pa.Schema, at: int) -> Mapping[str, Any]:
        """Returns one row of a file, by column of the table's ``schema``."""
        with open_file(self._location, path) as file:
            for number in range(file.num_row_groups):
                count = file.metadata.row_group(number).num_rows
                if at < count:
                    group = fitted(file.read_row_group(number).slice(at, 1), schema)
                    row: Mapping[str, Any] = group.to_pylist()[0]
                    return row
                at -= count
        raise IndexError(f"{path} has fewer rows.")


def _places(columns: pa.Table, key: Sequence[str], values: Sequence[Any]) -> np.ndarray:
    """Returns the positions of the rows with these key values."""
    same: np.ndarray | None = None
    for name, value in zip(key, values, strict=True):
        column = columns[name]
        equal = pc.equal(column, pa.scalar(value, column.type)).fill_null(False).to_numpy(zero_copy_only=False)
        same = equal if same is None else same & equal
    assert same is not None, "a key has columns"
    return np.flatnonzero(same)
