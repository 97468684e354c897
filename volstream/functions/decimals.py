"""Decimals that PyArrow cannot be given: it scales a value by a table of powers, and reads beyond its end if a value has more
digits after the point than any type. That takes a worker's process with it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

#: Digits that a decimal has at most.
_MOST = 38


def is_too_fine(value: Decimal) -> bool:
    """True if a decimal has more digits after the point than any type of a column."""
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent < -_MOST


def check(value: object) -> None:
    """Raises ValueError if a value of a row is, or contains, a decimal that is too fine."""
    if isinstance(value, Decimal):
        if is_too_fine(value):
            raise ValueError(f"a decimal has at most {_MOST} digits after the point")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check(key)
            check(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            check(item)
