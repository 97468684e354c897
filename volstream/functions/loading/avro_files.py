"""Rows of Avro files, which contain their schema.

A few bytes can stand for gigabytes: blocks that compress, arrays of values without bytes, records in records. So a file is walked
through, block by block, before anything is decoded.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any
from uuid import UUID

import fastavro
import pyarrow as pa

from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError
from volstream.functions.file import File
from volstream.functions.loading.columns import ArrowColumn, Chunk, FileColumn, JsonColumn
from volstream.functions.loading.content import MAX_RECORD_BYTES, max_expanded_size
from volstream.functions.rejection import FileRejectedError

#: Types of a schema, with those of its named types wherever they are used.
_MAX_TYPES = 10_000

_SYNC_BYTES = 16

#: A record in memory, a dict, takes some hundred bytes; in a file perhaps one. Blocks of such records are smaller.
_RECORD_WEIGHT = 16

#: Records in memory at a time.
_RECORDS = 10_000


#: By Avro's name of the codec; each is new for a block.
_DECOMPRESSORS: Mapping[str, Any] = {
    "deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}


def chunks(file: File) -> Iterator[Chunk]:
    """Yields the rows of an Avro file, with the types that they have there.

    Raises:
        FileRejectedError: it is not such a file, or expands too far.
    """
    try:
        for records in parts(file.open(), "file", _RECORDS):
            if not isinstance(records[0], dict):
                raise FileRejectedError("The file's values are not records.")
            yield Chunk(len(records), [_column(name, [record[name] for record in records]) for name in records[0]])
    except InvalidValueError as error:
        raise FileRejectedError(str(error)) from None


def _column(name: str, values: Sequence[Any]) -> FileColumn:
    plain = [str(value) if isinstance(value, UUID) else value for value in values]
    try:
        return ArrowColumn(name, pa.array(plain))
    except (pa.ArrowException, OverflowError):  # of several types
        return JsonColumn(name, plain)


def parts(file: IO[bytes], what: str, records: int) -> Iterator[list[Any]]:
    """Yields the records of a seekable file, at least so many at a time unless they are large.

    Args:
        what: what it is called in the error.

    Raises:
        InvalidValueError: it is not an Avro file, or expands too far.
    """
    try:
        file.seek(0)
        sizes = _checked(file, what)
        file.seek(0)
        batch: list[Any] = []
        held = 0
        for block, size in zip(fastavro.block_reader(file), sizes, strict=True):
            if batch and (len(batch) >= records or held + size > MAX_RECORD_BYTES):
                yield batch
                batch, held = [], 0
            batch.extend(block)
            held += size
        if batch:
            yield batch
    except InvalidValueError:
        raise
    except Exception as error:  # noqa: BLE001  # it raises whatever its codecs and parsers raise
        raise InvalidValueError(
            f"The {what} is not an Avro file: {type(error).__name__}: {error}.",
            "An Avro file contains its schema, as Avro's DataFileWriter writes it.",
        ) from None


def _checked(file: IO[bytes], what: str) -> list[int]:
    """Returns about how much each block takes, in bytes. Raises InvalidValueError if it is too much."""
    opened = fastavro.reader(file)
    types, levels = _types(opened.writer_schema, what)
    position, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(position)
    sizes: list[int] = []
    while file.tell() < end:
        count, length = _number(file), _number(file)
        if not 0 <= length <= MAX_RECORD_BYTES or count < 0:
            raise _too_large(what)
        expanded = _expanded(file.read(length), opened.codec)
        # A field without bytes, NULL, takes memory as well; and of an array's items each byte may be a record, in records.
        sizes.append(max(expanded, expanded * levels * _RECORD_WEIGHT, count * types))
        if sizes[-1] > MAX_RECORD_BYTES:
            raise _too_large(what)
        file.seek(_SYNC_BYTES, os.SEEK_CUR)
    if sum(sizes) > max_expanded_size(end):
        raise InvalidValueError(
            f"The {what} has {format_size(end)} and expands to {format_size(sum(sizes))}.",
            f"The limit is {format_size(max_expanded_size(end))}: split it.",
        )
    return sizes


def _too_large(what: str) -> InvalidValueError:
    return InvalidValueError(
        f"The {what} has a block that expands to more than {format_size(MAX_RECORD_BYTES)}.",
        "Write it with a smaller sync interval.",
    )


def _number(file: IO[bytes]) -> int:
    """Reads Avro's long."""
    encoded = _unsigned(file)
    return (encoded >> 1) ^ -(encoded & 1)


def _unsigned(file: IO[bytes]) -> int:
    number = shift = 0
    while True:
        (byte,) = file.read(1)
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _expanded(block: bytes, codec: str) -> int:
    """Returns how many bytes a block has without its compression, or one more than it may have."""
    match codec:
        case "null":
            return len(block)
        case "snappy":  # begins with its length, by which it is decompressed
            return _unsigned(io.BytesIO(block))
        case "zstandard":
            return len(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read(MAX_RECORD_BYTES + 1))
        case _ if codec in _DECOMPRESSORS:
            return len(_DECOMPRESSORS[codec]().decompress(block, MAX_RECORD_BYTES + 1))
        case _:
            raise ValueError(f"the codec {codec} is not supported")


def _types(schema: Any, what: str) -> tuple[int, int]:
    """Returns how many types a schema has, counted where they are used; and how deep records are nested in items.

    Raises:
        InvalidValueError: they are too many; a record contains itself, of which decoding exhausts the stack; or an array or map
            has values that take no bytes.
    """
    named: dict[str, Any] = {}
    count = levels = 0

    def walk(node: Any, within: tuple[str, ...], *, many: bool, level: int = 0) -> None:
        nonlocal count, levels
        count += 1
        levels = max(levels, level)
        if count > _MAX_TYPES:
            raise InvalidValueError(f"The schema of the {what} has more than {_MAX_TYPES:,} types.")
        if isinstance(node, list):
            for branch in node:
                if branch != "null":
                    walk(branch, within, many=many, level=level)
            return
        node = named.get(node, node) if isinstance(node, str) else node
        kind = node["type"] if isinstance(node, dict) else node
        if kind in ("record", "error", "fixed", "enum"):
            named[node["name"]] = node
        if many and (kind == "null" or (kind in ("record", "error") and not node["fields"]) or _is_empty(node)):
            raise InvalidValueError(f"The schema of the {what} has an array or map with values that take no bytes.")
        if kind in ("record", "error"):
            if node["name"] in within:
                raise InvalidValueError(f"The schema of the {what} has a record that contains itself: {node['name']}.")
            for field in node["fields"]:
                walk(field["type"], (*within, node["name"]), many=many, level=level + many)
        elif kind in ("array", "map"):
            walk(node["items" if kind == "array" else "values"], within, many=True, level=level)
        elif isinstance(kind, dict | list):
            walk(kind, within, many=many, level=level)

    walk(schema, (), many=False)
    return count, levels


def _is_empty(node: Any) -> bool:
    return isinstance(node, dict) and node["type"] == "fixed" and not node["size"]
