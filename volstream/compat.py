"""The snake_case surface of hosted platforms' sessions, for programs that were written for one. Opt in by importing it::

    from volstream.compat import Session, functions as F

    session = Session.builder.configs({"home": "data", "schema": "public"}).create()
    changes = session.table("orders_stream").filter(F.col("__change_type") != "UPDATE_BEFORE")
    changes.show()  # moves no offset
    changes.write.mode("append").save_as_table("orders_changes")  # moves it, with the commit of that table

A frame of :meth:`Session.table` on a stream, and every frame made from it, knows its streams. Each of its actions reads what
the streams hold then. Its ``save_as_table`` consumes them: their offsets move with the table's commit, exactly once, and
where it fails nothing is written or consumed. Showing, collecting and counting consume nothing (streams.md, R-9), nor does
anything else: a frame of :meth:`Session.sql` is written without moving the offsets of streams that its query reads. DML in
SQL consumes, as everywhere.

Settings that name an account elsewhere (``username``, ``password``, ``service``, ...) are accepted and ignored; a session
has no current schema but ``public``. Everything else is the :class:`volstream.Session` beneath, ``session.native``.

What is not here: methods under PySpark's own names, which frames of :class:`volstream.Session` have.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pyspark.sql.connect import functions

from volstream import log
from volstream import session as sessions
from volstream.delta import folders
from volstream.delta.log import DeltaLog
from volstream.delta.writer import lend, with_retries
from volstream.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from volstream.model.names import DEFAULT_SCHEMA, Name
from volstream.spark.errors import as_sql_errors

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql import Row
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from volstream.model.objects import Stream
    from volstream.streams.read import Range

__all__ = ["DataFrame", "GroupedData", "Session", "Writer", "functions"]

#: Where an account elsewhere is, and who asks: a home has neither.
_ACCOUNT = frozenset(
    {"username", "password", "service", "instance", "workspace", "vcluster", "protocol", "magic_token"}
)

T = TypeVar("T")

_MODES = ("append", "overwrite", "errorifexists", "error", "ignore")


class Builder:
    """Collects settings for a :class:`Session`."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def config(self, key: str, value: Any) -> Builder:
        """Sets one setting; ``home`` is the folder."""
        self._values[key] = value
        return self

    def configs(self, values: Mapping[str, Any]) -> Builder:
        """Sets several settings."""
        self._values |= values
        return self

    def create(self) -> Session:
        """A new session. Raises InvalidValueError for settings that cannot be used."""
        return Session(sessions.Session.builder.configs(home_settings(self._values)).create())

    def get_or_create(self) -> Session:
        """The open session with these settings, else a new one."""
        return Session(sessions.Session.builder.configs(home_settings(self._values)).getOrCreate())


def home_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are a home's, without those of an account elsewhere.

    Raises:
        InvalidValueError: a schema other than ``public``.
    """
    schema = values.get("schema")
    if schema is not None and str(schema).lower() != DEFAULT_SCHEMA:
        raise InvalidValueError(
            f"A session cannot begin in the schema {schema!r}: it is always in {DEFAULT_SCHEMA}.",
            "Leave it out, and write schema.name where a table is named.",
        )
    ignored = sorted(_ACCOUNT & values.keys())
    if ignored:
        log.get("compat").debug("settings.ignored", names=ignored)  # not their values: one is a password
    return {key: value for key, value in values.items() if key not in _ACCOUNT and key != "schema"}


class _BuilderAttribute:
    """``Session.builder`` is a new builder at each look, as in PySpark."""

    def __get__(self, instance: object, owner: type) -> Builder:
        return Builder()


class Session:
    """A home under snake_case names. A context manager: it closes what it opened.

    Attributes:
        native: the session beneath.
    """

    builder = _BuilderAttribute()

    def __init__(self, native: sessions.Session) -> None:
        self.native = native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def sql(self, statement: str) -> DataFrame:
        """Runs one statement; DML at once, as :meth:`volstream.Session.sql`. Raises as that."""
        return DataFrame(self.native, self.native.sql(statement))

    def table(self, name: str) -> DataFrame:
        """A table, or a stream whose frame can consume it.

        Raises:
            SqlError: there is none of that name.
            StreamStaleError, StreamSchemaChangedError: the stream cannot be read.
        """
        stream = self.native.catalog.streams.find(Name.parse(name))
        if stream is None:
            return DataFrame(self.native, self.native.table(name))
        with as_sql_errors():
            leaf = _Leaf.of(self.native, stream)
            return DataFrame(self.native, leaf.spark.table(leaf.view), frozenset([leaf]))

    def create_dataframe(self, data: Any, schema: Any = None) -> DataFrame:
        """A frame of local data: rows, or a pandas DataFrame. ``schema``: names, DDL, or a StructType."""
        with as_sql_errors():
            return DataFrame(self.native, self.native.createDataFrame(data, schema))

    def close(self) -> None:
        """Closes the connections, as :meth:`volstream.Session.close`."""
        self.native.close()


@dataclass(frozen=True)
class _Leaf:
    """A stream in a frame: a view of its rows, which is made anew over the range that an action is to read.

    A view, and not the frame built anew, because columns that were taken from a frame (``df["id"]``) belong to that one.
    """

    spark: SparkSession
    stream_id: str
    name: Name
    view: str

    @classmethod
    def of(cls, session: sessions.Session, stream: Stream) -> _Leaf:
        spark = session.gateway.session()
        # Spark Connect remembers the plans of frames that were asked for their columns, and views as they were then.
        spark.conf.set("spark.connect.session.planCache.enabled", "false")
        leaf = cls(spark, stream.id, stream.name, f"volstream_{uuid.uuid4().hex}")
        leaf.read_now(session)
        return leaf

    def stream(self, session: sessions.Session) -> Stream:
        """The stream as it is now. Raises NotFoundError."""
        found = session.catalog.streams.by_id(self.stream_id)
        if found is None:
            raise NotFoundError(f"The stream {self.name} was dropped.")
        return found

    def read_now(self, session: sessions.Session) -> None:
        """Shows what a read of the stream sees: in a transaction always the same."""
        stream = self.stream(session)
        block = session.open_block
        self.show(session, session.reader.pin(stream) if block is None else block.pin(stream))

    def show(self, session: sessions.Session, covered: Range | None) -> None:
        """Shows a range; None: of a volume that was never listed."""
        if covered is None:
            session.reader.unlisted(self.spark).createOrReplaceTempView(self.view)
        else:
            query = session.reader.query(self.spark, covered)
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {self.view} AS {query}")


class DataFrame:
    """A frame under snake_case names: a PySpark frame and the streams that it was made from."""

    def __init__(self, session: sessions.Session, frame: SparkFrame, leaves: frozenset[_Leaf] = frozenset()) -> None:
        self._session = session
        self._frame = frame
        self._leaves = leaves

    def __getitem__(self, name: str) -> Any:
        """A column."""
        return self._frame[name]

    def __getattr__(self, name: str) -> Any:
        """A column, where a frame has no such attribute."""
        if name.startswith("_") or name not in self._frame.columns:
            raise AttributeError(f"A frame of volstream.compat has no {name!r}, and it has no column of that name.")
        return self._frame[name]

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._frame.columns)

    @property
    def schema(self) -> StructType:
        """Names and types of the columns."""
        return self._frame.schema

    @property
    def write(self) -> Writer:
        """Writes the rows into a table."""
        return Writer(self._session, self._frame, self._leaves)

    def col(self, name: str) -> Any:
        """A column."""
        return self._frame[name]

    def filter(self, condition: Any) -> DataFrame:
        """The rows for which a column or a SQL text holds."""
        return self._made(self._frame.filter(condition))

    where = filter

    def select(self, *columns: Any) -> DataFrame:
        """Some columns, by name or expression."""
        return self._made(self._frame.select(*columns))

    def select_expr(self, *expressions: str) -> DataFrame:
        """Columns by SQL texts."""
        return self._made(self._frame.selectExpr(*expressions))

    def with_column(self, name: str, column: Any) -> DataFrame:
        """One column more, or in the place of one."""
        return self._made(self._frame.withColumn(name, column))

    def with_column_renamed(self, existing: str, new: str) -> DataFrame:
        """One column under another name."""
        return self._made(self._frame.withColumnRenamed(existing, new))

    def drop(self, *columns: Any) -> DataFrame:
        """All but some columns."""
        return self._made(self._frame.drop(*columns))

    def alias(self, name: str) -> DataFrame:
        """The frame under a name, for columns such as ``name.id``."""
        return self._made(self._frame.alias(name))

    def group_by(self, *columns: Any) -> GroupedData:
        """Groups of rows, to be aggregated."""
        return GroupedData(self._frame.groupBy(*columns), self._made)

    def agg(self, *expressions: Any) -> DataFrame:
        """One row for all."""
        return self._made(self._frame.agg(*expressions))

    def join(self, other: DataFrame, on: Any = None, how: str | None = None) -> DataFrame:
        """Rows of both frames that belong together."""
        return self._made(self._frame.join(other._frame, on, how), other)

    def union(self, other: DataFrame) -> DataFrame:
        """The rows of both frames, columns by position; also those that are equal."""
        return self._made(self._frame.union(other._frame), other)

    union_all = union

    def union_by_name(self, other: DataFrame, allow_missing_columns: bool = False) -> DataFrame:
        """The rows of both frames, columns by name."""
        return self._made(self._frame.unionByName(other._frame, allow_missing_columns), other)

    def order_by(self, *columns: Any, ascending: Any = True) -> DataFrame:
        """Sorted rows."""
        return self._made(self._frame.orderBy(*columns, ascending=ascending))

    sort = order_by

    def limit(self, count: int) -> DataFrame:
        """At most so many rows."""
        return self._made(self._frame.limit(count))

    def distinct(self) -> DataFrame:
        """Each row once."""
        return self._made(self._frame.distinct())

    def drop_duplicates(self, *columns: str) -> DataFrame:
        """One row of those that are equal in some columns."""
        return self._made(self._frame.dropDuplicates(list(columns) or None))

    def count(self) -> int:
        """How many rows there are."""
        return self._act(lambda frame: frame.count())

    def collect(self) -> list[Row]:
        """All rows."""
        return self._act(lambda frame: list(frame.collect()))

    def first(self) -> Row | None:
        """The first row, or None."""
        return self._act(lambda frame: frame.first())

    def take(self, count: int) -> list[Row]:
        """The first rows."""
        return self._act(lambda frame: list(frame.take(count)))

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Prints the first rows."""
        self._act(lambda frame: frame.show(n, truncate))

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame."""
        return self._act(lambda frame: frame.toPandas())

    def _made(self, frame: SparkFrame, other: DataFrame | None = None) -> DataFrame:
        return DataFrame(self._session, frame, self._leaves | (other._leaves if other is not None else frozenset()))

    def _act(self, action: Callable[[SparkFrame], T]) -> T:
        with as_sql_errors():
            for leaf in self._leaves:
                leaf.read_now(self._session)
            return action(self._frame)


class GroupedData:
    """Groups of rows, to be aggregated."""

    def __init__(self, grouped: Any, made: Callable[[SparkFrame], DataFrame]) -> None:
        self._grouped = grouped
        self._made = made

    def agg(self, *expressions: Any) -> DataFrame:
        """One row for each group, of expressions or of a dict from column to function."""
        return self._made(self._grouped.agg(*expressions))

    def count(self) -> DataFrame:
        """How many rows each group has."""
        return self._made(self._grouped.count())

    def sum(self, *columns: str) -> DataFrame:
        """Sums of numeric columns."""
        return self._made(self._grouped.sum(*columns))

    def avg(self, *columns: str) -> DataFrame:
        """Averages of numeric columns."""
        return self._made(self._grouped.avg(*columns))

    mean = avg

    def min(self, *columns: str) -> DataFrame:
        """Least values of numeric columns."""
        return self._made(self._grouped.min(*columns))

    def max(self, *columns: str) -> DataFrame:
        """Greatest values of numeric columns."""
        return self._made(self._grouped.max(*columns))


class Writer:
    """Writes a frame into a table of the home."""

    def __init__(self, session: sessions.Session, frame: SparkFrame, leaves: frozenset[_Leaf]) -> None:
        self._session = session
        self._frame = frame
        self._leaves = leaves
        self._mode = "errorifexists"

    def mode(self, mode: str) -> Writer:
        """What to do where there is a table: ``append``, ``overwrite``, ``ignore`` or, the default, ``errorifexists``."""
        if mode.lower() not in _MODES:
            raise InvalidValueError(f"The mode {mode!r} is not possible.", f"Choose one of {', '.join(_MODES)}.")
        self._mode = mode.lower()
        return self

    def save_as_table(self, name: str, mode: str | None = None) -> None:
        """Writes the rows, and consumes the streams they come from, in one commit. A table that is not there is made.

        ``overwrite`` gives the table the columns of the frame; ``append`` fits columns by name.

        Raises:
            AlreadyExistsError: there is such a table, and the mode is ``errorifexists``; or a stream of that name.
            NotFoundError: there is no such schema; or the stream was dropped.
            SqlError: Spark refuses it. Nothing was consumed.
            StreamBusyError, StreamStaleError, StreamSchemaChangedError: a stream cannot be consumed.
        """
        if mode is not None:
            self.mode(mode)
        target = Name.parse(name)
        location = self._location(target)
        present = DeltaLog(location).exists()
        if present and self._mode == "ignore":
            return  # nothing is done, so nothing is consumed
        if present and self._mode.startswith("error"):
            raise AlreadyExistsError(f"There is already a table {target}.", "Choose mode append or overwrite.")
        with as_sql_errors():
            if self._leaves:
                self._consume(location, present=present)
            else:
                self._save(location)

    def _consume(self, location: str, *, present: bool) -> None:
        streams = {leaf.stream_id: leaf.stream(self._session) for leaf in self._leaves}
        made = False
        try:
            with self._session.block() as block:
                taken = block.take(*streams.values())
                for leaf in self._leaves:
                    leaf.show(self._session, taken[leaf.stream_id].covered if leaf.stream_id in taken else None)
                if not present:
                    # The marked commit needs a table. Not before the streams are held: somebody else may be making it.
                    self._frame.limit(0).write.format("delta").mode("error").save(location)
                    made = True
                if taken:
                    block.write(location, lambda marked: self._write(marked, location))
                else:  # of volumes that were never listed there is nothing to consume
                    self._save(location)
        except BaseException:
            if made and self._session.open_block is None and self._is_unused(location, streams):
                folders.remove(location)
            raise

    def _is_unused(self, location: str, streams: Iterable[str]) -> bool:
        """Whether a table that was made for a save that failed has nothing in it, and nothing can come into it any more.

        An interruption may come after the commit, which then counts; the statement may even still be at work.
        """
        consumptions = self._session.catalog.consumptions
        if any(consumptions.open_intent(stream_id) is not None for stream_id in streams):
            return False
        return all("fence" in commit.metadata for commit in DeltaLog(location).commits_after(0))

    def _write(self, marked: SparkSession, location: str) -> None:
        with lend(marked, self._frame.sparkSession):
            self._save(location)

    def _save(self, location: str) -> None:
        mode = "overwrite" if self._mode == "overwrite" else "append"
        writer = self._frame.write.format("delta").mode(mode)
        if mode == "overwrite" and self._differs(location):
            writer = writer.option("overwriteSchema", "true")
        with_retries(lambda: writer.save(location))

    def _differs(self, location: str) -> bool:
        """Whether the frame has other columns than the table. Only then are they replaced: with them its partitions and
        constraints go."""
        schema = DeltaLog(location).schema()
        present = {} if schema is None else {name: schema.sql_type(name) for name in schema.columns}
        return present != {field.name: field.dataType.simpleString() for field in self._frame.schema.fields}

    def _location(self, target: Name) -> str:
        if self._session.catalog.streams.find(target) is not None:
            raise AlreadyExistsError(f"{target} is a stream: it cannot be written.", "Write its source.")
        schemas = folders.inside(f"{self._session.warehouse}/tables")
        if target.schema != DEFAULT_SCHEMA and target.schema not in schemas:
            raise NotFoundError(f"There is no schema {target.schema}.", f"First: CREATE SCHEMA {target.schema}.")
        return folders.table_location(self._session.warehouse, target)
