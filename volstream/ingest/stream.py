"""Real-time streams check rows as they are set, buffer them, and send them in numbered flushes."""

from __future__ import annotations

import json
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.log import get
from volstream.base.model.arguments import checked, fitting
from volstream.base.model.text import counted
from volstream.base.threads import Closeable, Stop, is_transient
from volstream.errors import DependencyError, InvalidStateError, InvalidValueError, TailFullError, UserError, in_brief
from volstream.functions.rows import size_of
from volstream.functions.types import convert
from volstream.functions.types.kinds import is_text
from volstream.ingest.options import FlushMode, RealtimeOperation, RealtimeOptions, RetryStatus, RowOperator
from volstream.ingest.values import TailColumn
from volstream.tables.delta.schema import partition_texts
from volstream.tables.tails.tail import KEY, OPERATION
from volstream.tables.tails.writer import Flush

# Rows of real-time streams. Values are checked when they are set, or column by column for Arrow input.

#: Stands for a value that was not set.
UNSET = object()


class StreamColumns:
    """The columns of a stream's table, which its rows must fit.

    Args:
        table: its name, for messages.
        columns: as of :func:`volstream.tables.tails.tail.tail_columns`.
        key: names of the primary key's columns.
        truncate: cut text that is too long.
        on_cut: called with the number of values that were cut, 1 by default.

    Attributes:
        schema: of the rows in a flush.

    Raises:
        InvalidValueError: a column's type is not supported.
    """

    def __init__(
        self, table: str, columns: pa.Schema, key: Sequence[str], *, truncate: bool, on_cut: Callable[..., None]
    ) -> None:
        self.table = table
        self._truncate = truncate
        self._on_cut = on_cut
        self.all = [TailColumn.of(column) for column in columns]
        self.positions = {column.name: at for at, column in enumerate(self.all)}
        self.names = frozenset(self.positions)
        self.converters = [column.converter(truncate=truncate, on_cut=on_cut) for column in self.all]
        self._required = [at for at, column in enumerate(self.all) if not column.nullable]
        keys = {name.lower() for name in key}
        self._key = [at for at, column in enumerate(self.all) if column.name.lower() in keys]
        self.schema = pa.schema([(OPERATION, pa.string()), *((column.name, column.type) for column in columns)])

    def position_of(self, column: str) -> int:
        for at, candidate in enumerate(self.all):
            if candidate.name.lower() == str(column).lower():
                self.positions[column] = at
                return at
        names = ", ".join(other.name for other in self.all)
        raise InvalidValueError(f"The table {self.table} has no column {column}.", f"Its columns: {names}.")

    def check(self, row: Row) -> None:
        """Raises InvalidStateError for a row with other columns, InvalidValueError for a missing value."""
        if row._columns is not self and row._columns.all != self.all:
            raise InvalidStateError(
                "The row belongs to a table with other columns.", "Create it with this stream's create_row()."
            )
        for at in self._required_for(row.operator):
            if row.values[at] is UNSET or row.values[at] is None:
                raise InvalidValueError(
                    f"The row has no value for {self.all[at].name}, which is NOT NULL.", "Set it with set_value()."
                )

    def fitted(self, rows: pa.Table, operator: RowOperator) -> pa.Table:
        """Converts Arrow rows to :attr:`schema`. Raises InvalidValueError."""
        spellings = {name: self.all[self.position_of(name)].name for name in rows.column_names}
        rows = rows.rename_columns([spellings[name] for name in rows.column_names])
        if repeated := [name for name in rows.column_names if rows.column_names.count(name) > 1]:
            raise InvalidValueError(f"The rows have the column {repeated[0]} more than once.")
        for at in self._required_for(operator):
            name = self.all[at].name
            if name not in rows.column_names or rows[name].null_count:
                raise InvalidValueError(f"There are rows without a value for {name}, which is NOT NULL.")
        columns = []
        for column in self.schema:
            if column.name == OPERATION:
                columns.append(pa.repeat(pa.scalar(operator.value), rows.num_rows))
            elif column.name in rows.column_names:
                try:
                    if convert.lacks_zone(rows[column.name].type, column.type):
                        raise ValueError("its times need a zone")
                    values = convert.from_arrow(rows[column.name], column.type)
                    columns.append(self._fit_text(values, self.all[self.position_of(column.name)]))
                except convert.WRONG_VALUES as error:
                    raise InvalidValueError(f"Column {column.name}: {error}.") from None
            else:
                columns.append(pa.nulls(rows.num_rows, column.type))
        return convert.copied(pa.table(columns, schema=self.schema))  # it is sent later

    def table_of(self, rows: Sequence[Row]) -> pa.Table:
        """Returns rows as a table of :attr:`schema`."""
        arrays = [pa.array([row.operator.value for row in rows], pa.string())]
        for at, column in enumerate(self.all):
            arrays.append(pa.array([None if row.values[at] is UNSET else row.values[at] for row in rows], column.type))
        return pa.table(arrays, schema=self.schema)

    def rows_of(self, table: pa.Table) -> Sequence[Row]:
        """Returns the rows of a table of :attr:`schema`."""
        rows = []
        for values in table.to_pylist(maps_as_pydicts=None):
            row = Row(self, RowOperator(values.pop(OPERATION)))
            row.values = list(values.values())
            rows.append(row)
        return rows

    def _required_for(self, operator: RowOperator) -> Sequence[int]:
        """Returns the positions of the columns that must have a value."""
        return self._key if operator is RowOperator.DELETE_IGNORE else self._required

    def _fit_text(self, values: pa.ChunkedArray, column: TailColumn) -> pa.ChunkedArray:
        """Returns values that fit a CHAR, VARCHAR or partition column. Raises InvalidValueError."""
        if column.length is not None:
            values = self._cut(values, column)
        if column.partition and is_text(column.type):
            values = partition_texts(column.name, values, nullable=column.nullable)
        return values

    def _cut(self, values: pa.ChunkedArray, column: TailColumn) -> pa.ChunkedArray:
        """Returns texts that fit a CHAR or VARCHAR column. Raises InvalidValueError."""
        values = pc.utf8_rtrim(values, " ") if column.char else values
        long = pc.sum(pc.greater(pc.utf8_length(values), column.length)).as_py() or 0
        if long and not self._truncate:
            raise InvalidValueError(f"Column {column.name}: {long} values have more than {column.length} characters.")
        self._on_cut(long)
        cut = pc.utf8_slice_codeunits(values, 0, column.length)
        return pc.utf8_rtrim(cut, " ") if column.char else cut


class Row:
    """A row for one stream. Unset columns are NULL."""

    __slots__ = ("_columns", "operator", "size", "values")

    def __init__(self, columns: StreamColumns, operator: RowOperator) -> None:
        self._columns = columns
        self.operator = operator
        self.values: list[Any] = [UNSET] * len(columns.all)
        self.size = 0  #: of its values in bytes, approximately

    def set_value(self, column: str, value: Any) -> None:
        """Sets a column's value. Names are case-insensitive. Types: see :mod:`volstream.ingest.values`.

        Raises:
            InvalidValueError: there is no such column, or it cannot have the value. The row is unchanged.
        """
        columns = self._columns
        at = columns.positions.get(fitting("column", column, str) if type(column) is not str else column)
        if at is None:
            at = columns.position_of(column)
        if value is None:
            if not columns.all[at].nullable:
                raise columns.all[at].refusal(value, "it is NOT NULL")
            self.values[at] = None
            return
        try:
            self.values[at] = columns.converters[at](value)
        except ValueError as error:
            raise columns.all[at].refusal(value, str(error)) from None
        self.size += size_of(self.values[at])

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Sets the values of several columns by name.

        Raises as :meth:`set_value` does, and if two spellings name the same column.
        """
        if type(values) is not dict:
            values = fitting("values", values, Mapping[str, Any])
        if not values.keys() <= self._columns.names:
            columns = [self._columns.all[self._columns.position_of(name)].name for name in values]
            if repeated := [name for name in columns if columns.count(name) > 1]:
                raise InvalidValueError(f"The values name the column {repeated[0]} more than once.")
        for column, value in values.items():
            self.set_value(column, value)

    def as_dict(self) -> dict[str, Any]:
        """Returns the values that were set, by column, in their stored form."""
        pairs = zip(self._columns.all, self.values, strict=True)
        return {column.name: value for column, value in pairs if value is not UNSET}

    def __repr__(self) -> str:
        return f"Row({self.operator.name}, {self.as_dict()!r})"


_log = get("ingest")

#: Maximum bytes of the buffers in one request, unless the first buffer is larger. A request is one commit of
#: the tail, however many buffers it has.
_REQUEST_BYTES = 32 << 20


class FlushReceiver(Protocol):
    """The destination of a stream's flushes: a table's tail, here or behind a server. Thread-safe."""

    columns: pa.Schema

    def append(self, batches: Sequence[Flush]) -> None:
        """Makes each batch durable, at most once. See
        :meth:`volstream.tables.tails.writer.TailWriter.append`."""

    def close(self) -> None:
        """Stops sending rows."""


class BufferFullError(InvalidStateError):
    """All buffers of a MANUAL_FLUSH stream are full, and the row was not accepted. Call ``flush()``."""


class RowsNotSentError(DependencyError):
    """Rows could not be sent, even with all the retries that the options allow.

    The stream accepts no more rows. None of ``rows`` is known to have arrived. The rows of the failed flush
    may have arrived if only the response was lost. Upserts and deletes can safely be applied again, to
    another stream.

    Attributes:
        rows: the rows that were not sent, in order.
    """

    def __init__(self, message: str, remedy: str = "", rows: Sequence[Row] = ()) -> None:
        super().__init__(message, remedy)
        self.rows = list(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.remedy, self.rows))


@dataclass
class Statistics:
    """What a stream has done.

    Attributes:
        applied: accepted rows.
        sent: rows that arrived.
        flushes: acknowledged requests.
        retries: repeated requests.
        truncated: values that were cut.
    """

    applied: int = 0
    sent: int = 0
    flushes: int = 0
    retries: int = 0
    truncated: int = 0


@dataclass
class _Buffer:
    """The rows of one flush. ``sequence`` is set when the buffer is closed."""

    began: float
    rows: list[Row] = field(default_factory=list)
    table: pa.Table | None = None  #: rows that came as Arrow, instead of ``rows``
    size: int = 0
    sequence: int = 0


class RealtimeStream(Closeable):
    """Writes rows to one table. Thread-safe. Rows of one thread arrive in order. A context manager that
    closes itself.

    A row is durable, and visible to queries, once its flush returns: :meth:`flush`, :meth:`close`, or at some
    later time a flush in the background. Table streams and dynamic tables see the row when it is committed.

    Attributes:
        options: the effective options. For a table with a primary key, AUTO_FLUSH_BACKGROUND becomes
            AUTO_FLUSH_SYNC.
        statistics: counts so far.

    Args:
        name: the table's name, for messages.

    Raises:
        InvalidStateError: the table's kind does not allow the operation.
        InvalidValueError: a column's type is not supported.
    """

    def __init__(self, receiver: FlushReceiver, name: str, operation: RealtimeOperation, options: RealtimeOptions) -> None:
        self.name = name
        self.operation = operation
        self.statistics = Statistics()
        self._receiver = receiver
        self._key: list[str] = json.loads((receiver.columns.metadata or {}).get(KEY.encode(), b"[]"))
        self.options = self._checked(options)
        self._columns = StreamColumns(name, receiver.columns, self._key, truncate=options.truncate, on_cut=self._count_cut)
        self._id = uuid.uuid4().hex
        self._sequence = 0
        self._changed = threading.Condition()  #: guards all that follows
        self._open: _Buffer | None = None
        self._full: deque[_Buffer] = deque()
        self._sending: list[_Buffer] = []
        self._failure: RowsNotSentError | None = None
        self._raised = False  #: the failure was raised
        self._closing = False
        self._closed = Stop()
        self._sender: threading.Thread | None = None
        if self.options.flush_mode is not FlushMode.MANUAL_FLUSH:
            self._sender = threading.Thread(target=self._send_in_background, name=f"ingest-{name}", daemon=True)
            self._sender.start()

    def create_row(self, operator: RowOperator | None = None) -> Row:
        """Returns an empty row.

        Args:
            operator: default: INSERT for APPEND_ONLY, UPSERT for CDC.

        Raises:
            InvalidValueError: the stream's operation does not support the operator.
        """
        allowed = _OPERATORS[self.operation]
        chosen = allowed[0] if operator is None else operator
        if type(chosen) is not RowOperator:
            chosen = fitting("operator", chosen, RowOperator)
        if chosen not in allowed:
            raise InvalidValueError(
                f"{self.operation.name} streams have no {chosen.name} rows.",
                f"Use {' or '.join(f'RowOperator.{choice.name}' for choice in allowed)}.",
            )
        return Row(self._columns, chosen)

    def apply(self, *rows: Row | Mapping[str, Any]) -> None:
        """Accepts rows, which must not be changed afterwards, or dicts, each a row with the default operator.

        With AUTO_FLUSH_SYNC it sends each buffer that it fills. With AUTO_FLUSH_BACKGROUND it blocks while
        too many buffers wait.

        Raises:
            InvalidValueError: a row lacks a value of a NOT NULL or key column, or a dict does not fit the
                table. Neither that row nor any after it was accepted.
            BufferFullError: the mode is MANUAL_FLUSH, and all buffers are full.
            RowsNotSentError: earlier rows could not be sent.
            InvalidStateError: the stream is closed, or the row was created for other columns.
        """
        for item in rows:
            row = item if type(item) is Row else self._row_of(item)
            self._columns.check(row)
            with self._changed:
                self._check_open()
                self._make_room()
                buffer = self._current()
                buffer.rows.append(row)
                buffer.size += row.size
                self.statistics.applied += 1
                full = (
                    len(buffer.rows) >= self.options.mutation_buffer_lines_num
                    or buffer.size >= self.options.mutation_buffer_space
                )
                if full:
                    self._close_buffer()
            if full and self.options.flush_mode is FlushMode.AUTO_FLUSH_SYNC:
                self._drain()

    def _row_of(self, values: Any) -> Row:
        row = self.create_row()
        row.set_values(fitting("rows", values, Mapping[str, Any]))
        return row

    @checked
    def apply_arrow(self, rows: pa.Table | pa.RecordBatch, operator: RowOperator | None = None) -> None:
        """Accepts Arrow rows, column by column, all with the same operator.

        Args:
            rows: columns of the table by name, in any order. Missing columns are NULL.

        Raises:
            InvalidValueError: the table lacks a column, or cannot have its values.
            BufferFullError, RowsNotSentError, InvalidStateError: as :meth:`apply`.
        """
        row_operator = self.create_row(operator).operator
        table = self._columns.fitted(pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows, row_operator)
        size, mode = self.options.mutation_buffer_lines_num, self.options.flush_mode
        parts = [table.slice(start, size) for start in range(0, table.num_rows, size)]
        if mode is FlushMode.AUTO_FLUSH_SYNC:
            self.flush()  # earlier rows
        # With MANUAL_FLUSH, all rows are accepted or none.
        with self._changed if mode is FlushMode.MANUAL_FLUSH else nullcontext():
            if mode is FlushMode.MANUAL_FLUSH:
                self._check_room(parts)
            for part in parts:
                self._apply_part(part)
                if mode is FlushMode.AUTO_FLUSH_SYNC:
                    self._drain()

    def _apply_part(self, part: pa.Table) -> None:
        with self._changed:
            self._check_open()
            self._close_buffer()
            self._make_room()
            self._open = _Buffer(time.monotonic(), table=part, size=part.nbytes)
            self.statistics.applied += part.num_rows
            self._close_buffer()

    def _check_room(self, parts: Sequence[pa.Table]) -> None:
        """Raises BufferFullError if a MANUAL_FLUSH stream has no room for all parts."""
        maximum = self.options.mutation_buffer_max_num
        if len(parts) > maximum:
            raise BufferFullError(
                f"The rows need {len(parts)} buffers, but the stream on {self.name} has {maximum}.",
                "Apply fewer rows at a time, or raise mutation_buffer_lines_num.",
            )
        if len(self._full) + len(self._sending) + (self._open is not None) + len(parts) > maximum:
            raise BufferFullError(f"The buffers of the stream on {self.name} are full.", "Call flush().")

    def flush(self) -> None:
        """Sends all rows accepted so far, and returns when they have arrived.

        Raises:
            RowsNotSentError: rows could not be sent.
            InvalidStateError: the stream is closed.
        """
        with self._changed:
            self._check_open()
            self._close_buffer()
        self._drain()

    def close(self) -> None:
        """Flushes and closes the stream. Does nothing if it is closed.

        Raises:
            RowsNotSentError: rows could not be sent, and no earlier call has raised that. The stream is
                closed anyway.
        """
        with self._changed:
            if self._closing:
                return
            self._closing = True  # no more rows: they would not be sent
            self._close_buffer()
        try:
            if not self._raised:
                self._drain()
        finally:
            with self._changed:
                self._closed.set()  # also ends retries in the background if the last flush was interrupted
                self._changed.notify_all()
            if self._sender is not None:
                self._sender.join()
            self._receiver.close()

    def _checked(self, options: RealtimeOptions) -> RealtimeOptions:
        if self._key and self.operation is not RealtimeOperation.CDC:
            raise InvalidStateError(f"The table {self.name} has a primary key.", "Pass operate=RealtimeOperation.CDC for it.")
        if not self._key and self.operation is RealtimeOperation.CDC:
            raise InvalidStateError(
                f"The table {self.name} has no primary key.", "Pass operate=RealtimeOperation.APPEND_ONLY for it."
            )
        if self._key and options.flush_mode is FlushMode.AUTO_FLUSH_BACKGROUND:
            warnings.warn(
                f"{self.name} has a primary key: AUTO_FLUSH_SYNC is used instead of AUTO_FLUSH_BACKGROUND.", stacklevel=4
            )
            return replace(options, flush_mode=FlushMode.AUTO_FLUSH_SYNC)
        return options

    def _check_open(self) -> None:
        self._raise_failure()
        if self._closing:
            raise InvalidStateError(f"The stream on {self.name} is closed.")

    def _count_cut(self, values: int = 1) -> None:
        self.statistics.truncated += values

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._raised = True
            raise self._failure

    def _current(self) -> _Buffer:
        if self._open is None:
            self._open = _Buffer(time.monotonic())
            self._changed.notify_all()  # the sender watches its age
        return self._open

    def _make_room(self) -> None:
        """Waits until there is room for another full buffer. Raises BufferFullError, RowsNotSentError."""
        while len(self._full) + len(self._sending) >= self.options.mutation_buffer_max_num:
            if self.options.flush_mode is FlushMode.MANUAL_FLUSH:
                raise BufferFullError(
                    f"All {self.options.mutation_buffer_max_num} buffers of the stream on {self.name} are full.", "Call flush()."
                )
            self._changed.wait()
            self._check_open()

    def _close_buffer(self) -> None:
        """Closes the open buffer and queues it for sending."""
        if self._open is not None:
            self._sequence += 1
            self._open.sequence = self._sequence
            self._full.append(self._open)
            self._open = None
            self._changed.notify_all()

    def _drain(self) -> None:
        """Sends buffers until all that are queued now have arrived. Raises RowsNotSentError."""
        with self._changed:
            last = self._sequence
        while True:
            with self._changed:
                while self._sending and self._failure is None:  # another thread is sending
                    self._changed.wait()
                self._raise_failure()
                if not self._full or self._full[0].sequence > last:
                    return
                self._fill_request()
            try:
                self._send()
            except RowsNotSentError:
                self._raised = True
                raise

    def _send_in_background(self) -> None:
        """Sends full buffers, and open buffers once they are old enough."""
        background = self.options.flush_mode is FlushMode.AUTO_FLUSH_BACKGROUND
        interval = self.options.flush_interval / 1000
        while True:
            with self._changed:
                while True:
                    if self._closed or self._failure is not None:
                        return
                    oldest = self._full[0] if self._full else self._open
                    remaining = None if oldest is None else oldest.began + interval - time.monotonic()
                    old = remaining is not None and remaining <= 0
                    if old and not self._full:
                        self._close_buffer()
                    if self._full and (background or old) and not self._sending:
                        break
                    self._changed.wait(None if self._sending else remaining)
                self._fill_request()
            try:
                self._send()
            except RowsNotSentError as error:
                _log.error("rows_not_sent", table=self.name, rows=len(error.rows), error=in_brief(error))
                return

    def _fill_request(self) -> None:
        size = 0
        while self._full and (not self._sending or size + self._full[0].size <= _REQUEST_BYTES):
            size += self._full[0].size
            self._sending.append(self._full.popleft())

    def _send(self) -> None:
        """Sends the buffers of the next request. After the last retry, this and every later use raises
        RowsNotSentError."""
        buffers = self._sending
        try:
            self._append_with_retries([self._flush_of(buffer) for buffer in buffers])
        except BaseException as error:
            with self._changed:
                self._failure = self._unsent_error(error)
                self._changed.notify_all()
            if isinstance(error, Exception):
                raise self._failure from error
            raise
        with self._changed:
            self.statistics.sent += sum(_row_count(buffer) for buffer in buffers)
            self.statistics.flushes += 1
            self._sending = []
            self._changed.notify_all()

    def _unsent_error(self, error: BaseException) -> RowsNotSentError:
        unsent = [*self._sending, *self._full, *([] if self._open is None else [self._open])]
        count, rows = sum(map(_row_count, unsent)), list[Row]()
        for buffer in unsent:
            with suppress(OverflowError, ValueError):  # Arrow has times that Python lacks
                rows += buffer.rows if buffer.table is None else self._columns.rows_of(buffer.table)
        subject = "They" if len(rows) == count else "Those whose values Python can represent"
        return RowsNotSentError(
            f"{counted(count, 'row')} for {self.name} could not be sent: {in_brief(error).rstrip('.')}.",
            f"{subject} are in the error's attribute rows. Apply them to a new stream.",
            rows,
        )

    def _flush_of(self, buffer: _Buffer) -> Flush:
        rows = self._columns.table_of(buffer.rows) if buffer.table is None else buffer.table
        return Flush(self._id, buffer.sequence, rows)

    def _append_with_retries(self, batches: Sequence[Flush]) -> None:
        """Sends batches, with retries as the options say. A batch that had arrived is not written twice."""
        options = self.options
        failures = 0
        while True:
            try:
                self._receiver.append(batches)
                return
            except Exception as error:  # the options say which errors are retried
                status = _status(error)
                allowed = options.request_failed_retry_enable and status in options.request_failed_retry_status
                if not allowed or failures >= options.request_failed_retry_times:
                    raise
                failures += 1
                self.statistics.retries += 1
                if options.request_failed_retry_log_debug_enable:
                    _log.debug("retrying", table=self.name, status=status.name, retry=failures, error=in_brief(error))
                if self._closed.wait(options.request_failed_retry_internal_ms / 1000):
                    raise


_OPERATORS = {
    RealtimeOperation.APPEND_ONLY: (RowOperator.INSERT,),
    RealtimeOperation.CDC: (RowOperator.UPSERT, RowOperator.DELETE_IGNORE),
}


def _row_count(buffer: _Buffer) -> int:
    return len(buffer.rows) if buffer.table is None else int(buffer.table.num_rows)


def _status(error: Exception) -> RetryStatus:
    """Returns the status of a failed flush."""
    if isinstance(error, TailFullError):
        return RetryStatus.THROTTLED
    if isinstance(error, UserError):
        return RetryStatus.PRECHECK_FAILED
    if isinstance(error, DependencyError) or is_transient(error):
        return RetryStatus.FAILED
    return RetryStatus.INTERNAL_ERROR
