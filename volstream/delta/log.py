"""What a Delta table's log says, read without a JVM: version, table id, commits, transaction ids.

This is the one place that probes logs; it uses the deltalake library but for the question "is there something new?",
which is one look for one file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from volstream.delta.places import filesystem_of, is_table, mapped, open_table


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    Attributes:
        metadata: the user metadata, where it is a JSON object; else empty.
        adds_only: it is known to add rows and to do nothing else.
        rows: how many it added, changed and took away; None: not told.
    """

    version: int
    timestamp: datetime
    operation: str
    metadata: dict[str, Any]
    adds_only: bool = False
    rows: int | None = None

    @property
    def without_data(self) -> bool:
        """Whether the commit is known to change no row."""
        return self.operation in _WITHOUT_DATA


#: Operations that change no row, as Delta names them. What is not here may.
_WITHOUT_DATA = frozenset(
    {
        "OPTIMIZE",
        "VACUUM START",
        "VACUUM END",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
        "ROW TRACKING BACKFILL",
        "ADD COLUMNS",
        "CREATE TABLE",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "CLUSTER BY",
        "CHANGE COLUMN",
        "RENAME COLUMN",
        "DROP COLUMNS",
        "SET TABLE COMMENT",
        "COMMENT ON TABLE",
    }
)


@dataclass(frozen=True)
class Schema:
    """A table's columns at a version.

    Attributes:
        types: Delta's type of each column as JSON, in order.
        identities: what each column is to Delta, whatever its name: with column mapping, its id.
        partitions: columns by which it is partitioned.
    """

    types: Mapping[str, str]
    identities: Mapping[str, str]
    partitions: Sequence[str]
    properties: Mapping[str, str]

    @property
    def columns(self) -> Sequence[str]:
        """The columns' names, in order."""
        return list(self.types)

    @property
    def comparable(self) -> Sequence[str]:
        """Columns whose values SQL can compare."""
        return [name for name, type_ in self.types.items() if not ('"map"' in type_ or '"variant"' in type_)]

    def sql_type(self, column: str) -> str:
        """The type of a column as SQL has it."""
        from pyspark.sql.types import StructType

        field = {"name": column, "type": json.loads(self.types[column]), "nullable": True, "metadata": {}}
        return str(StructType.fromJson({"type": "struct", "fields": [field]})[column].dataType.simpleString())

    def bears(self, older: Schema) -> bool:
        """Whether rows of an ``older`` schema can be shown in this one: its columns are all there, of the same type."""
        return all(
            self.identities.get(name) == identity and self.types.get(name) == older.types[name]
            for name, identity in older.identities.items()
        )


#: Delta's words for spans of time, in seconds.
_SPANS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def retention(properties: Mapping[str, str]) -> timedelta:
    """How long a table with these properties keeps what its older versions need: log and removed files, the shorter."""
    files = _span(properties.get("delta.deletedFileRetentionDuration", "interval 7 days"))
    if properties.get("delta.enableExpiredLogCleanup") == "false":
        return files
    return min(files, _span(properties.get("delta.logRetentionDuration", "interval 30 days")))


def _span(interval: str) -> timedelta:
    parts = re.findall(r"(\d+)\s+(second|minute|hour|day|week)s?", interval.lower())
    return timedelta(seconds=sum(int(number) * _SPANS[unit] for number, unit in parts))


class DeltaLog:
    """The log of the table at ``location`` (a local path or a URI). Reads afresh at each call."""

    def __init__(self, location: str) -> None:
        self.location = location

    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return is_table(self.location)

    def latest_version(self) -> int | None:
        """The newest version; None where there is no table."""
        table = self._open()
        return None if table is None else int(table.version())

    def table_id(self) -> str | None:
        """Delta's id of the table, another one after it was re-created; None where there is no table."""
        table = self._open()
        return None if table is None else str(table.metadata().id)

    def head(self) -> tuple[int, str] | None:
        """Newest version and table id in one look; None where there is no table."""
        table = self._open()
        return None if table is None else (int(table.version()), str(table.metadata().id))

    def properties(self) -> dict[str, str]:
        """The table's properties; empty where there is no table."""
        table = self._open()
        return {} if table is None else {key: str(value) for key, value in table.metadata().configuration.items()}

    def columns(self) -> dict[str, str]:
        """Column names and their Delta types as JSON; empty where there is no table."""
        schema = self.schema()
        return {} if schema is None else dict(schema.types)

    def schema(self, version: int | None = None) -> Schema | None:
        """The columns and properties at a version, or at the newest; None where there is no such version."""
        table = self._open(version)
        if table is None:
            return None
        with mapped(self.location):
            fields = json.loads(table.schema().to_json())["fields"]
            metadata = table.metadata()
        return Schema(
            {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields},
            {
                field["name"]: str(field.get("metadata", {}).get("delta.columnMapping.id", field["name"]))
                for field in fields
            },
            list(metadata.partition_columns),
            {key: str(value) for key, value in metadata.configuration.items()},
        )

    def has_newer(self, version: int) -> bool:
        """Whether a commit follows ``version``, or the log ends before it, as that of a table that was restored. One look for
        one file; may be true for a commit that holds no data.

        A missing ``<version + 1>.json`` proves nothing where ``<version>.json`` is gone too: the log was cleaned (R-22).
        """
        filesystem, path = filesystem_of(self.location)
        following, current = filesystem.get_file_info(
            [f"{path}/_delta_log/{v:020d}.json" for v in (version + 1, version)]
        )
        if following.type == fs.FileType.File:
            return True
        if current.type == fs.FileType.File:
            return False
        newest = self.latest_version()
        return newest is not None and newest != version

    def readable_from(self, version: int) -> bool:
        """Whether the commit files after ``version`` are all there: what a change feed from it needs."""
        newest = self.latest_version()
        if newest is None or newest <= version:
            return newest is not None
        filesystem, path = filesystem_of(self.location)
        first = filesystem.get_file_info(f"{path}/_delta_log/{version + 1:020d}.json")
        return bool(first.type == fs.FileType.File)

    def lost_file(self, after: int, until: int) -> str | None:
        """A file that the changes of versions ``after`` (excluded) to ``until`` are read from and that is gone, or None.

        Those are the files that the commits took away and the change data they wrote; where the log's entries are gone,
        nothing is known.
        """
        filesystem, path = filesystem_of(self.location)
        for version in range(after + 1, until + 1):
            try:
                with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
                    actions = [json.loads(line) for line in stream.read().decode().splitlines() if line.strip()]
            except FileNotFoundError:
                return None
            named = [one[kind]["path"] for one in actions for kind in ("remove", "cdc") if one.get(kind, {})]
            relative = [unquote(name) for name in named if "://" not in name and not name.startswith("/")]
            for info in filesystem.get_file_info([f"{path}/{name}" for name in relative]):
                if info.type == fs.FileType.NotFound:
                    return str(info.base_name)
        return None

    def commits_after(self, version: int) -> Sequence[Commit]:
        """The commits with a greater version, oldest first."""
        table = self._open()
        if table is None or table.version() <= version:
            return []
        with mapped(self.location):
            history = table.history(int(table.version()) - version)
        return [_commit(entry) for entry in reversed(history) if int(entry["version"]) > version]

    def first_change_after(self, version: int) -> Commit | None:
        """The oldest commit with a greater version that may change rows, or None."""
        return next((commit for commit in self.commits_after(version) if not commit.without_data), None)

    def is_larger(self, size: int, rows: int) -> bool:
        """Whether the newest version's files have more than ``size`` bytes, or than ``rows`` rows with those deleted in them.

        Delta's checksum, which lies beside most commits, tells the bytes without a look at each file.
        """
        table = self._open()
        if table is None:
            return False
        known = self._checked_bytes(table.version())
        if known is not None and known > size:
            return True
        files = pa.table(table.get_add_actions())
        found = {name: pc.sum(files[name]).as_py() or 0 for name in ("size_bytes", "num_records")}
        return bool(found["size_bytes"] > size or found["num_records"] > rows)

    def _checked_bytes(self, version: int) -> int | None:
        """Of a version's files by its checksum; None where there is none, which no writer need leave, nor at once."""
        filesystem, path = filesystem_of(self.location)
        try:
            with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.crc") as stream:
                return int(json.loads(stream.read())["tableSizeBytes"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def last_transaction(self, app_id: str) -> int | None:
        """The newest transaction version of ``app_id``; None where it never wrote, or there is no table."""
        table = self._open()
        found = None if table is None else table.transaction_version(app_id)
        return None if found is None else int(found)

    def _open(self, version: int | None = None) -> DeltaTable | None:
        with mapped(self.location):
            try:
                return open_table(self.location, version)
            except TableNotFoundError:
                return None


def last_checkpoint(location: str) -> tuple[int, int]:
    """Version and number of parts (0: it is not cut) of a table's newest checkpoint; -1 where none is told of."""
    filesystem, path = filesystem_of(location)
    try:
        with filesystem.open_input_stream(f"{path}/_delta_log/_last_checkpoint") as stream:
            told = json.loads(stream.read())
        return int(told["version"]), int(told.get("parts") or 0)
    except (FileNotFoundError, ValueError, KeyError):
        return -1, 0


def _commit(entry: dict[str, Any]) -> Commit:
    try:
        metadata = json.loads(entry.get("userMetadata") or "{}")
    except ValueError:
        metadata = {}
    milliseconds = entry.get("inCommitTimestamp", entry["timestamp"])
    return Commit(
        version=int(entry["version"]),
        timestamp=datetime.fromtimestamp(int(milliseconds) / 1000, UTC),
        operation=str(entry["operation"]),
        metadata=metadata if isinstance(metadata, dict) else {},
        adds_only=_adds_only(entry),
        rows=_rows(entry),
    )


def _rows(entry: dict[str, Any]) -> int | None:
    """How many rows a commit added, changed or took away; not those that it only copied."""
    match entry["operation"]:
        case "MERGE":
            counts = [_count(entry, f"numTargetRows{what}") for what in ("Inserted", "Updated", "Deleted")]
        case "UPDATE":
            counts = [_count(entry, "numUpdatedRows")]
        case "DELETE":
            counts = [_count(entry, "numDeletedRows")]
        case _:
            counts = [_count(entry, "numOutputRows")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _adds_only(entry: dict[str, Any]) -> bool:
    match entry["operation"]:
        case "WRITE":
            return bool((entry.get("operationParameters") or {}).get("mode") == "Append")
        case "MERGE":
            return all(_count(entry, f"numTargetRows{what}") == 0 for what in ("Updated", "Deleted"))
        case _:
            return False


def _count(entry: dict[str, Any], metric: str) -> int | None:
    value = (entry.get("operationMetrics") or {}).get(metric)
    return None if value is None else int(value)
