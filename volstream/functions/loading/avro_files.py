"""Rows of Avro files, which contain their schema.

A few bytes can expand to gigabytes: compressed blocks, arrays of values without bytes, records in records. So
the whole file is scanned, block by block, before anything is decoded.
"""

from __future__ import annotations

import bz2
import functools
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import fastavro
import pyarrow as pa

from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError
from volstream.functions.loading import typed_files
from volstream.functions.loading.columns import ArrowColumn, Chunk, FileColumn, TypedColumn
from volstream.functions.loading.content import MAX_RECORD_BYTES, Part, max_expanded_size
from volstream.functions.rejection import FileRejectedError
from volstream.functions.types import convert
from volstream.functions.types.kinds import MAX_DIGITS, TIMESTAMP, TIMESTAMP_NTZ, of_arrow
from volstream.functions.types.widen import widen

#: Maximum number of types in a schema, counting named types wherever they are used.
_MAX_TYPES = 10_000

_SYNC_BYTES = 16

#: A record in memory, a dict, takes some hundred bytes, but perhaps one byte in a file. Blocks of such
#: records are smaller.
_RECORD_WEIGHT = 16

#: Records in memory at a time.
_RECORDS = 10_000


#: Arrow types of Avro's types, and of its logical types of integers.
_SIMPLE: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[str | None, pa.DataType] = {
    "date": pa.date32(),
    **dict.fromkeys(("time-millis", "time-micros"), pa.time64("us")),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), TIMESTAMP),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), TIMESTAMP_NTZ),
}

#: The Arrow types of dates and times read as numbers: Python lacks years after 9999, fastavro lacks
#: nanoseconds.
_AS_NUMBERS: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, zone)
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}

#: By Avro's name of the codec. A new decompressor is made for each block.
_DECOMPRESSORS: Mapping[str, Any] = {
    "deflate": lambda: zlib.decompressobj(-zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}


def chunks(source: Part) -> Iterator[Chunk]:
    """Yields the rows of an Avro file, with the file's types.

    Raises:
        FileRejectedError: it is not an Avro file, or expands too far.
    """
    try:
        content = source.seekable()
        types: Sequence[tuple[str, pa.DataType]] | None = None
        for records in parts(content, "file", _RECORDS, source.expansion.check, as_numbers=True):
            if types is None:
                types, metadata = _columns_of(content)
            columns = [_column(name, kind, [row[name] for row in records]) for name, kind in types]
            if typed_files.is_former(metadata):
                columns = [
                    replace(column, values=typed_files.rebased(column.values, metadata))
                    if isinstance(column, ArrowColumn)
                    else column
                    for column in columns
                ]
            yield Chunk(len(records), columns)
    except InvalidValueError as error:
        raise FileRejectedError(str(error)) from None


def _columns_of(file: IO[bytes]) -> tuple[Sequence[tuple[str, pa.DataType]], Mapping[str, str]]:
    """Returns the fields of a file's records with their Arrow types, and its metadata. Raises
    FileRejectedError if its values are not records."""
    position = file.tell()
    file.seek(0)
    opened = fastavro.reader(file)
    kind, metadata = _Schema(opened.writer_schema, "file").arrow, opened.metadata
    file.seek(position)
    if not pa.types.is_struct(kind):
        raise FileRejectedError("The file's values are not records.")
    # Records have fields.
    types = {field["name"]: field["type"] for field in opened.writer_schema["fields"]}  # type: ignore[index, call-overload]
    moments = {name: _moment(node) for name, node in types.items()}
    return [(field.name, field.type if (moment := moments[field.name]) is None else moment[1]) for field in kind], metadata


def _moment(node: Any) -> tuple[dict[str, Any], pa.DataType] | None:
    """Returns the schema of a field of dates or times, possibly NULL, and its type. Returns None for other
    values."""
    kinds = [field for field in (node if isinstance(node, list) else [node]) if field != "null"]
    if len(kinds) != 1 or not isinstance(kinds[0], dict):
        return None
    kind = _AS_NUMBERS.get((str(kinds[0]["type"]), str(kinds[0].get("logicalType"))))
    return None if kind is None else (kinds[0], kind)


def _leave_numbers(schema: Any) -> None:
    """Makes a reader with this schema return the dates and times of records as numbers."""
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if (moment := _moment(field["type"])) is not None:
            del moment[0]["logicalType"]


def _leave_digits(schema: Any) -> None:
    """Makes a reader return all digits of a decimal: fastavro rounds to the precision in the schema."""
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        schema["precision"] = MAX_RECORD_BYTES
    for node in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _leave_digits(node)


def _column(name: str, kind: pa.DataType, values: Sequence[Any]) -> FileColumn:
    try:
        if kind in _AS_NUMBERS.values() and {*map(type, values)} <= {int, type(None)}:
            return ArrowColumn(name, pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind))
        return ArrowColumn(name, convert.array(values, kind))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):  # several types, or none in Arrow
        return TypedColumn(name, values, of_arrow(kind, utc=True, lossless=False))


def parts(
    file: IO[bytes], what: str, records: int, check: Callable[[int], None] = lambda _: None, *, as_numbers: bool = False
) -> Iterator[list[Any]]:
    """Yields the records of a seekable file, at least ``records`` at a time unless they are large.

    Args:
        what: the file's name in the error.
        check: called with the file's expanded size before records are decoded.
        as_numbers: return dates and times in fields as numbers.

    Raises:
        InvalidValueError: it is not an Avro file, or expands too far.
    """
    try:
        file.seek(0)
        sizes = _block_sizes(file, what)
        check(sum(sizes))
        file.seek(0)
        batch: list[Any] = []
        pending_bytes = 0
        blocks = fastavro.block_reader(file)
        _leave_digits(blocks.writer_schema)
        if as_numbers:
            _leave_numbers(blocks.writer_schema)
        for block, size in zip(blocks, sizes, strict=True):
            if batch and (len(batch) >= records or pending_bytes + size > MAX_RECORD_BYTES):
                yield batch
                batch, pending_bytes = [], 0
            batch.extend(block)
            pending_bytes += size
        if batch:
            yield batch
    except (InvalidValueError, FileRejectedError):
        raise
    except Exception as error:  # noqa: BLE001  # its codecs and parsers may raise anything
        raise InvalidValueError(
            f"The {what} is not an Avro file: {type(error).__name__}: {error}.",
            "An Avro file contains its schema, as Avro's DataFileWriter writes it.",
        ) from None


def _block_sizes(file: IO[bytes], what: str) -> list[int]:
    """Returns the approximate memory of each block in bytes. Raises InvalidValueError if it is too much."""
    opened = fastavro.reader(file)
    schema = _Schema(opened.writer_schema, what)
    position, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(position)
    sizes: list[int] = []
    while file.tell() < end:
        count, length = _number(file), _number(file)
        if count < 0 or length < 0:  # the header of another file begins this way
            raise InvalidValueError(f"The {what} is damaged, or several Avro files were joined in it.", "Upload them separately.")
        if length > MAX_RECORD_BYTES:
            raise _too_large(what)
        expanded = _expanded(file.read(length), opened.codec)
        # A field without bytes, NULL, takes memory as well. And each byte of an array's items may be a
        # record, in records.
        sizes.append(max(expanded, expanded * schema.levels * _RECORD_WEIGHT, count * schema.types))
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
    """Reads an Avro long."""
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
    """Returns the uncompressed size of a block, or one more than the maximum."""
    match codec:
        case "null":
            return len(block)
        case "snappy":  # begins with its length, which the decompressor trusts
            return _unsigned(io.BytesIO(block))
        case "zstandard":
            return len(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read(MAX_RECORD_BYTES + 1))
        case _ if codec in _DECOMPRESSORS:
            return len(_DECOMPRESSORS[codec]().decompress(block, MAX_RECORD_BYTES + 1))
        case _:
            raise ValueError(f"the codec {codec} is not supported")


class _Schema:
    """A schema, traversed with its named types wherever they are used.

    Attributes:
        arrow: the Arrow type of its values. For a union, the type that holds the values of all its types.
        types: number of types.
        levels: nesting depth of records in items.

    Raises:
        InvalidValueError: it has too many types, a record contains itself (decoding it exhausts the stack),
            or the values of an array or map take no bytes.
    """

    def __init__(self, schema: Any, what: str) -> None:
        self._what = what
        self._named: dict[str, Any] = {}
        self.types = self.levels = 0
        self.arrow = self._walk(schema, (), many=False, level=0)

    def _walk(self, node: Any, within: tuple[str, ...], *, many: bool, level: int) -> pa.DataType:
        self.types += 1
        self.levels = max(self.levels, level)
        if self.types > _MAX_TYPES:
            raise self._refusal(f"more than {_MAX_TYPES:,} types")
        if isinstance(node, list):
            branches = [self._walk(part, within, many=many, level=level) for part in node if part != "null"]
            return functools.reduce(widen, [of_arrow(kind, utc=True, lossless=False) for kind in branches], pa.null())
        node = self._named.get(node, node) if isinstance(node, str) else node
        kind = node["type"] if isinstance(node, dict) else node
        if kind in ("record", "error", "fixed", "enum"):
            self._named[node["name"]] = node
        if many and (kind == "null" or (kind in ("record", "error") and not node["fields"]) or _is_empty(node)):
            raise self._refusal("an array or map with values that take no bytes")
        match kind:
            case "record" | "error":
                if node["name"] in within:
                    raise self._refusal(f"a record that contains itself: {node['name']}")
                inner, level = (*within, node["name"]), level + many
                fields = [(part["name"], self._walk(part["type"], inner, many=many, level=level)) for part in node["fields"]]
                return pa.struct(fields)
            case "array":
                return pa.list_(self._walk(node["items"], within, many=True, level=level))
            case "map":
                return pa.map_(pa.string(), self._walk(node["values"], within, many=True, level=level))
            case dict() | list():
                return self._walk(kind, within, many=many, level=level)
        return _of_leaf(node, kind)

    def _refusal(self, what: str) -> InvalidValueError:
        return InvalidValueError(f"The schema of the {self._what} has {what}.")


def _of_leaf(node: Any, kind: str) -> pa.DataType:
    logical = node.get("logicalType") if isinstance(node, dict) else None
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return pa.decimal128(node["precision"], node.get("scale", 0)) if node["precision"] <= MAX_DIGITS else pa.string()
    return _LOGICAL.get(logical, _SIMPLE[kind]) if kind in ("int", "long") else _SIMPLE[kind]


def _is_empty(node: Any) -> bool:
    return isinstance(node, dict) and node["type"] == "fixed" and not node["size"]
