"""Finds the unreadable parts of a table (log, data files, deletion vectors) and makes the table readable
again.

A commit removes unreadable data files and records the bounds of their rows' values: one file of a volume may
have rows in several data files, and the remaining rows look complete. If only checkpoints are unreadable,
they are deleted and readers use the rest of the log.

Not here: which files the lost rows came from, and how a job restores them (``jobs.verify``).
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from volstream.base.model.text import counted
from volstream.errors import DependencyError, InvalidStateError
from volstream.tables.delta import commits, places, vectors
from volstream.tables.delta.commits import TrackedCommit
from volstream.tables.delta.datafile import is_damage, open_file
from volstream.tables.delta.log import (
    UNREADABLE,
    actions,
    checkpoint_files,
    commit_info,
    complete_checkpoints,
    is_on,
    last_checkpoint,
    log_files,
    metadata_of,
    own_file,
)
from volstream.tables.delta.places import can_create, crowded, files_of, filesystem_of, is_table, mapped, open_table, remove_file

#: Checks read all rows of tables up to this size, and of larger ones only on request.
_WHOLE_BYTES = 1 << 30

#: Number of files checked concurrently.
_CHECKERS = 4

#: Limits of a batch of rows in memory: rows, and approximate bytes.
_ROWS, _MEMORY = 4096, 32 << 20

#: Maximum number of bounds in a commit. With more files, one pair of bounds covers all.
_MOST_BOUNDS = 100

#: Maximum number of attempts to commit. An attempt fails only if another commit came first.
_ATTEMPTS = 100

#: Key in a commit's metadata: the bounds of the files that the commit removed.
_BOUNDS = "unreadable"

_ENTRY = re.compile(r"(\d{20})\.json")

#: The least and the greatest value in a file, by column. None means unknown.
Bounds = Mapping[str, tuple[str | None, str | None]]


@dataclass(frozen=True)
class Damage:
    """The unreadable parts of a table.

    Attributes:
        location: of the table.
        what: what the table is, for messages.
        log: names of the log's unreadable files. Without them the state of the table is uncertain.
        files: data files that cannot be read, or whose deletion vector cannot. Empty if the log is damaged:
            the check then skips data files.
    """

    location: str
    what: str = "table"
    log: Sequence[str] = ()
    files: Sequence[str] = ()

    def __str__(self) -> str:
        """The damage as a sentence without its final period."""
        part, names = ("the log", self.log) if self.log else (counted(len(self.files), "data file"), self.files)
        return f"{part} of the {self.what} cannot be read ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def damage_of(location: str, what: str, *, whole: bool = False) -> Damage | None:
    """Returns the unreadable parts of a table, or None if the check found no damage or there is no table.

    Args:
        what: what the table is, for messages.
        whole: also read all rows of a large table. By default, only the footers of its files are read.

    Raises:
        DependencyError: the store is unreachable or denies access.
    """
    if not is_table(location):
        return None
    with mapped(location):
        checkpoint, names = last_checkpoint(location), log_files(location)
        if broken := _broken(location, checkpoint, names):
            return Damage(location, what, log=broken)
        if not _is_classic(location, checkpoint, names):
            return None
        table = open_table(location)
        listed = files_of(table, flatten=False)
        adds = commits.adds(location, table.version(), listed["path"].to_pylist()).values()
        whole = whole or (pc.sum(listed["size_bytes"]).as_py() or 0) <= _WHOLE_BYTES
        with ThreadPoolExecutor(_CHECKERS) as pool:
            readable = pool.map(partial(_is_readable, location, whole=whole), adds)
            files = [add["path"] for add, is_readable in zip(adds, readable, strict=True) if not is_readable]
    return Damage(location, what, files=files) if files else None


def remove_files(location: str, files: Sequence[str], columns: Sequence[str]) -> None:
    """Removes data files from a table. They stay in the folder until a vacuum.

    Args:
        columns: text columns whose bounds the commit records.

    Raises:
        InvalidStateError: the table forbids removals.
        StorageError: too many concurrent commits.
    """
    with mapped(location):
        for _ in range(_ATTEMPTS):
            table = open_table(location)
            if not can_create(location) or is_on(table.metadata().configuration, "delta.appendOnly"):
                raise InvalidStateError(
                    f"The table at {location} is damaged, and these files cannot be removed from it: {', '.join(files[:3])}.",
                    "Restore these files from a backup, or drop the table.",
                )
            adds = [*commits.adds(location, table.version(), files).values()]
            if not adds:
                return
            actions = _removal(location, table, adds, columns)
            if commits.on(location, str(table.metadata().id), table.version(), actions):
                return
    raise crowded(location)


def bounds_of(metadata: Mapping[str, Any]) -> Sequence[Bounds] | None:
    """Returns the bounds of the files removed by :func:`remove_files`, given a commit's metadata, or None for
    any other commit."""
    return metadata.get(_BOUNDS)


def drop_checkpoints(location: str) -> bool:
    """Makes a damaged log readable by deleting checkpoints.

    This helps if the log still has all entries, or all that follow an older checkpoint. Otherwise deletes
    nothing and returns False."""
    with mapped(location):
        names = log_files(location)
        older = [*reversed(complete_checkpoints(names).items()), (-1, 0)]
        begin = next((at for at, parts in older if not _broken(location, (at, parts), names)), None)
        if begin is None:
            return False
        for name in names:
            if name == "_last_checkpoint" or (".checkpoint." in name and int(name[:20]) > begin):
                remove_file(location, f"_delta_log/{name}")
    return True


def _broken(location: str, checkpoint: tuple[int, int], names: Collection[str]) -> Sequence[str]:
    """Returns the names of unreadable or missing log files that the table's state depends on.

    An empty entry counts as unreadable: no writer creates one, but readers take it for a commit without
    changes.
    """
    broken, filesystem = list[str](), filesystem_of(location)[0]
    if _is_classic(location, checkpoint, names):
        for path in checkpoint_files(location, checkpoint):
            try:
                pq.read_table(path, filesystem=filesystem)
            except (OSError, ValueError) as error:
                if not is_damage(error):
                    raise
                broken.append(path.rpartition("/")[2])
    defined = checkpoint[0] >= 0
    newest = max((int(found[1]) for found in map(_ENTRY.fullmatch, names) if found), default=0)
    for version in range(checkpoint[0] + 1, newest + 1):
        try:
            entries = actions(location, version, "")
        except (FileNotFoundError, DependencyError):
            entries = []
        defined = defined or any("metaData" in entry for entry in entries)
        if not (entries and defined):
            broken.append(f"{version:020d}.json")
    return broken


def _is_classic(location: str, checkpoint: tuple[int, int], names: Collection[str]) -> bool:
    """False if only Spark can read the table's checkpoint: such checkpoints have other names."""
    expected = {path.rpartition("/")[2] for path in checkpoint_files(location, checkpoint)}
    return expected <= {*names} or not any(name.startswith(f"{checkpoint[0]:020d}.checkpoint.") for name in names)


def _is_readable(location: str, add: Mapping[str, Any], *, whole: bool) -> bool:
    name, vector = own_file(add["path"]), add.get("deletionVector")
    if name is None:
        return True  # belongs to another table, as in shallow clones
    try:
        if vector is not None and vectors.file_of(vector) is not None:
            vectors.positions(location, vector)
        with open_file(location, name) as file:
            footer, size = file.metadata, 1
            for number in range(footer.num_row_groups):
                size += footer.row_group(number).total_byte_size
            for _ in file.iter_batches(max(1, min(_ROWS, footer.num_rows * _MEMORY // size))) if whole else ():
                pass
    except pa.ArrowNotImplementedError:  # values that only Spark reads
        return True
    except (OSError, ValueError) as error:
        if not is_damage(error):
            raise
        return False
    return True


def _removal(
    location: str, table: DeltaTable, adds: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """Returns the actions of a commit that removes files."""
    bounds = [_bounds(add, columns) for add in adds]
    if len(bounds) > _MOST_BOUNDS:
        bounds = [{name: _enclosing([file[name] for file in bounds]) for name in columns}]
    now, metadata = int(time.time() * 1000), json.dumps({_BOUNDS: bounds})
    info = commits.info(UNREADABLE, {}, userMetadata=metadata, **TrackedCommit(table, location).info(keeps_ids=False))
    return [info, *(commits.removal(add, now) for add in adds)]


def _bounds(add: Mapping[str, Any], columns: Sequence[str]) -> Bounds:
    statistics = json.loads(add.get("stats") or "{}")
    least, greatest = (statistics.get(end) or {} for end in ("minValues", "maxValues"))
    return {name: (least.get(name), greatest.get(name)) for name in columns}


def _enclosing(bounds: Sequence[tuple[str | None, str | None]]) -> tuple[str | None, str | None]:
    lows, highs = zip(*bounds, strict=True)
    return None if None in lows else min(lows), None if None in highs else max(highs)


# Rows that other writers changed: according to the log, another writer's commit added or removed their file,
# or deleted rows in it.

#: A commit that replaces files is compared row by row if the files have at most this many rows.
_MOST_ROWS = 200_000

#: Operations that remove or rename values of all rows without touching their files.
_COLUMN_OPERATIONS = frozenset({"DROP COLUMNS", "RENAME COLUMN", "REPLACE COLUMNS"})

#: Schema of changed rows: the key, and the version that changed the row.
TOUCHED = pa.schema([("key", pa.string()), ("version", pa.int64())])


@dataclass(frozen=True)
class ForeignCommit:
    """A commit by another writer that changed rows.

    Attributes:
        operation: Delta's name for it, or the writer's.
        unseen: the commit may have changed any row: a vacuum deleted a file that it removed, or it dropped
            columns.
    """

    version: int
    operation: str
    unseen: bool


@dataclass(frozen=True)
class History:
    """The commits of a table, as far as its log still has them.

    Attributes:
        first: the first version still in the log. Greater than requested if the log was cleaned up.
        commits: by other writers.
        lost: bounds of each unreadable file, by the version that removed it.
        own: versions that the job's batches committed, by batch id.
    """

    first: int
    commits: Sequence[ForeignCommit] = ()
    lost: Mapping[int, Sequence[Bounds]] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)

    @property
    def unseen(self) -> int | None:
        """The newest version that may have changed any older row, or None."""
        return max((commit.version for commit in self.commits if commit.unseen), default=None)


def foreign_changes(
    location: str, key: str, after: int, until: int, batch_of: Callable[[Mapping[str, Any]], str | None], target: str
) -> History:
    """Writes the keys of rows that other writers changed after a version to a new folder, as rows of
    :data:`TOUCHED`.

    Args:
        key: name of the text column with the key.
        batch_of: returns the id of the batch that made a commit, given the commit's metadata, or None for
            another writer's commit.
        target: location of the folder.
    """
    first, commits, own_versions = after + 1, list[ForeignCommit](), dict[str, int]()
    lost = dict[int, Sequence[Bounds]]()
    with places.written(target, TOUCHED) as writer:
        for version in range(after + 1, until + 1):
            try:
                entries = actions(location, version, "")
            # cleaned up, or damaged: a checkpoint has its changes
            except (FileNotFoundError, DependencyError):
                first = version + 1
                continue
            info = commit_info(entries)
            metadata = metadata_of(info)
            batch = batch_of(metadata)
            if batch is not None:
                own_versions[batch] = version
                continue
            if (bounds := bounds_of(metadata)) is not None:
                lost[version] = bounds
                continue
            operation = str(info.get("operation", "unknown"))
            unseen = operation in _COLUMN_OPERATIONS
            changed = unseen
            for keys in _touched(location, key, entries):
                if keys is None:
                    unseen = changed = True
                elif len(keys):
                    changed = True
                    rows = pa.table([keys, pa.array([version] * len(keys), pa.int64())], schema=TOUCHED)
                    writer.write_table(rows)
            if changed:
                commits.append(ForeignCommit(version, operation, unseen))
    return History(first, commits, lost, own_versions)


def may_change_rows(entries: Sequence[Mapping[str, Any]], batch_of: Callable[[Mapping[str, Any]], str | None]) -> bool:
    """True if another writer made the commit with these actions and it may have changed rows."""
    info = commit_info(entries)
    changed = (entry[kind].get("dataChange", True) for entry in entries for kind in ("add", "remove") if kind in entry)
    return batch_of(metadata_of(info)) is None and (info.get("operation") in _COLUMN_OPERATIONS or any(changed))


def _touched(location: str, key: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[pa.Array | None]:
    """Yields the keys of rows that a commit added or removed, file by file. Yields None for a file that was
    deleted by a vacuum, has no keys or is damaged."""
    sides: list[dict[str, Any]] = []
    for kind in ("add", "remove"):
        files = (entry[kind] for entry in entries if kind in entry)
        sides.append({file["path"]: file.get("deletionVector") for file in files if file.get("dataChange", True)})
    added, removed = sides
    rewritten = _rewritten(location, key, added, removed)
    if rewritten is not None:
        yield rewritten
        return
    for path in added.keys() | removed.keys():
        name = own_file(path)
        try:
            if name is None:
                raise FileNotFoundError(path)
            keys = _keys(location, name, key)
            deleted, *other = [_deleted(location, side[path]) for side in sides if path in side]
        except (OSError, ValueError, KeyError) as error:
            if not (isinstance(error, KeyError) or is_damage(error)):
                raise
            yield None
            continue
        at = np.setxor1d(deleted, other[0] if other else np.arange(len(keys)))
        yield pc.unique(keys.take(pa.array(at, pa.int64())).drop_null())


def _rewritten(location: str, key: str, added: Mapping[str, Any], removed: Mapping[str, Any]) -> pa.Array | None:
    """Returns the keys whose rows differ between the files that a commit removed and the ones it added in
    their place.

    Returns None if the commit did not replace files, or if they have too many rows to compare."""
    if not (added.keys() - removed.keys() and removed.keys() - added.keys()):
        return None
    balance: Counter[tuple[str | None, str]] = Counter()
    remaining = _MOST_ROWS
    for side, sign in ((added, 1), (removed, -1)):
        for path, descriptor in side.items():
            name = own_file(path)
            try:
                if name is None:
                    return None
                with open_file(location, name) as file:
                    remaining -= file.metadata.num_rows
                    if remaining < 0:
                        return None
                    rows = file.read()
                deleted = {*_deleted(location, descriptor).tolist()}
                column = _spelled(rows.column_names, key)
            except (OSError, ValueError, KeyError) as error:
                if not (isinstance(error, KeyError) or is_damage(error)):
                    raise
                return None
            for at, row in enumerate(rows.to_pylist()):
                if at not in deleted:
                    balance[row[column], repr(sorted(row.items()))] += sign
    return pa.array(sorted({path for (path, _), number in balance.items() if number and path is not None}), pa.string())


def _deleted(location: str, descriptor: Mapping[str, Any] | None) -> np.ndarray:
    return np.empty(0, np.int64) if descriptor is None else vectors.positions(location, descriptor)


def _keys(location: str, name: str, key: str) -> pa.Array:
    """Returns a file's keys. Raises FileNotFoundError, or KeyError if the file has no key column."""
    with open_file(location, name) as file:
        column = _spelled(file.schema_arrow.names, key)
        return file.read(columns=[column])[column].cast(pa.string()).combine_chunks()


def _spelled(columns: Sequence[str], key: str) -> str:
    """Returns the key column's name as the file spells it. Raises KeyError if the file lacks the column."""
    for column in columns:
        if column.lower() == key.lower():
            return column
    raise KeyError(key)
