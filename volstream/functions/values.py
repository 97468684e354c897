"""Arrow values as Python's, those included that Python does not have."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns values as Python's; a time outside of its years 1 to 9999 as text, also inside of others."""
    try:
        found: list[Any] = values.to_pylist()
    except (OverflowError, ValueError):
        return [_python_value(one) for one in values]
    return found


def _python_value(one: pa.Scalar) -> Any:
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        pass
    if isinstance(one, pa.StructScalar):
        return {field.name: _python_value(one[at]) for at, field in enumerate(one.type)}
    if isinstance(one, pa.MapScalar):
        keys, items = (python_values(one.values.field(at)) for at in range(2))
        return list(zip(keys, items, strict=True))
    if isinstance(one, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
        return python_values(one.values)
    return one.cast(pa.string()).as_py()
