"""The removals of a full listing, kept on disk until their number is known."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.lifecycle.closeable import Closeable
from volstream.base.model.selection import Selection
from volstream.changes.directory import table
from volstream.changes.directory.table import DELETE, INSERT


class Removals(Closeable):
    """Removals in the order found, in constant memory. A context manager.

    Args:
        selection: files that the volume's patterns now exclude were not deleted, and do not count.

    Attributes:
        count: number of removals.
        of: number of directory rows compared.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.count = 0
        self.of = 0
        self._new = array("q")  # hash of each new file's content
        self._file = tempfile.TemporaryFile(prefix="volstream-")  # noqa: SIM115  # closed by `close`
        self._writer = pa.ipc.new_stream(self._file, table.CHANGE)

    def close(self) -> None:
        """Removes the file that keeps the removals."""
        self._writer.close()
        self._file.close()

    def counted(self, known: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Passes on the directory's rows while counting them."""
        for rows in known:
            self.of += rows.num_rows
            yield rows

    def take(self, changes: pa.Table) -> pa.Table:
        """Takes the removals out of changes; returns the other changes."""
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
        """Returns the number of removals whose content is in no new file; the others are moves. Call after the last take."""
        new = {*self._new}
        return sum(content not in new for removed in self for content in _contents(removed, "old_etag", "old_size"))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields all removals; call after the last take."""
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])


def _contents(rows: pa.Table, etag: str, size: str) -> Iterator[int]:
    """Yields hashes that identify contents."""
    return map(hash, zip(rows[etag].to_pylist(), rows[size].to_pylist(), strict=True))
