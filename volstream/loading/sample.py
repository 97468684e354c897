"""The columns of a sample of files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pyarrow as pa

from volstream.functions.file import File
from volstream.functions.rejection import FileRejectedError
from volstream.loading.columns import TextColumn, kind_of
from volstream.loading.names import place
from volstream.loading.options import LoadOptions
from volstream.loading.read import chunks
from volstream.loading.types import wider


def columns_of(files: Iterable[File], options: LoadOptions, *, whole: bool = False) -> pa.Schema:
    """Returns the columns of files, judging by the first rows of each; without columns if none of them has rows.

    A column of csv files without values is text; a key of json files without values is no column yet.

    Args:
        whole: judging by all rows.

    Raises:
        FileRejectedError: none of the files can be read.
    """
    columns: dict[str, tuple[str, pa.DataType | None]] = {}
    rejected: FileRejectedError | None = None
    read = 0
    for file in files:
        try:
            for chunk in islice(chunks(file, options), None if whole else 1):
                for at, name in place([column.name for column in chunk.columns], pa.schema([])).new.items():
                    column = chunk.columns[at]
                    first, before = columns.get(name.lower(), (name, None))
                    kind = kind_of(column, options)
                    if kind is not None or name.lower() in columns or isinstance(column, TextColumn):
                        columns[name.lower()] = (first, wider(before, kind))
            read += 1
        except FileRejectedError as error:
            rejected = error
        finally:
            file.close()
    if rejected is not None and not read:
        raise rejected
    return pa.schema([pa.field(name, kind or pa.string()) for name, kind in columns.values()])
