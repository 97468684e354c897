"""A table as a frame that can be changed: ``session.table("t").update({"name": "x"}, F.col("id") == 1)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from volstream.api.statements import arrived
from volstream.api.statements.run import check_exists, target_of
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name
from volstream.compat.frame import DataFrame
from volstream.compat.leaf import consume
from volstream.errors import InvalidValueError
from volstream.home import Home
from volstream.spark.errors import as_sql_errors
from volstream.sql.statement import SparkStatement
from volstream.sql.text import quote_column
from volstream.tables.delta.writer import with_retries

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import DataFrame as SparkFrame


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
    """The rows of a table, and changes of them. Each change is one commit, and obeys the rules of UPDATE, DELETE and MERGE."""

    def __init__(self, home: Home, frame: SparkFrame, name: Name) -> None:
        super().__init__(home, frame, schema=name.schema)
        self._name = name

    def update(self, assignments: Mapping[str, Any], condition: Any = None, source: DataFrame | None = None) -> None:
        """Sets columns of the rows that meet a condition; with ``source``, of those that match one of its rows. Raises as
        :meth:`merge`."""
        self._change(source, condition, [when_matched().update(assignments)])

    def delete(self, condition: Any = None, source: DataFrame | None = None) -> None:
        """Deletes the rows that meet a condition; with ``source``, those that match one of its rows. Raises as :meth:`merge`."""
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
            arrived.commit_before(self._home, statement)
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
        """Returns an expression that names columns of this frame by the table: Spark finds a frame's only in the source."""
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
