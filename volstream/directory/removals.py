"""The removals of a full listing, kept apart on disk until it is known how many they are."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from volstream.directory import table
from volstream.directory.table import DELETE, INSERT
from volstream.model.selection import Selection


class Removals:
    """Removals, in the order in which they were found; memory stays flat. A context manager.

    Args:
        selection: what the volume's patterns leave out now was not deleted, and is none of these.

    Attributes:
        count: how many there are.
        of: rows of the directory that they were found in.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.count = 0
        self.of = 0
        self._new = array("q")  # a hash of the content of each new file
        self._file = tempfile.TemporaryFile(prefix="volstream-")  # noqa: SIM115  # closed by `__exit__`
        self._writer = pa.ipc.new_stream(self._file, table.CHANGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._file.close()

    def counted(self, known: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """The rows of the directory, as they are compared."""
        for rows in known:
            self.of += rows.num_rows
            yield rows

    def take(self, changes: pa.Table) -> pa.Table:
        """Keeps the removals among some changes; the others."""
        self._new.extend(_contents(changes.filter(pc.equal(changes["change"], INSERT)), "etag", "size"))
        rows = zip(changes["change"].to_pylist(), changes["relative_path"].to_pylist(), strict=True)
        gone = pa.array([change == DELETE and self._selection.accepts(path) for change, path in rows], pa.bool_())
        removed = changes.filter(gone)
        if not removed.num_rows:
            return changes
        self._writer.write_table(removed.cast(table.CHANGE))
        self.count += removed.num_rows
        return changes.filter(pc.invert(gone))

    def lost(self) -> int:
        """How many of them are of a content that no new file has: the others were moved. After the last was taken."""
        new = {*self._new}
        return sum(one not in new for removed in self for one in _contents(removed, "old_etag", "old_size"))

    def __iter__(self) -> Iterator[pa.Table]:
        """All of them, after the last was taken."""
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])


def _contents(rows: pa.Table, etag: str, size: str) -> Iterator[int]:
    """What tells contents apart, hashed."""
    return map(hash, zip(rows[etag].to_pylist(), rows[size].to_pylist(), strict=True))
