"""What a Delta table's log says, read without a JVM: version, table id, commits, transaction ids.

This is the one place that probes logs; it uses the deltalake library but for the question "is there something new?",
which is one look for one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from volstream.errors import DependencyError


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    Attributes:
        metadata: the user metadata, where it is a JSON object; else empty.
    """

    version: int
    timestamp: datetime
    operation: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class DataFile:
    """One file of a table's newest version.

    Attributes:
        rows: with those that a deletion vector hides.
        first: least value of the column that was asked for, as text; Delta may have cut it short.
        last: greatest value, or more.
    """

    bytes: int
    rows: int
    first: str
    last: str


class DeltaLog:
    """The log of the table at ``location`` (a local path or a URI). Reads afresh at each call."""

    def __init__(self, location: str) -> None:
        self.location = location

    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return DeltaTable.is_deltatable(self.location)

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
        table = self._open()
        fields = [] if table is None else json.loads(table.schema().to_json())["fields"]
        return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields}

    def has_newer(self, version: int) -> bool:
        """Whether a commit follows ``version``. One look for one file; may be true for one that holds no data.

        A missing ``<version + 1>.json`` proves nothing where ``<version>.json`` is gone too: the log was cleaned (R-22).
        """
        filesystem, path = _filesystem(self.location)
        following, current = filesystem.get_file_info(
            [f"{path}/_delta_log/{v:020d}.json" for v in (version + 1, version)]
        )
        if following.type == fs.FileType.File:
            return True
        if current.type == fs.FileType.File:
            return False
        newest = self.latest_version()
        return newest is not None and newest > version

    def readable_from(self, version: int) -> bool:
        """Whether the commit files after ``version`` are all there: what a change feed from it needs."""
        newest = self.latest_version()
        if newest is None or newest <= version:
            return newest is not None
        filesystem, path = _filesystem(self.location)
        first = filesystem.get_file_info(f"{path}/_delta_log/{version + 1:020d}.json")
        return bool(first.type == fs.FileType.File)

    def commits_after(self, version: int) -> Sequence[Commit]:
        """The commits with a greater version, oldest first."""
        table = self._open()
        if table is None or table.version() <= version:
            return []
        with mapped(self.location):
            history = table.history(int(table.version()) - version)
        return [_commit(entry) for entry in reversed(history) if int(entry["version"]) > version]

    def files(self, column: str) -> Sequence[DataFile]:
        """The files of the newest version, with the range of a text column in each; none where there is no table."""
        table = self._open()
        if table is None:
            return []
        added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [
            DataFile(
                one["size_bytes"],
                one["num_records"] or 0,
                one[f"min.{column}"] or "",
                one[f"max.{column}"] or "\U0010ffff",
            )
            for one in added
        ]

    def last_transaction(self, app_id: str) -> int | None:
        """The newest transaction version of ``app_id``; None where it never wrote, or there is no table."""
        table = self._open()
        found = None if table is None else table.transaction_version(app_id)
        return None if found is None else int(found)

    def _open(self) -> DeltaTable | None:
        with mapped(self.location):
            try:
                return DeltaTable(self.location)
            except TableNotFoundError:
                return None


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
    )


def _filesystem(location: str) -> tuple[fs.FileSystem, str]:
    filesystem, path = fs.FileSystem.from_uri(location)
    return filesystem, path.rstrip("/")


@contextmanager
def mapped(location: str) -> Iterator[None]:
    """Maps what deltalake raises to DependencyError, but for a table that is not there."""
    try:
        yield
    except TableNotFoundError:
        raise
    except (DeltaError, OSError) as error:
        raise DependencyError(f"The log of the table at {location} cannot be read: {error}.") from error
