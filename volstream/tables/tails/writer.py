"""Appends batches of rows to a tail, durably and at most once, without a JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base import faults
from volstream.base.model.names import quote
from volstream.errors import DependencyError, FencedError, InvalidStateError, InvalidValueError, NotFoundError, TailFullError
from volstream.sql.text import table_at
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.native import DataFile, NativeTable, View
from volstream.tables.delta.opened import OpenTable, schema_at
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import crowded, mapped
from volstream.tables.delta.schema import partition_texts
from volstream.tables.tails.tail import (
    ARRIVAL,
    BEFORE,
    DELETE,
    ENDED,
    FLOOR,
    MOVE,
    NEWEST,
    OPERATION,
    OWN,
    PARTITION,
    POSITION,
    SEALED,
    THROUGH,
    Tail,
    TailedTable,
    check_columns,
    existing_tail,
    newest_of_each,
    same_key,
    tail_columns,
    tail_spec,
    unfitting,
)

if TYPE_CHECKING:
    from volstream.spark.session import SparkGateway

#: Maximum number of attempts to commit. An attempt fails only if another commit came first.
_ATTEMPTS = 100

#: A tail of this size refuses more rows, so that reading it stays cheap.
MAX_ROWS, MAX_BYTES = 2_000_000, 512 << 20

#: Approximate maximum size of a move, compressed. With a key, its rows are sorted in memory.
_MOVE_BYTES = 64 << 20

#: This many files below these numbers of rows and bytes are merged: each file costs a reader a request.
_SMALL_FILES, _SMALL_ROWS, _SMALL_BYTES = 64, 20_000, 1 << 20


@dataclass(frozen=True)
class Flush:
    """Rows of one flush.

    Attributes:
        stream_id: the stream that sent the rows.
        sequence: number of the flush in its stream, increasing from 1.
        rows: the operation of each row (``tail.OPERATION``) and the table's columns. Without rows, only
            records the number.
        after: required number of the stream's newest flush (0 before the first), so that a stream has a
            single writer. None allows any number.
    """

    stream_id: str
    sequence: int
    rows: pa.Table
    after: int | None = None


class TailWriter:
    """Writes the tail of the table at ``target``. Thread-safe; any number of processes may write one tail.

    Adapts the tail to the table's columns. The first rows create the tail.

    Args:
        check: called after reading how often the tail's streams were ended and before reading the columns.
            Raises if another process is changing the columns.

    Raises:
        InvalidStateError: the table's columns changed, and earlier rows in the tail are not committed yet.
        NotFoundError: there is no table.
        StorageError: too many concurrent writers.
        DependencyError: the table cannot be read, or the tail cannot be written.
    """

    def __init__(self, target: str, check: Callable[[], object] = lambda: None) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._tail_id: str | None = None  # once it exists
        present = existing_tail(target)
        if present is None:
            check()
            self._read_columns()
            self._table, self._ended = NativeTable(self._wanted), 0
            return
        self._table, self._tail_id = NativeTable(present[0]), present[1]
        for view in self._attempts():
            self._ended = self._table.transaction(ENDED) or 0
            check()
            self._read_columns()
            with suppress(FencedError):
                self._adapt(view)
                return

    def _read_columns(self) -> None:
        self.columns = tail_columns(self.target)
        self._wanted = tail_spec(self.target, self.columns)

    def append(self, batches: Sequence[Flush]) -> None:
        """Appends batches in one commit. Skips batches that arrived before. Durable on return.

        Args:
            batches: in order within each stream. Table columns missing from their rows are NULL.

        Raises:
            TailFullError: rows must be committed to the table first. Nothing was written.
            FencedError: another process has written to a stream (``Flush.after``). Nothing was written.
            InvalidStateError: the tail is sealed, or the rows do not fit the table. Nothing was written.
            InvalidValueError: the table cannot store a value. Nothing was written.
            StorageError: too many concurrent writers.
            DependencyError: the tail cannot be written.
        """
        with self._lock:
            if self._tail_id is None:
                self._check_columns()
            for view in self._attempts():
                self._check_open(view)
                new = self._new(batches)
                if not new or self._append_new(view, new):
                    return

    def _check_columns(self) -> None:
        """Raises InvalidStateError if the table's columns changed before the tail existed.

        Until then there is no tail in which a change of columns could end streams.
        """
        with suppress(DependencyError):  # a table that cannot be read now does not make rows unsafe
            now = tail_columns(self.target)
            current = pa.schema([now.field(name) for name in self.columns.names if name in now.names], now.metadata)
            if not current.equals(self.columns, check_metadata=True):
                raise _closed(self.target)

    def _check_open(self, view: View) -> None:
        """Raises InvalidStateError if the tail takes no more rows, at least from streams as old as this
        writer."""
        self._tail_id = self._tail_id or view.table_id
        present = {field.name: field.type for field in view.spec.schema}
        if (
            view.table_id != self._tail_id
            or self._table.transaction(SEALED) == 1
            or (self._table.transaction(ENDED) or 0) != self._ended
            or any(present.get(field.name) != field.type for field in self._wanted.schema)
        ):
            raise _closed(self.target)

    def seal(self) -> None:
        """Makes the tail refuse all rows, including appends in flight. Idempotent.

        Raises:
            StorageError: too many concurrent writers.
            DependencyError: the tail cannot be written.
        """
        self._set(lambda: {SEALED: 1})

    def end_streams(self) -> None:
        """Makes the tail refuse rows of all existing streams, including appends in flight. Raises like
        :meth:`seal`."""
        self._set(lambda: {ENDED: (self._table.transaction(ENDED) or 0) + 1})

    def _set(self, numbers: Callable[[], Mapping[str, int]]) -> None:
        with self._lock:
            for view in self._attempts():
                # Carries an append's transaction, so that Delta refuses either this commit or a concurrent
                # append.
                with suppress(FencedError):
                    self._table.commit(view, {NEWEST: Tail.of(view).newest, **numbers()}, changes_data=False)
                    return

    def newest(self, stream_ids: Sequence[str]) -> tuple[str, Mapping[str, int]]:
        """Returns the tail's Delta id, and the number of each stream's newest flush (0 before the first).

        Creates the tail if it does not exist.

        Raises:
            StorageError: too many concurrent writers.
            DependencyError: the tail cannot be read.
        """
        with self._lock:
            view = next(self._attempts())
            self._tail_id = self._tail_id or view.table_id
            return view.table_id, {stream_id: self._sequence(stream_id) for stream_id in stream_ids}

    def _adapt(self, view: View) -> None:
        """Adapts a version of the tail to the table's columns.

        Raises FencedError if another writer committed first, InvalidStateError if earlier rows must be
        committed first.
        """
        wanted = self._wanted.schema
        types = {field.name: field.type for field in view.spec.schema}
        new = pa.schema([field for field in wanted if field.name not in types])
        numbers = {NEWEST: Tail.of(view).newest}
        if len(types) + len(new) == len(wanted) and all(field.type == types.get(field.name, field.type) for field in wanted):
            if len(new):
                self._table.add_columns(view, new, numbers)
            return
        tailed = TailedTable.open(self.target)
        if tailed is None or tailed.tail.view.version != view.version:
            raise FencedError(f"Another process wrote the tail of the table at {self.target} meanwhile.")
        if tailed.has_unmoved:
            raise InvalidStateError(
                f"The columns of the table at {self.target} changed, and rows that arrived before are not committed yet.",
                "Commit them first, or wait until they are.",
            )
        self._table.replace(view, wanted, {**numbers, SEALED: 0})

    def _attempts(self) -> Iterator[View]:
        """Yields the tail's newest version for each attempt.

        Raises NotFoundError or InvalidStateError if the table was dropped, StorageError after the last
        attempt.
        """
        for _ in range(_ATTEMPTS):
            try:
                view = self._table.open(creates=self._tail_id is None)
            except FencedError:  # another writer has just created it
                continue
            except NotFoundError:
                tail_columns(self.target)
                raise _closed(self.target) from None  # the table was recreated
            yield view
        raise crowded(self.target)

    def _new(self, batches: Sequence[Flush]) -> Sequence[Flush]:
        """Returns the batches that the tail lacks. Raises FencedError."""
        new: list[Flush] = []
        sequences: dict[str, int] = {}
        for batch in batches:
            newest = sequences.setdefault(batch.stream_id, self._sequence(batch.stream_id))
            if batch.sequence <= newest:
                continue
            if batch.after is not None and batch.after != newest:
                raise FencedError(
                    f"Another process has written rows of {batch.stream_id} up to {newest} to the table at {self.target}; "
                    f"this one has rows after {batch.after}."
                )
            sequences[batch.stream_id] = batch.sequence
            new.append(batch)
        return new

    def _sequence(self, stream_id: str) -> int:
        return self._table.transaction(_writer(stream_id)) or 0

    def _append_new(self, view: View, new: Sequence[Flush]) -> bool:
        """Appends batches to a version of the tail. Returns False if another writer committed first."""
        if view.rows >= MAX_ROWS or view.bytes >= MAX_BYTES:
            raise TailFullError(
                f"{view.rows:,} rows have arrived for the table at {self.target} and are not committed yet.",
                "Try again later. If that does not help, commits fail: see the log of the daemon.",
            )
        try:
            self._append(Tail.of(view), new)
        except FencedError:
            return False
        return True

    def _append(self, tail: Tail, batches: Sequence[Flush]) -> None:
        writers = {_writer(batch.stream_id): batch.sequence for batch in batches}
        arrivals = [batch.rows for batch in batches if batch.rows.num_rows]
        if not arrivals:
            self._table.commit(tail.view, {NEWEST: tail.newest, **writers}, changes_data=False)
            return
        rows = self._numbered(tail, arrivals)
        with mapped(self._table.spec.location):
            file = self._table.new_file()
        try:
            file.write(rows)
            added = [file.close()]
            removed = tail.view.small_files(_SMALL_ROWS, _SMALL_BYTES, _SMALL_FILES)
            if removed:
                added.append(self._table.merged(tail.view, removed, (ARRIVAL, POSITION)))
        except BaseException:
            file.drop()
            raise
        faults.point("tail.written")
        self._table.commit(tail.view, {NEWEST: tail.newest + len(arrivals), **writers}, added=added, removed=removed)
        faults.point("tail.appended")

    def _numbered(self, tail: Tail, arrivals: Sequence[pa.Table]) -> pa.Table:
        """Returns the rows of flushes in the tail's format, numbered. Raises InvalidStateError."""
        schema = self._table.spec.schema
        parts = []
        for number, rows in enumerate(arrivals, tail.newest + 1):
            count = rows.num_rows
            numbers = [pa.repeat(pa.scalar(number, pa.int64()), count), pa.array(range(count), pa.int32())]
            parts.append(pa.table([*numbers, *self._fitted(tail, rows).columns], schema=schema))
        return pa.concat_tables(parts)

    def _fitted(self, tail: Tail, rows: pa.Table) -> pa.Table:
        """Converts rows to the table's columns, which may have changed since the stream began.

        Raises:
            InvalidStateError: they do not fit.
            InvalidValueError: the table can never store a partition value. The sender did not check it.
        """
        remedy = "Its columns changed: open a new stream."
        unknown = [name for name in rows.column_names if name not in self._table.spec.schema.names]
        if unknown:
            raise InvalidStateError(f"The table at {self.target} has no column {unknown[0]}.", remedy)
        try:
            rows = tail.view.fitted(rows, [name for name in tail.view.spec.schema.names if name not in (ARRIVAL, POSITION)])
        except pa.ArrowException as error:
            raise InvalidStateError(f"The rows do not fit the table at {self.target}: {error}.", remedy) from None
        for at, name in enumerate(rows.column_names):
            column = self.columns.field(name) if name in self.columns.names else None
            if column is None or PARTITION.encode() not in (column.metadata or {}) or not pa.types.is_string(column.type):
                continue
            try:
                texts = partition_texts(name, rows[name], nullable=column.nullable)
            except ValueError as error:
                raise InvalidValueError(f"Column {name}: {error}.") from None
            rows = rows.set_column(at, rows.field(at), texts)
        return rows


@dataclass(frozen=True)
class Move:
    """A planned move of the arrivals in ``(after, until]`` into the table."""

    number: int
    after: int
    until: int


class MovePlanner:
    """Plans moves out of the tail of the table at ``target``, and removes moved rows.

    Raises:
        DependencyError: the tail cannot be read.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        present = existing_tail(target)
        self._table = None if present is None else NativeTable(present[0])

    def plan(self) -> tuple[Tail, Move] | None:
        """Returns the next move, or None if all rows have moved. A process that died may have planned it.

        Raises:
            StorageError: too many concurrent writers.
            DependencyError: table and tail do not match, or cannot be read or written.
        """
        for _ in range(_ATTEMPTS):
            state = self._state()
            if state is None:
                return None
            tail, moved = state
            if moved < tail.through:
                return tail, Move(tail.move, tail.before, tail.through)
            if tail.newest == tail.through:
                return None
            planned = Move(tail.move + 1, tail.through, _end_of_move(tail))
            numbers = {MOVE: planned.number, THROUGH: planned.until, BEFORE: planned.after}
            if self._commit(tail, numbers):
                faults.point("tail.planned")
                return replace(tail, move=planned.number, through=planned.until, before=planned.after), planned
        raise crowded(self.target)

    def trim(self) -> None:
        """Removes arrivals that the table has. Raises like :meth:`plan`."""
        for _ in range(_ATTEMPTS):
            state = self._state()
            if state is None:
                return
            tail, moved = state
            moved_files = [file for file in tail.view.files if file.maximum[ARRIVAL] <= moved]
            if not moved_files or self._commit(tail, {FLOOR: moved}, moved_files):
                return
        raise crowded(self.target)

    def sweep(self) -> None:
        """Deletes data files that no version needs. Lists the folder."""
        if self._table is not None:
            self._table.open(creates=False)
            self._table.sweep()

    def _state(self) -> tuple[Tail, int] | None:
        """Returns the tail and the last arrival in the table, or None if either does not exist."""
        if self._table is None:
            return None
        for _ in range(_ATTEMPTS):
            tail = Tail.of(self._table.open(creates=False))
            base = OpenTable.newest(self.target)
            if base is None:
                return None
            move = base.transaction(tail.move_id)
            moved = tail.moved(move)
            if moved is not None:
                return tail, moved
            if (move or 0) < tail.move:
                break
        raise unfitting(self.target)

    def _commit(self, tail: Tail, numbers: dict[str, int], removed: Sequence[DataFile] = ()) -> bool:
        """Commits on top of a version of the tail. Returns False if another planner came first.

        Concurrent appends do not interfere: without :data:`NEWEST`, Delta puts this commit after them.
        """
        assert self._table is not None, "it was read"
        try:
            self._table.commit(tail.view, numbers, removed=removed, changes_data=False)
        except FencedError:
            return False
        return True


def _end_of_move(tail: Tail) -> int:
    """Returns the last arrival of the next move."""
    size = 0
    for file in sorted(tail.files(tail.through), key=lambda file: int(file.maximum[ARRIVAL])):
        size += file.bytes
        if size >= _MOVE_BYTES:
            return int(file.maximum[ARRIVAL])
    return tail.newest


def _closed(target: str) -> InvalidStateError:
    return InvalidStateError(
        f"The table at {target} takes no more rows.",
        "It became immutable, or its columns changed, or it was recreated: in the latter cases open a new stream.",
    )


def _writer(stream_id: str) -> str:
    return f"volstream:writer:{stream_id}"


# Commits arrived rows to the table exactly once: without a JVM if the table allows it, else with Spark.

#: Row groups of tables with a key are small, because looking up a row decodes a whole group.
_SMALL_GROUPS = "parquet.block.size", str(256 << 10)


def commit_tail(target: str, spark: Callable[[], SparkGateway]) -> int:
    """Commits all rows that have arrived for the table at ``target`` so far. Returns the number of rows read.

    Several processes may call it concurrently: a move takes effect once.

    Args:
        spark: connects to Spark. Called only if the table needs Spark.

    Raises:
        InvalidStateError: the table lost a column that has arrived values.
        VolstreamError: the table cannot be written. Arrived rows stay in the tail.
    """
    planner = MovePlanner(target)
    count = 0
    planned = planner.plan()
    until = None if planned is None else planned[0].newest
    while planned is not None and until is not None:
        tail, step = planned
        count += _TailCommit(target, tail, step).run(spark)
        faults.point("tail.moved")
        planner.trim()
        faults.point("tail.trimmed")
        planned = planner.plan() if step.until < until else None
    return count


class _TailCommit:
    """One move of arrived rows.

    Raises:
        InvalidStateError: see :func:`commit_tail`.
    """

    def __init__(self, target: str, tail: Tail, step: Move) -> None:
        self._target = target
        self._tail = tail
        self._step = step
        self._arrived = pa.schema([field for field in tail.view.spec.schema if field.name not in OWN])
        schema = schema_at(target)
        if schema is None:
            raise DependencyError(f"The table at {target} no longer exists.")
        check_columns(target, self._arrived, schema.columns)
        self._key = list(schema.primary_key)
        self._chars = schema.chars

    def run(self, spark: Callable[[], SparkGateway]) -> int:
        """Makes the move. Returns the number of rows read."""
        files = self._tail.view.files_between(ARRIVAL, self._step.after, self._step.until)
        rows = sum(file.rows for file in files)
        metadata = {"arrivals": [self._step.after + 1, self._step.until], "cause": "tail"}
        marker = Marker(self._tail.move_id, self._step.number, metadata)
        change = self._changes()
        if change is None or not direct.commit(self._target, marker, change):
            self._by_spark(marker, spark(), rows)
        table = OpenTable.newest(self._target)
        if table is None or (table.transaction(marker.app_id) or 0) < marker.version:
            raise DependencyError(f"Spark did not commit the rows that have arrived for the table at {self._target}.")
        return rows

    def _changes(self) -> RowChanges | None:
        """Returns the changes to commit without Spark, or None if the table's key needs Spark."""
        if not self._key:
            added = (part.select(self._arrived.names) for part in self._tail.parts(self._step.after, self._step.until))
            return RowChanges(added, self._arrived, "", None)
        if len(self._key) > 1 or not pa.types.is_string(self._arrived.field(self._key[0]).type):
            return None
        newest = last_of_each(self._tail.rows(self._step.after, self._step.until), self._key)
        upserted = newest.filter(pc.not_equal(newest[OPERATION], DELETE)).select(self._arrived.names)
        return RowChanges([upserted], self._arrived, self._key[0], newest[self._key[0]].to_pylist())

    def _by_spark(self, marker: Marker, gateway: SparkGateway, rows: int) -> None:
        from volstream.spark.errors import as_sql_errors, condition_of
        from volstream.tables.delta.writer import DeltaWriter

        writer = DeltaWriter(gateway)
        with as_sql_errors(), writer.marked(marker, self._target, rows=rows) as session:
            if self._key:
                session.conf.set(*_SMALL_GROUPS)
            try:
                writer.merge(session, self._statement())
            except Exception as error:  # filtered by condition: Spark Connect offers no more
                if not (condition_of(error) or "").startswith("DELTA_CONCURRENT_TRANSACTION"):
                    raise  # in that case, another process has made this move
            session.conf.unset(_SMALL_GROUPS[0])

    def _statement(self) -> str:
        names = [quote(name) for name in self._arrived.names]
        columns = ", ".join(names)
        arrived = self._tail.query(self._step.after, self._step.until)
        if not self._key:
            return f"INSERT INTO {table_at(self._target)} ({columns}) SELECT {columns} FROM ({arrived})"
        same = same_key(self._key, self._chars, "__t", "__n")
        sets = ", ".join(f"__t.{name} = __n.{name}" for name in names)
        values = ", ".join(f"__n.{name}" for name in names)
        return (
            f"MERGE INTO {table_at(self._target)} __t USING ({newest_of_each(arrived, tuple(self._key), columns)}) __n ON {same} "
            f"WHEN MATCHED AND __n.{OPERATION} = '{DELETE}' THEN DELETE WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND __n.{OPERATION} <> '{DELETE}' THEN INSERT ({columns}) VALUES ({values})"
        )


def last_of_each(rows: pa.Table, key: list[str]) -> pa.Table:
    """Returns the last row of each key, in any order."""
    numbered = rows.select(key).append_column("__at", pa.array(range(rows.num_rows), pa.int64()))
    return rows.take(numbered.group_by(key).aggregate([("__at", "max")])["__at_max"])
