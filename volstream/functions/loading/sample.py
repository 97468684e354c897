"""The columns of a sample of files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from volstream.base.model.names import folded
from volstream.functions.file import File
from volstream.functions.loading.columns import TextColumn, kind_of
from volstream.functions.loading.names import place
from volstream.functions.loading.options import LoadOptions
from volstream.functions.loading.read import chunks
from volstream.functions.rejection import FileRejectedError
from volstream.functions.types.widen import widen, without_null


def columns_of(files: Iterable[File], options: LoadOptions, *, whole: bool = False) -> pa.Schema:
    """Returns the columns of files, judging by the first rows of each; without columns if none of them has rows.

    A column of csv files without values is text; a key of json files without values is no column yet.

    Args:
        whole: judging by all rows.

    Raises:
        FileRejectedError: none of the files can be read.
    """
    shown: list[pa.Schema] = []
    rejected: FileRejectedError | None = None
    for file in files:
        try:
            shown.append(columns_shown_by(file, options, whole=whole))
        except FileRejectedError as error:
            rejected = error
        finally:
            file.close()
    if rejected is not None and not shown:
        raise rejected
    return merged(shown)


def columns_shown_by(file: File, options: LoadOptions, *, whole: bool = False) -> pa.Schema:
    """Returns the columns that a file shows; null is the type of text without values. Raises FileRejectedError."""
    columns: dict[str, pa.Field] = {}
    for chunk in chunks(file, options):
        if not chunk.rows:
            continue
        for at, name in place([column.name for column in chunk.columns], pa.schema([])).new.items():
            column = chunk.columns[at]
            kind = kind_of(column, options)
            if isinstance(column, TextColumn) or not pa.types.is_null(kind):
                add(columns, pa.field(name, kind))
        if not (whole or chunk.is_part):
            break
    return pa.schema([*columns.values()])


def merged(shown: Iterable[pa.Schema]) -> pa.Schema:
    """Returns the columns of files by what each shows."""
    columns: dict[str, pa.Field] = {}
    for field in (field for schema in shown for field in schema):
        add(columns, field)
    return pa.schema([field.with_type(without_null(field.type)) for field in columns.values()])


def add(columns: dict[str, pa.Field], field: pa.Field) -> None:
    """Adds a column, or its type to the one of its name; the keys are names in lower case."""
    before = columns.get(folded(field.name), field)
    columns[folded(field.name)] = before.with_type(widen(before.type, field.type))


class SampleColumns:
    """The function that returns what a file shows, as ``columns``: a serialized schema. See :func:`columns_shown_by`.

    Args:
        options: see :meth:`LoadOptions.of`.
    """

    def __init__(self, **options: str) -> None:
        self._options = LoadOptions.of(options)

    def __call__(self, file: File) -> dict[str, bytes]:
        """Returns the row. Raises FileRejectedError."""
        return {"columns": columns_shown_by(file, self._options).serialize().to_pybytes()}
