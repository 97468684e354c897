"""Rows of a sheet of Excel or OpenDocument. The first row that is not empty names the columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, BinaryIO

import pyarrow as pa
from python_calamine import CalamineError, CalamineWorkbook

#: What a column whose values have one of these types, and no other, is.
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), date: pa.date32(), datetime: pa.timestamp("us")}


def read(content: BinaryIO, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the sheet ``sheet``, by default the first, after ``skip`` rows.

    Raises:
        ValueError: it is no workbook, or has no such sheet.
    """
    if unknown := options.keys() - {"sheet", "skip"}:
        raise ValueError(f"there is no option {min(unknown)!r}; give sheet or skip")
    try:
        book = CalamineWorkbook.from_filelike(content)
        name = options.get("sheet", book.sheet_names[0])
        if name not in book.sheet_names:
            raise ValueError(f"there is no sheet {name!r}, but {', '.join(book.sheet_names)}")
        rows = book.get_sheet_by_name(name).to_python()[int(options.get("skip", "0")) :]
    except CalamineError as error:
        raise ValueError(str(error)) from None
    filled = [row for row in rows if any(value != "" for value in row)]
    if not filled:
        return
    header, *values = filled
    names = [str(name).strip() or f"_c{at}" for at, name in enumerate(header)]
    yield pa.RecordBatch.from_arrays([_column([row[at] for row in values]) for at in range(len(names))], names)


def _column(cells: Sequence[Any]) -> pa.Array:
    """Returns the values of a column: of their type if they have one in common, else as text."""
    values = [None if cell == "" else cell for cell in cells]
    kinds = {type(value) for value in values if value is not None}
    if kinds == {float} and all(value is None or value.is_integer() for value in values):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    if kinds == {int, float}:
        kinds = {float}
    if kinds == {date, datetime}:
        kinds = {datetime}
        values = [datetime(*value.timetuple()[:3]) if type(value) is date else value for value in values]
    if len(kinds) == 1 and (kind := _TYPES.get(*kinds)) is not None:
        return pa.array(values, kind)
    return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
