"""Values of rows are stored as they are, or refused."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import corpus
from volstream.functions.types import convert

REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)
LOCAL, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
EAST = timezone(timedelta(hours=2))
POINT = pa.struct([("x", pa.int32())])


@pytest.mark.parametrize(("name", "kind", "values"), [(name, kind, values) for name, _, kind, values in corpus.COLUMNS])
def test_values_at_the_ends_of_each_type_are_stored(name: str, kind: pa.DataType, values: list[Any]) -> None:
    given = [corpus.as_arrow({name: value})[name] for value in values]
    stored = convert.array(given, kind).to_pylist(maps_as_pydicts="strict")
    assert [*map(corpus.written, stored)] == [*map(corpus.written, values)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int32()),
        (np.float32(1.5), pa.int64()),
        (Decimal("1.5"), pa.int64()),
        (float("nan"), pa.int32()),
        (np.bool_(True), pa.int32()),
        (Decimal("1e30"), pa.int64()),
        (Decimal("Infinity"), pa.int64()),
        (Decimal("sNaN"), pa.int64()),
        (True, pa.float64()),
        (np.bool_(True), pa.float32()),
        (2**31, pa.int32()),
        (1e39, pa.float32()),
        (-1e39, pa.float32()),
        (1e-50, pa.float32()),
        (2**53 + 1, pa.float64()),
        (Decimal("1e-39"), pa.decimal128(38, 38)),
        (Decimal("0.125"), pa.decimal128(5, 2)),
        (datetime(2026, 1, 1, 12), pa.date32()),
        (pd.NaT, pa.date32()),
        (1, pa.date32()),
        (1.5, ZONED),
        (pd.NaT, LOCAL),
        (pd.Timestamp("2026-01-01T00:00:00.123456789"), LOCAL),
        (datetime(2026, 1, 1, tzinfo=EAST), LOCAL),
        (datetime(1, 1, 1, tzinfo=EAST), ZONED),
        (datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=7))), ZONED),
        ("abc", pa.list_(pa.string())),
        ([1.5], pa.list_(pa.int32())),
        (np.array([1e39]), pa.list_(pa.float32())),
        (bytearray(b"q"), pa.list_(pa.int32())),
        ({"x": 1, "y": 2}, POINT),
        ((1.5,), POINT),
        ((1, 2), POINT),
        ([("x", 1), ("y", 2)], POINT),
        ("", POINT),
        ([(datetime(2026, 1, 1, tzinfo=EAST),)], pa.list_(pa.struct([("at", LOCAL)]))),
        ("", pa.map_(pa.string(), pa.int32())),
        ([{"x": 1.5}], pa.list_(POINT)),
        ({"a": 1.5}, pa.map_(pa.string(), pa.int32())),
        ({"a": 1e39}, pa.map_(pa.string(), pa.float32())),
        ("\ud800", pa.string()),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(value: object, kind: pa.DataType) -> None:
    with pytest.raises(REFUSALS):
        convert.array([None, value], kind)


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (1.0, pa.int32(), 1),
        (0.1, pa.float32(), float(np.float32(0.1))),
        (np.array([1.0, 2.0]), pa.list_(pa.int32()), [1, 2]),
        (datetime(2026, 1, 1), pa.date32(), date(2026, 1, 1)),
        (datetime(2026, 1, 1, 2, tzinfo=EAST), ZONED, datetime(2026, 1, 1, tzinfo=UTC)),
        (datetime(2026, 1, 1), ZONED, datetime(2026, 1, 1, tzinfo=UTC)),
        ([("a", 1.0)], pa.map_(pa.string(), pa.int32()), [("a", 1)]),
        ({"x": None}, POINT, {"x": None}),
        ((1.0,), POINT, {"x": 1}),
        (Decimal("1.0"), pa.int32(), 1),
    ],
    ids=str,
)
def test_another_class_with_the_same_value_is_taken(value: object, kind: pa.DataType, wanted: object) -> None:
    assert convert.array([value, None], kind).to_pylist() == [wanted, None]


@pytest.mark.parametrize(
    ("given", "kind", "stays"),
    [
        (pa.array([1e39]), pa.float32(), False),
        (pa.array([0.1, None, float("nan"), float("inf"), -0.0]), pa.float32(), True),
        (pa.array([0.125]), pa.decimal128(5, 2), False),
        (pa.array([0.1]), pa.decimal128(5, 2), True),
        (pa.array([Decimal("9007199254740993")]), pa.float64(), False),
        (pa.array([Decimal("0.1"), None]), pa.float64(), True),
        (pa.array([2**53 + 1]), pa.float64(), False),
        (pa.array([datetime(2026, 1, 1, 12)]), pa.date32(), False),
        (pa.array([date(2026, 1, 1)]), ZONED, True),
        (pa.array([5]), pa.bool_(), False),
        (pa.array([datetime(2026, 1, 1)], ZONED), LOCAL, False),
        (pa.array([1], pa.timestamp("ns")), LOCAL, False),
        (pa.array([[1e39]]), pa.list_(pa.float32()), False),
        (pa.array([1], pa.duration("us")), pa.string(), False),
        (pa.array([{"x": 1}], pa.struct([("x", pa.duration("s"))])), pa.struct([("x", pa.int64())]), False),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int64())), pa.list_(pa.int64()), True),
        (pa.array([[[1.5]]], pa.large_list(pa.list_view(pa.float64()))), pa.list_(pa.list_(pa.int64())), False),
        (pa.array([{"x": 1, "y": 2}]), POINT, False),
        (pa.array([{"x": 1}, None]), POINT, True),
        (pa.array([[("a", 1e39)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32()), False),
        (pa.chunked_array([["a"], ["b"]]), pa.large_string(), True),
        (pa.array(["a", None]).dictionary_encode(), pa.string(), True),
        (pa.nulls(2), pa.int32(), True),
    ],
    ids=str,
)
def test_a_cast_keeps_values_or_fails(given: pa.Array, kind: pa.DataType, stays: bool) -> None:
    if stays:
        stored = convert.cast(given, kind)
        stored.validate(full=True)
        assert stored.type == kind
    else:
        with pytest.raises(pa.ArrowException):
            convert.cast(given, kind)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (2**63 - 1, LOCAL, "294247-01-10 04:00:54.775807"),
        (2**63 - 1, ZONED, "294247-01-10 04:00:54.775807Z"),
        (-(2**63), LOCAL, "-290308-12-21 19:59:05.224192"),
        (2**63 - 1, pa.timestamp("ms", "Europe/Berlin"), "292278994-08-17 07:12:55.807Z"),
        (10**15, pa.timestamp("s"), "31690708-07-05 01:46:40"),
        (-(10**17), LOCAL, "-1199-02-15 14:13:20.000000"),
        (10**15, LOCAL, "2001-09-09 01:46:40.000000"),
        (2**31 - 1, pa.date32(), "5881580-07-11"),
        (-(2**31), pa.date32(), "-5877641-06-23"),
        (3_000_000, pa.date32(), "10183-09-21"),
        (0, pa.date32(), "1970-01-01"),
        (-1096193779200000001, LOCAL, "-32768-12-31 23:59:59.999999"),
        (2**63 - 1, pa.timestamp("ns"), "2262-04-11 23:47:16.854775807"),
    ],
)
def test_dates_and_times_of_all_years_have_a_text(number: int, kind: pa.DataType, text: str) -> None:
    assert convert.as_texts(pa.array([number, None, 0], kind))[:2].to_pylist() == [text, None]
    if text[:4] not in ("2001", "1970", "2262"):  # Python has these
        assert convert.python_values(pa.array([[number]], pa.list_(kind))) == [[text]]


@pytest.mark.parametrize("nested", [False, True])
@settings(max_examples=200, deadline=None)
@given(
    digits=st.integers(1, 38),
    places=st.floats(0, 1),
    number=st.integers(1, 40).flatmap(lambda size: st.integers(-(10**size), 10**size)),
    scale=st.integers(0, 38),
)
@example(digits=38, places=18 / 38, number=719885680187940030269, scale=0)
@example(digits=38, places=30 / 38, number=765778449, scale=0)
def test_a_decimal_of_arrow_is_stored_as_it_is_or_refused(
    nested: bool, digits: int, places: float, number: int, scale: int
) -> None:
    kind = pa.decimal128(digits, round(digits * places))
    value = Decimal(number).scaleb(-scale, Context(prec=100))
    values = pa.array([value], pa.decimal128(38, scale) if abs(number) < 10**38 else pa.decimal256(76, scale))
    values, kind = (pa.ListArray.from_arrays([0, 1], values), pa.list_(kind)) if nested else (values, kind)
    with suppress(*REFUSALS):
        assert convert.from_arrow(values, kind).to_pylist() == ([[value]] if nested else [value])


@pytest.mark.parametrize("scale", [0, 10, 17, 18, 38])
def test_a_decimal_is_stored_as_it_is_or_refused(scale: int) -> None:
    chance, kind = random.Random(scale), pa.decimal128(38, scale)
    stored = 0
    for _ in range(1500):
        digits = chance.choice([1, 20, 37, 38, 39, 40, 45])
        value = Decimal((chance.randrange(2), tuple(chance.randrange(10) for _ in range(digits)), -chance.randrange(40)))
        try:
            kept = convert.array([value], kind)[0].as_py()
        except (pa.ArrowException, ValueError):
            continue
        assert kept == value
        stored += 1
    assert stored > 50


@pytest.mark.parametrize("kind", [ZONED, LOCAL, pa.date32(), pa.list_(ZONED)], ids=str)
@pytest.mark.parametrize("text", ["20000-01-01", "-0005-01-01", "0000-12-31"])
def test_a_time_of_numpy_outside_of_pythons_years_is_refused(text: str, kind: pa.DataType) -> None:
    value = np.datetime64(text, "s")
    with pytest.raises(ValueError, match="years 1 to 9999"):
        convert.array([[value] if pa.types.is_list(kind) else value], kind)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (86_400_000_000, pa.time64("us"), "24:00:00.000000"),
        (90_000_000_001, pa.time64("us"), "25:00:00.000001"),
        (-3_600_000, pa.time32("ms"), "-01:00:00.000"),
        (-1, pa.time64("ns"), "-00:00:00.000000001"),
        (360_000, pa.time32("s"), "100:00:00"),
        (3_661, pa.time32("s"), "01:01:01"),
    ],
)
def test_times_beyond_a_day_have_a_text(number: int, kind: pa.DataType, text: str) -> None:
    integers = pa.int64() if kind.bit_width == 64 else pa.int32()
    values = pa.array([number, None, 0], integers).view(kind)
    assert convert.as_texts(values).to_pylist()[:2] == [text, None]
    [items] = convert.python_values(pa.ListArray.from_arrays([0, 3], values))
    assert items == [time(1, 1, 1) if text == "01:01:01" else text, None, time()]
