"""The commands of Spark's that write Delta tables, each with the transaction id that makes it happen at most once.

A marked statement has a session for itself: the settings that carry its ids are shared by all statements of a session.
The outcome is never taken from the command's result; callers look for the marker in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import stamina

from volstream.delta import direct
from volstream.delta.log import DeltaLog
from volstream.delta.marker import Marker
from volstream.jvm.codegen import LARGE_BYTES, LARGE_ROWS, compile_in
from volstream.spark.errors import condition_of, is_conflict, map_spark_errors
from volstream.sqltext import literal, table_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway

#: Optimistic commits that lost against another writer of the same table are tried again: it is the same statement.
_CONFLICT_ATTEMPTS = 5


def is_large(location: str) -> bool:
    """Whether a table is so large that Spark should compile what reads it."""
    return DeltaLog(location).is_larger(LARGE_BYTES, LARGE_ROWS)  # names of files alone are small


def compile_if_large(session: SparkSession, location: str) -> None:
    """Lets a session compile from now on, where the table that it is to read is large."""
    if is_large(location):
        compile_in(session)


class DeltaWriter:
    """Runs the write commands on the engine of ``gateway``."""

    def __init__(self, gateway: SparkGateway) -> None:
        self._gateway = gateway

    def create(self, location: str, columns: str, properties: Mapping[str, str]) -> None:
        """Creates an empty table unless there is one. ``columns`` is DDL."""
        options = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        with_options = f" TBLPROPERTIES ({options})" if options else ""
        self._run(f"CREATE TABLE IF NOT EXISTS {table_at(location)} ({columns}) USING DELTA{with_options}")

    def add_columns(self, location: str, columns: str) -> None:
        """Adds nullable columns. ``columns`` is DDL."""
        self._run(f"ALTER TABLE {table_at(location)} ADD COLUMNS ({columns})")

    def rename_column(self, location: str, old: str, new: str) -> None:
        """Gives a column another name, in one commit that writes all rows anew; nothing where it has been done.

        The table's id, properties and partitions stay, and the transaction ids of its commits; a CLUSTER BY does not. Delta
        renames without writing rows only where columns are mapped, and whoever reads the changes of such a table compares
        whole snapshots.
        """
        log = DeltaLog(location)

        def overwrite() -> None:
            schema = log.schema()
            if schema is None or old not in schema.columns:
                return
            rows = session.sql(f"SELECT * FROM {table_at(location)}").withColumnRenamed(old, new)
            partitions = [new if name == old else name for name in schema.partitions]
            writing = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            (writing.partitionBy(*partitions) if partitions else writing).save(location)

        with map_spark_errors(), self._gateway.pooled(compiled=is_large(location)) as session:
            with_retries(overwrite)

    def set_properties(self, location: str, properties: Mapping[str, str]) -> None:
        """Sets table properties."""
        options = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        self._run(f"ALTER TABLE {table_at(location)} SET TBLPROPERTIES ({options})")

    @contextmanager
    def marked(
        self, marker: Marker, location: str, *, rows: int = 0, apart: bool = False, like: Any = None
    ) -> Iterator[SparkSession]:
        """A session in which one DML statement on the table at ``location`` carries ``marker``.

        Args:
            rows: about how many it writes.
            apart: a new one, for a statement of a user, which may meet or leave views and functions there.
            like: and a copy of this session of a user, for a frame that was made there. The marker never is in a user's own
                session: on an interruption it could neither stay nor go there, for the statement may still be running.
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

    def prepare(self, location: str) -> None:
        """Lets Delta find out what the log of a table's newest version says of transactions and files.

        A marked statement asks for that first, which takes longer than a small commit itself. Delta keeps the answer until
        the next commit, so that it can be asked for while nobody waits.
        """
        self._run(f"DESCRIBE DETAIL {table_at(location)}")

    def append(self, session: SparkSession, frame: DataFrame, location: str) -> None:
        """Adds the rows of ``frame``, whose columns are the table's, in a session made by :meth:`marked`."""
        del session  # the frame is bound to it; named so that a caller cannot append outside a marked session
        with_retries(lambda: frame.write.format("delta").mode("append").save(location))

    def replace(self, session: SparkSession, frame: DataFrame, location: str, where: str) -> None:
        """Puts the rows of ``frame``, for all of which ``where`` holds, in the place of those for which it does; in a session
        made by :meth:`marked`. Half the time of a MERGE that does the same.

        Args:
            where: SQL on the table's columns, without subqueries; it goes into the log.
        """
        del session  # as above
        writing = frame.write.format("delta").mode("overwrite").option("replaceWhere", where)
        with_retries(lambda: writing.save(location))

    def merge(self, session: SparkSession, statement: str) -> None:
        """Runs a MERGE in a session made by :meth:`marked`."""
        with_retries(lambda: session.sql(statement).collect())

    def fence(self, location: str, marker: Marker) -> None:
        """Commits nothing but ``marker``; from then on no other commit can carry its (app id, version).

        Quiet where another commit carries it already: who won is read from the log. Needs an engine only where the table does.
        """
        if direct.commit(location, marker):
            return
        with self.marked(marker, location) as session:
            empty = session.sql(f"SELECT * FROM {table_at(location)} LIMIT 0")
            try:
                with_retries(lambda: empty.write.format("delta").mode("append").save(location))
            except Exception as error:  # filtered by condition, the only sign Spark Connect gives
                if not (condition_of(error) or "").startswith("DELTA_CONCURRENT_TRANSACTION"):
                    raise

    def _run(self, statement: str) -> None:
        with map_spark_errors(), self._gateway.pooled() as session:
            with_retries(lambda: session.sql(statement).collect())


def with_retries(command: Any) -> None:
    """Runs a command again while it loses against other writers of its table."""
    for attempt in stamina.retry_context(
        on=lambda error: is_conflict(condition_of(error)), attempts=_CONFLICT_ATTEMPTS, wait_initial=0.1, wait_max=2.0
    ):
        with attempt:
            command()
