"""What a commit to a table with tracked changes must maintain: row ids, the change feed, and the commit's time.

Delta's protocol: each added file has the id of its first row and the version that added it; the table's domain metadata has the
greatest id so far; the first action of a commit has a time later than the previous commit's. A row that replaces another one
keeps its id, in a column of the data file that is not in the schema. The change feed follows from what a commit adds and removes,
unless it has files of its own, in which old and new rows are updates (``replaced``).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from volstream.tables.delta.log import actions, checkpoint_files, commit_info, last_checkpoint
from volstream.tables.delta.places import filesystem_of

#: Writer features of tables with tracked changes, which :mod:`volstream.tables.delta.direct` supports.
FEATURES = frozenset({"domainMetadata", "rowTracking", "changeDataFeed", "inCommitTimestamp"})

#: Table properties that make changes readable: row ids that survive rewriting, the change feed, and commit times in the log.
PROPERTIES = {"delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true", "delta.enableInCommitTimestamps": "true"}

_DOMAIN = "delta.rowTracking"
_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


def new_columns() -> Mapping[str, str]:
    """Returns the properties that name the columns in which rewritten rows keep their ids."""
    return {_ID_COLUMN: f"_row-id-col-{uuid.uuid4()}", _VERSION_COLUMN: f"_row-commit-version-col-{uuid.uuid4()}"}


#: The folder of a change feed's files.
FEED = "_change_data"


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
    info = commit_info(actions(location, version, '"commitInfo"'))
    return int(info.get("inCommitTimestamp") or info.get("timestamp") or 0)


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
