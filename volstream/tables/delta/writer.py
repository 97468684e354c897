"""Spark commands that write Delta tables, each with the transaction id that makes it happen at most once.

A marked statement has its own session, because the settings that carry its ids apply to all statements of a session. The
command's result never decides the outcome; callers look for the marker in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from volstream.spark.errors import condition_of, is_conflict, map_spark_errors
from volstream.spark.frames import relation
from volstream.spark.jvm.codegen import LARGE_BYTES, LARGE_ROWS, compile_in
from volstream.sql.text import MAX_NAMED, one_of, pairs, quote_column, table_at
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.marker import Marker
from volstream.tables.delta.opened import OpenTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway

T = TypeVar("T")

#: A commit that lost a race against another writer of the table is retried with the same statement.
_CONFLICT_ATTEMPTS = 5


def is_large(location: str) -> bool:
    """True if a table is large enough for Spark to compile queries on it."""
    table = OpenTable.newest(location)
    return table is not None and table.is_larger(LARGE_BYTES, LARGE_ROWS)  # a table of only file names is small


def compile_if_large(session: SparkSession, location: str) -> None:
    """Enables compilation in a session if the table that it will read is large."""
    if is_large(location):
        compile_in(session)


class DeltaWriter:
    """Runs the write commands on the engine of ``gateway``."""

    def __init__(self, gateway: SparkGateway) -> None:
        self._gateway = gateway

    def create(self, location: str, columns: str, properties: Mapping[str, str]) -> None:
        """Creates an empty table unless it exists. ``columns`` is DDL."""
        with_options = f" TBLPROPERTIES ({pairs(properties)})" if properties else ""
        self._run(f"CREATE TABLE IF NOT EXISTS {table_at(location)} ({columns}) USING DELTA{with_options}")

    def add_columns(self, location: str, columns: str) -> None:
        """Adds nullable columns. ``columns`` is DDL."""
        self._run(f"ALTER TABLE {table_at(location)} ADD COLUMNS ({columns})")

    def set_properties(self, location: str, properties: Mapping[str, str]) -> None:
        """Sets table properties."""
        self._run(f"ALTER TABLE {table_at(location)} SET TBLPROPERTIES ({pairs(properties)})")

    @contextmanager
    def marked(
        self, marker: Marker, location: str, *, rows: int = 0, apart: bool = False, like: Any = None
    ) -> Iterator[SparkSession]:
        """Yields a session in which one DML statement on the table at ``location`` carries ``marker``.

        Args:
            rows: approximate number of rows that the statement writes.
            apart: use a new session for a user's statement, which may find or leave views and functions in it.
            like: copy this user session, for a frame created in it. The marker is never set in a user's session: after an
                interruption it could neither stay nor be removed, because the statement may still be running.
        """
        settings = marker.settings()
        compiled = rows > LARGE_ROWS or is_large(location)
        if not apart:
            fitting = self._gateway.pooled(compiled=compiled)
        else:
            fitting = self._gateway.fresh() if like is None else self._gateway.copied(like)
        with map_spark_errors(), fitting as session:
            if apart and compiled:
                compile_in(session)
            for key, value in settings.items():
                session.conf.set(key, value)
            yield session
            for key in () if apart else settings:
                session.conf.unset(key)

    def append(self, session: SparkSession, frame: DataFrame, location: str) -> None:
        """Adds the rows of ``frame``, which has the table's columns, in a session from :meth:`marked`."""
        del session  # the frame is bound to it; the parameter prevents an append outside a marked session
        with_retries(lambda: frame.write.format("delta").mode("append").save(location))

    def change(self, session: SparkSession, rows: DataFrame, location: str, change: RowChanges) -> None:
        """Makes the changes that ``direct.commit`` makes, in a session from :meth:`marked`.

        Args:
            rows: all rows to add, instead of those of ``change``.
        """
        if change.gone is None:
            self.append(session, rows, location)
            return
        names = [quote_column(name) for name in change.schema.names]
        gone = list(dict.fromkeys(change.gone))
        key = quote_column(change.key)
        if not change.follow and len(gone) <= MAX_NAMED:  # takes half the time of an equivalent MERGE
            writing = rows.write.format("delta").mode("overwrite").option("replaceWhere", one_of(key, gone))
            with_retries(lambda: writing.save(location))
            return
        new = dict.fromkeys(name for values in change.follow.values() for name in values)
        moved = [change.follow.get(key, {}) for key in gone]
        removed = {
            "__gone": pa.array(gone, pa.string()),
            "__follows": pa.array(map(bool, moved), pa.bool_()),
            **{name: pa.array([row.get(name) for row in moved], change.schema.field(name).type) for name in new},
        }
        relation(session, pa.table(removed)).createOrReplaceTempView("gone_rows")
        rows.createOrReplaceTempView("new_rows")
        empty = [name if name in new else f"NULL AS {quote_column(name)}" for name in change.schema.names]
        source = (
            f"SELECT CAST(NULL AS STRING) AS __gone, false AS __follows, {', '.join(names)} FROM new_rows "
            f"UNION ALL SELECT __gone, __follows, {', '.join(empty)} FROM gone_rows"
        )
        follow = f"WHEN MATCHED AND s.__follows THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in new)} " if new else ""
        self.merge(
            session,
            f"MERGE INTO {table_at(location)} t USING ({source}) s ON t.{key} = s.__gone AND {one_of(f't.{key}', gone)} {follow}"
            f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.__gone IS NULL THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)})",
        )

    def merge(self, session: SparkSession, statement: str) -> None:
        """Runs a MERGE in a session from :meth:`marked`."""
        with_retries(lambda: session.sql(statement).collect())

    def fence(self, location: str, marker: Marker) -> None:
        """Commits only ``marker``; afterwards no other commit can carry its (app id, version).

        Succeeds if another commit already carries it; the log shows which. Needs an engine only if the table does.
        """
        if direct.commit(location, marker):
            return
        with self.marked(marker, location) as session:
            empty = session.sql(f"SELECT * FROM {table_at(location)} LIMIT 0")
            try:
                with_retries(lambda: empty.write.format("delta").mode("append").save(location))
            except Exception as error:  # filtered by condition: Spark Connect offers no more
                if not (condition_of(error) or "").startswith("DELTA_CONCURRENT_TRANSACTION"):
                    raise

    def _run(self, statement: str) -> None:
        with map_spark_errors(), self._gateway.pooled() as session:
            with_retries(lambda: session.sql(statement).collect())


def with_retries(command: Callable[[], T]) -> T:
    """Returns what a command returns, which is retried when it loses a race against other writers of its table."""
    import stamina

    for attempt in stamina.retry_context(
        on=lambda error: is_conflict(condition_of(error)), attempts=_CONFLICT_ATTEMPTS, wait_initial=0.1, wait_max=2.0
    ):
        with attempt:
            return command()
    raise AssertionError("the last attempt raises")
