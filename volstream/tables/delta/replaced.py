"""Rows that replace others of the same primary key, in a table whose changes are tracked: they keep the ids of these, and are
updates in the change feed. Of other commits, Delta tells the changes by the files and rows that they add and remove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from volstream.tables.delta.datafile import GROUP_ROWS, NewFile, fitted
from volstream.tables.delta.log import is_on
from volstream.tables.delta.lookup import FoundRows
from volstream.tables.delta.parts import NewFiles
from volstream.tables.delta.places import filesystem_of, make_durable, make_folder
from volstream.tables.delta.tracking import FEED, ids_of

#: The column with a row's kind in a change feed's files.
_KIND = pa.field("_change_type", pa.string())


@dataclass(frozen=True)
class ReplacedRows:
    """The rows of some keys that a commit removes, as far as it needs them in memory.

    Attributes:
        key: the key's column.
        id_column: the column in which rewritten rows keep their ids; None: the table has no ids.
        keys, ids: of each row.
    """

    key: str
    id_column: str | None
    keys: pa.Array
    ids: pa.Array

    @classmethod
    def of(
        cls, removed: Sequence[FoundRows], adds: Mapping[str, Mapping[str, Any]], key: str, id_column: str | None
    ) -> ReplacedRows:
        """Reads the keys and ids of removed rows.

        Args:
            adds: the actions that added their files, by path.
        """
        columns = pa.schema([(key, pa.string()), *([] if id_column is None else [(id_column, pa.int64())])])
        keys, ids = [pa.array([], pa.string())], [pa.array([], pa.int64())]
        for found in removed:
            for rows, at in found.read(columns):
                keys.append(rows[key].combine_chunks())
                ids.append(ids_of(adds[found.path], rows, at, id_column))
        return cls(key, id_column, pa.concat_arrays(keys), pa.concat_arrays(ids))

    def with_ids(self, rows: pa.Table) -> pa.Table:
        """Returns rows to add with the id of the row that each replaces; NULL: it replaces none and gets a new id."""
        if self.id_column is None:
            return rows
        at = pc.index_in(rows[self.key].combine_chunks(), value_set=self.keys)
        return rows.append_column(pa.field(self.id_column, pa.int64()), self.ids.take(at))

    def write_feed(
        self, location: str, table: DeltaTable, removed: Sequence[FoundRows], added: Callable[[], Iterable[pa.Table]]
    ) -> Sequence[Mapping[str, Any]]:
        """Writes the change feed, and returns its actions. Durable on return.

        Args:
            added: returns the rows to add; it is called twice.
        """
        metadata = table.metadata()
        if not is_on(metadata.configuration, "delta.enableChangeDataFeed"):
            return []
        schema, parts = pa.schema(table.schema().to_arrow()), metadata.partition_columns
        stored = pa.schema([*(column for column in schema if column.name not in parts), _KIND])
        make_folder(f"{location}/{FEED}")
        files = NewFiles(lambda: NewFile(f"{location}/{FEED}", stored, tracked=(), group_rows=GROUP_ROWS), parts)
        column = pa.schema([(self.key, pa.string())])
        keys = (chunk for rows in added() for chunk in fitted(rows, column)[self.key].chunks)
        came = pa.concat_arrays([pa.array([], pa.string()), *keys])
        try:
            for found in removed:
                for rows, _ in found.read(schema):
                    files.write(_labelled(rows, pc.is_in(rows[self.key], came), "update_preimage", "delete"))
            for given in added():
                rows = fitted(given, schema)
                files.write(_labelled(rows, pc.is_in(rows[self.key], self.keys), "update_postimage", "insert"))
            written = files.close()
        except BaseException:
            files.drop()
            raise
        filesystem, root = filesystem_of(location)
        make_durable(filesystem, f"{root}/{FEED}", folders=False)
        return [
            {"cdc": {"path": f"{FEED}/{file.path}", "partitionValues": file.partition, "size": file.size, "dataChange": False}}
            for file in written
        ]


def _labelled(rows: pa.Table, replaced: pa.ChunkedArray, if_so: str, otherwise: str) -> pa.Table:
    return rows.append_column(_KIND, pc.if_else(replaced, if_so, otherwise).cast(pa.string()))
