"""Rows of real-time streams: their values are checked as they are set, or column by column if they come as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.model.arguments import fitting
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.functions.rows import size_of
from volstream.functions.types import convert
from volstream.ingest.options import RowOperator
from volstream.ingest.values import TailColumn
from volstream.tables.tails.tail import OPERATION

#: In place of a value that was not set.
UNSET = object()


class StreamColumns:
    """The columns of one stream's table, as its rows must fit them.

    Args:
        table: its name, for messages.
        columns: as of :func:`volstream.tables.tails.tail.columns_of`.
        key: names of the primary key's columns.
        truncate: cut texts that are too long.
        on_cut: called with the number of values that were cut; default 1.

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
        self.converters = [column.converter(truncate=truncate, on_cut=on_cut) for column in self.all]
        self._needed = [at for at, column in enumerate(self.all) if not column.nullable]
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
        """Raises InvalidStateError if a row is of other columns, InvalidValueError if it lacks a value that it must have."""
        if row._columns is not self and row._columns.all != self.all:
            raise InvalidStateError(
                "The row belongs to a table with other columns.", "Create it with this stream's create_row()."
            )
        for at in self._needed_by(row.operator):
            if row.values[at] is UNSET or row.values[at] is None:
                raise InvalidValueError(
                    f"The row has no value for {self.all[at].name}, which is NOT NULL.", "Set it with set_value()."
                )

    def fitted(self, rows: pa.Table, operator: RowOperator) -> pa.Table:
        """Converts rows that came as Arrow. Raises InvalidValueError."""
        spellings = {name: self.all[self.position_of(name)].name for name in rows.column_names}
        rows = rows.rename_columns([spellings[name] for name in rows.column_names])
        if repeated := [name for name in rows.column_names if rows.column_names.count(name) > 1]:
            raise InvalidValueError(f"The rows have the column {repeated[0]} more than once.")
        for at in self._needed_by(operator):
            name = self.all[at].name
            if name not in rows.column_names or rows[name].null_count:
                raise InvalidValueError(f"There are rows without a value for {name}, which is NOT NULL.")
        columns = []
        for column in self.schema:
            if column.name == OPERATION:
                columns.append(pa.repeat(pa.scalar(operator.value), rows.num_rows))
            elif column.name in rows.column_names:
                try:
                    columns.append(
                        self._limited(convert.cast(rows[column.name], column.type), self.all[self.position_of(column.name)])
                    )
                except pa.ArrowException as error:
                    raise InvalidValueError(f"Column {column.name}: {error}.") from None
            else:
                columns.append(pa.nulls(rows.num_rows, column.type))
        return convert.copied(pa.table(columns, schema=self.schema))  # it is sent later

    def table_of(self, rows: Sequence[Row]) -> pa.Table:
        """Returns rows as they are sent."""
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

    def _needed_by(self, operator: RowOperator) -> Sequence[int]:
        """Returns the columns that a row must have."""
        return self._key if operator is RowOperator.DELETE_IGNORE else self._needed

    def _limited(self, values: pa.ChunkedArray, column: TailColumn) -> pa.ChunkedArray:
        """Returns values that fit a CHAR or VARCHAR column. Raises InvalidValueError."""
        if column.length is None:
            return values
        values = pc.utf8_rtrim(values, " ") if column.char else values
        long = pc.sum(pc.greater(pc.utf8_length(values), column.length)).as_py() or 0
        if long and not self._truncate:
            raise InvalidValueError(f"Column {column.name}: {long} values have more than {column.length} characters.")
        self._on_cut(long)
        cut = pc.utf8_slice_codeunits(values, 0, column.length)
        return pc.utf8_rtrim(cut, " ") if column.char else cut


class Row:
    """A row for one stream. Columns that are not set are NULL."""

    __slots__ = ("_columns", "operator", "size", "values")

    def __init__(self, columns: StreamColumns, operator: RowOperator) -> None:
        self._columns = columns
        self.operator = operator
        self.values: list[Any] = [UNSET] * len(columns.all)
        self.size = 0  #: of its values in bytes, approximately

    def set_value(self, column: str, value: Any) -> None:
        """Sets the value of a column, whose name is not case-sensitive. See :mod:`volstream.ingest.values` for the types.

        Raises:
            InvalidValueError: there is no such column, or it cannot have the value. The row is as before.
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
        """Sets the values of several columns by name. Raises as :meth:`set_value`."""
        if type(values) is not dict:
            values = fitting("values", values, Mapping[str, Any])
        for column, value in values.items():
            self.set_value(column, value)

    def as_dict(self) -> dict[str, Any]:
        """Returns the values that were set, by column, as they are stored."""
        pairs = zip(self._columns.all, self.values, strict=True)
        return {column.name: value for column, value in pairs if value is not UNSET}

    def __repr__(self) -> str:
        return f"Row({self.operator.name}, {self.as_dict()!r})"
