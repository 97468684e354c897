"""Numbers of files: in the table as they are, or in the rescued data with all their digits."""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Callable
from datetime import datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.loading import Files

WHOLE_FROM = {"FLOAT": 2**24, "DOUBLE": 2**53}


@pytest.mark.parametrize("name", ["x.csv", "x.json"])
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("FLOAT", "1e39", None),
        ("FLOAT", "1e-50", None),
        ("FLOAT", "16777217", None),
        ("FLOAT", "16777218", 16777218.0),
        ("FLOAT", "0.1", float(np.float32(0.1))),
        ("FLOAT", "3.4028235e38", float(np.float32(3.4028235e38))),
        ("DOUBLE", "1e400", None),
        ("DOUBLE", "1e-400", None),
        ("DOUBLE", "9007199254740993", None),
        ("DOUBLE", "9007199254740993.5", None),
        ("DOUBLE", "9007199254740992", 2.0**53),
        ("DOUBLE", "123456789012345678901234567890", None),
        ("DOUBLE", "9223372036854775808", 2.0**63),
        ("DOUBLE", "9223372036854775809", None),
        ("DOUBLE", "107015916750367536", 107015916750367536.0),
        ("FLOAT", "9223372036854775808", 2.0**63),
        ("DOUBLE", "1e23", 1e23),
        ("DOUBLE", "0.1234567890123456789", 0.12345678901234568),
        ("DOUBLE", "-0.0", -0.0),
        ("DOUBLE", "5e-324", 5e-324),
        ("DOUBLE", f"1e{'9' * 30}", None),
        ("DOUBLE", f"0.{'3' * 100_000}", 1 / 3),
    ],
    ids=lambda one: str(one)[:24],
)
def test_a_floating_column_takes_what_it_can_say(files: Files, name: str, kind: str, text: str, value: float | None) -> None:
    content = f"n,other\n{text},1\n" if name == "x.csv" else f'{{"n":{text}}}\n'
    (row,) = files.rows(name, content, f"n {kind}, other INT")
    if value is not None:
        assert row["n"] == value
        assert math.copysign(1, row["n"]) == math.copysign(1, value)
        assert "_rescued_data" not in row
    else:
        assert row["n"] is None
        assert text in row["_rescued_data"].replace("E+", "e").replace("E", "e")


NUMBERS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.integers(2**53 - 3, 2**53 + 3).map(str),
    st.integers(2**63 - 3, 2**63 + 3).map(str),
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-420, 420)),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "DECIMAL(30,6)", "INT", "BIGINT", "STRING", "ARRAY<DOUBLE>", None])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(NUMBERS, min_size=1, max_size=5))
def test_generated_numbers_are_in_the_table_or_rescued(files: Files, kind: str | None, texts: list[str]) -> None:
    nested = kind == "ARRAY<DOUBLE>"
    content = "".join(f'{{"n":{f"[{text}]" if nested else text}}}\n' for text in texts)
    columns = None if kind is None else f"n {kind}"
    for row, text in zip(files.rows("x.json", content, columns), texts, strict=True):
        (value,) = row["n"] if nested and row["n"] is not None else (row["n"],)
        if value is None:
            found = json.loads(row["_rescued_data"], parse_float=Decimal)["n"]
            assert Decimal(found[0] if nested else found) == Decimal(text)
        elif isinstance(value, float):
            limit = WHOLE_FROM["FLOAT" if kind == "FLOAT" else "DOUBLE"]
            near = float(np.float32(text)) if kind == "FLOAT" else float(text)
            assert value == near
            assert value != 0 or Decimal(text) == 0
            written = str(np.float32(value)) if kind == "FLOAT" else repr(value)
            # A double that is a float32, too, may be written with other digits than the latter.
            is_written = repr(float(text)) == text and float(text) == value
            assert abs(Decimal(text)) < limit or is_written or Decimal(text) in (Decimal(value), Decimal(written))
        else:
            assert Decimal(value) == Decimal(text)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ('{"n":1.10}\n{"n":"text"}\n', "1.10"),
        ('{"n":0.1234567890123456789}\n{"n":"text"}\n', "0.1234567890123456789"),
        ('{"n":{"a":12345678901234567890.12,"b":[1.10]}}\n', '{"a":12345678901234567890.12,"b":[1.10]}'),
        ('{"n":{"a":NaN}}\n', '{"a":"NaN"}'),
    ],
)
def test_text_keeps_all_digits_and_is_valid_json(files: Files, content: str, value: str) -> None:
    assert files.rows("x.json", content)[0]["n"] == value


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        (pa.array([1e39]), "FLOAT", None),
        (pa.array([0.1]), "FLOAT", float(np.float32(0.1))),
        (pa.array([16777217.0]), "FLOAT", None),
        (pa.array([7], pa.int8()), "DECIMAL(3,2)", Decimal("7.00")),
        (pa.array([7], pa.int64()), "DECIMAL(38,30)", Decimal("7." + 30 * "0")),
        (pa.array([2**62]), "DECIMAL(5,2)", None),
        (pa.array([0.125]), "DECIMAL(5,2)", None),
        (pa.array([0.25], pa.float32()), "DECIMAL(5,2)", Decimal("0.25")),
        (pa.array([Decimal("9007199254740993")]), "DOUBLE", None),
        (pa.array([float("nan")]), "FLOAT", "nan"),
        (pa.array([float("nan")]), "STRING", "NaN"),
        (pa.array([[float("nan"), -float("inf")]]), "ARRAY<STRING>", ["NaN", "-Infinity"]),
        (pa.array([float("inf")]), "DECIMAL(5,2)", None),
    ],
)
def test_values_of_parquet_files_are_not_rounded_to_others(files: Files, given: Any, kind: str, value: Any) -> None:
    (row,) = files.rows("x.parquet", pa.table({"n": given}), f"n {kind}")
    assert str(row["n"]) == str(value)
    if value is None:
        assert "n" in json.loads(row["_rescued_data"])


@pytest.mark.parametrize(("kind", "places"), [("DOUBLE", 2), ("DOUBLE", 6), ("FLOAT", 2)])
def test_decimals_become_the_nearest_floats(files: Files, kind: str, places: int) -> None:
    numbers = [Decimal(number).scaleb(-places) for number in range(0, 10_000_019, 997)]
    rows = files.rows("x.parquet", pa.table({"n": pa.array(numbers, pa.decimal128(12, places))}), f"n {kind}")
    nearest = np.array([*map(float, numbers)]) if kind == "DOUBLE" else np.array([*map(str, numbers)]).astype(np.float32)
    assert [row["n"] for row in rows] == nearest.tolist()


@pytest.mark.parametrize("kind", ["BIGINT", "DECIMAL(38,2)", "DOUBLE", "STRING"])
def test_a_number_with_a_huge_exponent_takes_no_memory(files: Files, kind: str) -> None:
    (row,) = files.rows("x.json", '{"n":1e999999999}\n', f"n {kind}")
    assert "1E+999999999" in (row["n"], row.get("_rescued_data", "")[5:-1])


def test_spark_s_times_of_all_years_are_read(files: Files) -> None:
    times = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us"))}), sink, use_deprecated_int96_timestamps=True)
    rows = files.rows("x.parquet", sink.getvalue(), "t TIMESTAMP_NTZ")
    assert [row["t"] for row in rows] == times


#: Without rounding.
EXACT = Context(prec=100)


@st.composite
def columns_and_numbers(draw: st.DrawFn) -> tuple[int, int, list[Decimal]]:
    """The digits and places of a DECIMAL, and numbers that may have more."""
    digits = draw(st.integers(1, 38))
    scale = draw(st.integers(0, digits))
    whole = st.integers(0, 39).flatmap(lambda size: st.integers(-(10**size), 10**size))
    places = st.sampled_from([0, 0, 1, 2, scale, min(scale + 1, 38)])
    numbers = st.builds(lambda number, places: Decimal(number).scaleb(-places, EXACT), whole, places)
    return digits, scale, draw(st.lists(numbers, min_size=1, max_size=8))


def in_json(numbers: list[Decimal], form: str) -> bytes:
    return "".join(f'{{"n":{form % format(number, "f")}}}\n' for number in numbers).encode()


def in_arrow(numbers: list[Decimal], kind: pa.DataType) -> pa.Table:
    """The numbers that the type holds."""
    integer = pa.types.is_integer(kind)
    plain = [int(n) if integer else n for n in numbers if not integer or n == n.to_integral_value(context=EXACT)]
    return pa.table({"n": [value for number in plain for value in held(number, kind)]}, pa.schema([("n", kind)]))


def held(number: int | Decimal, kind: pa.DataType) -> list[int | Decimal]:
    try:
        values: list[int | Decimal] = pa.array([number], kind).to_pylist()
    except (pa.ArrowException, OverflowError):
        return []
    return values


#: The file's name, how it has a column of numbers, its type around them, and how a value has its number.
WAYS: dict[str, tuple[str, Callable[[list[Decimal]], Any], str, Callable[[Any], Any]]] = {
    "csv": ("x.csv", lambda numbers: "n,other\n" + "".join(f"{one:f},1\n" for one in numbers), "{}", lambda n: n),
    "folder": ("n={}/x.csv", lambda _: "other\n1\n", "{}", lambda n: n),
    "json": ("x.json", lambda numbers: in_json(numbers, "%s"), "{}", lambda n: n),
    "text": ("x.json", lambda numbers: in_json(numbers, '"%s"'), "{}", lambda n: n),
    "list": ("x.json", lambda numbers: in_json(numbers, '["%s"]'), "ARRAY<{}>", lambda n: n[0]),
    "map": ("x.json", lambda numbers: in_json(numbers, '{"a":"%s"}'), "MAP<STRING, {}>", lambda n: n[0][1]),
    "struct": ("x.json", lambda numbers: in_json(numbers, '{"a":"%s"}'), "STRUCT<a: {}>", lambda n: n["a"]),
    **{
        str(kind): ("x.parquet", functools.partial(in_arrow, kind=kind), "{}", lambda n: n)
        for kind in (pa.int64(), pa.uint64(), pa.decimal128(38, 0), pa.decimal128(38, 19), pa.decimal128(20, 2))
    },
}


@pytest.mark.parametrize("way", WAYS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=columns_and_numbers())
@example(drawn=(38, 18, [Decimal("719885680187940030269")]))
@example(drawn=(38, 30, [Decimal(765778449)]))
@example(drawn=(37, 35, [Decimal(13705)]))
@example(drawn=(38, 0, [Decimal("336141272985117899826309208729028091534")]))
def test_a_decimal_column_has_a_number_or_it_is_rescued(files: Files, way: str, drawn: tuple[int, int, list[Decimal]]) -> None:
    digits, scale, numbers = drawn
    name, written, kind, number_of = WAYS[way]
    name, numbers = name.format(format(numbers[0], "f")), numbers[:1] if way == "folder" else numbers
    content = written(numbers)
    if isinstance(content, pa.Table):
        numbers = [Decimal(number) for number in content["n"].to_pylist()]
    rows = files.rows(name, content, f"n {kind.format(f'DECIMAL({digits},{scale})')}, other INT")
    for row, number in zip(rows, numbers, strict=True):
        fits = number.copy_abs() < 10 ** (digits - scale) and EXACT.remainder(number.scaleb(scale, EXACT), Decimal(1)) == 0
        found = None if row["n"] is None else number_of(row["n"])
        assert (found, "_rescued_data" in row) == ((number, False) if fits else (None, True))
