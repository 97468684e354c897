"""Rows of parquet files: their types in a table, and values that do not fit it."""

from __future__ import annotations

import inspect
import io
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from tests.loading import Files
from volstream.functions.loading import typed_files
from volstream.functions.rejection import FileRejectedError

MOMENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def test_types_that_spark_lacks_become_the_nearest_ones(files: Files) -> None:
    rows = pa.table(
        {
            "u": pa.array([1], pa.uint32()),
            "large": pa.array([2**64 - 1], pa.uint64()),
            "local": pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("ns")),
            "zoned": pa.array([MOMENT], pa.timestamp("ms", tz="Europe/Berlin")),
            "clock": pa.array([time(1, 2, 3)], pa.time32("s")),
            "category": pa.array(["x"]).dictionary_encode(),
            "nested": pa.array([{"x": [1]}]),
            "odd": pa.array([{"a b": 1}]),
            "day": pa.array([date(2024, 1, 2)], pa.date64()),
        }
    )
    assert files.columns(("x.parquet", rows)) == (
        "u BIGINT, large DECIMAL(20,0), local TIMESTAMP, zoned TIMESTAMP, clock STRING, category STRING, "
        "nested STRUCT<x: ARRAY<BIGINT>>, odd STRING, day DATE"
    )
    assert files.rows("x.parquet", rows) == [
        {
            "u": 1,
            "large": Decimal(2**64 - 1),
            "local": MOMENT,
            "zoned": MOMENT,
            "clock": "01:02:03.000",
            "category": "x",
            "nested": {"x": [1]},
            "odd": '{"a b":1}',
            "day": date(2024, 1, 2),
        }
    ]


def test_values_that_do_not_fit_are_rescued_one_by_one(files: Files) -> None:
    rows = pa.table({"n": [1, 300, None], "f": [1.0, 2.5, None], "t": ["5", "x", None], "b": [b"\x00", None, None]})
    assert files.rows("x.parquet", rows, "n TINYINT, f INT, t INT, b INT") == [
        {"n": 1, "f": 1, "t": 5, "b": None, "_rescued_data": '{"b":"AA=="}'},
        {"n": None, "f": None, "t": None, "b": None, "_rescued_data": '{"n":300,"f":2.5,"t":"x"}'},
        {"n": None, "f": None, "t": None, "b": None},
    ]


def test_times_that_python_does_not_have_are_rescued_where_they_do_not_fit(files: Files) -> None:
    far, time = 253402300800000000, pa.timestamp("us", tz="UTC")
    rows = pa.table(
        {
            "i": pa.array([far, 0], time),
            "new": pa.array([far, None], time),
            "day": pa.array([2_932_897, None], pa.date32()),
            "s": pa.array([{"x": far}, {"x": 0}], pa.struct({"x": time})),
            "t": pa.array([far, 0], time),
        }
    )
    columns = "i INT, day INT, s STRUCT<x: TIMESTAMP, y: INT>, t STRING"
    first, second = files.rows("x.parquet", rows, columns, new_columns="rescue")
    assert json.loads(first["_rescued_data"]) == {
        "i": "10000-01-01 00:00:00.000000Z",
        "new": "10000-01-01 00:00:00.000000Z",
        "day": "10000-01-01",
        "s": {"x": "10000-01-01 00:00:00.000000Z"},
    }
    assert first["t"] == "10000-01-01 00:00:00.000000Z"
    assert second["s"] == {"x": datetime(1970, 1, 1, tzinfo=UTC), "y": None}


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        (column.format(kind), zone)
        for column in ("t {}", "s STRUCT<t: {}>")
        for kind, zone in (("TIMESTAMP", "Europe/Berlin"), ("TIMESTAMP", None), ("TIMESTAMP_NTZ", None))
    ],
)
def test_nanoseconds_are_cut_before_1970_too(files: Files, kind: str, zone: str | None) -> None:
    times = pa.array([-1500, -1, 1999, -(10**18) - 1], pa.timestamp("ns", zone))
    rows = pa.table({"t": times, "s": pa.StructArray.from_arrays([times], ["t"])})
    found = [row["t"] if "t" in row else row["s"]["t"] for row in files.rows("x.parquet", rows.select([kind[0]]), kind)]
    begin = datetime(1970, 1, 1, tzinfo=found[0].tzinfo)
    assert [(time - begin) // timedelta(microseconds=1) for time in found] == [-2, -1, 1, -(10**15) - 1]


def test_the_first_nanosecond_is_cut_downwards(files: Files) -> None:
    rows = pa.table({"t": pa.array([-(2**63) + 1], pa.timestamp("ns"))})
    assert files.rows("x.parquet", rows, "t TIMESTAMP_NTZ") == [{"t": datetime(1677, 9, 21, 0, 12, 43, 145224)}]


def test_a_time_that_no_microseconds_hold_is_rescued(files: Files) -> None:
    rows = pa.table({"t": pa.array([2**60, 0], pa.timestamp("ms"))})
    assert files.rows("x.parquet", rows) == [
        {"t": None, "_rescued_data": '{"t":"36536598-01-28 21:54:06.976"}'},
        {"t": datetime(1970, 1, 1, tzinfo=UTC)},
    ]


@pytest.mark.parametrize(
    ("kind", "text"), [(pa.timestamp("us"), "294247-01-10 04:00:54.775807Z"), (pa.date32(), "5881580-07-11")]
)
def test_the_last_date_and_time_keep_their_year_as_text(files: Files, kind: pa.DataType, text: str) -> None:
    rows = pa.table({"v": pa.array([2 ** (kind.bit_width - 1) - 1, None], kind)})
    assert files.rows("x.parquet", rows, "v STRING") == [{"v": text}, {"v": None}]
    assert files.rows("x.parquet", rows, "v INT") == [{"v": None, "_rescued_data": f'{{"v":"{text}"}}'}, {"v": None}]
    nested = pa.table({"v": pa.ListArray.from_arrays([0, 2], rows["v"].combine_chunks())})
    assert files.rows("x.parquet", nested, "v STRING") == [{"v": f'["{text.removesuffix("Z")}",null]'}]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Shanghai", "America/New_York", "UTC"])
def test_the_last_nanosecond_of_any_zone_is_the_same_inside_of_other_values(files: Files, zone: str) -> None:
    times = pa.array([2**63 - 1, 1], pa.timestamp("ns", zone))
    last, first = datetime(2262, 4, 11, 23, 47, 16, 854775, UTC), datetime(1970, 1, 1, tzinfo=UTC)
    nested = pa.table(
        {"v": times, "s": pa.StructArray.from_arrays([times], ["x"]), "l": pa.ListArray.from_arrays([0, 1, 2], times)}
    )
    rows = files.rows("x.parquet", nested, "v TIMESTAMP, s STRUCT<x: TIMESTAMP>, l ARRAY<TIMESTAMP>")
    assert [(row["v"], row["s"]["x"], row["l"][0]) for row in rows] == [(last, last, last), (first, first, first)]


@pytest.mark.parametrize(("kind", "number"), [(pa.float64(), 2.0**62), (pa.float32(), 2.0**32), (pa.float64(), -(2.0**63))])
def test_whole_floats_are_exact_numbers_wherever_they_are(files: Files, kind: pa.DataType, number: float) -> None:
    numbers = pa.array([number, 0.1], kind)
    rows = pa.table({"v": numbers, "d": numbers, "s": pa.StructArray.from_arrays([numbers], ["x"]), "l": [[number], None]})
    columns = "v BIGINT, d DECIMAL(38, 18), s STRUCT<x: DECIMAL(38, 0)>, l ARRAY<BIGINT>"
    found = files.rows("x.parquet", rows, columns)[0]
    assert (found["v"], found["d"], found["s"]["x"], found["l"]) == (int(number), int(number), int(number), [int(number)])


def test_fields_that_a_struct_lacks_are_rescued(files: Files) -> None:
    rows = pa.table({"s": [{"x": 1, "y": "new"}, {"x": 2, "y": None}]})
    assert files.rows("x.parquet", rows, "s STRUCT<x: INT, z: INT>", new_columns="rescue") == [
        {"s": {"x": 1, "z": None}, "_rescued_data": '{"s":{"y":"new"}}'},
        {"s": {"x": 2, "z": None}},
    ]


def test_a_column_of_nulls_only_fits_any_type_and_is_no_column_by_itself(files: Files) -> None:
    rows = pa.table({"n": pa.nulls(1), "a": [1]})
    assert files.columns(("x.parquet", rows)) == "a BIGINT"
    assert files.rows("x.parquet", rows, "n DATE, a INT") == [{"n": None, "a": 1}]


@pytest.mark.parametrize("content", [b"not parquet", b"PAR1" + b"\0" * 20 + b"PAR1"])
def test_what_is_no_parquet_is_rejected(files: Files, content: bytes) -> None:
    with pytest.raises(FileRejectedError, match="cannot be read as parquet"):
        files.rows("x.parquet", content, "a INT")


@pytest.mark.parametrize("name", ["x.parquet", "x.orc"])
def test_a_file_of_too_many_columns_is_rejected_before_they_are_made(
    files: Files, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(typed_files, "MAX_COLUMNS", 100)
    sink = io.BytesIO()
    rows = pa.table({f"c{number}": pa.array([1], pa.int8()) for number in range(101)})
    pq.write_table(rows, sink) if name == "x.parquet" else pyarrow.orc.write_table(rows, sink)
    with pytest.raises(FileRejectedError, match="101 columns; the limit is 100"):
        files.rows(name, sink.getvalue(), "c0 INT", new_columns="rescue")


def test_a_parquet_file_with_too_large_a_footer_is_rejected_before_it_is_parsed(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"a": [1]}).replace_schema_metadata({"note": "x" * 2_000})
    monkeypatch.setattr(typed_files, "_MAX_FOOTER", 10_000)
    assert files.rows("x.parquet", rows) == [{"a": 1}]
    monkeypatch.setattr(typed_files, "_MAX_FOOTER", 1_000)
    with pytest.raises(FileRejectedError, match="footer of the file"):
        files.rows("x.parquet", rows, "a INT")


def _compressed(column: pa.Array) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"c": column}), sink, compression="zstd", write_statistics=False)
    return sink.getvalue()


def _repeated(rows: int, text: str) -> bytes:
    """A file in which one text stands for all rows."""
    return _compressed(pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), [text]))


#: Small files: two gigabytes of one text, a list of many nulls, many rows of nulls, a text of zeros.
BOMBS = {
    "text": lambda: _repeated(2000, "x" * (1 << 20)),
    "list": lambda: _compressed(pa.ListArray.from_arrays([0, 1 << 27], pa.nulls(1 << 27, pa.int8()))),
    "rows": lambda: _compressed(pa.nulls(1 << 27, pa.int8())),
    "zeros": lambda: _compressed(pa.array(["0" * (300 << 20)])),
}


@pytest.mark.parametrize("bomb", ["text", *(pytest.param(name, marks=pytest.mark.long) for name in ("zeros", "list", "rows"))])
def test_a_small_file_does_not_fill_the_memory(files: Files, bomb: str) -> None:
    content = BOMBS[bomb]()
    assert len(content) < 512 << 10
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        with pytest.raises(FileRejectedError, match=r"expands to .* or more\. The limit is 256\.0 MiB"):
            files.rows("x.parquet", content, "c STRING")
    finally:
        pa.set_memory_pool(usual)
    assert counting.max_memory() < 256 << 20


def test_a_text_that_is_repeated_is_read_in_parts(files: Files) -> None:
    rows = files.rows("x.parquet", _repeated(200, "x" * (1 << 20)), "c STRING")
    assert [len(row["c"]) for row in rows] == [1 << 20] * 200


def test_a_file_that_expands_far_is_read_as_long_as_it_is_small(files: Files) -> None:
    assert len(files.rows("x.parquet", pa.table({"c": pa.array(["EUR"] * 300_000), "n": pa.nulls(300_000)}))) == 300_000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_repeated_values_and_nulls_keep_their_places(files: Files, kind: pa.DataType) -> None:
    values = pa.array([b"a", None, b"b", b"a", b""] * 5000, pa.binary()).cast(kind)
    found = files.rows("x.parquet", pa.table({"c": values, "n": range(25000)}))
    assert pa.array([row["c"] for row in found], kind) == values
    assert [row["n"] for row in found] == list(range(25000))


def test_the_columns_are_found_without_decoding_a_row(files: Files) -> None:
    assert files.columns(("x.parquet", _repeated(100, "x" * (1 << 20)))) == "c STRING"
    assert files.columns(("x.parquet", pa.table({"a": pa.array([], pa.int8())}))) == ""


def numbered(begin: int, rows: int, **options: Any) -> bytes:
    """A parquet file with rows from a number on."""
    sink, numbers = io.BytesIO(), range(begin, begin + rows)
    # Texts like the place where one file ends and another begins.
    table = pa.table({"id": numbers, "t": [f"\x00\x00\x00\x00PAR1PAR1{number:06d}" for number in numbers]})
    pq.write_table(table, sink, **options)
    return sink.getvalue()


#: What pyarrow puts between the values and the footer, or leaves out.
WRITTEN: list[dict[str, Any]] = [
    {},
    {"compression": "none", "use_dictionary": False},
    {"compression": "zstd", "row_group_size": 100},
    {"write_page_index": True, "compression": "none"},
    {"write_page_index": True, "data_page_version": "2.0", "data_page_size": 100, "write_page_checksum": True},
    {"write_statistics": False, "version": "1.0"},
    {"bloom_filter_options": {"id": {"ndv": 100_000}}, "write_page_index": True},
]


@pytest.mark.parametrize("options", WRITTEN, ids=str)
@pytest.mark.parametrize(("first", "second"), [(1000, 1000), (1000, 10), (10, 1000), (1000, 0), (0, 1000), (999, 1000)])
def test_parquet_files_that_were_joined_are_rejected(files: Files, options: dict[str, Any], first: int, second: int) -> None:
    if not options.keys() <= inspect.signature(pq.write_table).parameters.keys():
        pytest.skip("this version of pyarrow has no such option")
    before, after = numbered(0, first, **options), numbered(first, second, **options)
    for content, rows in ((before, first), (after, second)):
        assert len(files.rows("x.parquet", content, "id BIGINT, t STRING")) == rows
    for joined in (before + after, before + before + after):
        with pytest.raises(FileRejectedError, match=r"joined|cannot be read as parquet"):
            files.rows("x.parquet", joined, "id BIGINT, t STRING")


def test_bytes_between_the_values_and_the_footer_of_a_parquet_file_are_no_other_file(files: Files) -> None:
    content = numbered(0, 10)
    length = int.from_bytes(content[-8:-4], "little")
    for between in (bytes(3 << 20), b"\x01\0\0\0PAR1PAR1" * 9, b"\xff\xff\xff\xffPAR1PAR1"):
        padded = content[: -8 - length] + between + content[-8 - length :]
        assert len(files.rows("x.parquet", padded, "id BIGINT, t STRING")) == 10


@pytest.mark.parametrize("kind", ["STRING", "STRUCT<a: BIGINT>", "MAP<STRING, STRUCT<x: INT>>"])
def test_a_map_that_repeats_a_key_is_rescued_with_all_its_values(files: Files, kind: str) -> None:
    maps = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    rescued = '[["a",1],["a",2]]'
    assert files.rows("x.parquet", pa.table({"m": maps}), f"m {kind}") == [{"m": None, "_rescued_data": f'{{"m":{rescued}}}'}]
    nested = pa.table({"l": pa.ListArray.from_arrays([0, 1], maps)})
    assert files.rows("x.parquet", nested, "l STRING") == [{"l": f"[{rescued}]"}]
    assert files.rows("x.parquet", nested, "id INT", new_columns="rescue") == [
        {"id": None, "_rescued_data": f'{{"l":[{rescued}]}}'}
    ]


def test_a_map_is_an_object_in_a_text_column_and_fields_of_a_struct(files: Files) -> None:
    rows = pa.table({"m": pa.array([[("a", 1), ("b", 2)], [("a", 3), ("a", 4)]], pa.map_(pa.string(), pa.int64()))})
    assert files.rows("x.parquet", rows, "m STRING")[0] == {"m": '{"a":1,"b":2}'}
    assert files.rows("x.parquet", rows, "m STRUCT<a: INT, b: INT>")[0] == {"m": {"a": 1, "b": 2}}


def test_a_name_in_a_parquet_file_that_is_no_utf_8_rejects_it(files: Files) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"name": [1]}), sink, store_schema=False)
    with pytest.raises(FileRejectedError, match="cannot be read as parquet: 'utf-8' codec can't decode"):
        files.rows("x.parquet", sink.getvalue().replace(b"name", b"n\xffme"), "n INT")


def test_a_page_of_a_parquet_file_that_differs_from_its_checksum_rejects_it(files: Files) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"t": ["as it was"]}), sink, compression="none", write_page_checksum=True)
    damaged = sink.getvalue().replace(b"as it was", b"as it is!", 1)
    with pytest.raises(FileRejectedError, match="CRC checksum"):
        files.rows("x.parquet", damaged, "t STRING")
