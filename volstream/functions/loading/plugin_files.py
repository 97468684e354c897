"""Rows of files in formats that plug-ins read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from volstream.base import plugins
from volstream.base.definitions import FileFormat
from volstream.base.plugins import Group
from volstream.functions.loading.columns import ArrowColumn, Chunk, ReadTextColumn
from volstream.functions.loading.content import Part
from volstream.functions.loading.options import LoadOptions
from volstream.functions.loading.texts import Notation
from volstream.functions.rejection import FileRejectedError
from volstream.functions.types.kinds import is_text


def chunks(source: Part, format_: FileFormat, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a file. Texts are read like those of csv files, other values have their types.

    Raises:
        FileRejectedError: no plug-in for the format is installed here, or it refuses the file.
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
