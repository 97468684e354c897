"""Rows of files with their own types: parquet, ORC, and the formats of plug-ins."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet as pq

from volstream.base import plugins
from volstream.base.definitions import FileFormat
from volstream.base.model.units import format_size
from volstream.base.plugins import Group
from volstream.functions.loading.columns import ArrowColumn, Chunk, ReadTextColumn
from volstream.functions.loading.content import Part, reading_as
from volstream.functions.loading.options import LoadOptions
from volstream.functions.loading.texts import Notation
from volstream.functions.rejection import FileRejectedError
from volstream.functions.types.kinds import is_bytes, is_text

# Dates and times that Spark wrote in its stale calendar: Julian before 1582-10-15, Gregorian since.
#
# All files of Spark before version 3 use it, and later files of its ``LEGACY`` modes. The files' metadata
# tell, as Spark's ``DataSourceUtils`` interprets them. A date is the same day, month and year in both
# calendars, but a different number of days.

_VERSION, _ZONE = "org.apache.spark.version", "org.apache.spark.timeZone"

#: From each of these days since 1970, a number of days is added. From Spark's ``RebaseDateTime``.
_SWITCHES = np.array(
    [
        *(-719164, -682945, -646420, -609895, -536845, -500320, -463795),
        *(-390745, -354220, -317695, -244645, -208120, -171595, -141427),
    ]
)
_ADDED = np.array([2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0])

_DAY = 86_400_000_000

#: 1900-01-01 in microseconds since 1970. Earlier times also depend on the writer's zone, which had different
#: offsets in the stale calendar.
_ZONED = -2_208_988_800_000_000


def is_former(metadata: Mapping[str, str], *, int96: bool = False) -> bool:
    """Returns whether, according to a file's metadata, a column's values may be of the stale calendar.

    Args:
        int96: the column has parquet's INT96, for which Spark has had a separate mode since 3.1.
    """
    version = metadata.get(_VERSION)
    if version is None:
        return False
    before, mark = (("1.", "2.", "3.0."), "INT96") if int96 else (("1.", "2."), "DateTime")
    return version.startswith(before) or f"org.apache.spark.legacy{mark}" in metadata


def rebased(values: pa.Array, metadata: Mapping[str, str]) -> pa.Array:
    """Converts values of a file from the stale calendar to today's.

    Raises:
        FileRejectedError: a value cannot be converted: a date within a nested value, or a time before 1900
            from a writer in a zone other than UTC.
    """
    if pa.types.is_date32(values.type):
        return _shifted(values)
    if pa.types.is_timestamp(values.type):
        if metadata.get(_ZONE, "UTC") not in ("UTC", "Z", "GMT", "Etc/UTC") and _is_before(values, _ZONED):
            raise _refusal("times before 1900 of a writer in another zone than UTC")
        return _shifted(values)
    for leaf in _leaves(values):
        if _is_before(leaf, int(_SWITCHES[-1]) * _day(leaf)):
            raise _refusal("dates before 1582-10-15 inside of other values")
    return values


def _shifted(values: pa.Array) -> pa.Array:
    day = _day(values)
    if not _is_before(values, int(_SWITCHES[-1]) * day):
        return values
    numbers = pc.fill_null(_numbers(values), 0).to_numpy(zero_copy_only=False)
    index = np.searchsorted(_SWITCHES, numbers // day, side="right") - 1
    added = np.where(numbers // day < _SWITCHES[-1], _ADDED[np.maximum(index, 0)], 0)
    shifted = pa.array((numbers + added * day).astype(numbers.dtype), mask=values.is_null().to_numpy(zero_copy_only=False))
    return shifted.cast(pa.timestamp("us") if day != 1 else values.type).cast(values.type)


def _day(values: pa.Array) -> int:
    """Returns the length of a day in the unit of :func:`_numbers`."""
    return 1 if pa.types.is_date32(values.type) else _DAY


def _numbers(values: pa.Array) -> pa.Array:
    """Returns dates as days, and times as microseconds."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())


def _is_before(values: pa.Array, bound: int) -> bool:
    earliest = pc.min(_numbers(values)).as_py()
    return earliest is not None and earliest < bound


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        yield values
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            yield from _leaves(part)
    elif pa.types.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(values.flatten())


def _refusal(what: str) -> FileRejectedError:
    return FileRejectedError(
        f"The file has {what}, in the calendar that Spark had before version 3. Read it with Spark, and write it again with "
        "spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite (spark.sql.avro...) set to CORRECTED."
    )


# Rows of parquet files, with the files' types.
#
# A few bytes can expand to gigabytes: nulls, a text that a dictionary repeats, zeros that compress. So the
# size of batches depends on their content, and a file that expands too far is rejected.

#: Rows in memory at a time, and their approximate bytes.
_ROWS, _BYTES = 10_000, 64 << 20

#: The footer takes many times its size in memory, and each column some 10 KB. Files beyond these limits are
#: rejected.
_MAX_FOOTER, MAX_COLUMNS = 32 << 20, 10_000

#: Number of bytes at the end: the length of the footer, and four constant bytes.
_END = 8

#: The first bytes of parquet files (also the last ones), and the first of their footers: the field of the
#: format's version.
_MAGIC, _VERSION_FIELD = b"PAR1", b"\x15"

#: The boundary where one file ends and another begins, after the length of the first one's footer.
_JOINT, _JOINT_BYTES = re.compile(rb"(?s)(.{4})PAR1(?=PAR1)"), 12

#: Number of bytes that are searched for it at a time.
_SCANNED = 1 << 20

#: Minimum bytes of a value in memory: its place in a list, or its null flag.
WIDTH = 4


def parquet_chunks(source: Part) -> Iterator[Chunk]:
    """Yields the rows of a parquet file, after a chunk without rows that shows the columns before anything is
    decoded.

    Raises:
        FileRejectedError: it is not a parquet file, or expands too far.
    """
    with reading_as("parquet"):
        content = source.seekable()
        size = content.seek(0, io.SEEK_END)
        content.seek(max(0, size - _END))
        if _MAX_FOOTER < int.from_bytes(content.read(4), "little") < size:
            raise FileRejectedError(f"The footer of the file has more than {format_size(_MAX_FOOTER)}. Write larger row groups.")
        footer = pq.ParquetFile(content, coerce_int96_timestamp_unit="us")
        metadata, schema = footer.metadata, footer.schema_arrow
        check_columns(metadata.num_columns)
        _check_alone(content, metadata, size)
        if not metadata.num_rows:
            return
        source.expansion.check(claimed(metadata))
        yield Chunk(0, [ArrowColumn(field.name, pa.array([], field.type)) for field in schema])
        opened = pq.ParquetFile(
            content,
            metadata=metadata,
            read_dictionary=_dictionary_columns(metadata),
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
        tags = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in (metadata.metadata or {}).items()}
        stale = {
            column.path.partition(".")[0]
            for column in map(metadata.schema.column, range(metadata.num_columns))
            if is_former(tags, int96=column.physical_type == "INT96")
        }
        expanded = 0
        for batch in opened.iter_batches(_rows(metadata), use_threads=False):
            for part, size in _parts(batch):
                expanded += size
                source.expansion.check(expanded)
                columns = [_as(values, field.type) for field, values in zip(schema, part.columns, strict=True)]
                columns = [
                    rebased(values, tags) if name in stale else values for name, values in zip(schema.names, columns, strict=True)
                ]
                yield Chunk(part.num_rows, [*map(ArrowColumn, schema.names, columns)])


def _check_alone(content: Any, metadata: pq.FileMetaData, size: int) -> None:
    """Raises FileRejectedError if another parquet file ends after the values.

    The two were joined, and the offsets in the footer point to bytes of the other file.
    """
    begin = max((_end_of(chunk) for chunk in _column_chunks(metadata)), default=len(_MAGIC))
    end = size - _END - metadata.serialized_size
    # Usually this range has indexes, Bloom filters, or nothing.
    for start in range(begin, end, _SCANNED):
        content.seek(start)
        block = content.read(min(_SCANNED + _JOINT_BYTES, end - start))
        for found in _JOINT.finditer(block):
            footer = start + found.start() - int.from_bytes(found[1], "little")
            content.seek(max(0, footer))
            if footer >= len(_MAGIC) and content.read(1) == _VERSION_FIELD:
                raise FileRejectedError(
                    "Several parquet files were joined in the file: the rows of all but the last one would be lost. Store them "
                    "one by one."
                )


def _end_of(chunk: pq.ColumnChunkMetaData) -> int:
    begin = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    return int(min(begin, chunk.data_page_offset) + chunk.total_compressed_size)


def check_columns(number: int) -> None:
    """Raises FileRejectedError if a file has too many columns."""
    if number > MAX_COLUMNS:
        raise FileRejectedError(f"The file has {number:,} columns; the limit is {MAX_COLUMNS:,}.")


def claimed(metadata: pq.FileMetaData) -> int:
    """Returns the size of the values in bytes, according to the footer, without repetitions by
    dictionaries."""
    return sum(max(chunk.total_uncompressed_size, chunk.num_values * WIDTH) for chunk in _column_chunks(metadata))


def _rows(metadata: pq.FileMetaData) -> int:
    """Returns the number of rows that are read at a time."""
    fitting: int = _BYTES * metadata.num_rows // max(1, claimed(metadata))
    return max(1, min(_ROWS, fitting))


def _dictionary_columns(metadata: pq.FileMetaData) -> list[str]:
    """Returns the columns of text or bytes that a dictionary may repeat. Decoding a whole batch of them has
    no size limit."""
    return sorted(
        {
            chunk.path_in_schema
            for chunk in _column_chunks(metadata)
            if chunk.physical_type == "BYTE_ARRAY"
            and "." not in chunk.path_in_schema
            and any("DICTIONARY" in encoding for encoding in chunk.encodings)
        }
    )


def _column_chunks(metadata: pq.FileMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        yield from map(group.column, range(group.num_columns))


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields the rows of a batch in parts of about :data:`_BYTES`, each with its decoded size in bytes."""
    sizes = pa.array([batch.nbytes // batch.num_rows] * batch.num_rows, pa.int64())
    for values in batch.columns:
        if isinstance(values, pa.DictionaryArray) and (is_text(kind := values.type.value_type) or is_bytes(kind)):
            lengths = pc.take(pc.binary_length(values.dictionary).cast(pa.int64()), values.indices)
            sizes = pc.add(sizes, pc.fill_null(lengths, 0))
    sums: list[int] = pc.cumulative_sum(sizes).to_pylist()
    begin, before = 0, 0
    for end, size in enumerate(sums, start=1):
        if size - before >= _BYTES or end == len(sums):
            yield batch.slice(begin, end - begin), size - before
            begin, before = end, size


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns values with the type of their column, which may have been replaced by a dictionary."""
    if values.type == kind:
        return values
    decoded = values.dictionary_decode()
    return decoded if decoded.type == kind else decoded.cast(kind)


# Rows of ORC files, with the files' types.


def orc_chunks(source: Part) -> Iterator[Chunk]:
    """Yields the rows of an ORC file, stripe by stripe, after a chunk without rows that shows the columns.

    Raises:
        FileRejectedError: it is not an ORC file, or expands too far.
    """
    with reading_as("orc"):
        opened = pyarrow.orc.ORCFile(source.seekable())
        check_columns(len(opened.schema))
        # A lower bound: the footer tells no more.
        source.expansion.check(opened.nrows * len(opened.schema) * WIDTH)
        if not opened.nrows:
            return
        yield Chunk(0, [ArrowColumn(field.name, pa.array([], field.type)) for field in opened.schema])
        decoded = 0
        for number in range(opened.nstripes):
            stripe = opened.read_stripe(number)
            decoded += stripe.nbytes
            source.expansion.check(decoded)
            for part in (stripe.slice(at, _ROWS) for at in range(0, stripe.num_rows, _ROWS)):
                yield Chunk(part.num_rows, [ArrowColumn(*pair) for pair in zip(part.schema.names, part.columns, strict=True)])


# Rows of files in plug-in formats.


def plugin_chunks(source: Part, format_: FileFormat, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a file. Text is read like text in csv files. Other values have their types.

    Raises:
        FileRejectedError: no plug-in for the format is installed here, or the plug-in rejects the file.
        DependencyError: the plug-in is broken.
    """
    if not plugins.has(Group.READERS, format_):
        raise FileRejectedError(f"No package that reads {format_} files is installed where the file is read. Install it there.")
    notation = Notation.of(options)
    try:
        for batch in plugins.call(Group.READERS, format_, source.seekable(), options.reader_options):
            columns = zip(batch.schema.names, batch.columns, strict=True)
            yield Chunk(
                batch.num_rows,
                [
                    ReadTextColumn(name, values.cast(pa.string()), notation)
                    if is_text(values.type)
                    else ArrowColumn(name, values)
                    for name, values in columns
                ],
            )
    except ValueError as error:
        raise FileRejectedError(f"The file cannot be read as {format_}: {error}") from None
