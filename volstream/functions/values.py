"""Converts Arrow values to Python's, including values that Python cannot represent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from volstream.base.model.documents import to_json


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Converts values to Python's; times outside Python's years 1 to 9999 become text, also inside other values."""
    try:
        items: list[Any] = values.to_pylist()
    except (OverflowError, ValueError):
        return [_python_value(value) for value in values]
    return items


def document_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Converts values to Python's, for JSON: maps become dicts with text keys; keys of other types are written as in JSON."""
    items = python_values(values)
    return [_document(item, values.type) for item in items] if "map<" in str(values.type) else items


def _document(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = ((_document(key, kind.key_type), _document(item, kind.item_type)) for key, item in value)
        return {key if isinstance(key, str) else to_json(key).strip('"'): item for key, item in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_document(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _document(value[field.name], field.type) for field in kind}
    return value


def _python_value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        pass
    if isinstance(scalar, pa.StructScalar):
        return {field.name: _python_value(scalar[at]) for at, field in enumerate(scalar.type)}
    if isinstance(scalar, pa.MapScalar):
        keys, items = (python_values(scalar.values.field(at)) for at in range(2))
        return list(zip(keys, items, strict=True))
    if isinstance(scalar, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return python_values(scalar.values)
    return scalar.cast(pa.string()).as_py()
