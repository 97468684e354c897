"""Which type texts and values read as, and what fits a type."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.loading import Content, Files
from volstream.functions.loading.columns import JsonColumn
from volstream.functions.loading.texts import fit_text, of_text
from volstream.functions.types.kinds import TIMESTAMP


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", None, " 4 "], pa.int64()),
        (["1", "2.5", ".5", "1e3"], pa.float64()),
        (["true", "FALSE"], pa.bool_()),
        (["2024-02-29"], pa.date32()),
        (["2024-02-29", "2024-02-29T10:00:00.123456789+02:00", "2024-02-29 10:00"], TIMESTAMP),
        (["007", "8"], pa.string()),
        (["+4915112345678", "8"], pa.string()),
        (["+1.5", "8"], pa.string()),
        (["1234567890123456789012"], pa.string()),
        (["2024-02-30"], pa.string()),
        (["0000-01-01"], pa.string()),
        (["0000-01-01 00:00"], pa.string()),
        (["1", "x"], pa.string()),
        (["0x1F"], pa.string()),
        (["", "1"], pa.string()),
        ([None], pa.null()),
        ([], pa.null()),
    ],
)
def test_texts_read_as_the_most_specific_type_that_loses_nothing(texts: list[str | None], kind: Any) -> None:
    assert of_text(pa.array(texts, pa.string())) == kind


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" +7 ", pa.int32(), 7),
        ("007", pa.int64(), 7),
        ("0x1F", pa.int64(), None),
        ("300", pa.int8(), None),
        ("1.0", pa.int64(), None),
        ("1e3", pa.float64(), 1000.0),
        ("-Infinity", pa.float64(), float("-inf")),
        ("1,5", pa.float64(), None),
        ("1.25", pa.decimal128(5, 2), Decimal("1.25")),
        ("1.255", pa.decimal128(5, 2), None),
        ("True", pa.bool_(), True),
        ("1", pa.bool_(), None),
        ("2024-02-30", pa.date32(), None),
        ("0000-01-01", pa.date32(), None),
        ("0001-01-01", pa.date32(), date(1, 1, 1)),
        ("0000-12-31 23:59:59", TIMESTAMP, None),
        ("0000-12-31 23:59:59", pa.timestamp("us"), None),
        ("0001-01-01 00:00+01:00", TIMESTAMP, None),
        ("2024-02-03 04:05", TIMESTAMP, datetime(2024, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-02-03T04:05:06.1234567+0200", TIMESTAMP, datetime(2024, 2, 3, 2, 5, 6, 123456, tzinfo=UTC)),
        ("2024-02-03", TIMESTAMP, datetime(2024, 2, 3, tzinfo=UTC)),
        ("2024-02-03 25:00", TIMESTAMP, None),
        ("2024-02-03 04:05", pa.timestamp("us"), datetime(2024, 2, 3, 4, 5)),
        ("2024-02-03 04:05Z", pa.timestamp("us"), None),
        ("ü", pa.binary(), "ü".encode()),
    ],
)
def test_a_text_is_a_value_of_a_type_or_none(text: str, kind: pa.DataType, value: object) -> None:
    assert fit_text(pa.array(["?", text, None]), kind)[1].as_py() == value


#: A code in a column of numbers, its value where the type is declared, and where it was found in files.
CODES = [
    ("007", 7, None),
    (" +7 ", 7, None),
    ("-07", -7, None),
    ("00", 0, None),
    ("00.5", 0.5, None),
    ("+1e3", 1000, None),
    *((text, float(text), float(text)) for text in ("0", "-0.5", "1.50", "1e3", "1e+03", ".5", "5", " 7 ")),
]


def _leaf(value: Any) -> Any:
    """What is in a list or a struct of one value."""
    while isinstance(value, list | dict):
        [value] = value if isinstance(value, list) else value.values()
    return value


@pytest.mark.parametrize("column", ["n DOUBLE", "n DECIMAL(6,2)", "l ARRAY<DOUBLE>", "s STRUCT<x: DOUBLE>"])
@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.parquet"])
def test_codes_are_numbers_only_where_someone_declared_the_type(files: Files, name: str, column: str) -> None:
    own = column.partition(" ")[0]
    for text, declared, found in CODES:
        if "DECIMAL" in column and "e" in text:
            continue
        value: Any = {"n": text, "l": [text], "s": {"x": text}}[own]
        rows = pa.table({own: [value]})
        written = value if isinstance(value, str) else json.dumps(value)
        content: Any = {
            "x.csv": own + '\n"' + written.replace('"', '""') + '"\n',
            "x.json": json.dumps({own: value}),
            "x.parquet": rows,
        }[name]
        for inferred, expected in (("", declared), (own, found)):
            [row] = files.rows(name, content, column, inferred=inferred)
            read = _leaf(row[own])
            assert read == (None if expected is None else pytest.approx(expected)), (text, inferred)
            assert ("_rescued_data" in row) is (expected is None)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([True], pa.bool_()),
        ([True, 1], pa.string()),
        (["1", 1], pa.string()),
        ([{"x": 1}], pa.string()),
        ([None], pa.null()),
    ],
)
def test_values_of_json_have_a_type_and_nested_ones_are_text(values: list[object], kind: Any) -> None:
    assert JsonColumn("", values).kind() == kind


def test_json_fits_declared_columns_deeply_and_what_does_not_is_rescued(files: Files) -> None:
    columns = (
        "d DECIMAL(10,2), s STRUCT<x: INT, Y: STRING>, l ARRAY<BIGINT>, t TIMESTAMP, m MAP<STRING, INT>, b BINARY, "
        "f DOUBLE, day DATE"
    )
    content = (
        '{"d":1.10,"s":{"x":1,"y":"z","q":9},"l":[1,2],"t":"2024-01-01","m":{"k":1},"b":"AA==","f":1,"day":"2024-01-02"}\n'
        '{"d":1.123,"s":{"x":"no"},"l":[1,"b"],"t":5,"m":[1],"b":"?","f":true,"day":7}\n'
    )
    assert files.rows("x.json", content, columns, new_columns="rescue") == [
        {
            "d": Decimal("1.10"),
            "s": {"x": 1, "Y": "z"},
            "l": [1, 2],
            "t": datetime(2024, 1, 1, tzinfo=UTC),
            "m": [("k", 1)],
            "b": b"\0",
            "f": 1.0,
            "day": date(2024, 1, 2),
            "_rescued_data": '{"s":{"q":9}}',
        },
        {
            **dict.fromkeys(["d", "l", "t", "m", "b", "f", "day"]),
            "s": {"x": None, "Y": None},
            "_rescued_data": '{"d":1.123,"s":{"x":"no"},"l":[1,"b"],"t":5,"m":[1],"b":"?","f":true,"day":7}',
        },
    ]


def test_integers_of_json_keep_their_digits(files: Files) -> None:
    content = f'{{"n":{2**53 + 1},"f":{2**53 + 1},"whole":2.0,"half":2.5,"huge":{10**30}}}'
    assert files.rows("x.json", content, "n BIGINT, f DOUBLE, whole INT, half INT, huge BIGINT") == [
        {
            "n": 2**53 + 1,
            "f": None,
            "whole": 2,
            "half": None,
            "huge": None,
            "_rescued_data": f'{{"f":{2**53 + 1},"half":2.5,"huge":{10**30}}}',
        }
    ]
    assert files.columns(("x.json", content)).endswith("huge STRING")


def test_json_in_a_csv_file_fits_a_declared_struct(files: Files) -> None:
    assert files.rows("x.csv", 'id,s\n1,"{""x"":1}"\n2,no\n', "id INT, s STRUCT<x: INT>") == [
        {"id": 1, "s": {"x": 1}},
        {"id": 2, "s": None, "_rescued_data": '{"s":"no"}'},
    ]


@pytest.mark.parametrize(
    "content",
    ['{"m": {"1": "a", "01": "b"}}\n', pa.table({"m": pa.array([[("1", "a"), ("01", "b")]], pa.map_(pa.string(), pa.string()))})],
)
def test_keys_that_become_the_same_are_rescued(files: Files, content: Content) -> None:
    name = "x.parquet" if isinstance(content, pa.Table) else "x.jsonl"
    [row] = files.rows(name, content, "m MAP<INT, STRING>")
    assert row["m"] is None
    assert row["_rescued_data"] in ('{"m":{"1":"a","01":"b"}}', '{"m":[["1","a"],["01","b"]]}')
    assert files.rows(name, content, "m MAP<STRING, STRING>") == [{"m": [("1", "a"), ("01", "b")]}]
