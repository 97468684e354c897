"""The types of columns: those of JSON and Arrow values, and the one that holds the values of two. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from decimal import Decimal

import pyarrow as pa

from volstream.base.model.names import NOT_IN_COLUMNS

TIMESTAMP = pa.timestamp("us", tz="UTC")

#: Each of these holds the values of those before it.
_CHAINS: tuple[tuple[pa.DataType, ...], ...] = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.date32(), TIMESTAMP),
)


def of_values(values: Iterable[object]) -> pa.DataType | None:
    """Returns the type of values of JSON; None if all are null. Nested values are text, because their shape may vary."""
    kinds = {_of_class(cls) for cls in {*map(type, values)} - {type(None)}}
    return functools.reduce(_wider, kinds) if kinds else None


def of_arrow(kind: pa.DataType) -> pa.DataType:
    """Returns the column type for values of an Arrow type, as in Spark; times without a zone are in UTC.

    Types that Spark lacks, such as times of day, become text, and so do structs with names that Delta does not accept.
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return of_arrow(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return of_arrow(kind.storage_type)
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return kind
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if any(of(kind) for of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(of_arrow(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(of_arrow(kind.key_type), of_arrow(kind.item_type))
    if pa.types.is_struct(kind) and _has_proper_names([field.name for field in kind]):
        return pa.struct([pa.field(field.name, of_arrow(field.type)) for field in kind])
    return pa.string()


def wider(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """Returns the type for values of both types, text if need be; None is the type of no value."""
    if one is None or other is None:
        return one or other
    return _wider(one, other)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    for chain in _CHAINS:
        if one in chain and other in chain:
            return chain[max(chain.index(one), chain.index(other))]
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else pa.string()
    return pa.string()


def _has_proper_names(names: Sequence[str]) -> bool:
    distinct = {name.lower() for name in names if name and not NOT_IN_COLUMNS.search(name)}
    return len(distinct) == len(names) > 0


def _of_class(kind: type) -> pa.DataType:
    if kind is bool:
        return pa.bool_()
    if kind is int:
        return pa.int64()
    return pa.float64() if kind in (float, Decimal) else pa.string()
