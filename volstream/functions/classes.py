"""Classes whose instances are rows: dataclasses, NamedTuples, TypedDicts, and pydantic models.

pydantic is never imported here: a function that returns its models has already imported it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeGuard

from volstream.functions.types.values import NoColumnError, plain

#: Types whose values are plain.
LEAVES = frozenset({str, int, float, bool, bytes, type(None), Decimal, datetime, date})


def is_row_class(kind: Any) -> TypeGuard[type]:
    """True if instances of a class are rows, and the class declares their columns."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or _is_named_tuple(kind) or typing.is_typeddict(kind) or _is_model(kind)
    )


def fields_of(kind: type) -> Sequence[str]:
    """Returns the names of a row class's columns, in order: without fields that pydantic excludes."""
    row_class: Any = kind
    if _is_model(kind):
        names = [*row_class.model_fields, *row_class.model_computed_fields]
        declared = row_class.model_fields
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        declared = getattr(kind, "__pydantic_fields__", {})
    else:
        return list(row_class._fields if _is_named_tuple(kind) else hints_of_fields(row_class))
    return [name for name in names if name not in declared or not declared[name].exclude]


def row_of(value: object) -> Mapping[str, Any] | None:
    """Converts an instance of a row class, or a mapping, to a mapping of plain values; None: it is something else.

    Nothing in the result changes when the function fills its own lists, dicts, arrays and buffers anew for another row.

    Raises:
        NoColumnError: it has a value that no column holds; the message names it.
    """
    row: Mapping[str, Any]
    if isinstance(value, Mapping):
        row = value
    elif _is_named_tuple(type(value)):
        row = value._asdict()  # type: ignore[attr-defined]  # of a NamedTuple
    elif dataclasses.is_dataclass(type(value)) or _is_model(type(value)):
        row = {name: getattr(value, name) for name in fields_of(type(value))} | _extra(value)
    else:
        return None
    # Converting values recursively is ten times slower.
    if {*map(type, row), *map(type, row.values())} <= LEAVES:
        return {**row}
    return {_deep(name, name): _deep(item, name) for name, item in row.items()}


def _extra(value: Any) -> dict[str, Any]:
    """Returns the fields that an instance of a class of pydantic has more than the class declares."""
    if getattr(type(value), "__pydantic_config__", {}).get("extra") == "allow":  # of a dataclass
        declared = {field.name for field in dataclasses.fields(value)}
        return {name: item for name, item in vars(value).items() if name not in declared}
    return getattr(value, "model_extra", None) or {}


def _deep(value: Any, name: object) -> Any:
    """Replaces instances of row classes in a value by mappings, and others by plain values."""
    if type(value) in LEAVES:
        return value
    if type(value) in (list, tuple):
        return [*value] if {*map(type, value)} <= LEAVES else [_deep(item, name) for item in value]
    row = row_of(value)
    if row is not None:
        return row
    try:
        flat = plain(value)
    except NoColumnError as error:
        raise NoColumnError(f"The column {name!r} has a {error}.") from None
    return flat if type(flat) is type(value) else _deep(flat, name)


def hints_of_fields(kind: type) -> Mapping[str, Any]:
    """Returns the annotations of a row class's columns. Raises what resolving them raises."""
    if not _is_model(kind):
        return typing.get_type_hints(kind)
    model: Any = kind
    model.model_rebuild()
    # As pydantic has them, without the variables of generic models.
    given = {name: field.annotation for name, field in model.model_fields.items()}
    computed = {name: field.return_type for name, field in model.model_computed_fields.items()}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=given | computed))


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_model(kind: type) -> bool:
    """True for pydantic models of version 2."""
    return isinstance(getattr(kind, "model_fields", None), Mapping) and hasattr(kind, "model_validate")
