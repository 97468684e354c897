"""What a commit to a table with tracked changes must maintain: row ids, the change feed, and the commit's time.

Delta's protocol: each added file has the id of its first row and the version that added it; the table's domain metadata has the
greatest id so far; the first action of a commit has a time later than the previous commit's. A row that replaces another one
keeps its id, in a column of the data file that is not in the schema. If a commit only adds rows, these are its change feed;
otherwise the feed has separate files with the old and the new rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from volstream.tables.delta.datafile import fitted, with_statistics
from volstream.tables.delta.log import actions, checkpoint_files, is_on, last_checkpoint
from volstream.tables.delta.places import filesystem_of, make_durable, make_folder

#: Writer features of tables with tracked changes, which :mod:`volstream.tables.delta.direct` supports.
FEATURES = frozenset({"domainMetadata", "rowTracking", "changeDataFeed", "inCommitTimestamp"})

#: Table properties that make changes readable: row ids that survive rewriting, the change feed, and commit times in the log.
PROPERTIES = {
    "delta.enableRowTracking": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
}

_DOMAIN = "delta.rowTracking"
_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


def new_columns() -> Mapping[str, str]:
    """Returns the properties that name the columns in which rewritten rows keep their ids."""
    return {
        _ID_COLUMN: f"_row-id-col-{uuid.uuid4()}",
        _VERSION_COLUMN: f"_row-commit-version-col-{uuid.uuid4()}",
    }


#: The column with a row's kind in a change feed's files, and the folder of these files.
_KIND, FEED = "_change_type", "_change_data"


@dataclass(frozen=True)
class ReplacedRows:
    """The rows that a commit removes, by key.

    Attributes:
        rows: the rows with the table's columns, and the column with the ids of rewritten rows.
        ids: their row ids.
    """

    rows: pa.Table
    ids: pa.Array


def ids_of(add: Mapping[str, Any], rows: pa.Table, positions: np.ndarray, column: str | None) -> pa.Array:
    """Returns the ids of some rows of a data file.

    Args:
        add: the action that added the file.
        rows: including ``column``, unless the table has none.
        positions: of the rows in the file.
        column: name of the column in which rewritten rows keep their ids.
    """
    fresh = pa.array(positions + int(add.get("baseRowId") or 0), pa.int64())
    return fresh if column is None else pc.coalesce(rows[column].combine_chunks(), fresh)


def id_column(table: DeltaTable) -> str | None:
    """Returns the name of the column in which rewritten rows keep their ids; None: the table has no row ids."""
    column: str | None = table.metadata().configuration.get(_ID_COLUMN)
    return column if "rowTracking" in (table.protocol().writer_features or ()) else None


def version_column(table: DeltaTable) -> str | None:
    """Returns the name of the column in which rewritten rows keep the versions that changed them; None: as :func:`id_column`."""
    column: str | None = table.metadata().configuration.get(_VERSION_COLUMN)
    return column if id_column(table) is not None else None


def kept_ids(rows: pa.Table, key: str, replaced: ReplacedRows) -> pa.Array:
    """Returns, for each row to add, the id of the row that it replaces; NULL: it replaces none and gets a new id."""
    at = pc.index_in(rows[key].combine_chunks(), value_set=replaced.rows[key].combine_chunks())
    return replaced.ids.take(at)


def write_feed(
    location: str, table: DeltaTable, key: str, replaced: ReplacedRows, added: Sequence[pa.Table]
) -> list[Mapping[str, Any]]:
    """Writes the change feed of a commit that removes rows and may add some; returns its actions. Durable on return."""
    if not is_on(table.metadata().configuration, "delta.enableChangeDataFeed"):
        return []
    schema = pa.schema(table.schema().to_arrow())
    old = fitted(replaced.rows, schema)
    new = pa.concat_tables([fitted(rows, schema) for rows in added]) if added else old.schema.empty_table()
    kept = pc.is_in(old[key], value_set=new[key].combine_chunks())
    updated = pc.is_in(new[key], value_set=old[key].combine_chunks())
    images = pa.concat_tables(
        [
            _labelled(old, pc.if_else(kept, "update_preimage", "delete")),
            _labelled(new, pc.if_else(updated, "update_postimage", "insert")),
        ]
    )
    if not images.num_rows:
        return []
    filesystem, root = filesystem_of(location)
    name = f"{FEED}/cdc-{uuid.uuid4()}.parquet"
    make_folder(f"{location}/{FEED}")
    statistics = with_statistics(images.schema)
    pq.write_table(images, f"{root}/{name}", filesystem=filesystem, compression="zstd", write_statistics=statistics)
    make_durable(filesystem, f"{root}/{name}", f"{root}/{FEED}")
    size = filesystem.get_file_info(f"{root}/{name}").size
    return [{"cdc": {"path": name, "partitionValues": {}, "size": size, "dataChange": False}}]


def _labelled(rows: pa.Table, kinds: pa.ChunkedArray) -> pa.Table:
    return rows.append_column(pa.field(_KIND, pa.string()), kinds.cast(pa.string()))


class TrackedCommit:
    """The additional content of a commit on top of a table's version; nothing if the table's changes are not tracked."""

    def __init__(self, table: DeltaTable, location: str) -> None:
        self._version = table.version() + 1
        self._next = 0
        features = {*(table.protocol().writer_features or ())}
        self._has_ids = "rowTracking" in features
        self._time: int | None = None
        if "inCommitTimestamp" in features:
            self._time = max(int(time.time() * 1000), _time_of(location, table.version()) + 1)
        if self._has_ids:
            self._next = _greatest_id(location, table.version()) + 1

    def info(self, *, keeps_ids: bool) -> Mapping[str, Any]:
        """Returns additional fields of the first action.

        Args:
            keeps_ids: rows that replace others keep their ids.
        """
        fields: dict[str, Any] = {} if self._time is None else {"inCommitTimestamp": self._time}
        return fields | ({"tags": {"delta.rowTracking.preserved": "true"}} if self._has_ids and keeps_ids else {})

    def added(self, rows: int) -> Mapping[str, int]:
        """Returns additional fields of the action that adds the next file."""
        if not self._has_ids:
            return {}
        first, self._next = self._next, self._next + rows
        return {"baseRowId": first, "defaultRowCommitVersion": self._version}

    def domain(self) -> list[Mapping[str, Any]]:
        """Returns the action that stores the greatest row id, once all files are added."""
        if not self._has_ids:
            return []
        configuration = json.dumps({"rowIdHighWaterMark": self._next - 1, "domainName": _DOMAIN})
        return [{"domainMetadata": {"domain": _DOMAIN, "configuration": configuration, "removed": False}}]


def _time_of(location: str, version: int) -> int:
    """Returns the time of a version's commit."""
    for action in actions(location, version, '"commitInfo"'):
        if "commitInfo" in action:
            info = action["commitInfo"]
            return int(info.get("inCommitTimestamp") or info["timestamp"])
    return 0


def _greatest_id(location: str, version: int) -> int:
    """Returns the greatest row id assigned up to a version; -1: none."""
    checkpoint = last_checkpoint(location)
    for number in range(version, min(checkpoint[0], version), -1):
        for action in actions(location, number, _DOMAIN):
            domain = action.get("domainMetadata")
            if domain is not None and domain["domain"] == _DOMAIN:
                return _mark(domain)
    return max((_greatest_in(location, name) for name in checkpoint_files(location, checkpoint)), default=-1)


def _greatest_in(location: str, checkpoint_file: str) -> int:
    filesystem, _ = filesystem_of(location)
    with pq.ParquetFile(filesystem.open_input_file(checkpoint_file)) as file:
        if "domainMetadata" not in file.schema_arrow.names:
            return -1
        domains = file.read(columns=["domainMetadata"])["domainMetadata"].combine_chunks()
    ours = domains.filter(pc.equal(pc.struct_field(domains, "domain"), _DOMAIN))
    return max(map(_mark, ours.to_pylist()), default=-1)


def _mark(domain: Mapping[str, Any]) -> int:
    return int(json.loads(domain["configuration"])["rowIdHighWaterMark"])
