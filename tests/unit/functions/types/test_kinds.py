"""The types of values and of Arrow's types."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from volstream.functions.types.kinds import of_scalar, with_usual_decimals


@pytest.mark.parametrize(
    ("value", "scale"), [("1.5", 18), ("1E+21", 16), ("123456789012345678901.5", 17), (f"0.{'1' * 25}", 25), ("1E+37", 0)]
)
def test_the_type_of_a_decimal_holds_it(value: str, scale: int) -> None:
    kind = with_usual_decimals(of_scalar(Decimal(value)))
    assert kind == pa.decimal128(38, scale)
    assert pa.array([Decimal(value)], kind).to_pylist() == [Decimal(value)]
