"""Rows of many files at once, for a statement. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from volstream.base.model.paths import FileInfo, printable
from volstream.errors import InvalidValueError
from volstream.files.storage.base import ObjectStore
from volstream.functions.file import File
from volstream.functions.loading.loader import Loader
from volstream.functions.rejection import FileRejectedError
from volstream.functions.schema import PROVENANCE

#: The column with a row's file.
PATH = PROVENANCE.field("_file_path")


@dataclass(frozen=True)
class FilesAsRows:
    """The function that reads files, given by batches of :class:`FileInfo`.

    Attributes:
        columns: as DDL, with the one for rescued data.
        arguments: see :meth:`LoadOptions.of`.
    """

    store: ObjectStore
    columns: str
    arguments: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows, with their file. Raises InvalidValueError for a file that cannot be read."""
        load = Loader(self.columns, **self.arguments)
        for info in (FileInfo(*row.values()) for batch in batches for row in batch.to_pylist()):
            file = File(self.store, info)
            try:
                for rows in load(file):
                    yield rows.append_column(PATH, pa.array([info.relative_path] * rows.num_rows, PATH.type))
            except FileRejectedError as error:
                raise InvalidValueError(f"The file {printable(info.relative_path)} cannot be read: {error}") from None
            finally:
                file.close()
