"""Converts a function's return value to rows: a list, or Arrow batches."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from volstream.base.model.text import counted, first_line
from volstream.errors import InvalidValueError
from volstream.functions.rows import ArrowRows, NotRowsError, RowMeter, RowRequirements, Rows, Stored, row_of
from volstream.functions.schema import types_of
from volstream.functions.types import convert
from volstream.functions.types.kinds import has_objects, name_of, with_usual_decimals
from volstream.functions.types.values import NoColumnError


def _unchanged(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return row


def rows_of(returned: object, expected: RowRequirements, stored: Stored = _unchanged) -> tuple[Rows, int]:
    """Returns the rows in a return value, and the size of their values.

    Takes rows one by one, so a generator is not consumed beyond the limit. Each row is kept in its state when
    the generator yielded it.

    Args:
        stored: called with each row before the generator continues. Not called with rows of tables.
        returned: None, one row, a PyArrow table or batch, an iterable of these, or a DataFrame of pandas or
            polars.

    Raises:
        NotRowsError: the value is something else, or has a value that no column can hold.
        TooLargeError: the rows exceed the limits.
    """
    try:
        return _rows_of(returned, expected, stored)
    except NoColumnError as error:
        raise NotRowsError(str(error)) from None


def _rows_of(returned: object, expected: RowRequirements, stored: Stored) -> tuple[Rows, int]:
    if returned is None:
        return [], 0
    if _is_table(returned):
        return _arrow_rows(iter([returned]), expected)
    meter = RowMeter(expected.bounds)
    rows: list[Mapping[str, Any]] = []
    if (row := row_of(returned)) is not None:
        meter.add(row)
        return [stored(row)], meter.bytes
    if isinstance(returned, Iterable) and not isinstance(returned, str | bytes):
        items = iter(returned)
        for item in items:
            row = row_of(item)
            if row is None:
                if not rows and _is_table(item):
                    return _arrow_rows(_with_first(item, items), expected)
                raise NotRowsError(
                    f"The function returned a value of type {type(item).__name__} instead of a row (dict or dataclass)."
                )
            meter.add(row)
            rows.append(stored(row))
        return rows, meter.bytes
    raise NotRowsError(
        f"The function returned a value of type {type(returned).__name__}; return a dict, a dataclass, several of them, or None."
    )


def rows_of_each(returned: object, expected: RowRequirements, stored: Sequence[Stored]) -> list[tuple[Rows, int] | BaseException]:
    """Returns each file's rows, or the error in its place, in order, from the return value for several files.

    ``stored`` has an entry for each file, as in :func:`rows_of`.
    """
    files = len(stored)
    given = f"The function was given {counted(files, 'file')} and returned"
    if isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping):
        each = chain(stored, repeat(_unchanged))
        entries = [
            entry if isinstance(entry, BaseException) else rows_of(entry, expected, store)
            for entry, store in zip(returned, each, strict=False)
        ]
        if len(entries) == files:
            return entries
        raise NotRowsError(f"{given} {counted(len(entries), 'entry', 'entries')}; return one for each file, in order.")
    raise NotRowsError(f"{given} a {type(returned).__name__}; return a list, one entry per file.")


def copy_rows(returned: Any) -> Any:
    """Returns a copy of rows or tables that shares no memory with the function. Returns other values
    unchanged. Raises NotRowsError."""
    try:
        row = row_of(returned)
    except NoColumnError as error:
        raise NotRowsError(str(error)) from None
    if row is not None:
        return row
    if type(returned) in (list, tuple):
        return [*map(copy_rows, returned)]
    return copy.deepcopy(returned) if _is_table(returned) else returned


def _is_table(value: object) -> bool:
    """Returns whether a value is a table, a batch or a DataFrame."""
    return isinstance(value, pa.RecordBatch | pa.Table) or (
        hasattr(value, "__arrow_c_stream__") and not isinstance(value, pa.RecordBatchReader)
    )


def _table_of(value: Any, columns: pa.Schema | None) -> pa.Table | pa.RecordBatch:
    """Converts a table or DataFrame to a table without values of classes that have no column type.

    Args:
        columns: of the result, or None if they are to be inferred.
    """
    objects: dict[int, list[Any]] = {}
    table = value
    if not isinstance(value, pa.Table | pa.RecordBatch):
        pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
        # It gives Arrow the addresses of objects.
        if polars is not None and isinstance(value, polars.DataFrame):
            objects = {at: column.to_list() for at, column in enumerate(value.get_columns()) if column.dtype == polars.Object}
            value = value.with_columns(polars.lit(None).alias(value.columns[at]) for at in objects)
        if pandas is not None and isinstance(value, pandas.DataFrame):
            value = _without_index(value)
            objects = {at: _objects(value.iloc[:, at]) for at in range(value.shape[1]) if _is_of_objects(value.iloc[:, at])}
            value = value.copy(deep=False)
            for at in objects:
                value.isetitem(at, None)
        try:
            table = pa.table(value)
        except (pa.ArrowException, TypeError, ValueError) as error:  # a single column, for example
            raise NotRowsError(
                f"The function returned a {type(value).__name__} that is no table ({first_line(str(error))}); return a "
                "DataFrame, a PyArrow table, or dicts."
            ) from None
    for at, field in enumerate(table.schema):
        if at in objects or has_objects(field.type):
            values = _column(field.name, objects.get(at, table.column(at)), columns)
            table = table.set_column(at, field.name, values)
    return table


def _without_index(frame: Any) -> Any:
    """Returns a pandas DataFrame whose named index is a column. Drops row positions, which mean nothing after
    filtering or sorting.

    Raises:
        NotRowsError: the index has labels but no name, or the name of a column.
    """
    levels = {name: frame.index.get_level_values(at) for at, name in enumerate(frame.index.names) if name is not None}
    unnamed = [frame.index.get_level_values(at) for at, name in enumerate(frame.index.names) if name is None]
    if len(frame) and any(level.dtype.kind not in "iu" for level in unnamed):
        raise NotRowsError(
            "The function returned a DataFrame whose index has labels and no name. Return df.reset_index(names='label') to keep "
            "them as a column, or df.reset_index(drop=True)."
        )
    if repeated := [name for name in levels if name in frame.columns]:
        raise NotRowsError(
            f"The function returned a DataFrame whose index has the name of a column, {repeated[0]!r}. Rename it: "
            "df.rename_axis('key')."
        )
    flat = frame.reset_index(drop=True)
    for name, level in levels.items():
        flat[name] = level
    return flat


#: pandas' names for kinds of objects that Arrow converts as columns do.
_ARROW_KINDS = frozenset({"boolean", "bytes", "date", "empty", "floating", "string"})


def _is_of_objects(values: Any) -> bool:
    """Returns whether a pandas column has values that Arrow lacks, or converts differently than values of
    dicts."""
    from pandas.api.types import infer_dtype

    stored_values = getattr(values.dtype, "categories", values)
    if str(stored_values.dtype) == "object":
        kind = infer_dtype(stored_values, skipna=True)
        # Arrow would drop the time of values that are not dates.
        return kind not in _ARROW_KINDS or (kind == "date" and any(isinstance(value, datetime) for value in stored_values))
    return str(stored_values.dtype).startswith(("Sparse", "interval", "period"))


def _objects(values: Any) -> list[Any]:
    return [None if isinstance(value, float) and value != value else value for value in values]


def _column(name: str, values: Any, columns: pa.Schema | None) -> pa.Array:
    """Converts the values of a column like values of dicts. Raises NotRowsError, NoColumnError."""
    kind = getattr(values, "type", None)
    try:
        if not isinstance(values, list):
            values = values.to_pylist(maps_as_pydicts="strict")
        rows = [row_of({name: value}) or {} for value in values]
        if columns is None:
            kind = with_usual_decimals(types_of("a table", rows).get(name, pa.null()))
        else:  # without columns that are refused later
            kind = columns.field(name).type if name in columns.names else pa.null()
            rows = rows if name in columns.names else [{}] * len(rows)
        return convert.array([row.get(name) for row in rows], kind)
    except NoColumnError:
        raise
    except InvalidValueError as error:
        raise NotRowsError(str(error)) from None
    except convert.WRONG_VALUES as error:
        shown = kind if columns is None else name_of(kind)
        raise NotRowsError(f"Column {name!r} of a batch cannot be {shown}: {error}.") from None


def _with_first(first: object, others: Iterator[object]) -> Iterator[object]:
    yield first
    yield from others


def _arrow_rows(items: Iterator[object], expected: RowRequirements) -> tuple[Rows, int]:
    rows: ArrowRows | None = None
    for item in items:
        if not _is_table(item):
            raise NotRowsError(f"The function returned Arrow batches, and then a {type(item).__name__}.")
        table = _table_of(item, expected.columns if rows is None else rows.columns)
        if rows is None:
            columns = table.schema if expected.columns is None else expected.columns
            rows = ArrowRows(columns, expected.bounds.row_bytes, expected.bounds.row_rule)
        for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
            if batch.num_rows:
                rows.add(batch)
    return (rows, rows.nbytes) if rows else ([], 0)
