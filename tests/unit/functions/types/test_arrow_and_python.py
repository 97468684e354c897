"""Arrow values of a function's rows, in frames and tables, are stored or refused as the same values in dicts."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from volstream.functions.returned import rows_of
from volstream.functions.rows import ArrowRows, Bounds, NotRowsError, RowRequirements
from volstream.functions.schema import from_ddl
from volstream.functions.types import convert
from volstream.functions.types.kinds import BY_NAME

DAY, HOUR = datetime(2026, 1, 1), datetime(2026, 1, 1, 5)
DAY_IN_NANOSECONDS = 1_767_225_600 * 10**9

#: Arrays of every Arrow type, by values that some columns hold and others do not. The exception: decimals of more than 38 digits
#: after the point, whose end is 0, are cast, while Python's are refused.
SOURCES: list[pa.Array] = [
    *(
        pa.array([value], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
        for value in (0, 1, 12)
    ),
    *(pa.array([value]) for value in (-1, 300, 1_767_225_600, 2**24 + 1, 2**53 + 1, 2**60, -(2**63))),
    pa.array([2**63 + 5], pa.uint64()),
    *(pa.array([value]) for value in (0.0, 1.5, 2.0, 1.1, 1e17, 1e19, 1e39, 1e-300, float("inf"), float("nan"))),
    pa.array([1.5, 2.0], pa.float16()),
    pa.array([0.1, 3.0], pa.float32()),
    *(pa.array([Decimal(text)]) for text in ("1.10", "2", "0.5", "1e3", "12345678901234567890")),
    pa.array([Decimal("2.50")], pa.decimal256(50, 2)),
    pa.array([True, False]),
    *(pa.array([text]) for text in ("12", "1.5", "false", "2026-01-01", "2026-01-01T00:00:00Z", "x", "")),
    pa.array(["12"], pa.large_string()),
    pa.array(["12"], pa.string_view()),
    *(pa.array([value]) for value in (b"x", b"\xff")),
    pa.array([b"xy"], pa.large_binary()),
    pa.array([b"xy"], pa.binary_view()),
    pa.array([b"xy"], pa.binary(2)),
    pa.array([date(2026, 1, 1)]),
    pa.array([date(2026, 1, 1)], pa.date64()),
    *(pa.array([moment], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns") for moment in (DAY, HOUR)),
    *(pa.array([moment], pa.timestamp("us", tz=zone)) for zone in ("UTC", "Europe/Berlin", "+02:00") for moment in (DAY, HOUR)),
    *(pa.array([DAY_IN_NANOSECONDS + more], pa.timestamp("ns")) for more in (1, 1000)),
    pa.array([timedelta(1)]),
    pa.array([time(1)]),
    pa.array([time(1)], pa.time32("s")),
    pa.nulls(2),
    pa.array(["a", None, "a"]).dictionary_encode(),
    pa.array([5, None, 5]).dictionary_encode(),
]

COLUMNS: dict[str, pa.DataType] = {
    **BY_NAME,
    "DECIMAL(10,2)": pa.decimal128(10, 2),
    "DECIMAL(5,1)": pa.decimal128(5, 1),
    "DECIMAL(38,18)": pa.decimal128(38, 18),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
}


def _listed(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


#: What has other values: an array, and a column.
NESTED: dict[str, tuple[Any, Any]] = {
    "list": (_listed, pa.list_),
    "large": (lambda values: _listed(values).cast(pa.large_list(values.type)), pa.list_),
    "fixed": (lambda values: pa.FixedSizeListArray.from_arrays(values, len(values)), pa.list_),
    "view": (lambda values: pa.array(_listed(values).to_pylist(), pa.list_view(_decoded(values).type)), pa.list_),
    "list of lists": (lambda values: _listed(_listed(values)), lambda kind: pa.list_(pa.list_(kind))),
    "struct": (
        lambda values: pa.StructArray.from_arrays([values], ["x"]),
        lambda kind: pa.struct([("y", pa.string()), ("x", kind)]),
    ),
    "strange struct": (lambda values: pa.StructArray.from_arrays([values], ["z"]), lambda kind: pa.struct([("x", kind)])),
    "struct as map": (lambda values: pa.StructArray.from_arrays([values], ["x"]), lambda kind: pa.map_(pa.string(), kind)),
    "map": (
        lambda values: pa.array([[("k", value)] for value in values.to_pylist()], pa.map_(pa.string(), _decoded(values).type)),
        lambda kind: pa.map_(pa.string(), kind),
    ),
    "map as struct": (
        lambda values: pa.array([[("k", value)] for value in values.to_pylist()], pa.map_(pa.string(), _decoded(values).type)),
        lambda kind: pa.struct([("k", kind)]),
    ),
}


def stored(convert_values: Any) -> str:
    """Returns the values that are stored, exactly as they are, or that they are refused."""
    try:
        found = convert_values()
    except convert.WRONG_VALUES:
        return "refused"
    found.validate(full=True)
    return f"{found.type}: {found.to_pylist()!r}"


@pytest.mark.parametrize("column", COLUMNS)
def test_arrow_values_are_stored_or_refused_as_the_same_values_of_python(column: str) -> None:
    kind, kept, refused = COLUMNS[column], 0, 0
    for values in SOURCES:
        wanted = stored(lambda values=values: convert.array(values.to_pylist(), kind))
        assert stored(lambda values=values: convert.from_arrow(values, kind)) == wanted, f"{values.type} {values.to_pylist()}"
        kept, refused = kept + (wanted != "refused"), refused + (wanted == "refused")
    assert kept >= 2, "some fit"
    assert refused >= 20, "some do not"


@pytest.mark.parametrize("nested", NESTED)
def test_arrow_values_inside_of_others_are_stored_or_refused_as_the_same_values_of_python(nested: str) -> None:
    of_values, of_kind = NESTED[nested]
    kept = 0
    for values, inner in itertools.product(SOURCES, COLUMNS.values()):
        given, kind = of_values(values), of_kind(inner)
        python = given.to_pylist(maps_as_pydicts="strict")
        wanted = stored(lambda python=python, kind=kind: convert.array(python, kind))
        found = stored(lambda given=given, kind=kind: convert.from_arrow(given, kind))
        assert found == wanted, f"{given.type} {python} as {kind}"
        kept += wanted != "refused"
    assert (kept > 100) is (nested != "strange struct")


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ("TIMESTAMP", [1_767_225_600]),
        ("TIMESTAMP_NTZ", [1_767_225_600]),
        ("BIGINT", [datetime(2026, 1, 1)]),
        ("BIGINT", [True]),
        ("BIGINT", ["12"]),
        ("BOOLEAN", ["false"]),
        ("BOOLEAN", [1]),
        ("STRING", [1.1]),
        ("STRING", [date(2026, 1, 1)]),
        ("DATE", ["2026-01-01"]),
        ("DATE", [Decimal(1)]),
        ("DECIMAL(38,18)", [1.1]),
        ("DOUBLE", [Decimal("1.1")]),
        ("ARRAY<TIMESTAMP>", [[5]]),
        ("STRUCT<x: STRING>", [{"x": 1}]),
    ],
)
def test_what_would_be_another_value_is_refused_in_dicts_frames_and_tables(column: str, given: list[Any]) -> None:
    expected = RowRequirements(from_ddl(f"a {column}"), Bounds())
    for frame in (pd.DataFrame({"a": given}), pa.table({"a": given}), pa.record_batch({"a": given})):
        with pytest.raises(NotRowsError, match=r"Column 'a' of a batch cannot be"):
            rows_of(frame, expected)
    with pytest.raises(convert.WRONG_VALUES):
        convert.array(given, expected.columns.field("a").type)  # type: ignore[union-attr]  # it has columns


@pytest.mark.parametrize(
    ("column", "given", "kept"),
    [
        ("BIGINT", [1.0, None, 3.0], [1, None, 3]),
        ("BIGINT", [1e17], [10**17]),
        ("DOUBLE", [1, 2], [1.0, 2.0]),
        ("DECIMAL(10,2)", [1, 2], [Decimal("1.00"), Decimal("2.00")]),
        ("BIGINT", [Decimal(2)], [2]),
        ("DATE", [DAY], [date(2026, 1, 1)]),
        ("TIMESTAMP", [DAY], [DAY.replace(tzinfo=UTC)]),
        ("TIMESTAMP_NTZ", [DAY], [DAY]),
        ("STRING", [float("nan"), "x"], [None, "x"]),
        ("MAP<STRING, DOUBLE>", [{"a": 1.0}, None], [[("a", 1.0)], None]),
    ],
)
def test_frames_have_what_their_columns_hold(column: str, given: list[Any], kept: list[Any]) -> None:
    rows, _ = rows_of(pd.DataFrame({"a": given}), RowRequirements(from_ddl(f"a {column}"), Bounds()))
    assert isinstance(rows, ArrowRows)
    assert [row["a"] for row in rows.to_pylist()] == kept
