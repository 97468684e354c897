"""Numbers that lose nothing: which of JSON are floats, and which values of FLOAT and DOUBLE say what was written. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def number(text: str) -> float | Decimal:
    """Returns the number that a text of JSON writes: a float if it writes itself like this, else a Decimal.

    Raises:
        ValueError: the exponent has so many digits that no Decimal holds it.
    """
    value = float(text)
    if repr(value) == text:
        return value
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]} is out of range.") from None


#: Reads JSON with all digits of its numbers.
DECODER = json.JSONDecoder(parse_float=number)


def null_if_inexact(values: pa.Array, given: pa.Array | Sequence[Any]) -> pa.Array:
    """Returns values of FLOAT or DOUBLE; NULL in place of those that differ from the number by more than a rounded fraction.

    0.1 is kept, though binary fractions only come near it. Whole numbers from 2**24 (FLOAT) or 2**53 (DOUBLE) on, and numbers
    near 0, are kept if they come back when the value is written, and nothing becomes infinite or zero.

    Args:
        given: the numbers, or texts of them, by position.
    """
    kind = np.finfo(values.type.to_pandas_dtype())
    size = np.abs(values.to_numpy(zero_copy_only=False))
    doubtful = np.flatnonzero((size >= 2.0 ** (kind.nmant + 1)) | (size < kind.smallest_normal))
    if not doubtful.size:
        return values
    picked = given.take(doubtful).to_pylist() if isinstance(given, pa.Array) else [given[at] for at in doubtful.tolist()]
    faithful: dict[Any, bool] = {}
    for value, written in zip(values.take(doubtful), picked, strict=True):
        if written not in faithful:  # zeros, mostly
            faithful[written] = _comes_back(value, written)
    kept = np.ones(len(values), bool)
    kept[doubtful] = [faithful[written] for written in picked]
    return pc.if_else(pa.array(kept), values, pa.scalar(None, values.type))


def _comes_back(value: pa.Scalar, given: Any) -> bool:
    """True if a value is the number given, or is written like it."""
    if not isinstance(given, str) and value.as_py() == given:
        return True
    try:
        return Decimal(str(value.cast(pa.string()))) == Decimal(repr(given) if isinstance(given, float) else given)
    except InvalidOperation:
        return False
