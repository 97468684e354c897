"""Arrow values as Python's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from volstream.functions.values import python_values

FAR = 253402300800000000
TIME = pa.timestamp("us")


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([FAR, None], TIME), ["10000-01-01 00:00:00.000000", None]),
        (pa.array([2_932_897, None], pa.date32()), ["10000-01-01", None]),
        (pa.array([[FAR, None], None], pa.list_(TIME)), [["10000-01-01 00:00:00.000000", None], None]),
        (
            pa.array([{"a": 1, "t": FAR}], pa.struct({"a": pa.int8(), "t": TIME})),
            [{"a": 1, "t": "10000-01-01 00:00:00.000000"}],
        ),
        (pa.array([[("k", FAR)]], pa.map_(pa.string(), TIME)), [[("k", "10000-01-01 00:00:00.000000")]]),
        (pa.array([1, None]), [1, None]),
    ],
)
def test_times_that_python_does_not_have_are_text(column: pa.Array, found: list[object]) -> None:
    assert python_values(column) == python_values(pa.chunked_array([column])) == found
