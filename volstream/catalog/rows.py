"""Converts a home's objects to rows of the catalog and back, by the types of their fields.

A name takes two columns, a word is stored as its text, sequences and mappings as JSON. Columns that apply only to other classes
in the same table are NULL.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from volstream.base.model.names import Name

T = TypeVar("T")


def to_row(value: Any) -> dict[str, Any]:
    """Returns an object's columns."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        attribute = getattr(value, field.name)
        if isinstance(attribute, Name):
            row |= dict(zip(columns_of(field.name), (attribute.schema, attribute.name), strict=True))
        elif isinstance(attribute, Mapping):
            row[field.name] = dict(attribute)
        else:
            row[field.name] = [*map(_as_json, attribute)] if isinstance(attribute, tuple | list) else attribute
    return row


def from_row(cls: type[T], row: Mapping[Any, Any]) -> T:
    """Returns the object for a row."""
    readers = _READERS.get(cls)
    if readers is None:
        readers = _READERS[cls] = _readers(cls)
    return cls(**{name: read(row) for name, read in readers.items()})


_READERS: dict[type[Any], Mapping[str, Callable[[Mapping[Any, Any]], Any]]] = {}


def _readers(cls: type[Any]) -> Mapping[str, Callable[[Mapping[Any, Any]], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: _reader(field.name, without_none(hints[field.name])) for field in dataclasses.fields(cls)}


def _reader(name: str, kind: Any) -> Callable[[Mapping[Any, Any]], Any]:
    if kind is Name:
        schema, last = columns_of(name)
        return lambda row: Name(row[schema], row[last])
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda row: None if row[name] is None else kind(row[name])
    if typing.get_origin(kind) is Sequence:
        (item,) = typing.get_args(kind)
        if dataclasses.is_dataclass(item) and isinstance(item, type):
            return lambda row: tuple(item(**value) for value in row[name])
        return lambda row: None if row[name] is None else tuple(row[name])
    return lambda row: row[name]


def _as_json(item: Any) -> Any:
    return dataclasses.asdict(item) if dataclasses.is_dataclass(item) and not isinstance(item, type) else item


def without_none(kind: Any) -> Any:
    """Returns the type without None."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(argument for argument in typing.get_args(kind) if argument is not type(None))
    return kind


def columns_of(name: str) -> tuple[str, str]:
    """Returns the columns of a field that holds a name: ``name``, ``into`` or ``source_name``."""
    prefix = name.removesuffix("name").rstrip("_")
    return ("schema_name", "name") if not prefix else (f"{prefix}_schema", f"{prefix}_name")
