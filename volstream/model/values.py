"""Scalars of other libraries as Python's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

#: Types of most values, which need no second look.
_OWN = frozenset({bool, int, float, str, Decimal})


def plain(value: Any) -> Any:
    """Returns a value that has an ``item`` method, as NumPy's scalars do, as Python's; others as they are."""
    if type(value) in _OWN:
        return value
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "shape", None) == () else value
