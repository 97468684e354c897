"""Rows of json files: lines, arrays, objects over several lines, and what is none."""

from __future__ import annotations

import json
import tracemalloc
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.loading import Files
from volstream.functions.loading.loader import Loader
from volstream.functions.rejection import FileRejectedError
from volstream.functions.schema import from_ddl

ROWS = [{"a": 1, "b": "x"}, {"a": None, "b": "y\n"}, {"a": 3, "b": None}]


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(map(json.dumps, ROWS)),
        "\ufeff" + "\r\n".join(map(json.dumps, ROWS)) + "\r\n\r\n",
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\n".join(json.dumps(row, indent=2) for row in ROWS),
        "".join(json.dumps(row, indent=2) for row in ROWS),
        f"{json.dumps(ROWS[:2])}\n{json.dumps(ROWS[2:])}\n",
        "".join(map(json.dumps, ROWS)),
        "".join(map(json.dumps, ROWS[:2])) + "\n" + " ".join(map(json.dumps, ROWS[2:])),
        "\n\n" + json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[1:]),
        json.dumps(ROWS[0]) + "\n" + "\n".join(json.dumps(row, indent=2) for row in ROWS[1:]),
    ],
)
def test_lines_arrays_and_objects_over_several_lines_are_rows(files: Files, content: str) -> None:
    assert files.rows("x.json", content) == ROWS


@pytest.mark.parametrize("name", ["x.jsonl", "x.ndjson"])
def test_other_extensions_are_known(files: Files, name: str) -> None:
    assert files.rows(name, '{"a":1}') == [{"a": 1}]


def test_a_line_that_is_no_object_is_rescued_and_costs_no_other_row(files: Files) -> None:
    content = '{"a":1}\n{"a":2\n"text"\n{"a":4}\n{"a":5} {"a":6}\n'
    assert files.rows("x.json", content, "a INT") == [
        {"a": 1},
        {"a": None, "_rescued_data": r'{"_corrupt_record":"{\"a\":2"}'},
        {"a": None, "_rescued_data": r'{"_corrupt_record":"\"text\""}'},
        {"a": 4},
        {"a": 5},
        {"a": 6},
    ]


def test_a_line_of_more_than_objects_is_rescued_as_a_whole(files: Files) -> None:
    for line in ('{"a":1}{"a":', '{"a":1} x', '{"a":1},{"a":2}', "1 2", '{"a":1}[{"a":2}]', '[{"a":1}] {"a":2}'):
        assert files.rows("x.json", f'{{"a":0}}\n{line}\n', "a INT") == [
            {"a": 0},
            {"a": None, "_rescued_data": json.dumps({"_corrupt_record": line}, separators=(",", ":"))},
        ]


def test_objects_without_line_ends_may_be_more_than_a_record(files: Files) -> None:
    record = json.dumps({"a": "x" * (1 << 20)})
    assert len(files.rows("x.json", record * 18, "a STRING")) == 18


def test_an_integer_of_thousands_of_digits_costs_no_other_row(files: Files) -> None:
    digits = "9" * 5000
    assert files.rows("x.json", f'{{"a":{digits}}}\n{{"a":1}}\n', "a INT") == [
        {"a": None, "_rescued_data": f'{{"_corrupt_record":"{{\\"a\\":{digits}}}"}}'},
        {"a": 1},
    ]


def test_an_element_of_an_array_that_is_no_object_is_rescued(files: Files) -> None:
    assert files.rows("x.json", '[{"a":1}, 7, [8]]', "a INT") == [
        {"a": 1},
        {"a": None, "_rescued_data": '{"_corrupt_record":"7"}'},
        {"a": None, "_rescued_data": '{"_corrupt_record":"[8]"}'},
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[{"a":1}, {"a"', r"Expecting ':' delimiter \(character 14\)"),
        ('[{"a":1}', "the array does not end"),
        ('[{"a":1} {"a":2}]', "a comma is missing"),
        ('{\n"a":1\n', "Expecting ',' delimiter"),
        ("[" * 100_000, "a value is nested too deeply"),
        (f'[{{"a":{"9" * 5000}}}]', r"a number has too many digits \(character 1\)"),
    ],
)
def test_a_broken_array_is_rejected_with_the_place(files: Files, content: str, reason: str) -> None:
    with pytest.raises(FileRejectedError, match=f"cannot be read as json: {reason}"):
        files.rows("x.json", content, "a INT")


@pytest.mark.parametrize("content", ["", " \n\n", "[]", "[\n]\n", "\ufeff"])
def test_a_file_without_objects_has_no_rows(files: Files, content: str) -> None:
    assert files.rows("x.json", content, "a INT") == []


def test_a_large_array_is_read_across_its_blocks(files: Files) -> None:
    rows = [{"a": number, "b": "ü" * 5000} for number in range(500)]
    assert files.rows("x.json", json.dumps(rows, ensure_ascii=False)) == rows


def test_a_record_that_is_too_large_is_told(files: Files) -> None:
    for content in (f'{{"a":"{"x" * (18 << 20)}"}}', f'[{{"a":"{"x" * (18 << 20)}"}}]'):
        with pytest.raises(FileRejectedError, match=r"larger than 16\.0 MiB"):
            files.rows("x.json", content, "a STRING")


def test_bytes_that_are_no_text_are_told_with_their_place(files: Files) -> None:
    with pytest.raises(FileRejectedError, match=r"not utf-8 text \(near byte 8\)"):
        files.rows("x.json", b'{"a": "b\xff"}', "a STRING")


def test_half_a_character_is_rescued_as_it_was_written(files: Files) -> None:
    assert files.rows("x.json", '{"a":"\\ud800","b":1}', "a STRING, b INT") == [
        {"a": None, "b": 1, "_rescued_data": '{"a":"\\ud800"}'}
    ]


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES, "c": VALUES}), max_size=8))
def test_no_value_is_lost_whatever_the_columns_are(files: Files, rows: list[dict[str, object]]) -> None:
    content = "\n".join(map(json.dumps, rows))
    found = files.rows("x.json", content, "a BIGINT, b DOUBLE, c STRING")
    assert len(found) == len(rows)
    for before, after in zip(rows, found, strict=True):
        rescued = json.loads(after.get("_rescued_data", "{}"))
        for name, value in before.items():
            kept = rescued.get(name, after[name])
            if type(value) is float and type(kept) is int:  # with the digits that it is written with
                assert kept == Decimal(repr(value))
            else:
                same = (
                    isinstance(value, str) and type(kept) in (int, float) and repr(type(kept)(value.strip())) == repr(kept)
                )  # NaN as well; as in Spark, blanks and separators around a number are no part of it
                assert kept == value or same or json.loads(kept) == value


def test_a_time_in_the_year_10000_in_utc_is_rescued_also_inside_of_a_struct(files: Files) -> None:
    """Python has no such time: no row of a table with one could be collected."""
    file = files.file("x.json", '{"s": {"t": "9999-12-31T23:00:00-05:00"}}')
    (batch,) = Loader("s STRUCT<t: TIMESTAMP>, _rescued_data STRING")(file)
    assert batch["s"].field(0).to_pylist() == [None]
    assert batch["_rescued_data"].to_pylist() == ['{"s":{"t":"9999-12-31T23:00:00-05:00"}}']


@pytest.mark.long
@pytest.mark.parametrize("form", ["lines", "array"])
def test_large_records_are_read_a_few_at_a_time(files: Files, form: str) -> None:
    record = json.dumps({"c": "x" * (4 << 20)})
    text = "\n".join([record] * 40) if form == "lines" else f"[{','.join([record] * 40)}]"
    file = files.file("x.json.zst", pa.compress(text.encode(), "zstd", asbytes=True))
    assert file.size < 100_000
    del text
    tracemalloc.start()
    try:
        rows = sum(batch.num_rows for batch in Loader("c STRING, _rescued_data STRING")(file))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 40
    assert peak < 80 << 20


def test_keys_that_are_data_are_no_columns(files: Files) -> None:
    text = json.dumps({f"k{number}": 1 for number in range(10_001)}) + "\n" + "{}\n" * 10
    with pytest.raises(FileRejectedError, match="more than 10,000 different keys"):
        files.columns(("x.json", text))


@pytest.mark.parametrize(
    "content",
    [
        '{"a":1}{"a":2}{"a":3}',
        '{"a":1}{"a":\n2} {"a":3}',
        '{\n"a":1}\n{"a":2}{"a":3\n}',
        '{"a":1}\n{"a":2}{"a":3}',
        '{"a":1}  {"a":2}\r\n{"a":3}',
    ],
)
def test_objects_one_after_the_other_are_rows_wherever_lines_end(files: Files, content: str) -> None:
    assert files.rows("x.json", content) == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("Records", '{"Records":[{"a":1},{"a":2}],"n":{"Records":[{"a":9}]}}'),
        ("Records", '{"x":[1],"Records":[{"a":1}]}\n{"Records":[]}{"Records":null} {"Records":{"a":2}}'),
        ("d.items", '[{"d":{"items":[{"a":1}]}},\n{"d":{"items":[{"a":2}],"more":"]}"}}]'),
        ("d.items", '{"d":[{"items":[{"a":1}]},{"items":[{"a":2}]}]}'),
        ("Records", '{"version": 1, "x" :\n\tnull, "Records" : [ {"a": 1} ], "n":  {"m": 2}}\n{ "Records": {"a": 2}}'),
        ("Records", '{"Records":  null, "x": "y"} {"version": 1.5, "Records": [{"a": 1}, {"a": 2}]}'),
    ],
)
def test_records_inside_of_a_document_are_rows(files: Files, path: str, content: str) -> None:
    assert files.rows("x.json", content, records=path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"Record":[{"a":1}]}', "an object has no 'Records', where the records are"),
        ("5", "an object has no 'Records', where the records are"),
        ('{"Records":[{"a":1}', "the array does not end"),
        ('{"Records":[]', "the object does not end"),
        ('{"Records" []}', "a colon is missing"),
        ('{"Records":[] "x":1}', "a comma is missing"),
    ],
)
def test_a_document_without_the_records_is_rejected(files: Files, content: str, reason: str) -> None:
    with pytest.raises(FileRejectedError, match=reason):
        files.rows("x.json", content, "a INT", records="Records")


def test_records_of_a_document_that_is_larger_than_a_record_are_read_across_its_blocks(files: Files) -> None:
    content = '{"Records":[' + ",".join(f'{{"a":{number},"t":"{"x" * 1000}"}}' for number in range(20_000)) + "]}"
    assert sum(row["a"] for row in files.rows("x.json", content, records="Records")) == sum(range(20_000))


def test_fields_that_a_struct_lacks_are_found_by_their_structure(files: Files) -> None:
    content = """
        {"s": {"a": 1, "b": {"c": [1, 2.5]}, "A b": 1, "e": null, "l": []}, "l": [{"x": 1}, {"y": "z"}], "m": {"k": {"v": 1}}, "j": {"n": 1}}
        {"s": {"a": 2, "b": {"d": true}}, "m": {"o": {"w": 2}}}
    """
    columns = "s STRUCT<a: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<v: INT>>, j STRING"
    with pytest.raises(FileRejectedError) as error:
        files.rows("x.json", content, columns)
    grown = (
        "s STRUCT<a: INT, b: STRUCT<c: ARRAY<DOUBLE>, d: BOOLEAN>>, l ARRAY<STRUCT<x: INT, y: STRING>>, "
        "m MAP<STRING,STRUCT<v: INT, w: BIGINT>>"
    )
    assert error.value.new_columns == grown
    first, second = files.rows("x.json", content, f"{grown}, j STRING")
    assert first == {
        "s": {"a": 1, "b": {"c": [1.0, 2.5], "d": None}},
        "l": [{"x": 1, "y": None}, {"x": None, "y": "z"}],
        "m": [("k", {"v": 1, "w": None})],
        "j": '{"n":1}',
        "_rescued_data": '{"s":{"A b":1,"l":[]}}',
    }
    assert (second["s"], second["m"]) == ({"a": 2, "b": {"c": None, "d": True}}, [("o", {"v": None, "w": 2})])
    with pytest.raises(FileRejectedError) as in_text:
        files.rows("x.csv", 's\n"{""a"": 1, ""b"": [true]}"\n', "s STRUCT<a: INT>")
    assert in_text.value.new_columns == "s STRUCT<a: INT, b: ARRAY<BOOLEAN>>"


@pytest.mark.parametrize("other", ["5", '"text"', "true", "[1]", '{"b": 1}'])
def test_a_value_of_another_shape_hides_no_field_that_a_struct_lacks(files: Files, other: str) -> None:
    columns = (
        "s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>, m MAP<STRING, STRUCT<a: INT>>, d STRUCT<i: STRUCT<a: INT>, l: ARRAY<INT>>"
    )
    new = '{"a": 1, "n": true}'
    content = f"""
        {{"s": {new}, "l": [{new}, {other}], "m": {{"k": {new}, "o": {other}}}, "d": {{"i": {new}, "l": [1]}}}}
        {{"s": {other}, "l": {other}, "m": {other}, "d": {{"i": {other}, "l": {other}}}}}
    """
    with pytest.raises(FileRejectedError) as error:
        files.rows("x.json", content, columns)
    assert error.value.new_columns is not None
    grown = from_ddl(error.value.new_columns)
    for name, kind in {
        "s": grown.field("s").type,
        "l": grown.field("l").type.value_type,
        "m": grown.field("m").type.item_type,
    }.items():
        assert kind.field("n").type == pa.bool_(), name
    assert grown.field("d").type.field("i").type.field("n").type == pa.bool_()
    first, _ = files.rows("x.json", content, error.value.new_columns)
    assert (first["s"]["n"], first["d"]["i"]["n"]) == (True, True)


@pytest.mark.parametrize("record", ['{"a": "x", "A": "y"}', '{"A": "y", "a": "x"}'])
def test_of_two_spellings_of_a_name_neither_is_lost(files: Files, record: str) -> None:
    row = files.rows("x.json", f'{{"A": 1}}\n{record}\n', "a BIGINT")[1]
    assert json.loads(row["_rescued_data"]) == {"a": "x", "A": "y"}
    row = files.rows("x.json", f'{{"A": 1}}\n{record.replace(chr(34) + "y" + chr(34), "null")}\n', "a BIGINT")[1]
    assert json.loads(row["_rescued_data"]) == {"A": "x"}


def test_an_object_over_several_lines_may_follow_blanks(files: Files) -> None:
    assert files.rows("x.json", '{"a": 1}\r\n\t{\n"a": 2\n}\n  {"a": 3}', "a INT") == [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize("kind", ["DECIMAL(38,17)", "DECIMAL(38,10)"])
def test_a_number_of_more_bits_than_a_decimal_has_is_rescued(files: Files, kind: str) -> None:
    text = "340282366920938463463.374607431768211456"  # 2 ** 128, but for the point
    assert files.rows("x.json", f'{{"v":{text}}}', f"v {kind}") == [{"v": None, "_rescued_data": f'{{"v":{text}}}'}]
    assert files.rows("x.json", f'{{"v":[{text}]}}', f"v ARRAY<{kind}>") == [{"v": None, "_rescued_data": f'{{"v":[{text}]}}'}]
    padded = "1." + "0" * 37
    assert files.rows("x.json", f'{{"v":{padded}}}', f"v {kind}") == [{"v": Decimal(1)}]
