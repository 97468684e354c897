"""DataFrames with snake_case names. What does not belong here: writing them (``compat.writer``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from volstream.base.model.arguments import checked
from volstream.base.model.names import DEFAULT_SCHEMA
from volstream.base.model.text import like
from volstream.compat.leaf import Leaf
from volstream.compat.writer import Writer
from volstream.errors import InvalidValueError, in_brief
from volstream.home import Home
from volstream.spark.errors import as_sql_errors
from volstream.spark.session import whole_plans

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

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
        """Adds or replaces columns: names and columns, or a dict of both. Raises InvalidValueError if their numbers differ."""
        if not isinstance(names, Mapping):
            if columns is None or len(names) != len(columns):
                raise InvalidValueError(f"{len(names)} names need as many columns.", "Give with_columns(names, columns).")
            names = dict(zip(names, columns, strict=True))
        return self._made(lambda frame: frame.withColumns(dict(names)))

    def to_df(self, *names: str) -> DataFrame:
        """Renames all columns."""
        return self._made(lambda frame: frame.toDF(*names))

    def fillna(self, value: Any, subset: Sequence[str] | None = None) -> DataFrame:
        """Replaces NULL: by a value, or by a dict of a value for each column. ``subset``: columns; None: all of the type."""
        return self._made(lambda frame: frame.fillna(value, None if subset is None else list(subset)))

    def dropna(self, how: str = "any", thresh: int | None = None, subset: Sequence[str] | None = None) -> DataFrame:
        """Leaves out rows with NULL in ``any`` column, in ``all``, or with less than ``thresh`` values. ``subset``: columns."""
        return self._made(lambda frame: frame.dropna(how, thresh, None if subset is None else list(subset)))

    def describe(self, *columns: str) -> DataFrame:
        """Returns count, mean, standard deviation, least and greatest value of columns; of all, if none is named."""
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
        """Names the frame, for SQL of this session in the schema ``public``. Raises InvalidValueError for a frame of streams."""
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
        """Returns one row per group, from expressions, pairs like ``("amount", "sum")``, or a dict from column to function."""
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
