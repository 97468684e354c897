"""The removals of a full listing, kept apart on disk until it is known how many they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from volstream.directory import table
from volstream.directory.table import DELETE
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
        rows = zip(changes["change"].to_pylist(), changes["relative_path"].to_pylist(), strict=True)
        gone = pa.array([change == DELETE and self._selection.accepts(path) for change, path in rows], pa.bool_())
        removed = changes.filter(gone)
        if not removed.num_rows:
            return changes
        self._writer.write_table(removed.cast(table.CHANGE))
        self.count += removed.num_rows
        return changes.filter(pc.invert(gone))

    def __iter__(self) -> Iterator[pa.Table]:
        """All of them, once, after the last was taken."""
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])
