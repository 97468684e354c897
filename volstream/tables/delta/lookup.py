"""Finds the rows of keys in a table's data files, by the statistics of files and of their row groups, without a JVM."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from volstream.tables.delta.bounds import bounds_of, group_bounds
from volstream.tables.delta.datafile import fitted, open_file
from volstream.tables.delta.log import own_file
from volstream.tables.delta.parts import with_values
from volstream.tables.delta.places import files_of
from volstream.tables.delta.requirements import NeedsSparkError
from volstream.tables.delta.vectors import deleted_rows


@dataclass(frozen=True)
class FoundRows:
    """Rows of a data file.

    Attributes:
        path: of the file, as in the log.
        positions: of the rows in the file, ascending.
        deleted: the positions of rows that are deleted already.
        length: number of rows of the file.
        partition: values of the partition columns.
    """

    location: str
    path: str
    positions: np.ndarray
    deleted: np.ndarray
    length: int
    partition: Mapping[str, Any]

    def read(self, columns: pa.Schema) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yields some columns of the rows, and the positions of these rows, a row group at a time."""
        first = 0
        with open_file(self.location, own_file(self.path) or "") as file:
            present = [name for name in columns.names if name in file.schema_arrow.names]
            for number in range(file.num_row_groups):
                count = file.metadata.row_group(number).num_rows
                low, high = np.searchsorted(self.positions, [first, first + count])
                if low < high:
                    at = self.positions[low:high]
                    rows = fitted(file.read_row_group(number, columns=present), columns).take(at - first)
                    yield with_values(rows, self.partition), at
                first += count


def find(location: str, table: DeltaTable, key: str, values: Collection[str]) -> Sequence[FoundRows]:
    """Finds the rows of keys in a version of a table; data files without any are left out.

    Args:
        key: a text column.

    Raises:
        NeedsSparkError: the table has data files elsewhere, as a shallow clone does.
    """
    asked = sorted(values)
    files = files_of(table)
    paths = files["path"].to_pylist()
    parts = {name: files[f"partition.{name}"].to_pylist() for name in table.metadata().partition_columns}
    ranges = zip(*bounds_of(files, key), strict=True)
    candidates = [number for number, (low, high) in enumerate(ranges) if _meets(asked, low, high)]
    deleted = deleted_rows(table, [paths[number] for number in candidates])
    found = []
    for number in candidates:
        path, gone = paths[number], deleted.get(paths[number], np.empty(0, np.int64))
        at, length = _positions(location, path, key, asked)
        at = np.setdiff1d(at, gone, assume_unique=True)
        if at.size:
            partition = {name: of_files[number] for name, of_files in parts.items()}
            found.append(FoundRows(location, path, at, gone, length, partition))
    return found


def _positions(location: str, path: str, key: str, asked: Sequence[str]) -> tuple[np.ndarray, int]:
    """Returns the positions of a file's rows with any of the keys, given sorted; and how many rows it has."""
    own = own_file(path)
    if own is None:
        raise NeedsSparkError
    positions = [np.empty(0, np.int64)]
    first = 0
    with open_file(location, own) as file:
        # A file older than the key's column has no row with a key.
        groups = file.num_row_groups if key in file.schema_arrow.names else 0
        for number in range(groups):
            group = file.metadata.row_group(number)
            if _meets(asked, *group_bounds(group, key)):
                keys = file.read_row_group(number, columns=[key])[key].cast(pa.string())
                matches = pc.is_in(keys, value_set=pa.array(asked, pa.string()))
                positions.append(np.flatnonzero(matches.to_numpy()) + first)
            first += group.num_rows
        return np.concatenate(positions), file.metadata.num_rows


def _meets(values: Sequence[str], low: str | None, high: str | None) -> bool:
    """True if any of the sorted values may be in a range; an end that is None is open."""
    at = 0 if low is None else bisect_left(values, low)
    return at < len(values) and (high is None or values[at] <= high)
