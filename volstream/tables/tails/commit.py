"""Commits arrived rows to the table, exactly once: without a JVM if the table allows it, else with Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base import faults
from volstream.base.model.names import quote
from volstream.errors import DependencyError
from volstream.sql.text import table_at
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.marker import Marker
from volstream.tables.delta.opened import OpenTable, schema_at
from volstream.tables.tails.snapshot import Tail, check_columns, newest_of_each, same_key
from volstream.tables.tails.table import ARRIVAL, DELETE, OPERATION, OWN
from volstream.tables.tails.writer import Move, MovePlanner

#: Row groups of tables with a key are small, because looking up a row decodes a whole group.
_SMALL_GROUPS = "parquet.block.size", str(256 << 10)

if TYPE_CHECKING:
    from volstream.spark.session import SparkGateway


def commit_tail(target: str, spark: Callable[[], SparkGateway]) -> int:
    """Commits all rows that have arrived for the table at ``target`` by now; returns the number of rows read.

    Several processes may call it at once: a move takes effect once.

    Args:
        spark: connects to Spark; called only if the table needs Spark.

    Raises:
        InvalidStateError: the table lost a column for which values have arrived.
        VolstreamError: the table cannot be written; arrived rows stay in the tail.
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
        """Makes the move; returns the number of rows read."""
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
        """Returns the changes to a table that can be committed without Spark, as far as its key allows."""
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
                    raise  # otherwise another process has made this move
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
