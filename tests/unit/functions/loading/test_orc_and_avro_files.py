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
