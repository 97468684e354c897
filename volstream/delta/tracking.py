"""What a commit to a table with tracked changes has to maintain, as far as it only adds rows: row ids and its own time.

Delta's protocol: each added file has the id of its first row and the version that added it; the greatest id so far is kept in
the table's domain metadata; the first action of a commit has a time that is later than that of the commit before. The change
feed of a commit that only adds rows consists of these rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from volstream.delta.log import last_checkpoint
from volstream.delta.places import filesystem_of

#: Writer features of such a table, which :mod:`volstream.delta.direct` supports for added rows.
FEATURES = frozenset({"domainMetadata", "rowTracking", "changeDataFeed", "inCommitTimestamp"})

#: Table properties that make changes readable: row ids that survive rewriting, the change feed, and commit times in the log.
PROPERTIES = {
    "delta.enableRowTracking": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
}

_DOMAIN = "delta.rowTracking"


def new_columns() -> Mapping[str, str]:
    """Returns the properties that name the columns in which rewritten rows keep their ids."""
    return {
        "delta.rowTracking.materializedRowIdColumnName": f"_row-id-col-{uuid.uuid4()}",
        "delta.rowTracking.materializedRowCommitVersionColumnName": f"_row-commit-version-col-{uuid.uuid4()}",
    }


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

    def info(self) -> Mapping[str, int]:
        """Returns what the first action has to tell."""
        return {} if self._time is None else {"inCommitTimestamp": self._time}

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
