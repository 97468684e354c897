"""The result of ``session.streams.get(name).consume()``: a stream's rows as a DataFrame, and exactly-once
writes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from volstream.api.statements import bind, metastore
from volstream.base.definitions import Stream
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name
from volstream.changes.changelog import quoted
from volstream.errors import InvalidValueError, NotFoundError
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import Views, bound_to
from volstream.sql.statement import SparkStatement
from volstream.sql.text import parquet_at, table_at
from volstream.tables.delta import places
from volstream.tables.delta.opened import columns_at
from volstream.tables.delta.ownership import check_writable
from volstream.tables.delta.writer import with_retries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.changes.streams.consume import ConsumedBatch, Consumption
    from volstream.home import Home


@checked
class StreamBatch:
    """One consumption of a stream, inside its ``with`` block.

    Its methods write exactly once, and the offset moves at the end of the block. Effects elsewhere happen at
    least once: after a failure, the next block has the same rows under the same ``id``, which distinguishes
    them from new ones.

    Attributes:
        id: stable across failures.
        df: the rows. Actions on it do not move the offset.
    """

    def __init__(self, home: Home, consumption: Consumption, stream: Stream, consumed: ConsumedBatch | None) -> None:
        self._home = home
        self._consumption = consumption
        self._stream = stream
        self._consumed = consumed
        self.id = None if consumed is None else consumed.batch.id
        self.df: DataFrame = self._rows(home.spark)

    @property
    def empty(self) -> bool:
        """Whether there is no new version.

        Does not use Spark. A range of versions without rows is not empty.
        """
        return self._consumed is None or self._consumed.covered.empty

    def write(self, target: str, mode: str = "append", *, df: DataFrame | None = None) -> int | None:
        """Adds rows to a table, or replaces its rows (``overwrite``). Returns the number of rows, if known.

        Columns that the target lacks, such as the change columns, are left out.

        Args:
            df: rows to write, derived from :attr:`df`, which is the default.

        Raises:
            NotFoundError: there is no such Delta table in the warehouse.
            InvalidStateError: a job maintains it.
        """
        if mode not in ("append", "overwrite"):
            raise InvalidValueError(f"{mode!r} is not a write mode.", "Choose append or overwrite.")
        location, columns = self._target(target)

        def statement(spark: SparkSession) -> None:
            frame = self._rows(spark) if df is None else bound_to(spark, df)
            chosen = frame.select(*(quoted(name) for name in _common(columns, frame.columns)))
            with_retries(lambda: chosen.write.format("delta").mode(mode).save(location))

        stands_for = "INSERT INTO {} SELECT 1" if mode == "append" else "INSERT OVERWRITE {} SELECT 1"
        return self._write(target, stands_for, location, statement, self.df if df is None else df)

    def merge_into(self, target: str, on: str | Sequence[str], *, df: DataFrame | None = None) -> int | None:
        """Brings a table up to date: by key, changed rows are replaced, new rows added, and deleted rows
        deleted.

        Args:
            on: the key's columns, in any case. Of several rows with one key, the newest wins.
            df: rows to merge, derived from :attr:`df`. Without ``__change_type`` all are treated as new or
                changed.

        Raises:
            NotFoundError: there is no such Delta table in the warehouse.
            InvalidStateError: a job maintains it.
            InvalidValueError: a column of the key is missing.
        """
        keys = [on] if isinstance(on, str) else list(on)
        location, columns = self._target(target)

        frame = self.df if df is None else df
        missing = [key for key in keys if not (_common([key], frame.columns) and _common([key], columns))]
        if missing:
            raise InvalidValueError(f"There is no column {missing[0]!r} to merge on.")
        if self._consumed is None:
            return 0
        # A view of a DataFrame of changes would lose their range. So SQL reads the stream's own rows, and
        # other rows are staged.
        with places.staged(self._home.warehouse, "merge") as staged:

            def statement(spark: SparkSession) -> None:
                source = self._query(Views(spark)) if df is None else f"SELECT * FROM {parquet_at(staged)}"
                text = _merge(location, source, keys, _common(columns, frame.columns), frame.columns)
                with_retries(lambda: spark.sql(text).collect())

            if df is not None:
                with as_sql_errors():
                    df.write.parquet(staged)
            stands_for = "MERGE INTO {} t USING (SELECT 1 AS a) s ON t.a = s.a WHEN MATCHED THEN DELETE"
            return self._write(target, stands_for, location, statement, self.df)

    def _write(
        self, target: str, stands_for: str, location: str, statement: Callable[[SparkSession], None], frame: DataFrame
    ) -> int | None:
        """Writes a table, after its arrived rows if a statement like ``like`` would."""
        if self._consumed is None:
            return 0  # a volume that was never listed
        like = SparkStatement(stands_for.format(Name.parse(target).qualified))
        with as_sql_errors(), bind.settled(self._home, like):
            return self._consumption.write(location, statement, like=frame.sparkSession)

    def _rows(self, spark: SparkSession) -> DataFrame:
        if self._consumed is None:
            return self._home.reader.unlisted(spark)
        with as_sql_errors():
            views = Views(spark)
            return views.release_with(spark.sql(self._query(views)))

    def _query(self, views: Views) -> str:
        assert self._consumed is not None, "checked by the caller"
        return self._home.reader.query(views, self._consumed.covered)

    def _target(self, name: str) -> tuple[str, Sequence[str]]:
        location = metastore.locate(self._home, Name.parse(name))
        columns = columns_at(location)
        if not columns:
            raise NotFoundError(
                f"There is no Delta table {name}.",
                f"Instead of this block, run: CREATE TABLE {name} AS SELECT * FROM {self._stream.name}. It takes the same rows.",
            )
        check_writable(self._home.catalog, Name.parse(name), location, self._home.warehouse)
        return location, list(columns)


@checked
class OpenStream(Stream):
    """A stream's definition from ``session.streams.get``, which can be consumed."""

    _home: Home

    @classmethod
    def of(cls, home: Home, stream: Stream) -> Self:
        """Returns a session's stream."""
        opened = cls(**vars(stream))
        object.__setattr__(opened, "_home", home)
        return opened

    @contextmanager
    def consume(self, *, timeout: float = 0.0) -> Iterator[StreamBatch]:
        """Takes the stream's unconsumed changes. The offset moves at the end of the block, unless it raises.

        Args:
            timeout: seconds to wait for another consumption to end.

        Raises:
            StreamBusyError: another consumption is open.
            StreamStaleError, StreamSchemaChangedError: the stream cannot be read.
        """
        with self._home.consumption(again=True, timeout=timeout) as consumption:
            batches = consumption.take(self)
            yield StreamBatch(self._home, consumption, self, batches.get(self.id))


def _common(columns: Sequence[str], present: Sequence[str]) -> list[str]:
    lowered = {name.lower() for name in present}
    return [name for name in columns if name.lower() in lowered]


#: Change types of rows whose key may no longer be in the table: an UPDATE may have changed the key itself.
_GONE = "__change_type IN ('DELETE', 'UPDATE_BEFORE')"


def _merge(location: str, rows: str, keys: Sequence[str], columns: Sequence[str], present: Sequence[str]) -> str:
    typed = "__change_type" in present
    versioned = "__commit_version" in present
    partition = ", ".join(map(quoted, keys))
    order = ", ".join(
        [*([f"CASE WHEN {_GONE} THEN 1 ELSE 0 END"] if typed else []), *(["__commit_version DESC"] if versioned else [])]
    )
    ranked = f"SELECT *, row_number() OVER (PARTITION BY {partition} ORDER BY {order or partition}) AS __rank"
    source = f"SELECT * FROM ({ranked} FROM ({rows})) WHERE __rank = 1"
    match = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)
    deletes = f"WHEN MATCHED AND s.{_GONE} THEN DELETE " if typed else ""
    fresh = f" AND NOT s.{_GONE}" if typed else ""
    assigned = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in columns)
    listed = ", ".join(map(quoted, columns))
    values = ", ".join(f"s.{quoted(name)}" for name in columns)
    return (
        f"MERGE INTO {table_at(location)} t USING ({source}) s ON {match} {deletes}WHEN MATCHED THEN UPDATE SET {assigned} "
        f"WHEN NOT MATCHED{fresh} THEN INSERT ({listed}) VALUES ({values})"
    )
