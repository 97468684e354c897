"""Arrow values as Python's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from volstream.base.model.text import to_json
from volstream.functions.types.convert import python_values
from volstream.functions.types.values import document_values

FAR = 253402300800000000
TIME = pa.timestamp("us")


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([FAR, None], TIME), ["10000-01-01 00:00:00.000000", None]),
        (pa.array([2_932_897, None], pa.date32()), ["10000-01-01", None]),
        (pa.array([[FAR, None], None], pa.list_(TIME)), [["10000-01-01 00:00:00.000000", None], None]),
        (pa.array([{"a": 1, "t": FAR}], pa.struct({"a": pa.int8(), "t": TIME})), [{"a": 1, "t": "10000-01-01 00:00:00.000000"}]),
        (pa.array([[("k", FAR)]], pa.map_(pa.string(), TIME)), [[("k", "10000-01-01 00:00:00.000000")]]),
        (pa.array([1, None]), [1, None]),
    ],
)
def test_times_that_python_does_not_have_are_text(column: pa.Array, found: list[object]) -> None:
    assert python_values(column) == python_values(pa.chunked_array([column])) == found


@pytest.mark.parametrize(
    ("column", "json"),
    [
        (pa.array([[("k", 1.5)], [], None], pa.map_(pa.string(), pa.float64())), '[{"k": 1.5}, {}, null]'),
        (pa.array([[(1, [(b"a", None)])]], pa.map_(pa.int32(), pa.map_(pa.binary(), pa.int8()))), '[{"1": {"YQ==": null}}]'),
        (pa.array([[(0, -0.0)]], pa.map_(pa.date32(), pa.float64())), '[{"1970-01-01": -0.0}]'),
        (pa.array([[([1], 2)]], pa.map_(pa.list_(pa.int8()), pa.int8())), '[{"[1]": 2}]'),
        (pa.array([[[(True, 2)]]], pa.list_(pa.map_(pa.bool_(), pa.int8()))), '[[{"true": 2}]]'),
        (pa.array([float("nan"), float("inf"), -float("inf"), 5e-324]), '["NaN", "Infinity", "-Infinity", 5e-324]'),
    ],
    ids=str,
)
def test_all_values_have_json(column: pa.Array, json: str) -> None:
    assert to_json(document_values(column)) == json
