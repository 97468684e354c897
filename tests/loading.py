"""Files to load, from memory, and what a job makes of them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tests.memory import MemoryStore
from volstream.functions.file import File
from volstream.functions.loading.loader import Loader, columns_of
from volstream.functions.loading.options import LoadOptions
from volstream.functions.schema import to_ddl

#: Text, bytes, or the rows of a parquet file.
Content: TypeAlias = str | bytes | pa.Table


class Files:
    """Files in a store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def file(self, name: str, content: Content) -> File:
        if isinstance(content, pa.Table):
            sink = io.BytesIO()
            pq.write_table(content, sink)
            content = sink.getvalue()
        return File(self._store, self._store.put(name, content.encode() if isinstance(content, str) else content))

    def columns(self, *files: tuple[str, Content], **options: str) -> str:
        """The columns, as DDL, that a sample of files has."""
        return to_ddl(columns_of([self.file(*one) for one in files], LoadOptions.of(options)))

    def rows(self, name: str, content: Content, columns: str | None = None, **options: str) -> list[Mapping[str, Any]]:
        """The rows of a file in a table with ``columns``, or in one that is made for it; rescued data where there is some."""
        own = self.columns((name, content), **options) if columns is None else columns
        loader = Loader(", ".join(filter(None, [own, "_rescued_data STRING"])), **options)
        rows = [row for batch in loader(self.file(name, content)) for row in batch.to_pylist()]
        return [{key: one for key, one in row.items() if key != "_rescued_data" or one is not None} for row in rows]
