"""Files that tell their types: a table has them, down to the fields of structs, and every value comes back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.loading import Files
from volstream.functions.rejection import FileRejectedError
from volstream.functions.schema import to_ddl

MOMENT, LOCAL = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), datetime(2026, 1, 2, 3, 4, 5, 678000)


def avro(rows: Sequence[Mapping[str, Any]], **types: Any) -> bytes:
    sink = io.BytesIO()
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    fastavro.writer(sink, {"type": "record", "name": "row", "namespace": "n", "fields": fields}, rows)
    return sink.getvalue()


def logical(kind: Any, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


FIXED = {"type": "fixed", "name": "F", "size": 8}


@pytest.mark.parametrize(
    ("kind", "ddl", "written", "read"),
    [
        ("int", "INT", 1, 1),
        ("float", "FLOAT", 0.5, 0.5),
        ("bytes", "BINARY", b"\xff", b"\xff"),
        (FIXED, "BINARY", b"12345678", b"12345678"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "STRING", "A", "A"),
        (logical("bytes", "decimal", precision=12, scale=2), "DECIMAL(12,2)", Decimal("1.50"), Decimal("1.50")),
        (logical("fixed", "decimal", precision=12, scale=2, size=8, name="D"), "DECIMAL(12,2)", *[Decimal("-1.50")] * 2),
        (logical("bytes", "decimal", precision=50, scale=2), "STRING", Decimal("1.50"), "1.50"),
        (logical("int", "date"), "DATE", date(2026, 1, 2), date(2026, 1, 2)),
        (logical("int", "time-millis"), "STRING", time(1, 2, 3), "01:02:03.000000"),
        (logical("long", "timestamp-millis"), "TIMESTAMP", MOMENT, MOMENT),
        (logical("long", "timestamp-micros"), "TIMESTAMP", MOMENT, MOMENT),
        (logical("long", "local-timestamp-micros"), "TIMESTAMP", LOCAL, MOMENT),
        (logical("string", "uuid"), "STRING", UUID(int=7), str(UUID(int=7))),
        (logical("string", "unheard-of"), "STRING", "a", "a"),
        ({"type": "map", "values": ["null", "int"]}, "MAP<STRING,INT>", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        ({"type": "array", "items": logical("string", "uuid")}, "ARRAY<STRING>", [UUID(int=7)], [str(UUID(int=7))]),
        (["null", "int"], "INT", None, None),
        (["int", "long"], "BIGINT", 1, 1),
        (["long", "double"], "DOUBLE", 2**53 + 1, None),
        (["int", "string"], "STRING", 5, "5"),
        (["string", "bytes"], "STRING", b"a", "a"),
        (["string", "bytes"], "STRING", b"\xff", None),
    ],
)
def test_avros_types_are_those_of_the_schema_and_a_union_is_what_holds_all_of_it(
    files: Files, kind: Any, ddl: str, written: object, read: object
) -> None:
    content = avro([{"v": written}], v=kind)
    assert files.columns(("x.avro", content)) == f"v {ddl}"
    (row,) = files.rows("x.avro", content)
    assert row["v"] == read
    assert ("_rescued_data" in row) == (read is None and written is not None)
    inside = avro([{"r": {"v": written}}], r={"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]})
    assert files.columns(("x.avro", inside)) == f"r STRUCT<v: {ddl}>"
    assert files.rows("x.avro", inside)[0]["r"] == {"v": read}


def test_a_record_that_is_used_twice_and_records_of_a_union_have_their_fields(files: Files) -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    other = {"type": "record", "name": "Q", "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "string"}]}
    content = avro([{"a": {"x": 1}, "b": {"x": 2}, "u": {"x": 3}}], a=point, b="n.P", u=["n.P", other])
    assert files.columns(("x.avro", content)) == "a STRUCT<x: INT>, b STRUCT<x: INT>, u STRUCT<x: BIGINT, y: STRING>"
    assert files.rows("x.avro", content) == [{"a": {"x": 1}, "b": {"x": 2}, "u": {"x": 3, "y": None}}]


def test_structs_and_lists_of_several_files_are_widened_by_their_fields(files: Files) -> None:
    one = pa.table({"l": pa.array([[]], pa.list_(pa.null())), "s": [{"a": 1, "d": date(2026, 1, 2)}], "m": [[{"x": 1}]]})
    other = pa.table({"l": [[1]], "s": [{"a": 1.5, "d": MOMENT, "b": "new"}], "m": [[{"x": "a"}]]})
    columns = files.columns(("1.parquet", one), ("2.parquet", other))
    assert columns == "l ARRAY<BIGINT>, s STRUCT<a: DOUBLE, d: TIMESTAMP, b: STRING>, m ARRAY<STRUCT<x: STRING>>"
    assert files.rows("1.parquet", one, columns) == [
        {"l": [], "s": {"a": 1.0, "d": datetime(2026, 1, 2, tzinfo=UTC), "b": None}, "m": [{"x": "1"}]}
    ]


@pytest.mark.parametrize("new_columns", ["add", "fail"])
def test_fields_that_the_table_lacks_are_told(files: Files, new_columns: str) -> None:
    rows = pa.table({"s": [{"x": 1, "y": "new", "z": None}], "l": [[{"A": 1, "b": 2}]], "e": pa.array([[]], pa.list_(pa.null()))})
    with pytest.raises(FileRejectedError) as error:
        files.rows("x.parquet", rows, "s STRUCT<x: INT>, l ARRAY<STRUCT<a: INT>>", new_columns=new_columns)
    assert error.value.new_columns == "s STRUCT<x: INT, y: STRING>, l ARRAY<STRUCT<a: INT, b: BIGINT>>"


def test_empty_lists_of_nothing_are_no_column_and_rescued(files: Files) -> None:
    rows = pa.table({"e": pa.array([[]], pa.list_(pa.null())), "a": [1]})
    assert files.rows("x.parquet", rows, "a INT", new_columns="fail") == [{"a": 1, "_rescued_data": '{"e":[]}'}]


def test_columns_and_fields_of_one_name_are_all_there(files: Files) -> None:
    twice = pa.StructArray.from_arrays([pa.array([4]), pa.array([5])], names=["y", "y"])
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3]), twice], names=["x", "x", "X", "s"])
    assert files.rows("x.parquet", rows) == [{"x": 1, "s": '{"y":4,"y_2":5}', "_rescued_data": '{"x_2":2,"X":3}'}]
    assert files.rows("x.parquet", rows.select(["s"]), "s STRUCT<y: INT>", new_columns="rescue") == [
        {"s": {"y": 4}, "_rescued_data": '{"s":{"y_2":5}}'}
    ]


def test_bytes_are_the_text_that_they_are_in_utf_8_or_rescued(files: Files) -> None:
    rows = pa.table({"v": [b"plain", b"\xff"], "s": [{"v": b"plain"}, {"v": b"\xff"}], "j": [{"v": b"plain"}, None]})
    assert files.rows("x.parquet", rows, "v STRING, s STRUCT<v: STRING>, j STRING") == [
        {"v": "plain", "s": {"v": "plain"}, "j": '{"v":"cGxhaW4="}'},
        {"v": None, "s": {"v": None}, "j": None, "_rescued_data": '{"v":"/w==","s":{"v":"/w=="}}'},
    ]


def test_maps_are_objects_in_text_and_for_structs(files: Files) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    rows = pa.table({"t": pa.array([[("a", 1)]], kind), "s": pa.array([[("a", 1), ("b", 2)]], kind)})
    assert files.rows("x.parquet", rows, "t STRING, s STRUCT<a: INT>", new_columns="rescue") == [
        {"t": '{"a":1}', "s": {"a": 1}, "_rescued_data": '{"s":{"b":2}}'}
    ]
    structs = pa.table({"m": [{"a": 1, "b": None}]})
    assert files.rows("x.parquet", structs, "m MAP<STRING, STRING>") == [{"m": [("a", "1"), ("b", None)]}]


def test_times_with_a_zone_are_none_without_one(files: Files) -> None:
    rows = pa.table({"e": [MOMENT], "s": [{"e": MOMENT, "d": date(2026, 1, 2)}]})
    assert files.rows("x.parquet", rows, "e TIMESTAMP_NTZ, s STRUCT<e: TIMESTAMP_NTZ, d: TIMESTAMP_NTZ>") == [
        {
            "e": None,
            "s": {"e": None, "d": datetime(2026, 1, 2)},
            "_rescued_data": '{"e":"2026-01-02T03:04:05.678000+00:00","s":{"e":"2026-01-02T03:04:05.678000+00:00"}}',
        }
    ]


def test_durations_are_text_as_in_iso_8601(files: Files) -> None:
    long = pa.array([2**60], pa.duration("s"))
    spans = pa.array([timedelta(days=1, hours=2, microseconds=5)], pa.duration("us"))
    rows = pa.table(
        {"d": spans, "n": pa.array([-1], pa.duration("ns")), "s": pa.StructArray.from_arrays([spans], ["d"]), "l": long}
    )
    assert files.columns(("x.parquet", rows)) == "d STRING, n STRING, s STRUCT<d: STRING>, l STRING"
    assert files.rows("x.parquet", rows) == [
        {"d": "P1DT2H0M0.000005S", "n": "-P0DT0H0M0.000000001S", "s": {"d": "P1DT2H0M0.000005S"}, "l": f"{2**60} s"}
    ]
    assert files.rows("x.parquet", rows.select(["d"]), "d BIGINT") == [{"d": None, "_rescued_data": '{"d":"P1DT2H0M0.000005S"}'}]


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.large_string()),
        pa.list_view(pa.string_view()),
        pa.list_(pa.string(), 2),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_kinds_of_lists_are_arrays(files: Files, kind: pa.DataType) -> None:
    rows = pa.table({"l": pa.array([["a", "b"], None, ["c", None]], kind)})
    if "view" in str(kind) or "[2]" in str(kind):
        pytest.importorskip("pyarrow", "26", reason="older ones do not write such lists")
    assert files.columns(("x.parquet", rows)) == "l ARRAY<STRING>"
    assert [row["l"] for row in files.rows("x.parquet", rows)] == [["a", "b"], None, ["c", None]]


TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=3)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Any]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda unscaled: Decimal(unscaled).scaleb(-scale))


#: Arrow type of a column, Avro type of the field that it comes from, and values of both.
LEAVES: Sequence[tuple[pa.DataType, Any, st.SearchStrategy[Any]]] = (
    (pa.bool_(), "boolean", st.booleans()),
    (pa.int32(), "int", st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), "long", st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), "double", FINITE),
    (pa.string(), "string", TEXTS),
    (pa.binary(), "bytes", st.binary(max_size=3)),
    (pa.decimal128(12, 2), logical("bytes", "decimal", precision=12, scale=2), decimals(12, 2)),
    (pa.date32(), logical("int", "date"), st.dates(date(1900, 1, 1))),
    (pa.timestamp("us", "UTC"), logical("long", "timestamp-micros"), TIMES),
)


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, Any, st.SearchStrategy[Any]]:
    """An Arrow type, the same type in Avro, and its values."""
    shape = draw(st.sampled_from(["leaf", "list", "map", "struct"] if depth else ["leaf"]))
    if shape == "leaf":
        kind, schema, values = draw(st.sampled_from(LEAVES))
    elif shape == "struct":
        fields = draw(st.lists(columns(depth - 1), min_size=1, max_size=3))
        names = [f"f{at}" for at in range(len(fields))]
        kind = pa.struct([(name, field[0]) for name, field in zip(names, fields, strict=True)])
        listed = [{"name": name, "type": field[1]} for name, field in zip(names, fields, strict=True)]
        schema = {"type": "record", "name": f"r{draw(st.uuids()).hex}", "fields": listed}
        values = st.fixed_dictionaries({name: field[2] for name, field in zip(names, fields, strict=True)})
    else:
        inner, schema, items = draw(columns(depth - 1))
        if shape == "list":
            kind, schema, values = pa.list_(inner), {"type": "array", "items": schema}, st.lists(items, max_size=2)
        else:
            kind, schema = pa.map_(pa.string(), inner), {"type": "map", "values": schema}
            values = st.dictionaries(TEXTS, items, max_size=2)
    return kind, ["null", schema], st.none() | values


def parquet_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def orc_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pyarrow.orc.write_table(table, sink)
    return sink.getvalue()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.data(), columns())
def test_whatever_the_schema_is_types_and_values_come_back(files: Files, data: st.DataObject, column: Any) -> None:
    kind, schema, values = column
    given_ = data.draw(st.lists(values, min_size=1, max_size=3))
    table = pa.table({"c": pa.array(given_, kind)})
    writers: Mapping[str, Callable[[], bytes]] = {
        "x.parquet": lambda: parquet_of(table),
        "x.orc": lambda: orc_of(table),
        "x.avro": lambda: avro([{"c": value} for value in given_], c=schema),
    }
    for name, write in writers.items():
        content = write()
        if name == "x.orc" and pyarrow.orc.read_table(io.BytesIO(content)).to_pylist() != table.to_pylist():
            continue  # PyArrow's own writer loses values of a struct that follows NULL
        assert files.columns((name, content)) == to_ddl(table.schema)
        assert files.rows(name, content) == table.to_pylist()
        # As text nothing is lost either.
        rows = files.rows(name, content, "c STRING")
        for row, value in zip(rows, given_, strict=True):
            assert (row["c"] is None) == (value is None or "_rescued_data" in row)
            if isinstance(value, dict | list):
                json.loads(row["c"])
