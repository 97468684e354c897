"""Reads a file in the format that it has, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from volstream.base.definitions import FileFormat
from volstream.base.model.names import folded
from volstream.functions.file import File
from volstream.functions.loading import avro_files, csv_files, json_files, orc_files, parquet_files, plugin_files
from volstream.functions.loading.columns import ArrowColumn, Chunk, FileColumn, FolderColumn
from volstream.functions.loading.content import Part, parts
from volstream.functions.loading.formats import EXTENSIONS, RecognizedFormat, is_marker, partitions, recognize
from volstream.functions.loading.options import ENTRY, LoadOptions
from volstream.functions.rejection import FileRejectedError


def chunks(file: File, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a file, with the values that its folders name, and of an archive with the path of their entry; an empty
    file has no rows, nor has one whose name marks it as no data.

    Raises:
        FileRejectedError: its format is unknown, or it is not of its format.
    """
    if not file.size or is_marker(file.relative_path):
        return
    what = recognize(file.relative_path, options)
    for part in parts(file, options, unpack=what is None or not what.format.is_plugin):
        try:
            yield from _rows(part, file, options)
        except FileRejectedError as error:
            if part.entry is None:
                raise
            raise FileRejectedError(f"The entry {part.entry!r} of the file: {error}", error.new_columns) from None


def _rows(part: Part, file: File, options: LoadOptions) -> Iterator[Chunk]:
    what = recognize(part.path, options)
    if what is None:
        others = " Or name the entries to load (entries)." if part.entry is not None else ""
        raise FileRejectedError(
            "Unknown file format. Set the job's format, or exclude the file by a condition. "
            f"Known extensions: {EXTENSIONS}, and those of plug-ins.{others}"
        )
    named = {**partitions(file.relative_path), **partitions(part.entry or "")}
    own: Sequence[FileColumn] = []
    for chunk in _chunks(part, what, options):
        if part.entry is not None:
            own = [ArrowColumn(ENTRY, pa.array([part.entry] * chunk.rows, pa.string()))]
        yield _with(named, own, chunk) if named or own else chunk


def _chunks(part: Part, what: RecognizedFormat, options: LoadOptions) -> Iterator[Chunk]:
    match what.format:
        case FileFormat.CSV:
            return csv_files.chunks(part, what, options)
        case FileFormat.JSON:
            return json_files.chunks(part, options)
        case FileFormat.PARQUET:
            return parquet_files.chunks(part)
        case FileFormat.AVRO:
            return avro_files.chunks(part)
        case FileFormat.ORC:
            return orc_files.chunks(part)
        case _:
            return plugin_files.chunks(part, what.format, options)


def _with(named: Mapping[str, str | None], more: Sequence[FileColumn], chunk: Chunk) -> Chunk:
    """Returns rows with more columns, and those that their folders name, in place of others with these names, as in Spark."""
    values = [
        *more,
        *(FolderColumn(name, pa.array([value] * chunk.rows, pa.string()), value=value) for name, value in named.items()),
    ]
    taken = {folded(column.name) for column in values}
    return replace(chunk, columns=[*(column for column in chunk.columns if folded(column.name) not in taken), *values])
