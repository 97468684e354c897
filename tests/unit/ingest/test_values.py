"""Values of rows: what each type takes, what it becomes, and what is refused."""

from __future__ import annotations

from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from volstream.errors import InvalidValueError
from volstream.ingest.values import TailColumn
from volstream.tables.tails.tail import CHARACTERS, PARTITION

Point = namedtuple("Point", "x y")

INT8, INT16, INT, BIGINT = pa.int8(), pa.int16(), pa.int32(), pa.int64()
ZONED, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
POINT = pa.struct([("x", INT), ("y", pa.string())])


def convert(kind: pa.DataType, value: object, *, characters: str | None = None, truncate: bool = True) -> Any:
    metadata = None if characters is None else {CHARACTERS: characters}
    column = TailColumn.of(pa.field("c", kind, metadata=metadata))
    converter = column.converter(truncate=truncate, on_cut=lambda: None)
    try:
        return converter(value)
    except ValueError as error:
        raise column.refusal(value, str(error)) from None


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.bool_(), True, True),
        (pa.bool_(), np.bool_(False), False),
        (INT8, -128, -128),
        (INT16, 32767, 32767),
        (INT, np.int64(5), 5),
        (INT, 5.0, 5),
        (BIGINT, -(2**63), -(2**63)),
        (pa.float32(), 1.5, 1.5),
        (pa.float32(), float("inf"), float("inf")),
        (pa.float64(), 3, 3.0),
        (pa.decimal128(5, 2), Decimal("1.005"), Decimal("1.01")),
        (pa.decimal128(5, 2), Decimal("-1.005"), Decimal("-1.01")),
        (pa.decimal128(5, 2), 7, Decimal("7.00")),
        (pa.decimal128(5, 2), "999.99", Decimal("999.99")),
        (pa.decimal128(38, 38), Decimal("0.1"), Decimal("0.1")),
        (pa.string(), "é\0", "é\0"),
        (pa.binary(), memoryview(b"ab"), b"ab"),
        (pa.date32(), date(1, 1, 1), date(1, 1, 1)),
        (ZONED, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (ZONED, pd.Timestamp("2026-01-01", tz="UTC"), datetime(2026, 1, 1, tzinfo=UTC)),
        (LOCAL, datetime(2026, 1, 1), datetime(2026, 1, 1)),
        (pa.list_(INT), (1, None), [1, None]),
        (pa.list_(INT), np.array([1, 2]), [1, 2]),
        (pa.list_(pa.list_(INT)), [[1], []], [[1], []]),
        (pa.map_(pa.string(), INT), {"k": 1, "n": None}, [("k", 1), ("n", None)]),
        (POINT, {"x": 1}, {"x": 1, "y": None}),
        (POINT, Point(1, "b"), {"x": 1, "y": "b"}),
        (POINT, '{"y": "b", "x": 1}', {"x": 1, "y": "b"}),
    ],
)
def test_a_value_is_stored_as_its_type_says(kind: pa.DataType, value: object, stored: object) -> None:
    found = convert(kind, value)
    assert found == stored
    assert pa.array([found], kind).to_pylist() == pa.array([stored], kind).to_pylist()


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (pa.bool_(), 1, "a bool is needed"),
        (INT8, 128, "out of the range of TINYINT"),
        (INT16, -32769, "out of the range of SMALLINT"),
        (INT, 2**31, "out of the range of INT"),
        (BIGINT, 2**63, "out of the range of BIGINT"),
        (INT, float("nan"), "for NULL, give None"),
        (INT, np.float64("nan"), "for NULL, give None"),
        (INT, 1.5, "a whole number is needed"),
        (BIGINT, 2.0**60, "a whole number is needed"),
        (INT, True, "a whole number is needed"),
        (INT, "1", "a whole number is needed"),
        (pa.float32(), 1e39, "out of the range of FLOAT"),
        (pa.float32(), 1e-50, "out of the range of FLOAT"),
        (pa.float32(), 2**24 + 1, "cannot represent it exactly"),
        (pa.float64(), 2**53 + 1, "cannot represent it exactly"),
        (pa.float64(), np.int64(2**53 + 1), "cannot represent it exactly"),
        (pa.float64(), 10**400, "out of the range of DOUBLE"),
        (pa.float64(), "1", "a number is needed"),
        (pa.decimal128(5, 2), Decimal("999.995"), r"does not fit DECIMAL\(5, 2\)"),
        (pa.decimal128(5, 2), Decimal("1e40"), r"does not fit DECIMAL\(5, 2\)"),
        (pa.decimal128(5, 2), Decimal("NaN"), "not a finite number"),
        (pa.decimal128(5, 2), 1.5, "a Decimal is needed"),
        (pa.decimal128(5, 2), "one", "not a number"),
        (pa.decimal128(5, 2), "1_0", "not a number"),
        (pa.decimal128(5, 2), "\u0661", "not a number"),
        (pa.string(), 5, "text is needed"),
        (pa.string(), "\ud800", "UTF-8"),
        (pa.binary(), "text", "bytes are needed"),
        (pa.date32(), datetime(2026, 1, 1), "without a time"),
        (ZONED, datetime(2026, 1, 1), "a time zone is needed"),
        (ZONED, date(2026, 1, 1), "a datetime is needed"),
        (ZONED, pd.Timestamp("2026-01-01T00:00:00.000000001", tz="UTC"), "nanoseconds would be lost"),
        (ZONED, datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "not within the years 1 to 9999"),
        (LOCAL, pd.NaT, "a datetime is needed"),
        (LOCAL, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))), "time zone would be lost"),
        (pa.list_(INT), "12", "a list is needed"),
        (pa.list_(INT), [1, "2"], "a whole number is needed"),
        (pa.map_(pa.string(), INT), [("k", 1)], "a dict is needed"),
        (pa.map_(pa.string(), INT), {None: 1}, "NULL inside"),
        (POINT, {"z": 1}, "no field z; its fields are x, y"),
        (POINT, "[1]", "a JSON object is needed"),
        (POINT, "{", "not JSON"),
        (POINT, "[" * 200_000, "not JSON"),
        (POINT, (1, "b"), "a dict, a named tuple"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_column_value_and_reason(kind: pa.DataType, value: object, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason) as refused:
        convert(kind, value)
    assert refused.value.message.startswith(f"Column c cannot be {value!r}"[:40])


@pytest.mark.parametrize(
    ("characters", "value", "stored"),
    [
        *(("varchar(3)", "abcd", "abc"), ("varchar(3)", "éé", "éé"), ("varchar(3)", "a  ", "a  ")),
        *(("char(3)", "a  ", "a"), ("char(3)", "a    ", "a"), ("char(3)", "a bcd", "a b"), ("char(3)", "ab cd", "ab")),
    ],
)
def test_text_is_cut_to_its_column_and_char_has_no_blanks_at_its_end(characters: str, value: str, stored: str) -> None:
    assert convert(pa.string(), value, characters=characters) == stored


def test_text_that_is_too_long_is_an_error_if_it_must_not_be_cut() -> None:
    with pytest.raises(InvalidValueError, match="has 4 characters, and the column 3"):
        convert(pa.string(), "abcd", characters="varchar(3)", truncate=False)


def test_a_long_value_is_shortened_in_its_message() -> None:
    with pytest.raises(InvalidValueError) as refused:
        convert(INT, "x" * 1000)
    assert len(refused.value.message) < 150


def test_an_integer_that_python_does_not_write_is_refused_all_the_same() -> None:
    with pytest.raises(InvalidValueError, match="Column c cannot be this int: it is out of the range of INT"):
        convert(INT, 10**5000)


def partition(value: str, *, nullable: bool = False, name: str = "c") -> Any:
    column = TailColumn.of(pa.field(name, pa.string(), nullable, metadata={PARTITION: "true"}))
    return column.converter(truncate=True, on_cut=lambda: None)(value)


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_delta_stores_as_null_in_a_partition_column_is_null_or_refused(text: str) -> None:
    assert partition(text, nullable=True) is None
    with pytest.raises(ValueError, match="stores this text as NULL in a partition column, and the column is NOT NULL"):
        partition(text)


def test_a_text_that_cannot_name_a_folder_is_refused_in_a_partition_column() -> None:
    with pytest.raises(ValueError, match="cannot contain NUL"):
        partition("a\0b", nullable=True)
    for fits in ("x" * 253, "é" * 126, "/" * 84):  # with the name and the sign
        assert partition(fits) == fits
        with pytest.raises(ValueError, match="255; use a shorter text"):
            partition(fits + "é")
    with pytest.raises(ValueError, match="would have 256 bytes"):
        partition("x" * 253, name="cc")


def test_a_partition_column_of_binary_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="partition columns of BINARY"):
        TailColumn.of(pa.field("c", pa.binary(), metadata={PARTITION: "true"}))


@pytest.mark.parametrize("text", ["9007199254740993.0", "5.00000000000000000001", "1e400", "1e-400"])
def test_a_number_of_json_text_that_would_become_another_is_refused(text: str) -> None:
    kind = pa.struct([("x", pa.int64()), ("y", pa.float64())])
    assert convert(kind, '{"x": 5.0, "y": 1.10}') == {"x": 5, "y": 1.1}
    for name in "xy":
        with pytest.raises(InvalidValueError, match="exactly"):
            convert(kind, f'{{"{name}": {text}}}')


@pytest.mark.parametrize("unit", ["ns", "us", "D"])
def test_times_and_durations_of_numpy_are_no_numbers(unit: str) -> None:
    for array in (np.array([5], f"datetime64[{unit}]"), np.array([5], f"timedelta64[{unit}]")):
        with pytest.raises(InvalidValueError, match="a whole number is needed"):
            convert(pa.list_(BIGINT), array)


@pytest.mark.parametrize("keys", [(1.5, np.float32(1.5).item() + 1e-9), (0.1, 0.1000000001)])
def test_keys_that_become_the_same_are_refused(keys: tuple[Any, Any]) -> None:
    assert len(convert(pa.map_(pa.float64(), INT), dict.fromkeys(keys, 1))) == 2
    with pytest.raises(InvalidValueError, match="two of its keys are stored as the same value"):
        convert(pa.map_(pa.float32(), INT), dict.fromkeys(keys, 1))


def test_bytes_are_no_list_of_numbers() -> None:
    for value in (bytearray(b"x"), memoryview(b"x")):
        with pytest.raises(InvalidValueError, match="a list is needed"):
            convert(pa.list_(BIGINT), value)
