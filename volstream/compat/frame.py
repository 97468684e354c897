"""DataFrames with snake_case names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from volstream.api.statements import bind, metastore
from volstream.api.statements.run import check_exists, target_of
from volstream.base.model.arguments import checked
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.base.model.text import like
from volstream.changes.streams.consume import is_unused
from volstream.errors import AlreadyExistsError, InvalidValueError, NotFoundError, in_brief
from volstream.home import Home
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import Views, bound_to, unique_name
from volstream.spark.session import whole_plans
from volstream.sql.statement import SparkStatement
from volstream.sql.text import quote_column, type_of
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.ownership import check_writable
from volstream.tables.delta.places import is_table
from volstream.tables.delta.writer import with_retries

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import Column, Row
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql.connect.readwriter import DataFrameReader
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

    from volstream.base.definitions import Stream
    from volstream.changes.streams.read import Range

# A stream as a source of a frame.


@dataclass(frozen=True)
class Leaf:
    """A stream in a frame: a view of its rows, re-created for the range that each action reads.

    The view, not the frame, is re-created, because columns taken from a frame (``df["id"]``) belong to that
    frame.
    """

    spark: SparkSession
    stream_id: str
    name: Name
    view: str
    views: Views = field(compare=False)

    @classmethod
    def of(cls, home: Home, stream: Stream) -> Leaf:
        spark = home.spark
        # Spark Connect caches the plans of frames whose columns were requested, with the views of that time.
        spark.conf.set("spark.connect.session.planCache.enabled", "false")
        leaf = cls(spark, stream.id, stream.name, unique_name(), Views(spark))
        leaf.read_now(home)
        return leaf

    def stream(self, home: Home) -> Stream:
        """Returns the stream's current state. Raises NotFoundError."""
        stream = home.catalog.streams.by_id(self.stream_id)
        if stream is None:
            raise NotFoundError(f"The stream {self.name} was dropped.")
        return stream

    def read_now(self, home: Home) -> None:
        """Points the view at the rows that a read of the stream sees now: in a transaction always the
        same."""
        stream = self.stream(home)
        consumption = home.open_consumption
        self.show(home, home.reader.pin(stream) if consumption is None else consumption.pin(stream))

    def show(self, home: Home, covered: Range | None) -> None:
        """Points the view at a range; None: the volume was never listed."""
        if covered is None:
            home.reader.unlisted(self.spark).createOrReplaceTempView(self.view)
        else:
            self.views.forget()
            query = home.reader.query(self.views, covered)
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {self.view} AS {query}")


def consume(
    home: Home,
    leaves: Collection[Leaf],
    frame: SparkFrame,
    location: str,
    write: Callable[[SparkFrame], None],
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Writes a frame of streams into a table, by one commit that consumes them.

    Args:
        prepare: called while the streams are held, before the commit.
    """
    streams = {leaf.stream_id: leaf.stream(home) for leaf in leaves}
    with home.consumption() as consumption:
        taken = consumption.take(*streams.values())
        for leaf in leaves:
            leaf.show(home, taken[leaf.stream_id].covered if leaf.stream_id in taken else None)
        prepare()
        if taken:
            own = streams.values()
            consumption.write(location, lambda marked: write(bound_to(marked, frame)), streams=own, like=frame.sparkSession)
        else:  # volumes that were never listed have nothing to consume
            write(frame)


T = TypeVar("T")

#: Of frames of tables only.
_OF_TABLES = ("update", "delete", "merge")


def in_snake_case(name: str) -> str:
    """Returns a name like ``groupBy`` as ``group_by``."""
    return re.sub(r"(?<=[a-z])[A-Z]+", lambda found: f"_{found[0].lower()}", name)


@checked
class DataFrame:
    """A DataFrame with snake_case names: a PySpark DataFrame and the streams that it was made from."""

    def __init__(
        self, home: Home, frame: SparkFrame, leaves: frozenset[Leaf] = frozenset(), schema: str = DEFAULT_SCHEMA
    ) -> None:
        self._home = home
        self._frame = frame
        self._leaves = leaves
        self._schema = schema  #: for names of tables that it is written to

    def __getitem__(self, name: str) -> Any:
        """Returns a column."""
        return self._frame[name]

    def __getattr__(self, name: str) -> Any:
        """Returns a column, if a frame has no such attribute, or what the name means in snake_case."""
        if (snake := in_snake_case(name)) != name and hasattr(type(self), snake):
            return getattr(self, snake)
        if name in _OF_TABLES and name not in self._frame.columns:
            raise AttributeError(f"Only a frame of a table has {name}(): session.table(name).{name}(...).")
        if name.startswith("_") or name not in self._frame.columns:
            near = like(name, [*self._frame.columns, *(member for member in dir(type(self)) if not member.startswith("_"))])
            raise AttributeError(f"A frame of volstream.compat has no attribute or column {name!r}. {near}".rstrip())
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
        """The writer of the rows into a table."""
        return Writer(self._home, self._frame, self._leaves, self._schema)

    def col(self, name: str) -> Any:
        """Returns a column."""
        return self._frame[name]

    def filter(self, condition: Any) -> DataFrame:
        """Returns the rows that meet a condition, a column or a SQL text."""
        return self._made(lambda frame: frame.filter(condition))

    where = filter

    def select(self, *columns: Any) -> DataFrame:
        """Returns some columns, by name or expression."""
        return self._made(lambda frame: frame.select(*columns))

    def select_expr(self, *expressions: str) -> DataFrame:
        """Returns columns given as SQL texts."""
        return self._made(lambda frame: frame.selectExpr(*expressions))

    def with_column(self, name: str, column: Any) -> DataFrame:
        """Adds or replaces a column."""
        return self._made(lambda frame: frame.withColumn(name, column))

    def with_columns(self, names: Sequence[str] | Mapping[str, Any], columns: Sequence[Any] | None = None) -> DataFrame:
        """Adds or replaces columns: names and columns, or a dict of both. Raises InvalidValueError if their
        numbers differ."""
        if not isinstance(names, Mapping):
            if columns is None or len(names) != len(columns):
                raise InvalidValueError(f"{len(names)} names need as many columns.", "Give with_columns(names, columns).")
            names = dict(zip(names, columns, strict=True))
        return self._made(lambda frame: frame.withColumns(dict(names)))

    def to_df(self, *names: str) -> DataFrame:
        """Renames all columns."""
        return self._made(lambda frame: frame.toDF(*names))

    def fillna(self, value: Any, subset: Sequence[str] | None = None) -> DataFrame:
        """Replaces NULL: by a value, or by a dict of a value for each column. ``subset``: columns; None: all
        of the type."""
        return self._made(lambda frame: frame.fillna(value, None if subset is None else list(subset)))

    def dropna(self, how: str = "any", thresh: int | None = None, subset: Sequence[str] | None = None) -> DataFrame:
        """Leaves out rows with NULL in ``any`` column, in ``all``, or with less than ``thresh`` values.
        ``subset``: columns."""
        return self._made(lambda frame: frame.dropna(how, thresh, None if subset is None else list(subset)))

    def describe(self, *columns: str) -> DataFrame:
        """Returns count, mean, standard deviation, least and greatest value of columns; of all, if none is
        named."""
        return self._made(lambda frame: frame.describe(*columns))

    def with_column_renamed(self, existing: str, new: str) -> DataFrame:
        """Renames a column."""
        return self._made(lambda frame: frame.withColumnRenamed(existing, new))

    def drop(self, *columns: Any) -> DataFrame:
        """Removes columns."""
        return self._made(lambda frame: frame.drop(*columns))

    def alias(self, name: str) -> DataFrame:
        """Names the frame, for columns such as ``name.id``."""
        return self._made(lambda frame: frame.alias(name))

    def group_by(self, *columns: Any) -> GroupedData:
        """Groups rows for aggregation."""
        return GroupedData(lambda aggregated: self._made(lambda frame: aggregated(frame.groupBy(*columns))))

    def agg(self, *expressions: Any) -> DataFrame:
        """Aggregates all rows into one. Expressions: see :meth:`GroupedData.agg`."""
        return self._made(lambda frame: frame.agg(*_aggregates(expressions)))

    def join(self, other: DataFrame, on: Any = None, how: str | None = None) -> DataFrame:
        """Joins two frames."""
        return self._made(lambda frame: frame.join(other._frame, on, how), other)

    def union(self, other: DataFrame) -> DataFrame:
        """Returns the rows of both frames, columns by position, with duplicates."""
        return self._made(lambda frame: frame.union(other._frame), other)

    union_all = union

    def union_by_name(self, other: DataFrame, allow_missing_columns: bool = False) -> DataFrame:
        """Returns the rows of both frames, columns by name."""
        return self._made(lambda frame: frame.unionByName(other._frame, allow_missing_columns), other)

    def order_by(self, *columns: Any, ascending: Any = True) -> DataFrame:
        """Sorts the rows."""
        return self._made(lambda frame: frame.orderBy(*columns, ascending=ascending))

    sort = order_by

    def limit(self, count: int) -> DataFrame:
        """Returns at most ``count`` rows."""
        return self._made(lambda frame: frame.limit(count))

    def distinct(self) -> DataFrame:
        """Removes duplicate rows."""
        return self._made(lambda frame: frame.distinct())

    def drop_duplicates(self, *columns: str) -> DataFrame:
        """Keeps one row of those that are equal in some columns."""
        return self._made(lambda frame: frame.dropDuplicates(list(columns) or None))

    def count(self) -> int:
        """Returns the number of rows."""
        return self._act(lambda frame: frame.count())

    def is_empty(self) -> bool:
        """Returns whether there is no row."""
        return self._act(lambda frame: frame.isEmpty())

    def collect(self) -> list[Row]:
        """Returns all rows."""
        return self._act(lambda frame: list(frame.collect()))

    def first(self) -> Row | None:
        """Returns the first row, or None."""
        return self._act(lambda frame: frame.first())

    def take(self, count: int) -> list[Row]:
        """Returns the first rows."""
        return self._act(lambda frame: list(frame.take(count)))

    def show(self, n: int = 20, truncate: bool | int = True) -> None:
        """Prints the first rows."""
        self._act(lambda frame: frame.show(n, truncate))

    def to_pandas(self) -> pd.DataFrame:
        """Returns all rows as a pandas DataFrame."""
        return self._act(lambda frame: frame.toPandas())

    def to_arrow(self) -> pa.Table:
        """Returns all rows as an Arrow table."""
        return self._act(lambda frame: frame.toArrow())

    def print_schema(self) -> None:
        """Prints the columns as a tree."""
        self._act(lambda frame: frame.printSchema())

    def explain(self) -> None:
        """Prints the plan that Spark makes."""

        def shown(frame: Any) -> None:
            with whole_plans(frame.sparkSession):
                frame.explain()

        self._act(shown)

    def create_or_replace_temp_view(self, name: str) -> None:
        """Names the frame, for SQL of this session in the schema ``public``. Raises InvalidValueError for a
        frame of streams."""
        self._check_without_streams("A view of a stream would consume nothing.", "Name the stream itself in the statement")
        self._act(lambda frame: frame.createOrReplaceTempView(name))

    create_temp_view = create_or_replace_temp_view

    def cache_result(self) -> DataFrame:
        """Computes the rows, and returns a frame of them. Raises InvalidValueError for a frame of streams."""
        self._check_without_streams("Saving cached rows of a stream would consume nothing.", "Leave cache_result out")
        return self._act(lambda frame: DataFrame(self._home, frame.localCheckpoint(), schema=self._schema))

    def _check_without_streams(self, problem: str, remedy: str) -> None:
        if self._leaves:
            raise InvalidValueError(problem, f"{remedy}, or save the frame as a table: write.save_as_table(name).")

    def _made(self, change: Callable[[SparkFrame], SparkFrame], other: DataFrame | None = None) -> DataFrame:
        try:
            with as_sql_errors():
                frame = change(self._frame)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:  # PySpark's, about its arguments
            raise InvalidValueError(f"PySpark rejects an argument: {in_brief(error)}.", "Give a column or its name.") from error
        leaves = self._leaves | (other._leaves if other is not None else frozenset())
        return DataFrame(self._home, frame, leaves, self._schema)

    def _act(self, action: Callable[[SparkFrame], T]) -> T:
        with as_sql_errors():
            for leaf in self._leaves:
                leaf.read_now(self._home)
            return action(self._frame)


def _aggregates(expressions: Sequence[Any]) -> list[Any]:
    """Returns what PySpark's ``agg`` takes, with expressions in place of pairs of a column and a function."""
    from pyspark.sql.connect import functions

    given = expressions[0] if len(expressions) == 1 and isinstance(expressions[0], list) else expressions
    return [functions.call_function(one[1], functions.col(one[0])) if isinstance(one, tuple) else one for one in given]


@checked
class GroupedData:
    """Groups of rows, to be aggregated."""

    def __init__(self, made: Callable[[Callable[[Any], SparkFrame]], DataFrame]) -> None:
        self._made = made

    def agg(self, *expressions: Any) -> DataFrame:
        """Returns one row per group, from expressions, pairs like ``("amount", "sum")``, or a dict from
        column to function."""
        return self._made(lambda groups: groups.agg(*_aggregates(expressions)))

    def count(self) -> DataFrame:
        """Returns the number of rows in each group."""
        return self._made(lambda groups: groups.count())

    def sum(self, *columns: str) -> DataFrame:
        """Returns sums of numeric columns."""
        return self._made(lambda groups: groups.sum(*columns))

    def avg(self, *columns: str) -> DataFrame:
        """Returns averages of numeric columns."""
        return self._made(lambda groups: groups.avg(*columns))

    mean = avg

    def min(self, *columns: str) -> DataFrame:
        """Returns minimums of numeric columns."""
        return self._made(lambda groups: groups.min(*columns))

    def max(self, *columns: str) -> DataFrame:
        """Returns maximums of numeric columns."""
        return self._made(lambda groups: groups.max(*columns))


# Reads files into frames with snake_case names.


@checked
class Reader:
    """Reads files, as PySpark's reader does.

    Files of volumes are loaded by jobs: ``create_table_from_volume``.
    """

    def __init__(self, home: Home, reader: DataFrameReader) -> None:
        self._home = home
        self._reader = reader

    def option(self, key: str, value: Any) -> Self:
        """Sets an option of the format, such as ``header``."""
        self._reader.option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Sets options of the format."""
        self._reader.options(**options)
        return self

    def schema(self, schema: Any) -> Self:
        """Sets the columns: DDL, or a StructType."""
        with as_sql_errors():
            self._reader.schema(schema)
        return self

    def csv(self, path: str) -> DataFrame:
        """Reads csv files."""
        return self._made("csv", path)

    def json(self, path: str) -> DataFrame:
        """Reads files with a JSON value per line."""
        return self._made("json", path)

    def parquet(self, path: str) -> DataFrame:
        """Reads Parquet files."""
        return self._made("parquet", path)

    def orc(self, path: str) -> DataFrame:
        """Reads ORC files."""
        return self._made("orc", path)

    def _made(self, format_: str, path: str) -> DataFrame:
        with as_sql_errors():
            return DataFrame(self._home, self._reader.format(format_).load(path))


# Writes frames into tables of the home, in one commit that also consumes the streams that they come from.

_MODES = ("append", "overwrite", "errorifexists", "error", "ignore")


@checked
class Writer:
    """Writes a frame into a table of the home."""

    def __init__(self, home: Home, frame: SparkFrame, leaves: frozenset[Leaf], schema: str = DEFAULT_SCHEMA) -> None:
        self._home = home
        self._frame = frame
        self._leaves = leaves
        self._schema = schema
        self._mode = "errorifexists"

    def mode(self, mode: str) -> Writer:
        """Sets the action if the table exists: ``append``, ``overwrite``, ``ignore`` or, the default,
        ``errorifexists``."""
        if mode.lower() not in _MODES:
            raise InvalidValueError(f"{mode!r} is not a write mode.", f"Choose one of {', '.join(_MODES)}.")
        self._mode = mode.lower()
        return self

    def save_as_table(self, name: str, mode: str | None = None) -> None:
        """Writes the rows, and consumes the streams they come from, in one commit. Creates the table if it
        does not exist.

        ``overwrite`` gives the table the columns of the frame; ``append`` matches columns by name.

        Raises:
            AlreadyExistsError: the table exists, and the mode is ``errorifexists``; or a stream has that
                name.
            InvalidStateError: a job maintains the table.
            NotFoundError: the schema does not exist; or the stream was dropped.
            SqlError: Spark rejects it. Nothing was consumed.
            StreamBusyError, StreamStaleError, StreamSchemaChangedError: a stream cannot be consumed.
        """
        if mode is not None:
            self.mode(mode)
        target = Name.parse(name, self._schema)
        location = self._location(target)
        present = is_table(location)
        if present and self._mode == "ignore":
            return  # nothing is written, so nothing is consumed
        if present and self._mode.startswith("error"):
            raise AlreadyExistsError(f"There is already a table {target}.", "Choose mode append or overwrite.")
        with as_sql_errors():
            name, replaces = target.qualified, self._mode == "overwrite"
            stands_for = f"REPLACE TABLE {name} AS SELECT 1" if replaces else f"INSERT INTO {name} SELECT 1"
            with bind.settled(self._home, SparkStatement(stands_for)):
                if self._leaves:
                    self._consume(location, present=present)
                else:
                    self._save(location, self._frame)

    saveAsTable = save_as_table  # noqa: N815  # as PySpark's

    def _consume(self, location: str, *, present: bool) -> None:
        created = False

        def create() -> None:
            # The marked commit needs a table. Create it only while the streams are held, in case another does
            # so.
            nonlocal created
            if not present:
                self._frame.limit(0).write.format("delta").mode("error").save(location)
                created = True

        try:
            consume(self._home, self._leaves, self._frame, location, lambda frame: self._save(location, frame), create)
        except BaseException:
            if created and is_unused(self._home.catalog, location, {leaf.stream_id for leaf in self._leaves}):
                places.remove(location)
            raise

    def _save(self, location: str, frame: SparkFrame) -> None:
        mode = "overwrite" if self._mode == "overwrite" else "append"
        writer = frame.write.format("delta").mode(mode)
        if mode == "overwrite" and self._differs(location):
            writer = writer.option("overwriteSchema", "true")
        with_retries(lambda: writer.save(location))

    def _differs(self, location: str) -> bool:
        """Returns whether the frame's columns differ from the table's. Only then are they replaced, because
        that removes its partitions and constraints."""
        schema = schema_at(location)
        present = {} if schema is None else {name: schema.sql_type(name) for name in schema.columns}
        return present != {field.name: type_of(field.dataType.jsonValue()) for field in self._frame.schema.fields}

    def _location(self, target: Name) -> str:
        if self._home.catalog.streams.find(target) is not None:
            raise AlreadyExistsError(f"{target} is a stream: it cannot be written.", "Write to its source.")
        location = metastore.locate(self._home, target)
        check_writable(self._home.catalog, target, location, self._home.warehouse)
        schemas = places.inside(f"{self._home.warehouse}/tables")
        if target.schema not in (DEFAULT_SCHEMA, *schemas) and not is_table(location):
            raise NotFoundError(f"There is no schema {target.schema}.", f"First: CREATE SCHEMA {target.schema}.")
        return location


# A table as a frame that can be changed: ``session.table("t").update({"name": "x"}, F.col("id") == 1)``.


@dataclass(frozen=True)
class Clause:
    """What a merge does with rows. ``values``: by column, or of all columns; None: delete the row."""

    matched: bool
    condition: Any
    values: Mapping[str, Any] | Sequence[Any] | None


@checked
class when_matched:  # noqa: N801  # the name that programs have
    """Rows of the table that match one of the source, and meet a condition; ``None``: all of them."""

    def __init__(self, condition: Any = None) -> None:
        self._condition = condition

    def update(self, assignments: Mapping[str, Any]) -> Clause:
        """Sets columns to values, or to columns of either side."""
        return Clause(True, self._condition, assignments)

    def delete(self) -> Clause:
        """Deletes the rows."""
        return Clause(True, self._condition, None)


@checked
class when_not_matched:  # noqa: N801  # likewise
    """Rows of the source that match none of the table, and meet a condition; ``None``: all of them."""

    def __init__(self, condition: Any = None) -> None:
        self._condition = condition

    def insert(self, values: Mapping[str, Any] | Sequence[Any]) -> Clause:
        """Inserts rows: values by column, or a list of one for each column."""
        return Clause(False, self._condition, values)


@checked
class Table(DataFrame):
    """The rows of a table, and changes of them.

    Each change is one commit, and obeys the rules of UPDATE, DELETE and MERGE.
    """

    def __init__(self, home: Home, frame: SparkFrame, name: Name) -> None:
        super().__init__(home, frame, schema=name.schema)
        self._name = name

    def update(self, assignments: Mapping[str, Any], condition: Any = None, source: DataFrame | None = None) -> None:
        """Sets columns of the rows that meet a condition; with ``source``, of those that match one of its
        rows. Raises as :meth:`merge`."""
        self._change(source, condition, [when_matched().update(assignments)])

    def delete(self, condition: Any = None, source: DataFrame | None = None) -> None:
        """Deletes the rows that meet a condition; with ``source``, those that match one of its rows. Raises
        as :meth:`merge`."""
        self._change(source, condition, [when_matched().delete()])

    def merge(self, source: DataFrame, join_expr: Any, clauses: Sequence[Clause]) -> None:
        """Merges rows into the table. If they come from streams, the commit consumes these.

        Args:
            join_expr: which rows match: ``table["id"] == source["id"]``, or a SQL text.
            clauses: what happens to them, by :class:`when_matched` and :class:`when_not_matched`.

        Raises:
            InvalidStateError: a job maintains the table.
            SqlError: Spark rejects it. Nothing was consumed.
            StreamBusyError, StreamStaleError, StreamSchemaChangedError: a stream cannot be consumed.
        """
        self._change(source, join_expr, clauses)

    def _change(self, source: DataFrame | None, condition: Any, clauses: Sequence[Clause]) -> None:
        from pyspark.sql.connect import functions

        if not clauses or not all(isinstance(clause, Clause) for clause in clauses):
            raise InvalidValueError("A merge needs clauses.", "Give a list: [when_matched().update({...}), ...].")
        statement = SparkStatement(f"DELETE FROM {self._name.qualified}")  # stands for all that change rows
        with as_sql_errors():
            _, location = target_of(self._home, statement)
            check_exists(self._home, self._name, location)
            bind.commit_before(self._home, statement)
            one = self._frame.sparkSession.range(1).select(functions.lit(1).alias("__one"))
            rows = one if source is None else source._frame
            on = functions.lit(True) if condition is None else self._own(condition)

            def merge(of: SparkFrame) -> None:
                merging = of.mergeInto(self._name.qualified, on)
                for clause in clauses:
                    self._add(merging, clause)
                with_retries(merging.merge)

            if source is not None and source._leaves:
                consume(self._home, source._leaves, rows, location, merge)
            else:
                merge(rows)

    def _add(self, merging: Any, clause: Clause) -> None:
        condition = None if clause.condition is None else self._own(clause.condition)
        when = merging.whenMatched(condition) if clause.matched else merging.whenNotMatched(condition)
        if clause.values is None:
            when.delete()
            return
        values = clause.values
        if not isinstance(values, Mapping):
            if len(values) != len(self.columns):
                raise InvalidValueError(f"The table has {len(self.columns)} columns.", f"Give as many values, not {len(values)}.")
            values = dict(zip(self.columns, values, strict=True))
        own = {quote_column(name): self._own(value, literal=True) for name, value in values.items()}
        if clause.matched:
            when.update(own)
        else:
            when.insert(own)

    def _own(self, value: Any, *, literal: bool = False) -> Column:
        """Returns an expression that names columns of this frame by the table: Spark finds a frame's only in
        the source."""
        from pyspark.sql.connect import functions
        from pyspark.sql.connect.column import Column as Connected
        from pyspark.sql.connect.expressions import ColumnReference, Expression

        if not isinstance(value, Connected):
            return functions.lit(value) if literal else functions.expr(value)
        expression = deepcopy(value._expr)
        frame = cast(Any, self._frame)._plan._plan_id

        def name(part: Expression) -> None:
            if isinstance(part, ColumnReference) and part._plan_id == frame:
                part._unparsed_identifier, part._plan_id = f"{self._name.qualified}.{part._unparsed_identifier}", None

        expression.foreach(name)
        return Connected(expression)
