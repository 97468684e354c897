"""Upkeep of tables with many small commits: merges small files, drops deleted rows, deletes old files.

No row changes: the commit says so (``dataChange``), rows keep their ids, and replaced files stay for running
readers. Only files of similar size are merged, so that each row is rewritten a few times at most, however
many commits follow.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from math import inf
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from volstream.tables.delta import commits, direct, history
from volstream.tables.delta.commits import FEED, TrackedCommit, can_commit, id_column, ids_of, version_column
from volstream.tables.delta.datafile import fitted, of_rows, open_file
from volstream.tables.delta.history import MayGo
from volstream.tables.delta.log import files_kept, own_file
from volstream.tables.delta.opened import OpenTable, newest_version
from volstream.tables.delta.ownership import OWNER, UPKEEP
from volstream.tables.delta.places import (
    can_create,
    files,
    files_of,
    filesystem_of,
    held_table,
    make_durable,
    mapped,
    remove_file,
)
from volstream.tables.delta.vectors import deleted_rows, file_of

#: A table is checked after this many commits.
COMMITS = 8

#: Cleaning drops old versions and unneeded files after this many commits, and at the first check after this
#: many seconds: files replaced by a burst of commits are needed for another hour.
_CLEAN_COMMITS, _CLEAN_SECONDS = 250, 3900.0

#: Names of files that volstream writes. It commits them immediately.
_OURS = re.compile(r"part-[0-9a-f]{32}\.parquet")

#: By location: number of this process's commits since it last checked the table.
_commits_since_check: dict[str, int] = {}

#: By location: the version at this process's last check for old versions, and the time when it last found
#: cleaning due.
_last_cleaning: dict[str, tuple[int, float]] = {}

#: This many files of similar size are merged into one.
_FILES = 8

#: Larger files are not merged: a merge holds its files in memory.
_MOST_BYTES = 64 << 20

#: Maximum size of rows in memory, uncompressed. A file that needs more is not merged.
_MOST_MEMORY = 256 << 20

#: A file is rewritten once this fraction of its rows is deleted.
_DELETED = 0.5

#: While a job is idle, upkeep rewrites all files with deleted rows, unless their total size exceeds this.
_IDLE_BYTES = 16 << 20


def _ignore(*_: int) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class _File:
    """A data file of a version.

    Attributes:
        deleted: positions of its deleted rows.
        partition: values of the partition columns.
    """

    path: str
    size: int
    rows: int
    deleted: np.ndarray
    partition: tuple[Any, ...]

    @property
    def tier(self) -> int:
        """Files of one tier have a similar number of rows."""
        return max(0, self.rows - self.deleted.size).bit_length() // 3


def is_due(location: str, new: int) -> bool:
    """True if a table is due for a check after ``new`` more commits of this process, or after its first."""
    commits_since = _commits_since_check.get(location, COMMITS) + new
    _commits_since_check[location] = 0 if commits_since >= COMMITS else commits_since
    return commits_since >= COMMITS


def is_old(location: str, new: int) -> bool:
    """True if a table is due for cleaning: every 250 commits, or an hour after this process last did it.

    ``new`` is as for :func:`is_due`.
    """
    version, now = newest_version(location) or 0, time.monotonic()
    last_version, last_due = _last_cleaning.get(location, (version - max(new, COMMITS), now))
    due = version // _CLEAN_COMMITS != last_version // _CLEAN_COMMITS or now - last_due > _CLEAN_SECONDS
    _last_cleaning[location] = version, now if due else last_due
    return due


def compact(location: str, key: str, *, without_vectors: bool = False) -> bool:
    """Merges some small files of a table. Returns True if there may be more to do.

    Merges at most 64 MiB of files at a time. Does nothing if another writer commits first, if the table needs
    features that this module does not support, or if neither a job nor a property requests upkeep
    (:data:`UPKEEP`).

    Args:
        key: text column by which rows are sorted.
        without_vectors: drop all deleted rows if that removes all deletion vectors and rewrites 16 MiB at
            most. A single vector costs Delta's Spark reader a fixed 0.15 to 0.35 s.

    Raises:
        DependencyError: the table cannot be read or written.
    """
    with mapped(location):
        table = _opened(location)
        return table is not None and any(
            _compact(location, table, some, key) for some in _choices(table, without_vectors=without_vectors)
        )


def clean(
    location: str, until: int | None = None, may_go: MayGo | None = None, note: Callable[[int, int], object] = _ignore
) -> int:
    """Forgets old versions (see :mod:`~.history`) and deletes files that no readable version needs.

    Lists the table's folder. Returns the number of deleted files.

    Also deletes leftovers of crashes. A file that another writer may still commit is deleted only after the
    table's retention.

    Args:
        until: the oldest version that a stream or an open attempt still needs, if any.
        may_go, note: passed to :func:`volstream.tables.delta.history.trim`. Without ``may_go``, no version is
            forgotten.

    Raises:
        DependencyError: the table cannot be read, or a file cannot be deleted.
    """
    with mapped(location), ExitStack() as stack:
        table = _opened(location)
        if table is None:
            return 0
        properties = table.metadata().configuration
        horizon, retention_begins = history.horizon(properties), datetime.now(UTC) - files_kept(properties)
        if horizon is None:
            return 0
        descriptor = stack.enter_context(held_table(location, table.version()))
        first_needed, by_number = table.version() if until is None else until, history.is_by_number(properties)
        if by_number and may_go is not None:
            history.trim(location, table, first_needed, may_go, note, descriptor)
        inside = bool(table.metadata().partition_columns)  # other writers create a folder for each value
        found = [
            files(location, recursive=inside, descriptor=descriptor),
            *([] if inside else [files(location, FEED, descriptor=descriptor)]),
        ]
        old = [
            file
            for file in chain.from_iterable(found)
            if _is_table_file(file.name) and not file.path.startswith("_delta_log/")
            if file.written_on < horizon
        ]
        if not old:
            return 0
        needed, removed = _needed(location, table, horizon.timestamp())
        needed |= _names(
            action
            for action in history.needed(location, -1 if by_number else first_needed)
            # Unless a stream or an attempt needs them, files removed before the retention period can be
            # deleted.
            if action.get("deletionTimestamp", inf) >= retention_begins.timestamp() * 1000 or until is not None
        )
        unneeded = [
            file.path
            for file in old
            if file.name not in needed
            and (file.name in removed or _OURS.fullmatch(file.name) or file.written_on < retention_begins)
        ]
        for path in unneeded:
            remove_file(location, path, descriptor)
        history.forget(location, table, horizon)
        return len(unneeded)


def _is_table_file(name: str) -> bool:
    vector = name.startswith("deletion_vector_") and name.endswith(".bin")
    return vector or (name.endswith(".parquet") and not name.startswith((".", "_")))


def _needed(location: str, table: DeltaTable, before: float) -> tuple[set[str], set[str]]:
    """Returns the names of two sets of files: the files of a version with files removed since ``before``; and
    files removed earlier.

    Only knows removals in the newest checkpoint and in later commits.
    """
    paths = files_of(table)["path"].to_pylist()
    removed: tuple[list[Mapping[str, Any]], ...] = ([], [])
    for entry in commits.removed(location, table.version()):
        removed[(entry.get("deletionTimestamp") or 0) < before * 1000].append(entry)
    needed = _names([{"path": path} for path in paths])
    needed |= _names(chain(commits.adds(location, table.version(), paths).values(), removed[0]))
    return needed, _names(removed[1])


def _names(actions: Iterable[Mapping[str, Any]]) -> set[str]:
    """Returns the file names of actions, without folders: a clone stores full paths of its own files."""
    names = set[str]()
    for action in actions:
        vector = file_of(action.get("deletionVector"))
        names |= {path.rpartition("/")[2] for path in (action["path"], unquote(action["path"]), vector) if path is not None}
    return names


def _opened(location: str) -> DeltaTable | None:
    """Opens a table. Returns None if it is missing, if upkeep is off, or if it needs unsupported features."""
    if not can_create(location):
        return None
    table = OpenTable.newest(location)
    if table is None:
        return None
    wanted = table.properties.get(UPKEEP, "on" if OWNER in table.properties else "off").lower() == "on"
    return table.handle if wanted and can_commit(table.handle, None) else None


def _choices(table: DeltaTable, *, without_vectors: bool) -> Iterator[Sequence[_File]]:
    """Yields groups of files to merge, the most urgent first."""
    listed = files_of(table)
    if listed.num_rows < 2 and not without_vectors:
        return
    paths, sizes, counts = (listed[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    parts = [listed[f"partition.{name}"].to_pylist() for name in table.metadata().partition_columns]
    deleted = deleted_rows(table, paths)
    nothing = np.empty(0, np.int64)
    files = [
        _File(path, size, rows, deleted.get(path, nothing), tuple(values[at] for values in parts))
        for at, (path, size, rows) in enumerate(zip(paths, sizes, counts, strict=True))
        if rows is not None and own_file(path) is not None
    ]
    small = [file for file in files if file.size <= _MOST_BYTES]
    for tier in _grouped(small, lambda file: (file.partition, file.tier)):
        group = _up_to_limit(sorted(tier, key=lambda file: (file.size, file.path)))
        if len(group) >= _FILES:
            yield group
    for part in _grouped([file for file in small if file.deleted.size > _DELETED * file.rows]):
        yield _up_to_limit(part)
    if without_vectors:
        with_vectors = [file for file in files if file.deleted.size]
        if sum(file.size for file in with_vectors) <= _IDLE_BYTES:
            yield from _grouped(with_vectors)


def _grouped(files: Sequence[_File], by: Callable[[_File], Hashable] = lambda file: file.partition) -> Iterable[Sequence[_File]]:
    """Groups files that can be merged."""
    groups: dict[Hashable, list[_File]] = {}
    for file in files:
        groups.setdefault(by(file), []).append(file)
    return groups.values()


def _up_to_limit(files: Sequence[_File]) -> Sequence[_File]:
    total = np.cumsum([file.size for file in files])
    return files[: int(np.searchsorted(total, _MOST_BYTES, side="right"))]


def _compact(location: str, table: DeltaTable, files: Sequence[_File], key: str) -> bool:
    parts_in = table.metadata().partition_columns
    schema = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name not in parts_in])
    ids, versions = id_column(table), version_column(table)
    id_columns = [name for name in (ids, versions) if name is not None]
    written = pa.schema([*schema, *(pa.field(name, pa.int64()) for name in id_columns)])
    adds = commits.adds(location, table.version(), [file.path for file in files])
    merged, parts, size = list[_File](), list[pa.Table](), 0
    for file in files:
        if file.path not in adds:
            continue
        rows = _read(location, file, written, _MOST_MEMORY - size)
        if rows is None:
            continue  # a smaller file may still fit
        size += rows.nbytes
        at = np.setdiff1d(np.arange(rows.num_rows), file.deleted, assume_unique=True)
        rows, add = rows.take(at), adds[file.path]
        if ids is not None:
            rows = _with(rows, ids, ids_of(add, rows, at, ids))
        if versions is not None:
            changed_by = pc.fill_null(rows[versions].combine_chunks(), int(add.get("defaultRowCommitVersion") or 0))
            rows = _with(rows, versions, changed_by)
        merged.append(file)
        parts.append(rows)
    if not any(file.deleted.size for file in merged) and len(merged) < 2:
        return False
    rows = pa.concat_tables(parts)
    by = direct.spelled(table, key)
    ordered = rows.sort_by(by) if by in rows.column_names else rows
    return _replace(location, table, [adds[file.path] for file in merged], ordered, by, id_columns)


def _read(location: str, file: _File, schema: pa.Schema, room: int) -> pa.Table | None:
    """Returns a file's rows, or None if they need more than ``room`` bytes of memory. In the file, repeated
    values take no space."""
    groups = [schema.empty_table().cast(pa.schema([field.with_nullable(True) for field in schema]))]
    wanted = {name.lower() for name in schema.names}
    with open_file(location, own_file(file.path) or "") as opened:
        if sum(opened.metadata.row_group(number).total_byte_size for number in range(opened.num_row_groups)) > room:
            return None
        present = [name for name in opened.schema_arrow.names if name.lower() in wanted]
        for number in range(opened.num_row_groups):
            groups.append(fitted(opened.read_row_group(number, columns=present), schema))
            room -= groups[-1].nbytes
            if room < 0:
                return None
    return pa.concat_tables(groups)


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def _replace(
    location: str, table: DeltaTable, old: Sequence[Mapping[str, Any]], rows: pa.Table, key: str, unlisted: Sequence[str]
) -> bool:
    """Commits a file with ``rows`` in place of others."""
    tracked = TrackedCommit(table, location)
    info = commits.info("OPTIMIZE", {"predicate": "[]"}, **tracked.info(keeps_ids=True))
    now = int(time.time() * 1000)
    removed = [commits.removal(add, now, changes_data=False) for add in old]
    if not rows.num_rows:
        return _commit(location, table, [info, *removed])
    file = of_rows(location, rows.schema, key, unlisted)
    try:
        file.write(rows)
        added = commits.addition(
            replace(file.close(), partition=old[0]["partitionValues"]), **tracked.added(rows.num_rows), dataChange=False
        )
        make_durable(*filesystem_of(location), folders=False)
    except BaseException:
        file.drop()
        raise
    # If interrupted from here on, the commit may have been made, so the file stays.
    committed = _commit(location, table, [info, *removed, added, *tracked.domain()])
    if not committed:
        file.drop()
    return committed


def _commit(location: str, table: DeltaTable, actions: Sequence[Mapping[str, Any]]) -> bool:
    """Commits on top of a version. Returns False if another commit came first, or if the table was dropped
    and recreated.

    The job's lease does not prevent that.
    """
    now, opened = OpenTable.newest(location), str(table.metadata().id)
    return now is not None and now.id == opened and commits.on(location, opened, table.version(), actions)
