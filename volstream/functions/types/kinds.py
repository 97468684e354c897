"""The types of columns: the type for a Python class or an Arrow type, and its name in Spark. Pure.

A column's type is an Arrow type as this module returns it: integers are signed, times have microseconds, and
there are no large types, views or dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from volstream.base.model.names import NOT_IN_COLUMNS, folded
from volstream.errors import InvalidValueError
from volstream.sql.text import quote_column

#: Maximum digits of a decimal.
MAX_DIGITS = 38

TIMESTAMP, TIMESTAMP_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")

#: The types without parameters, by Spark name.
BY_NAME: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_NTZ": TIMESTAMP_NTZ,
}

_NAMES: Mapping[pa.DataType, str] = {kind: name for name, kind in BY_NAME.items()}

#: The types of columns for values of Python classes and their subclasses.
BY_PYTHON: Mapping[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: TIMESTAMP,
    Decimal: pa.decimal128(MAX_DIGITS, 18),
}

#: The type of integers that exceed 64 bits.
_LARGE = pa.decimal128(MAX_DIGITS, 0)

#: The types for further classes whose values functions return.
BY_CLASS: Mapping[Any, pa.DataType] = {
    **BY_PYTHON,
    type(None): pa.null(),
    np.bool_: pa.bool_(),
    np.integer: pa.int64(),
    np.floating: pa.float64(),
    bytearray: pa.binary(),
}

_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)

#: The types for unsigned integers, by bit width.
_UNSIGNED: Mapping[int, pa.DataType] = {8: pa.int16(), 16: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}


def name_of(kind: pa.DataType) -> str:
    """Returns a type in Spark's DDL. Raises InvalidValueError if no column can have it."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{name_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{name_of(kind.key_type)},{name_of(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quote_column(field.name)}: {name_of(field.type)}' for field in kind)}>"
    raise InvalidValueError(f"A result column cannot have the Arrow type {kind}.", "Use a Spark SQL type.")


def of_scalar(value: Any) -> pa.DataType | None:
    """Returns the type of a Python value that is not nested, with the digits of a decimal, or None without a
    type."""
    for cls in type(value).__mro__:
        if cls in BY_CLASS:
            kind = BY_CLASS[cls]
            if isinstance(value, Decimal) and value.is_finite():
                return _of_decimal(value)
            return _LARGE if kind == pa.int64() and not -(2**63) <= int(value) < 2**63 else kind
    return None


def _of_decimal(value: Decimal) -> pa.DataType:
    """Returns the type of a decimal's digits, at most 38, with 256 bits. Only :func:`with_usual_decimals`
    makes it a column type."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int), "it is finite"
    whole = min(max(value.adjusted() + 1, 0), MAX_DIGITS)
    scale = min(max(-exponent, 0), MAX_DIGITS - whole)
    return pa.decimal256(max(whole + scale, 1), scale)


def with_usual_decimals(kind: pa.DataType) -> pa.DataType:
    """Returns a type with 38 digits for decimals that :func:`of_scalar` described exactly, as far as they
    fit."""
    if pa.types.is_list(kind):
        return pa.list_(with_usual_decimals(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(with_usual_decimals(kind.key_type), with_usual_decimals(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_usual_decimals(field.type)) for field in kind])
    if pa.types.is_decimal256(kind) and kind.precision <= MAX_DIGITS:
        return pa.decimal128(MAX_DIGITS, min(max(kind.scale, 18), MAX_DIGITS - kind.precision + kind.scale))
    return kind


def of_arrow(kind: pa.DataType, *, utc: bool = False, lossless: bool = True) -> pa.DataType:
    """Returns the column type for values of an Arrow type.

    Args:
        utc: times without a zone are in UTC, as in Spark.
        lossless: keep types that Spark lacks, such as times of day. If False, they become text, as do structs
            with names that Delta rejects.
    """

    def inner(nested: pa.DataType) -> pa.DataType:
        return of_arrow(nested, utc=utc, lossless=lossless)

    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return inner(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return inner(kind.storage_type)
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if utc or kind.tz is not None else TIMESTAMP_NTZ
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_unsigned_integer(kind):
        return _UNSIGNED[kind.bit_width]
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind) and kind.precision <= MAX_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if is_text(kind):
        return pa.string()
    if is_bytes(kind):
        return pa.binary()
    if is_sequence(kind):
        return pa.list_(inner(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_type), inner(kind.item_type))
    if pa.types.is_struct(kind) and (lossless or not _has_odd_names(kind)):
        return pa.struct([pa.field(field.name, inner(field.type)) for field in kind])
    return kind if lossless or kind in _NAMES or pa.types.is_null(kind) else pa.string()


def is_text(kind: pa.DataType) -> bool:
    """Returns whether it is a type of text."""
    return _is_any(kind, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def is_bytes(kind: pa.DataType) -> bool:
    """Returns whether it is a type of bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return _is_any(kind, *tests)


def is_sequence(kind: pa.DataType) -> bool:
    """Returns whether it is a type of lists."""
    return _is_any(kind, pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, *_VIEWS)


def has_views_of_lists(kind: pa.DataType) -> bool:
    """Returns whether it contains lists whose places may overlap or be out of order, at any depth."""
    return _is_any(kind, *_VIEWS) or any(has_views_of_lists(kind.field(at).type) for at in range(kind.num_fields))


def has_objects(kind: pa.DataType) -> bool:
    """Returns whether it contains types whose Python objects have no column type (times of day, UUIDs), at
    any depth."""
    is_object = isinstance(kind, pa.UuidType | pa.Bool8Type) or _is_any(kind, pa.types.is_duration, pa.types.is_time)
    return is_object or any(has_objects(kind.field(at).type) for at in range(kind.num_fields))


def is_number(kind: pa.DataType) -> bool:
    """Returns whether it is a type of integers, floats or decimals."""
    return _is_any(kind, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def _is_any(kind: pa.DataType, *tests: Any) -> bool:
    return any(test(kind) for test in tests)


def _has_odd_names(kind: pa.StructType) -> bool:
    names: Sequence[str] = [field.name for field in kind]
    distinct = {folded(name) for name in names if name and not NOT_IN_COLUMNS.search(name)}
    return not 0 < len(names) == len(distinct)
