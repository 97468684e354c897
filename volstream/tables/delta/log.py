"""Reads a Delta table's log without a JVM: commits and their effects."""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from deltalake.exceptions import DeltaError
from pyarrow import fs

from volstream.errors import DependencyError
from volstream.tables.delta.opened import OpenTable, newest_version
from volstream.tables.delta.places import filesystem_of, is_remote, mapped
from volstream.tables.delta.vectors import deleted_rows

T = TypeVar("T")


@dataclass(frozen=True)
class Commit:
    """One commit of a table.

    Attributes:
        metadata: the user metadata if it is a JSON object, else empty.
        adds_only: True if the commit is known to only add rows.
        rows: number of rows added, changed and removed, or None if unknown.
    """

    version: int
    timestamp: datetime
    operation: str
    metadata: dict[str, Any]
    adds_only: bool = False
    rows: int | None = None

    @property
    def without_data(self) -> bool:
        """True if the commit is known to change no row."""
        return self.operation in _WITHOUT_DATA


@dataclass(frozen=True)
class Extent:
    """The size of a table.

    Attributes:
        rows: number of rows without deleted ones, or None if a file has no statistics.
        bytes: total size of the data files.
        written_on: time of the newest commit that may have changed rows, or None if none of the last few did.
    """

    rows: int | None
    bytes: int
    written_on: datetime | None


#: Number of newest commits searched for the last change of rows.
_RECENT = 20

#: Up to this many new commits are found by their log entries' names, without opening the table.
_FEW_COMMITS = 3

#: Log entries read concurrently: in an object store each takes a request.
_READERS = 16

#: Operations that change no row, by Delta's names. All others may.
_WITHOUT_DATA = frozenset(
    {
        "OPTIMIZE",
        "COMPUTE STATS",
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


#: The operation of a commit that removes data files that cannot be read.
UNREADABLE = "REMOVE UNREADABLE FILES"


#: Delta's units of time, in seconds.
_SPANS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def files_kept(properties: Mapping[str, str]) -> timedelta:
    """Returns how long a table with these properties keeps removed files. Zero if not understood."""
    return _span(properties.get("delta.deletedFileRetentionDuration", "interval 7 days"))


def retention(properties: Mapping[str, str]) -> timedelta:
    """Returns how long older versions stay readable by these properties: the shorter retention of log and
    removed files."""
    files = files_kept(properties)
    if not keeps_log_short(properties):
        return files
    return min(files, _span(properties.get("delta.logRetentionDuration", "interval 30 days")))


def keeps_log_short(properties: Mapping[str, str]) -> bool:
    """True if old log entries of a table with these properties may be deleted."""
    return is_on(properties, "delta.enableExpiredLogCleanup", default=True)


def is_on(properties: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Returns the value of a boolean property, in any case."""
    return properties.get(name, str(default)).lower() == "true"


def _span(interval: str) -> timedelta:
    parts = re.findall(r"(\d+)\s+(second|minute|hour|day|week)s?", interval.lower())
    return timedelta(seconds=sum(int(number) * _SPANS[unit] for number, unit in parts))


class DeltaLog:
    """The log of the table at ``location`` (a local path or a URI). Every call reads it again."""

    def __init__(self, location: str) -> None:
        self.location = location

    def extent(self) -> Extent | None:
        """Returns the current size of the table, or None if there is no table."""
        table = OpenTable.newest(self.location)
        if table is None:
            return None
        with mapped(self.location):
            try:
                deleted = deleted_rows(table.handle, table.totals["path"].to_pylist())
            except DeltaError:  # the library lacks a feature of the table, such as type widening
                rows = None
            else:
                rows = None if table.rows is None else table.rows - sum(map(len, deleted.values()))
        newest = self._newest(self._commit, table.version, _RECENT)
        written = next((commit.timestamp for commit in newest if not commit.without_data), None)
        return Extent(rows, table.bytes, written)

    def readable_from(self, version: int) -> bool:
        """True if all log entries after ``version`` exist, so that the change feed can be read from there."""
        newest = newest_version(self.location)
        if newest is None or newest <= version:
            return newest is not None
        filesystem, path = filesystem_of(self.location)
        first = filesystem.get_file_info(f"{path}/_delta_log/{version + 1:020d}.json")
        return bool(first.type == fs.FileType.File)

    def lost_file(self, after: int, until: int) -> str | None:
        """Returns a missing or damaged file that the changes of versions ``after`` (excluded) to ``until``
        need, or None.

        Checks files that commits removed and change data they wrote. Skips versions without log entries.
        """
        filesystem, path = filesystem_of(self.location)
        for version in range(after + 1, until + 1):
            try:
                entries = actions(self.location, version, "")
            except FileNotFoundError:
                return None
            if commit_info(entries).get("operation") == UNREADABLE:
                return next(str(entry["remove"]["path"]) for entry in entries if "remove" in entry)
            named = [own_file(entry[kind]["path"]) for entry in entries for kind in ("remove", "cdc") if entry.get(kind, {})]
            for info in filesystem.get_file_info([f"{path}/{name}" for name in named if name is not None]):
                if info.type == fs.FileType.NotFound:
                    return str(info.base_name)
        return None

    def redefinitions(self, after: int, until: int) -> Sequence[int]:
        """Returns the versions ``after`` (excluded) to ``until`` that set the table's columns or properties.

        Skips versions without log entries.
        """
        versions = []
        for version in range(after + 1, until + 1):
            with suppress(FileNotFoundError):
                if any("metaData" in action for action in actions(self.location, version, '"metaData"')):
                    versions.append(version)
        return versions

    def commits_after(self, version: int) -> Sequence[Commit]:
        """Returns the commits with a greater version, oldest first."""
        newest = self._last_after(version)
        return [] if newest is None or newest <= version else self._newest(self._commit, newest, newest - version)[::-1]

    def _last_after(self, version: int) -> int | None:
        """Returns the newest version.

        If few commits follow ``version``, the names of a folder's log entries show it. Opening the table
        after each commit would cost more than the commit.
        """
        if not is_remote(self.location):
            filesystem, path = filesystem_of(self.location)
            entries = [f"{path}/_delta_log/{version + step:020d}.json" for step in range(1, _FEW_COMMITS + 2)]
            exists = [info.type == fs.FileType.File for info in filesystem.get_file_info(entries)]
            if exists[0] and not exists[-1]:  # oldest entries are deleted first, so there is no gap
                return version + exists.index(False)
        return newest_version(self.location)

    def _newest(self, read: Callable[[int], T | None], newest: int, limit: int) -> list[T]:
        """Reads up to ``limit`` commits, newest first, until ``read`` returns None.

        Does not use deltalake, which cannot read a clone's log.
        """
        found: list[T] = []
        versions = iter(range(newest, max(newest - limit, -1), -1))
        with mapped(self.location), ThreadPoolExecutor(_READERS) as pool:
            each = pool.map if is_remote(self.location) else map
            while chunk := [*itertools.islice(versions, _READERS)]:
                for commit in each(read, chunk):
                    if commit is None:
                        return found
                    found.append(commit)
        return found

    def _commit(self, version: int) -> Commit | None:
        """Returns a commit, or None if the log no longer has it."""
        try:
            return self._described(version, actions(self.location, version, '"commitInfo"'))
        except FileNotFoundError:
            return None

    def _described(self, version: int, entries: Iterable[Mapping[str, Any]]) -> Commit:
        """Returns a commit, given its actions."""
        info = commit_info(entries)
        if "timestamp" not in info:  # optional in the protocol
            filesystem, path = filesystem_of(self.location)
            [file] = filesystem.get_file_info([f"{path}/_delta_log/{version:020d}.json"])
            info = {"timestamp": file.mtime.timestamp() * 1000, **info}
        try:
            return _commit(version, info)
        # types that violate the protocol
        except (AttributeError, TypeError, ValueError, OverflowError, OSError):
            raise _damage(self.location, version) from None

    def changes(self, first: int, last: int) -> Sequence[tuple[Commit, Sequence[Mapping[str, Any]]]]:
        """Returns the commits ``first`` to ``last``, both included, with their actions, oldest first.

        Raises:
            DependencyError: the log no longer has all of them, or is damaged.
        """

        def read(version: int) -> tuple[Commit, Sequence[Mapping[str, Any]]] | None:
            try:
                entries = actions(self.location, version, "")
                return self._described(version, entries), entries
            except FileNotFoundError:
                return None

        found = self._newest(read, last, last - first + 1)
        if len(found) <= last - first:
            raise DependencyError(f"The log of the table at {self.location} no longer has all versions from {first} to {last}.")
        return found[::-1]

    def sizes(self, limit: int) -> Mapping[int, int]:
        """Returns the table's total bytes by version, newest first, as far back as the log shows."""
        table = OpenTable.newest(self.location)
        if table is None:
            return {}
        version = table.version
        sizes = itertools.accumulate(self._newest(self._growth, version, limit), operator.sub, initial=table.bytes)
        return dict(zip(range(version, max(version - limit, -1), -1), sizes, strict=False))

    def _growth(self, version: int) -> int | None:
        """Returns the bytes that a commit added to the table, or None if the log does not show them."""
        try:
            changes = actions(self.location, version, '"path"')
            added: int = sum(change["add"]["size"] for change in changes if "add" in change)
            removed: int = sum(change["remove"]["size"] for change in changes if "remove" in change)
        except (FileNotFoundError, KeyError):  # cleaned up; or a writer that omits optional fields
            return None
        return added - removed

    def first_change_after(self, version: int) -> Commit | None:
        """Returns the oldest commit with a greater version that may change rows, or None."""
        return next((commit for commit in self.commits_after(version) if not commit.without_data), None)


def last_checkpoint(location: str) -> tuple[int, int]:
    """Returns version and number of parts (0: not split) of a table's newest checkpoint. Without one, the
    version is -1.

    Searches the log if ``_last_checkpoint`` is missing, as in a copy of a table.
    """
    filesystem, path = filesystem_of(location)
    try:
        with filesystem.open_input_stream(f"{path}/_delta_log/_last_checkpoint") as stream:
            hint = json.loads(stream.read())
        return int(hint["version"]), int(hint.get("parts") or 0)
    except (FileNotFoundError, ValueError, KeyError):
        return max(complete_checkpoints(log_files(location)).items(), default=(-1, 0))


def log_files(location: str) -> Sequence[str]:
    """Returns the names of the files in a table's log."""
    filesystem, path = filesystem_of(location)
    found = filesystem.get_file_info(fs.FileSelector(f"{path}/_delta_log", allow_not_found=True))
    return [file.base_name for file in found if file.type == fs.FileType.File]


_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


def complete_checkpoints(names: Iterable[str]) -> dict[int, int]:
    """Returns the versions of complete checkpoints among a log's files, ascending, with the number of parts
    (0: not split)."""
    parts: defaultdict[tuple[int, int], int] = defaultdict(int)
    for name in names:
        if found := _CHECKPOINT.fullmatch(name):
            parts[int(found[1]), int(found[3] or 0)] += 1
    return {version: total for (version, total), present in sorted(parts.items()) if present >= (total or 1)}


def checkpoint_files(location: str, checkpoint: tuple[int, int]) -> Sequence[str]:
    """Returns the paths of a checkpoint's files in the table's filesystem, given the result of
    :func:`last_checkpoint`."""
    version, parts = checkpoint
    if version < 0:
        return []
    stem = f"{filesystem_of(location)[1]}/_delta_log/{version:020d}.checkpoint"
    if not parts:
        return [f"{stem}.parquet"]
    return [f"{stem}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]


def own_file(path: str) -> str | None:
    """Returns an action's file relative to the table, or None if it is elsewhere, as in shallow clones."""
    return None if urlsplit(path).scheme or path.startswith("/") else unquote(path)


def actions(location: str, version: int, mentioning: str = "") -> Sequence[Mapping[str, Any]]:
    """Returns the actions of a commit whose JSON contains ``mentioning``, in order.

    Raises:
        FileNotFoundError: the log has no such entry.
        DependencyError: the log entry is damaged.
    """
    filesystem, path = filesystem_of(location)
    with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
        lines = stream.read().splitlines()  # as bytes: statistics may contain separators such as U+2028
    try:
        found = [json.loads(line) for line in lines if line.strip() and mentioning.encode() in line]
    except (ValueError, RecursionError):
        raise _damage(location, version) from None
    if not all(
        isinstance(action, dict) and all(item is None or isinstance(item, dict) for item in action.values()) for action in found
    ):
        raise _damage(location, version)
    return found


def _damage(location: str, version: int) -> DependencyError:
    return DependencyError(f"The table at {location} is damaged: version {version} of its log cannot be read.")


def commit_info(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the ``commitInfo`` of a commit, given its actions. Empty without one."""
    return next((entry["commitInfo"] for entry in entries if "commitInfo" in entry), {})


def metadata_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a commit's user metadata. Empty unless it is a JSON object, as volstream writes it."""
    try:
        metadata = json.loads(info.get("userMetadata") or "{}")
    except (ValueError, TypeError):
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _commit(version: int, entry: Mapping[str, Any]) -> Commit:
    milliseconds = entry.get("inCommitTimestamp", entry["timestamp"])
    return Commit(
        version=version,
        timestamp=datetime.fromtimestamp(int(milliseconds) / 1000, UTC),
        operation=str(entry.get("operation", "unknown")),
        metadata=metadata_of(entry),
        adds_only=_is_append(entry),
        rows=_rows(entry),
    )


def _rows(entry: Mapping[str, Any]) -> int | None:
    """Returns the number of rows that a commit added, changed or removed. Copied rows do not count."""
    match entry.get("operation"):
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


def _is_append(entry: Mapping[str, Any]) -> bool:
    match entry.get("operation"):
        case "WRITE":
            return bool((entry.get("operationParameters") or {}).get("mode") == "Append")
        case "MERGE":
            return all(_count(entry, f"numTargetRows{what}") == 0 for what in ("Updated", "Deleted"))
        case _:
            return False


def _count(entry: Mapping[str, Any], metric: str) -> int | None:
    value = (entry.get("operationMetrics") or {}).get(metric)
    return None if value is None else int(value)
