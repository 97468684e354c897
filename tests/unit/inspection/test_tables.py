"""Values of tables as pages show them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from volstream.inspection.tables import values_of


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([253402300800000000, None], pa.timestamp("us")), ["10000-01-01 00:00:00.000000", None]),
        (pa.array([2_932_897, None], pa.date32()), ["10000-01-01", None]),
        (pa.array([[253402300800000000], None], pa.list_(pa.timestamp("us"))), ["(not shown)", None]),
        (pa.array([1, None]), [1, None]),
    ],
)
def test_times_that_python_does_not_have_are_text(column: pa.Array, shown: list[object]) -> None:
    assert values_of(pa.chunked_array([column])) == shown
