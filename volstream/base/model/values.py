"""Converts scalars of other libraries to Python's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

#: Types of most values, returned without a check.
_OWN = frozenset({bool, int, float, str, Decimal})


def plain(value: Any) -> Any:
    """Converts a value with an ``item`` method, such as NumPy's scalars, to Python's; returns others unchanged."""
    if type(value) in _OWN:
        return value
    item = getattr(value, "item", None)
    if not callable(item) or getattr(value, "shape", None) != ():
        return value
    found = item()
    if type(found) is int and value.dtype.kind in "mM":  # nanoseconds, as a number without its unit
        import pandas as pd

        return pd.Timestamp(value) if value.dtype.kind == "M" else pd.Timedelta(value)
    return found
