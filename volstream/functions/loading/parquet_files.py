"""Rows of parquet files, with the types that they have there.

A few bytes can stand for gigabytes: of nulls, of one text that a dictionary repeats, of zeros that compress. So batches are
small by what they hold, and a file that expands too far is rejected.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from volstream.base.model.units import format_size
from volstream.functions.loading import calendar
from volstream.functions.loading.columns import ArrowColumn, Chunk
from volstream.functions.loading.content import Part, reading_as
from volstream.functions.rejection import FileRejectedError
from volstream.functions.types.kinds import is_bytes, is_text

#: Rows in memory at a time, and about how many bytes of them.
_ROWS, _BYTES = 10_000, 64 << 20

#: The footer takes many times its size in memory, and each column some 10 KB: files of more are rejected.
_MAX_FOOTER, MAX_COLUMNS = 32 << 20, 10_000

#: Bytes at the end: the length of the footer, and four that all files have.
_END = 8

#: Bytes of a value in memory, at least: its place in a list, or whether it is NULL.
WIDTH = 4


def chunks(source: Part) -> Iterator[Chunk]:
    """Yields the rows of a parquet file; first a chunk without rows, which shows the columns before anything is decoded.

    Raises:
        FileRejectedError: it is not such a file, or expands too far.
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
        if not metadata.num_rows:
            return
        source.expansion.check(claimed(metadata))
        yield Chunk(0, [ArrowColumn(field.name, pa.array([], field.type)) for field in schema])
        opened = pq.ParquetFile(
            content, metadata=metadata, read_dictionary=_repeating(metadata), coerce_int96_timestamp_unit="us"
        )
        said = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in (metadata.metadata or {}).items()}
        old = {
            column.path.partition(".")[0]
            for column in map(metadata.schema.column, range(metadata.num_columns))
            if calendar.is_former(said, int96=column.physical_type == "INT96")
        }
        seen = 0
        for batch in opened.iter_batches(_rows(metadata), use_threads=False):
            for part, size in _parts(batch):
                seen += size
                source.expansion.check(seen)
                columns = [_as(values, field.type) for field, values in zip(schema, part.columns, strict=True)]
                columns = [
                    calendar.rebased(values, said) if name in old else values
                    for name, values in zip(schema.names, columns, strict=True)
                ]
                yield Chunk(part.num_rows, [*map(ArrowColumn, schema.names, columns)])


def check_columns(number: int) -> None:
    """Raises FileRejectedError if a file has too many columns."""
    if number > MAX_COLUMNS:
        raise FileRejectedError(f"The file has {number:,} columns; the limit is {MAX_COLUMNS:,}.")


def claimed(metadata: pq.FileMetaData) -> int:
    """Returns how many bytes the values are, by the footer, without what dictionaries repeat."""
    return sum(max(chunk.total_uncompressed_size, chunk.num_values * WIDTH) for chunk in _column_chunks(metadata))


def _rows(metadata: pq.FileMetaData) -> int:
    """Returns how many rows are read at a time."""
    fitting: int = _BYTES * metadata.num_rows // max(1, claimed(metadata))
    return max(1, min(_ROWS, fitting))


def _repeating(metadata: pq.FileMetaData) -> list[str]:
    """Returns the columns of texts or bytes that a dictionary may repeat: decoded at once, a batch of them has no limit."""
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
    """Yields the rows of a batch in parts of about :data:`_BYTES`, with the bytes that each has when it is decoded."""
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
    """Returns values with the type of their column, which a dictionary may have replaced."""
    if values.type == kind:
        return values
    decoded = values.dictionary_decode()
    return decoded if decoded.type == kind else decoded.cast(kind)
