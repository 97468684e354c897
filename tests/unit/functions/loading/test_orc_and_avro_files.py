"""Rows of ORC and Avro files have the types that they have there."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pytest

from tests.loading import Files
from volstream.functions.loading.content import reading_as
from volstream.functions.loading.loader import Loader
from volstream.functions.rejection import FileRejectedError

ROWS: list[dict[str, Any]] = [
    {"n": 1, "d": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "m": Decimal("1.50"), "tags": ["a"]},
    {"n": 2**62, "d": None, "at": None, "m": None, "tags": []},
]


def orc(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pyarrow.orc.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def avro(rows: list[dict[str, Any]]) -> bytes:
    types = {
        "n": "long",
        "d": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "m": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2},
        "tags": {"type": "array", "items": "string"},
    }
    fields = [{"name": name, "type": ["null", kind]} for name, kind in types.items()]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "row", "fields": fields}, rows)
    return sink.getvalue()


@pytest.mark.parametrize(("name", "write"), [("x.orc", orc), ("x.avro", avro)])
def test_values_keep_their_types(files: Files, name: str, write: Callable[[list[dict[str, Any]]], bytes]) -> None:
    content = write(ROWS)
    assert files.rows(name, content) == ROWS
    assert files.columns((name, content)).startswith("n BIGINT, d DATE, at TIMESTAMP, m DECIMAL(3,2), tags ARRAY<STRING>")


def test_columns_of_an_orc_file_are_found_before_its_rows_are_decoded(files: Files) -> None:
    footer_only = orc(ROWS)
    damaged = footer_only[:3] + bytes(20) + footer_only[23:]
    assert files.columns(("x.orc", damaged)) == files.columns(("x.orc", footer_only))
    with pytest.raises(FileRejectedError):
        files.rows("x.orc", damaged, "n BIGINT")


@pytest.mark.parametrize("name", ["x.orc", "x.avro"])
def test_what_is_no_such_file_is_rejected(files: Files, name: str) -> None:
    with pytest.raises(FileRejectedError):
        files.rows(name, "text", "n INT")


def test_a_damaged_compressed_block_of_an_orc_file_rejects_it(files: Files) -> None:
    sink = io.BytesIO()
    pyarrow.orc.write_table(pa.table({"n": range(300), "s": [f"{n:06d}" for n in range(300)]}), sink, compression="zlib")
    content = bytearray(sink.getvalue())
    content[120:200] = bytes(80)
    with pytest.raises(FileRejectedError, match=r"cannot be read as orc: .*Zlib"):
        files.rows("x.orc", bytes(content), "n INT")


@pytest.mark.parametrize(
    "error",
    [
        *(pa.ArrowException("Unknown error"), pa.ArrowIndexError("out of bounds"), pa.ArrowNotImplementedError("unknown")),
        *(OverflowError("too large"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), OSError("broken")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_pyarrow_raises_for_broken_files_rejects_them(error: Exception) -> None:
    with pytest.raises(FileRejectedError, match="The file cannot be read as orc"), reading_as("orc"):
        raise error


@pytest.mark.parametrize("error", [pa.ArrowMemoryError("malloc failed"), OSError(errno.EIO, "the disk"), KeyError("ours")])
def test_what_is_no_fault_of_the_file_does_not_reject_it(error: Exception) -> None:
    with pytest.raises(type(error)), reading_as("orc"):
        raise error


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    ("kind", "logical", "number", "column", "text"),
    [
        ("int", "date", 2**31 - 1, "DATE", "5881580-07-11"),
        ("int", "date", 0, "DATE", "1970-01-01"),
        ("long", "timestamp-micros", 2**63 - 1, "TIMESTAMP", "294247-01-10 04:00:54.775807Z"),
        ("long", "timestamp-micros", -1, "TIMESTAMP", "1969-12-31 23:59:59.999999Z"),
        ("long", "timestamp-millis", 10**15, "TIMESTAMP", "33658-09-27 01:46:40.000000Z"),
        ("long", "local-timestamp-micros", 2**61, "TIMESTAMP", "75039-04-04 19:00:13.693952Z"),
    ],
)
def test_dates_and_times_of_avro_files_may_be_after_year_9999(
    files: Files, nullable: bool, kind: str, logical: str, number: int, column: str, text: str
) -> None:
    written = {"type": kind, "logicalType": logical}
    content = avro_numbers(["null", written] if nullable else written, ["null", kind] if nullable else kind, number)
    assert files.columns(("x.avro", content)) == f"v {column}"
    assert files.rows("x.avro", content, "v STRING") == [{"v": text}]
    loader = Loader(f"v {column}, _rescued_data STRING")
    (batch,) = loader(files.file("x.avro", content))
    unit = 1 if kind == "int" else {"millis": 1000}.get(logical[-6:], 1)
    assert batch["v"].cast(pa.int32() if kind == "int" else pa.int64()).to_pylist() == [number * unit]
    assert batch["_rescued_data"].to_pylist() == [None]


def test_a_union_of_dates_and_times_has_times(files: Files) -> None:
    kinds = [{"type": "long", "logicalType": "timestamp-micros"}, {"type": "int", "logicalType": "date"}]
    content = written(kinds, [{"v": date(2026, 1, 2)}, {"v": datetime(2026, 1, 2, 3, tzinfo=UTC)}])
    assert [row["v"] for row in files.rows("x.avro", content)] == [datetime(2026, 1, 2, hour, tzinfo=UTC) for hour in (0, 3)]


def avro_numbers(schema: Any, plain: Any, number: int) -> bytes:
    """An avro file with a number of a logical type, which fastavro writes only for values of Python."""
    return written(schema, []) + written(plain, [{"v": number}])[len(written(plain, [])) :]


def written(kind: Any, rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "row", "fields": [{"name": "v", "type": kind}]}
    fastavro.writer(sink, schema, rows, sync_marker=b"-" * 16)
    return sink.getvalue()


def test_decimals_of_avro_with_more_digits_than_declared_are_rescued_with_all_of_them(files: Files) -> None:
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
    fields = [{"name": "m", "type": amount}, {"name": "of", "type": {"type": "map", "values": amount}}]
    written = io.BytesIO()
    value = Decimal("1234567890123456789012345678.91")
    fastavro.writer(written, {"type": "record", "name": "row", "fields": fields}, [{"m": value, "of": {"a": value}}])
    lying = written.getvalue().replace(b'"precision": 30', b'"precision": 10')
    assert lying != written.getvalue()
    assert files.rows("x.avro", lying, "m DECIMAL(30,2), of MAP<STRING, DECIMAL(30,2)>") == [{"m": value, "of": [("a", value)]}]
    [row] = files.rows("x.avro", lying, "m DECIMAL(10,2)", new_columns="rescue")
    assert row["m"] is None
    assert row["_rescued_data"].count(str(value)) == 2
