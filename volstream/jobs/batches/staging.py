"""The end of a task on an executor: what the function made of its files goes to the run that started it.

The reply has a record per file, and the rows, as long as they are few. More rows are written here, as data files of the result
table, so that they pass through no other process. Only files named in a reply count: a task may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from json import dumps  # functions may replace it in its module
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.functions.outcomes import outcome_schema
from volstream.functions.worker import Work
from volstream.tables.delta.warehouse import register_options

if TYPE_CHECKING:
    from volstream.tables.delta.datafile import NewFile

#: Rows of up to this size per task travel in its reply.
INLINE_BYTES = 1 << 20

#: A data file's row groups end at this many rows or bytes, and the file at this size in memory. A task holds one group, or row.
_GROUP_ROWS, _GROUP_BYTES, _FILE_BYTES = 10_000, 8 << 20, 256 << 20

#: Rows that are larger than this on average are large: some may be larger than a row group.
_LARGE_BYTES = 1 << 20

#: What a reply says of each file: its outcome except for its rows.
RECORDS = pa.schema([field for field in outcome_schema(pa.schema([])) if field.name != "result"])

#: A reply's columns. Either those of a record are set; or ``rows``, with Arrow's stream format; or ``written``, with JSON.
REPLY = pa.schema([*RECORDS, pa.field("inline", pa.binary()), pa.field("written", pa.string())])


@dataclass(frozen=True)
class RowsTarget:
    """Where the rows go that are too many for a reply, and how they look.

    Attributes:
        folder: URI; created with the first file.
        schema: of a row: the function's columns, then those that volstream adds.
        key: the column with the file's path.
        options: for the folder's object store (``delta.options``).
    """

    folder: str
    schema: pa.Schema
    key: str
    batch_id: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class WrittenFile:
    """A data file written by a task.

    Attributes:
        name: in the folder of the rows.
        size: in bytes.
        stats: as in a table's log.
        large: there are large rows.
    """

    name: str
    size: int
    stats: str
    large: bool


@dataclass(frozen=True)
class Task:
    """The work of a job, with its reply; called by Spark with a part of a plan."""

    work: Work
    target: RowsTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes files; yields rows of :data:`REPLY`."""
        yield from replied(self.work(batches), self.target)


def replied(outcomes: Iterable[pa.RecordBatch], target: RowsTarget) -> Iterator[pa.RecordBatch]:
    """Yields a task's reply, as rows of :data:`REPLY`, from what its :class:`Work` yields."""
    rows = _Rows(target)
    try:
        for batch in outcomes:
            rows.add(batch)
            records = batch.filter(pc.or_(pc.is_valid(batch["rows"]), pc.is_valid(batch["printed"])))
            if records.num_rows:
                yield _reply(**{field.name: records[field.name] for field in RECORDS})
        yield from rows.end()
    except BaseException:  # Spark also closes this generator early, when it cancels the task
        rows.drop()
        raise


class _Rows:
    """The rows of a task."""

    def __init__(self, target: RowsTarget) -> None:
        self._target = target
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0
        self._file: NewFile | None = None
        self._large = False
        self._written: list[WrittenFile] = []

    def add(self, outcomes: pa.RecordBatch) -> None:
        """Adds the rows in outcomes; writes a file if they become too many for a reply."""
        succeeded = outcomes.filter(pc.is_valid(outcomes["result"]))
        if not succeeded.num_rows:
            return
        columns = [*succeeded["result"].flatten(), *map(succeeded.column, ("path", "file_version", "commit_version"))]
        columns += [pa.repeat(self._target.batch_id, len(succeeded)), succeeded["processed_at"]]
        rows = pa.table(columns, schema=self._target.schema)
        self._large = self._large or rows.nbytes > _LARGE_BYTES * rows.num_rows
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes
        most = _GROUP_BYTES if self._in_files else INLINE_BYTES
        if self._held_bytes > most or (self._in_files and self._held_rows >= _GROUP_ROWS):
            self._write()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yields the reply's end: the rows, or the files with them."""
        if self._held and not self._in_files:
            yield _reply(inline=pa.array([encoded(pa.concat_tables(self._held))], pa.binary()))
            return
        if self._held:
            self._write()
        self._close()
        if self._written:
            yield _reply(written=pa.array([dumps(asdict(file)) for file in self._written], pa.string()))

    def drop(self) -> None:
        """Forgets the rows. Complete files stay, and go with their folder."""
        if self._file is not None:
            self._file.drop()

    @property
    def _in_files(self) -> bool:
        """True once the rows are too many for a reply."""
        return self._file is not None or bool(self._written)

    def _write(self) -> None:
        from volstream.tables.delta import datafile  # takes as long as a short task
        from volstream.tables.delta.places import make_folder

        if self._file is None:
            folder = self._target.folder
            if self._target.options:
                register_options(folder, dict(self._target.options))
            make_folder(folder)
            self._file = datafile.of_rows(folder, self._target.schema, self._target.key)
        rows = pa.concat_tables(self._held)
        self._file.write(rows if rows.num_rows == 1 else rows.sort_by(self._target.key))
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        if self._file.bytes >= _FILE_BYTES:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            added = self._file.close()
            self._written.append(WrittenFile(added.path, added.size, added.stats, self._large))
            self._file = None


def _reply(**columns: pa.Array) -> pa.RecordBatch:
    """Returns a part of a reply; columns that are not given are NULL."""
    count = len(next(iter(columns.values())))
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in REPLY]
    return pa.RecordBatch.from_arrays(arrays, schema=REPLY)


def encoded(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Returns rows in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())
