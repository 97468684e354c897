"""What a commit to a table with tracked changes has to maintain: row ids, the change feed, and its own time.

Delta's protocol: each added file has the id of its first row and the version that added it; the greatest id so far is kept in
the table's domain metadata; the first action of a commit has a time that is later than that of the commit before. A row that
replaces another one keeps its id, in a column of the data file that the schema does not have. The change feed of a commit that
only adds rows consists of these rows; another one has files of its own, with the old and the new rows.
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

from volstream.delta.log import last_checkpoint
from volstream.delta.places import filesystem_of, make_durable

#: Writer features of such a table, which :mod:`volstream.delta.direct` supports.
FEATURES = frozenset({"domainMetadata", "rowTracking", "changeDataFeed", "inCommitTimestamp"})

#: Table properties that make changes readable: row ids that survive rewriting, the change feed, and commit times in the log.
PROPERTIES = {
    "delta.enableRowTracking": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
}

_DOMAIN = "delta.rowTracking"
_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"


def new_columns() -> Mapping[str, str]:
    """Returns the properties that name the columns in which rewritten rows keep their ids."""
    return {
        _ID_COLUMN: f"_row-id-col-{uuid.uuid4()}",
        "delta.rowTracking.materializedRowCommitVersionColumnName": f"_row-commit-version-col-{uuid.uuid4()}",
    }


#: The column of a row's kind in the files of a change feed, and their folder.
_KIND, _FEED = "_change_type", "_change_data"


@dataclass(frozen=True)
class Replaced:
    """Rows that a commit removes, by key.

    Attributes:
        rows: the rows as they are in their data files, with all columns there.
        ids: their row ids.
    """

    rows: pa.Table
    ids: pa.Array


def ids_of(add: Mapping[str, Any], rows: pa.Table, positions: np.ndarray, column: str | None) -> pa.Array:
    """Returns the ids of some rows of a data file.

    Args:
        add: the action that added the file.
        rows: with all columns of the file.
        positions: their positions in it.
        column: the name of the column in which rewritten rows keep their ids.
    """
    fresh = pa.array(positions + int(add.get("baseRowId") or 0), pa.int64())
    return (
        fresh
        if column is None or column not in rows.column_names
        else pc.coalesce(rows[column].combine_chunks(), fresh)
    )


def id_column(table: DeltaTable) -> str | None:
    """Returns the name of the column in which rewritten rows keep their ids; None: the table has no row ids."""
    found: str | None = table.metadata().configuration.get(_ID_COLUMN)
    return found if "rowTracking" in (table.protocol().writer_features or ()) else None


def kept_ids(rows: pa.Table, key: str, replaced: Replaced) -> pa.Array:
    """Returns for each of the rows to add the id of the row that it replaces; NULL: none, it gets a new one."""
    at = pc.index_in(rows[key].combine_chunks(), value_set=replaced.rows[key].combine_chunks())
    return replaced.ids.take(at)


def write_feed(
    location: str, table: DeltaTable, key: str, replaced: Replaced, added: Sequence[pa.Table]
) -> list[Mapping[str, Any]]:
    """Writes the change feed of a commit that removes rows, and adds some; returns its actions. Durable on return."""
    if table.metadata().configuration.get("delta.enableChangeDataFeed") != "true":
        return []
    schema = pa.schema([pa.field(one.name, one.type) for one in pa.schema(table.schema().to_arrow())])
    new = pa.concat_tables([_of_schema(one, schema) for one in added]) if added else schema.empty_table()
    old = _of_schema(replaced.rows, schema)
    kept = pc.is_in(old[key], value_set=new[key].combine_chunks())
    known = pc.is_in(new[key], value_set=old[key].combine_chunks())
    images = pa.concat_tables(
        [
            _labelled(old, pc.if_else(kept, "update_preimage", "delete")),
            _labelled(new, pc.if_else(known, "update_postimage", "insert")),
        ]
    )
    if not images.num_rows:
        return []
    filesystem, root = filesystem_of(location)
    name = f"{_FEED}/cdc-{uuid.uuid4()}.parquet"
    filesystem.create_dir(f"{root}/{_FEED}", recursive=True)
    pq.write_table(images, f"{root}/{name}", filesystem=filesystem, compression="zstd")
    make_durable(filesystem, f"{root}/{name}", f"{root}/{_FEED}")
    size = filesystem.get_file_info(f"{root}/{name}").size
    return [{"cdc": {"path": name, "partitionValues": {}, "size": size, "dataChange": False}}]


def _of_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    given = {name.lower(): name for name in rows.column_names}
    columns = [
        rows[given[one.name.lower()]].cast(one.type) if one.name.lower() in given else pa.nulls(len(rows), one.type)
        for one in schema
    ]
    return pa.table(columns, schema=schema)


def _labelled(rows: pa.Table, kinds: pa.ChunkedArray) -> pa.Table:
    return rows.append_column(pa.field(_KIND, pa.string()), kinds.cast(pa.string()))


class TrackedCommit:
    """What one commit on top of a version of a table has to contain besides; nothing if its changes are not tracked."""

    def __init__(self, table: DeltaTable, location: str) -> None:
        self._version = table.version() + 1
        self._next = 0
        features = {*(table.protocol().writer_features or ())}
        self._has_ids = "rowTracking" in features
        before = _Before(location, table.version())
        self._time = max(int(time.time() * 1000), before.time() + 1) if "inCommitTimestamp" in features else None
        if self._has_ids:
            self._next = before.high_water_mark() + 1

    def info(self, *, keeps_ids: bool) -> Mapping[str, Any]:
        """Returns what the first action has to tell.

        Args:
            keeps_ids: rows that replace others keep their ids.
        """
        told: dict[str, Any] = {} if self._time is None else {"inCommitTimestamp": self._time}
        return told | ({"tags": {"delta.rowTracking.preserved": "true"}} if self._has_ids and keeps_ids else {})

    def added(self, rows: int) -> Mapping[str, int]:
        """Returns what the action that adds the next file has to contain besides."""
        if not self._has_ids:
            return {}
        first, self._next = self._next, self._next + rows
        return {"baseRowId": first, "defaultRowCommitVersion": self._version}

    def domain(self) -> list[Mapping[str, Any]]:
        """Returns the action that stores the greatest row id, after all files were added."""
        if not self._has_ids:
            return []
        told = json.dumps({"rowIdHighWaterMark": self._next - 1, "domainName": _DOMAIN})
        return [{"domainMetadata": {"domain": _DOMAIN, "configuration": told, "removed": False}}]


class _Before:
    """The log of a table up to a version."""

    def __init__(self, location: str, version: int) -> None:
        self._filesystem, root = filesystem_of(location)
        self._log = f"{root}/_delta_log"
        self._version = version
        self._checkpoint, self._parts = last_checkpoint(location)

    def time(self) -> int:
        """Returns the time of the version's commit."""
        for action in self._actions(self._version, '"commitInfo"'):
            if "commitInfo" in action:
                info = action["commitInfo"]
                return int(info.get("inCommitTimestamp") or info["timestamp"])
        return 0

    def high_water_mark(self) -> int:
        """Returns the greatest row id that was given; -1: none."""
        for number in range(self._version, min(self._checkpoint, self._version), -1):
            for action in self._actions(number, _DOMAIN):
                domain = action.get("domainMetadata")
                if domain is not None and domain["domain"] == _DOMAIN:
                    return int(json.loads(domain["configuration"])["rowIdHighWaterMark"])
        return max((self._mark_in(name) for name in self._checkpoint_files()), default=-1)

    def _actions(self, version: int, mentioning: str) -> list[dict[str, Any]]:
        with self._filesystem.open_input_stream(f"{self._log}/{version:020d}.json") as stream:
            lines = stream.read().decode().splitlines()
        return [json.loads(line) for line in lines if mentioning in line]

    def _checkpoint_files(self) -> list[str]:
        if self._checkpoint < 0:
            return []
        stem = f"{self._log}/{self._checkpoint:020d}.checkpoint"
        if not self._parts:
            return [f"{stem}.parquet"]
        return [f"{stem}.{part:010d}.{self._parts:010d}.parquet" for part in range(1, self._parts + 1)]

    def _mark_in(self, name: str) -> int:
        file = pq.ParquetFile(self._filesystem.open_input_file(name))
        with file:
            if "domainMetadata" not in file.schema_arrow.names:
                return -1
            domains = file.read(columns=["domainMetadata"])["domainMetadata"].combine_chunks()
        ours = domains.filter(pc.equal(pc.struct_field(domains, "domain"), _DOMAIN))
        return max(
            (int(json.loads(one["configuration"])["rowIdHighWaterMark"]) for one in ours.to_pylist()), default=-1
        )
