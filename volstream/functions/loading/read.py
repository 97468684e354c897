"""Reads a file in the format that it has, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from volstream.base.definitions import FileFormat
from volstream.functions.file import File
from volstream.functions.loading import avro_files, csv_files, json_files, orc_files, parquet_files
from volstream.functions.loading.columns import Chunk, FolderColumn
from volstream.functions.loading.content import decompressing
from volstream.functions.loading.formats import RecognizedFormat, is_marker, partitions, recognize
from volstream.functions.loading.options import LoadOptions
from volstream.functions.rejection import FileRejectedError


def chunks(file: File, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a file, with the values that its folders name; an empty file has no rows, nor has one whose name marks
    it as no data.

    Raises:
        FileRejectedError: its format is unknown, or it is not of its format.
    """
    if not file.size or is_marker(file.relative_path):
        return
    what = recognize(file.relative_path, options)
    if what is None:
        raise FileRejectedError(
            "Unknown file format. Set the job's format, or exclude the file by a condition. Known extensions: .csv, .tsv, .json, "
            ".jsonl, .ndjson, .parquet, .avro and .orc, also with .gz, .bz2 or .zst."
        )
    named = partitions(file.relative_path)
    with decompressing(what.compression):
        for chunk in _chunks(file, what, options):
            yield _with(named, chunk) if named else chunk


def _chunks(file: File, what: RecognizedFormat, options: LoadOptions) -> Iterator[Chunk]:
    match what.format:
        case FileFormat.CSV:
            return csv_files.chunks(file, what, options)
        case FileFormat.JSON:
            return json_files.chunks(file, what, options)
        case FileFormat.PARQUET:
            return parquet_files.chunks(file)
        case FileFormat.AVRO:
            return avro_files.chunks(file)
        case FileFormat.ORC:
            return orc_files.chunks(file)


def _with(named: Mapping[str, str | None], chunk: Chunk) -> Chunk:
    """Returns rows with the columns that their folders name, in place of others with these names, as in Spark."""
    taken = {name.lower() for name in named}
    own = [column for column in chunk.columns if column.name.lower() not in taken]
    values = [FolderColumn(name, pa.array([value] * chunk.rows, pa.string()), value=value) for name, value in named.items()]
    return replace(chunk, columns=[*own, *values])
