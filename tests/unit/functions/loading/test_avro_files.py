"""Avro files that stand for more than they have are refused before they are decoded."""

from __future__ import annotations

import io
import zlib
from typing import Any

import fastavro
import pytest

from volstream.errors import InvalidValueError
from volstream.functions.loading import avro_files


def record(*types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]}


def number(value: int) -> bytes:
    """Avro's long, of one that is not negative."""
    value, found = value << 1, b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def deflated(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


def written(schema: Any, count: int, block: bytes, codec: str = "null", blocks: int = 1) -> io.BytesIO:
    """A file whose blocks are these bytes, whatever they say."""
    found = io.BytesIO()
    fastavro.writer(found, schema, [], codec=codec, sync_marker=b"-" * 16)
    found.write((number(count) + number(len(block)) + block + b"-" * 16) * blocks)
    return found


NULLS, LISTS = {"type": "array", "items": "null"}, {"type": "array", "items": {"type": "array", "items": "int"}}
ITSELF = {"type": "record", "name": "a.N", "fields": [{"name": "n", "type": ["null", "a.N"]}]}
TWICE: Any = "int"
for level in range(30):
    TWICE = {
        "type": "record",
        "name": f"T{level}",
        "fields": [{"name": "a", "type": TWICE}, {"name": "b", "type": f"T{level - 1}" if level else "int"}],
    }

DEEP: Any = "int"
for level in range(50):
    DEEP = {"type": "record", "name": f"D{level}", "fields": [{"name": "d", "type": DEEP}]}

BOMBS: dict[str, tuple[Any, ...]] = {
    "a text of zeros": (record("string"), 1, deflated(number(1 << 25) + b"0" * (1 << 25)), "deflate"),
    "lists of empty lists": (record(LISTS), 1, deflated(number(1 << 25) + bytes(1 << 25)), "deflate"),
    "many blocks": (record("long"), 1 << 22, deflated(bytes(1 << 22)), "deflate", 80),
    "a list of nulls": (record(NULLS), 1, number(1 << 40) + number(0)),
    "lists of records of nulls": (record({"type": "array", "items": [record("null") | {"name": "S"}]}), 1, number(0)),
    "lists of nothing": (record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), 1, number(0)),
    "rows of nulls": (record("null"), 1 << 40, b""),
    "a record in itself": (ITSELF, 1, deflated(b"\x02" * (1 << 23)), "deflate"),
    "records twice in records": (TWICE, 1, b""),
    "lists of records in records": (
        record({"type": "array", "items": DEEP}),
        1,
        deflated(number(200_000) + bytes(200_000) + number(0)),
        "deflate",
    ),
}


@pytest.mark.parametrize(
    "bomb", [pytest.param(name, marks=pytest.mark.long) if name == "many blocks" else name for name in BOMBS]
)
def test_a_small_file_does_not_fill_the_memory(bomb: str) -> None:
    content = written(*BOMBS[bomb])
    assert len(content.getvalue()) < 512 << 10
    with pytest.raises(InvalidValueError, match=r"expands to|take no bytes|contains itself|more than 10,000 types"):
        next(avro_files.parts(content, "file", 10), None)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_records_of_each_codec_are_read_some_at_a_time(codec: str) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "int"]}]}
    schema = record("null", "string", {"type": "array", "items": ["null", inner]}, {"type": "map", "values": "I"})
    rows = [{"f0": None, "f1": "a" * 1000, "f2": [None, {"x": at}], "f3": {"k": {"x": None}}} for at in range(100)]
    content = io.BytesIO()
    fastavro.writer(content, schema, rows, codec=codec, sync_interval=10_000)
    found = list(avro_files.parts(content, "file", 30))
    assert [row for part in found for row in part] == rows
    assert all(30 <= len(part) < 50 for part in found[:-1])


def test_files_that_were_joined_are_told_from_blocks_that_are_too_large() -> None:
    content = io.BytesIO()
    fastavro.writer(content, record("string"), [{"f0": "a"}])
    with pytest.raises(InvalidValueError, match="several Avro files were joined"):
        next(avro_files.parts(io.BytesIO(content.getvalue() * 2), "file", 10), None)
