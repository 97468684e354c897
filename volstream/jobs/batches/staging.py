"""The last step of a task on an executor: sends the function's results to the run that started it.

The reply has a record per file, and the rows if they are few. More rows are written here as data files of the
result table, so that they pass through no other process. Only files named in a reply count, because a task
may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps  # functions may replace it in its module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from volstream.functions import worker
from volstream.functions.call import Work
from volstream.functions.outcomes import FileOutcome, converted
from volstream.functions.printing import TruncatedLog
from volstream.functions.rows import ArrowRows
from volstream.functions.schema import PROVENANCE
from volstream.tables.delta.warehouse import register_options

if TYPE_CHECKING:
    from volstream.tables.delta.datafile import NewFile

#: Rows up to this size per task travel in the task's reply.
INLINE_BYTES = 1 << 20

#: A data file's row groups end at this many rows or bytes, and the file at this size in memory. A task holds
#: one group, or one row, in memory.
_GROUP_ROWS, _GROUP_BYTES, _FILE_BYTES = 10_000, 8 << 20, 256 << 20

#: Rows larger than this on average count as large: some may exceed a row group.
_LARGE_BYTES = 1 << 20

#: Outcomes are collected up to this number of outcomes, or of their rows or bytes. Rows are held and written
#: in pieces of at most this size, except single rows that exceed it.
_FLUSH_ROWS, _FLUSH_BYTES = 2000, 16 << 20

#: A reply's record of a file: its outcome without its rows. A record with only ``printed`` belongs to no
#: file.
RECORDS = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("file_version", pa.string()),
        pa.field("commit_version", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("error_kind", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("error_traceback", pa.string()),
        pa.field("printed", pa.string()),
        pa.field("new_columns", pa.string()),
        pa.field("retry_after", pa.float64()),
        pa.field("counted", pa.string()),
        pa.field("files_per_call", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("memory", pa.int64()),
        pa.field("outputs", pa.string()),
    ]
)

#: A reply's columns. Either those of a record are set, or ``inline`` (Arrow's stream format), or ``written``
#: (JSON).
REPLY = pa.schema([*RECORDS, pa.field("inline", pa.binary()), pa.field("written", pa.string())])


@dataclass(frozen=True)
class RowsTarget:
    """Where rows go that are too many for a reply, and their format.

    Attributes:
        folder: URI. Created with the first file.
        schema: of a row: the function's columns, then volstream's columns.
        key: the column with the file's path.
        options: for the folder's object store (``delta.warehouse``).
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
        large: it has large rows.
    """

    name: str
    size: int
    stats: str
    large: bool


@dataclass(frozen=True)
class Task:
    """The work of a job with its reply. Spark calls it with a part of a plan."""

    work: Work
    target: RowsTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes files. Yields rows of :data:`REPLY`."""
        yield from replied(worker.outcomes(self.work, batches), self.target, self.work.bounds.log_batch_bytes)


def replied(outcomes: Iterable[FileOutcome], target: RowsTarget, log_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields a task's reply, as rows of :data:`REPLY`, with up to ``log_bytes`` of the function's output."""
    rows, printed = _Rows(target), TruncatedLog(log_bytes)
    waiting: list[FileOutcome] = []
    count = size = 0
    try:
        for outcome in outcomes:
            failed = outcome.kind is not None
            for entry in outcome.printed:
                printed.add(entry.encoded(failed=failed), failed=failed)
            waiting.append(outcome)
            if isinstance(outcome.rows, ArrowRows):
                rows.add_arrow(outcome, outcome.rows)
            else:
                count += len(outcome.rows)
                size += outcome.bytes
            if max(count, len(waiting)) >= _FLUSH_ROWS or size >= _FLUSH_BYTES:
                yield rows.add(waiting)
                waiting, count, size = [], 0, 0
        if waiting:
            yield rows.add(waiting)
        if entries := printed.encoded():
            yield _reply([{"printed": entry} for entry in entries])
        yield from rows.end()
    except BaseException:  # Spark also closes this generator early, when it cancels the task
        rows.drop()
        raise


class _Rows:
    """The rows of a task."""

    def __init__(self, target: RowsTarget) -> None:
        self._target = target
        self._columns = pa.schema([*target.schema][: -len(PROVENANCE)])
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._file: NewFile | None = None
        self._large = False
        self._written: list[WrittenFile] = []

    def add(self, outcomes: Sequence[FileOutcome]) -> pa.RecordBatch:
        """Adds the rows of outcomes, except Arrow's. Returns the records: rows that do not fit fail their
        file."""
        columns = converted(outcomes, self._columns)
        counts = [0 if isinstance(outcome.rows, ArrowRows) else len(outcome.rows) for outcome in outcomes]
        self._add(outcomes, counts, columns)
        return _reply([_record(outcome) for outcome in outcomes])

    def add_arrow(self, outcome: FileOutcome, rows: ArrowRows) -> None:
        """Adds the Arrow rows of an outcome."""
        for batch in rows.batches():
            self._add([outcome], [batch.num_rows], batch.columns)

    def _add(self, outcomes: Sequence[FileOutcome], counts: Sequence[int], columns: Sequence[pa.Array]) -> None:
        """Adds rows. The first ``counts[0]`` belong to the first outcome, and so on."""
        if not any(counts):
            return
        provenance = pa.RecordBatch.from_pylist([self._provenance(outcome) for outcome in outcomes], schema=PROVENANCE)
        origins = provenance.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        self._collect(pa.table([*columns, *origins.columns], schema=self._target.schema))

    def _provenance(self, outcome: FileOutcome) -> Mapping[str, Any]:
        task = outcome.task
        values = (task.info.relative_path, task.info.version, task.commit_version, self._target.batch_id, outcome.processed_at)
        return dict(zip(PROVENANCE.names, values, strict=True))

    def _collect(self, rows: pa.Table) -> None:
        """Collects rows. Writes a file once they are too many for a reply."""
        if rows.nbytes > _FLUSH_BYTES and rows.num_rows > 1:
            half = rows.num_rows // 2
            self._collect(rows.slice(0, half))
            self._collect(rows.slice(half))
            return
        self._large = self._large or rows.nbytes > _LARGE_BYTES * rows.num_rows
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        limit = _GROUP_BYTES if self._spilled else INLINE_BYTES
        if self._pending_bytes > limit or (self._spilled and self._pending_rows >= _GROUP_ROWS):
            self._write()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yields the end of the reply: the rows, or the files with them."""
        if self._pending and not self._spilled:
            yield _reply([{"inline": encoded(self._combined())}])
            return
        if self._pending:
            self._write()
        self._close()
        if self._written:
            yield _reply([{"written": dumps(asdict(file))} for file in self._written])

    def drop(self) -> None:
        """Discards the rows. Complete files stay, and are removed with their folder."""
        if self._file is not None:
            self._file.drop()

    @property
    def _spilled(self) -> bool:
        """True once the rows are too many for a reply."""
        return self._file is not None or bool(self._written)

    def _combined(self) -> pa.Table:
        return pa.concat_tables(self._pending).combine_chunks()

    def _write(self) -> None:
        from volstream.tables.delta import datafile  # late: the import takes as long as a short task
        from volstream.tables.delta.places import make_folder

        if self._file is None:
            folder = self._target.folder
            if self._target.options:
                register_options(folder, dict(self._target.options))
            make_folder(folder)
            self._file = datafile.of_rows(folder, self._target.schema, self._target.key)
        rows = self._combined()
        self._file.write(rows if rows.num_rows == 1 else rows.sort_by(self._target.key))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        if self._file.bytes >= _FILE_BYTES:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            added = self._file.close()
            self._written.append(WrittenFile(added.path, added.size, added.stats, self._large))
            self._file = None


def _record(outcome: FileOutcome) -> Mapping[str, Any]:
    """Returns a reply's record of a file."""
    failed = outcome.kind is not None
    return {
        "path": outcome.task.info.relative_path,
        "file_version": outcome.task.info.version,
        "commit_version": outcome.task.commit_version,
        "rows": len(outcome.rows),
        "error_kind": outcome.kind,
        "error_message": _text(outcome.message) if failed else None,
        "error_traceback": outcome.traceback and _text(outcome.traceback),
        "new_columns": outcome.new_columns,
        "retry_after": outcome.retry_after,
        "counted": dumps(outcome.counted) if outcome.counted else None,
        "files_per_call": outcome.files_per_call,
        "seconds": outcome.seconds,
        "memory": outcome.memory,
        "outputs": dumps(outcome.outputs) if outcome.outputs and not failed else None,
    }


def _text(text: str) -> str:
    """Escapes characters that UTF-8 cannot encode, such as the surrogates of undecodable file names."""
    return text.encode("utf-8", "backslashreplace").decode()


def _reply(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Returns a part of a reply. Missing columns are NULL."""
    return pa.RecordBatch.from_pylist(rows, schema=REPLY)


def encoded(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Returns rows in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return bytes(sink.getvalue())
