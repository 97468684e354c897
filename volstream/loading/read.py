"""Reads a file in the format that it has, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator

from volstream.definitions import FileFormat
from volstream.functions.file import File
from volstream.functions.rejection import FileRejectedError
from volstream.loading import csv_files, json_files, parquet_files
from volstream.loading.columns import Chunk
from volstream.loading.content import decompressing
from volstream.loading.formats import is_marker, recognize
from volstream.loading.options import LoadOptions


def chunks(file: File, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a file; an empty file has none, nor has one whose name marks it as no data.

    Raises:
        FileRejectedError: its format is unknown, or it is not of its format.
    """
    if not file.size or is_marker(file.relative_path):
        return
    what = recognize(file.relative_path, options)
    if what is None:
        raise FileRejectedError(
            "The name of the file does not tell its format: it ends neither in .csv, .tsv, .json, .jsonl, .ndjson or "
            ".parquet, nor in one of these and .gz, .bz2 or .zst. Give the job a format, or a condition that leaves the "
            "file out."
        )
    with decompressing(what.compression):
        match what.format:
            case FileFormat.CSV:
                yield from csv_files.chunks(file, what, options)
            case FileFormat.JSON:
                yield from json_files.chunks(file, what, options)
            case FileFormat.PARQUET:
                yield from parquet_files.chunks(file)
