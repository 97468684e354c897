"""The columns of a sample of files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import pyarrow as pa

from volstream.functions.file import File
from volstream.functions.rejection import FileRejectedError
from volstream.loading.columns import TextColumn
from volstream.loading.names import place
from volstream.loading.options import LoadOptions
from volstream.loading.read import chunks
from volstream.loading.types import wider


def columns_of(files: Iterable[File], options: LoadOptions) -> pa.Schema:
    """Returns the columns of files, judging by the first rows of each; without columns if none of them has rows.

    A column of csv files without values is text; a key of json files without values is no column yet.

    Raises:
        FileRejectedError: none of the files can be read.
    """
    found: dict[str, tuple[str, pa.DataType | None]] = {}
    rejected: FileRejectedError | None = None
    read = 0
    for file in files:
        try:
            for chunk in islice(chunks(file, options), 1):
                for at, name in place([column.name for column in chunk.columns], pa.schema([])).new.items():
                    column = chunk.columns[at]
                    before = found.get(name.lower())
                    if before is None and column.kind() is None and not isinstance(column, TextColumn):
                        continue
                    found[name.lower()] = (
                        (name, column.kind())
                        if before is None
                        else (
                            before[0],
                            wider(before[1], column.kind()),
                        )
                    )
            read += 1
        except FileRejectedError as error:
            rejected = error
        finally:
            file.close()
    if rejected is not None and not read:
        raise rejected
    return pa.schema([pa.field(name, kind or pa.string()) for name, kind in found.values()])
