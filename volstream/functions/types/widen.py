"""The rule for columns whose values have several types: the common type of two types. Pure.

Types are column types; see :func:`volstream.functions.types.kinds.of_arrow`. ``pa.null()`` is the type of no
value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pyarrow as pa

from volstream.base.model.names import folded
from volstream.functions.types.kinds import MAX_DIGITS, is_number, name_of, with_usual_decimals
from volstream.sql.text import quote_column


class DifferentTypesError(Exception):
    """Only text can hold the values of both types."""


def widen(one: pa.DataType, other: pa.DataType, *, python: bool = False) -> pa.DataType:
    """Returns the type that holds the values of both, down to the fields of structs. Text if no other type
    does.

    An integer and a float widen to DOUBLE, which cannot hold every 64-bit integer. Fields of structs match by
    name, regardless of case.

    Args:
        python: the types are those of Python values. A dict is a struct, but dicts with different keys are a
            map if their values have a common type. Times and dates do not mix.

    Raises:
        DifferentTypesError: with ``python``, if only text holds both.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    common = functools.partial(widen, python=python)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(common(one.value_type, other.value_type))
    if all(pa.types.is_struct(kind) or pa.types.is_map(kind) for kind in (one, other)):
        return _keyed(one, other, common, python=python)
    if is_number(one) and is_number(other):
        found = _number(one, other)
    else:
        times = [kind for kind in (one, other) if pa.types.is_timestamp(kind)]
        found = times[0] if len(times) == 1 and pa.date32() in (one, other) and not python else None
    if found is None and python:
        raise DifferentTypesError
    return found or pa.string()


def _keyed(
    one: pa.DataType, other: pa.DataType, common: Callable[[pa.DataType, pa.DataType], pa.DataType], *, python: bool
) -> pa.DataType:
    structs = pa.types.is_struct(one) and pa.types.is_struct(other)
    if not structs or (python and {field.name for field in one} != {field.name for field in other}):
        keys, items = pa.null(), pa.null()
        try:
            for kind in (one, other):
                is_map = pa.types.is_map(kind)
                keys = common(keys, kind.key_type if is_map else pa.string())
                for item in [kind.item_type] if is_map else [field.type for field in kind]:
                    items = common(items, item)
            return pa.map_(keys, items)
        except DifferentTypesError:
            if not structs:
                raise
    fields: dict[str, pa.Field] = {}
    for field in (*one, *other):
        key = field.name if python else folded(field.name)
        before = fields.get(key, field)
        fields[key] = before.with_type(common(before.type, field.type))
    return pa.struct([*fields.values()])


def _number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_floating(one) or pa.types.is_floating(other):
        # A double cannot represent decimal fractions exactly.
        exact = any(pa.types.is_decimal256(kind) or (pa.types.is_decimal(kind) and kind.scale) for kind in (one, other))
        return None if exact else pa.float64()
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    scale = max(_scale(one), _scale(other))
    digits = max(_whole_digits(one), _whole_digits(other)) + scale
    of_values = any(map(pa.types.is_decimal256, (one, other)))
    return (pa.decimal256 if of_values else pa.decimal128)(digits, scale) if digits <= MAX_DIGITS else None


def _scale(kind: pa.DataType) -> int:
    return 0 if pa.types.is_integer(kind) else kind.scale


def _whole_digits(kind: pa.DataType) -> int:
    """Returns the number of digits before the point."""
    return len(str(1 << kind.bit_width - 1)) if pa.types.is_integer(kind) else kind.precision - kind.scale


def grown(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Returns a table's type, extended by the additional fields of structs in another type."""
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return pa.list_(grown(kind.value_type, other.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return pa.map_(grown(kind.key_type, other.key_type), grown(kind.item_type, other.item_type))
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = {folded(field.name): field for field in kind}
        for field in other:
            current = fields.setdefault(folded(field.name), field)
            fields[folded(field.name)] = current.with_type(grown(current.type, field.type))
        return pa.struct([*fields.values()])
    return kind


def fields_in(kind: pa.DataType) -> int:
    """Returns the number of values in a type: one, or the total of its fields, items or keys."""
    return sum(fields_in(kind.field(at).type) for at in range(kind.num_fields)) if kind.num_fields else 1


def fields_added(kind: pa.DataType, column: pa.Field) -> list[str]:
    """Returns the fields, as DDL, that a column adds to its former type. Returns none if it differs in
    another way."""
    return [*_added(kind, column.type, quote_column(column.name))] if grown(kind, column.type) == column.type else []


def _added(kind: pa.DataType, other: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_list(kind):
        yield from _added(kind.value_type, other.value_type, f"{path}.element")
    elif pa.types.is_map(kind):
        yield from _added(kind.key_type, other.key_type, f"{path}.key")
        yield from _added(kind.item_type, other.item_type, f"{path}.value")
    elif pa.types.is_struct(kind):
        for at, field in enumerate(other):
            name = f"{path}.{quote_column(field.name)}"
            if at < kind.num_fields:
                yield from _added(kind.field(at).type, field.type, name)
            else:
                yield f"{name} {name_of(field.type)}"


def without_null(kind: pa.DataType) -> pa.DataType:
    """Returns a type with STRING in place of types without values, and with the usual decimals."""
    return _with_null_as(with_usual_decimals(kind), pa.string())


def of_values_only(kind: pa.DataType) -> pa.DataType:
    """Returns a type without fields, lists and maps that were always empty. Null if nothing is left."""
    return _with_null_as(kind, pa.null())


def _with_null_as(kind: pa.DataType, empty: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return empty
    if pa.types.is_list(kind):
        item = _with_null_as(kind.value_type, empty)
        return item if pa.types.is_null(item) else pa.list_(item)
    if pa.types.is_map(kind):
        key, item = _with_null_as(kind.key_type, empty), _with_null_as(kind.item_type, empty)
        return pa.null() if pa.null() in (key, item) else pa.map_(key, item)
    if pa.types.is_struct(kind):
        fields = [field.with_type(_with_null_as(field.type, empty)) for field in kind]
        present = [field for field in fields if not pa.types.is_null(field.type)]
        return pa.struct(present) if present else pa.map_(empty, empty) if pa.types.is_string(empty) else empty
    return kind
