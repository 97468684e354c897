"""Rows of a table that other writers changed: according to the log, a commit that is not the table's own added or removed their
file, or deleted rows of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volstream.errors import DependencyError
from volstream.tables.delta import folders, vectors
from volstream.tables.delta.damage import Bounds, bounds_of
from volstream.tables.delta.datafile import is_damage, open_file
from volstream.tables.delta.log import actions, commit_info, metadata_of, own_file

#: A commit that replaces files by others is compared row by row if these have at most so many rows.
_MOST_ROWS = 200_000

#: Operations that take values from all rows without touching their files.
_OF_COLUMNS = frozenset({"DROP COLUMNS", "RENAME COLUMN", "REPLACE COLUMNS"})

#: Of each row that others changed: its key, and the version that did.
TOUCHED = pa.schema([("key", pa.string()), ("version", pa.int64())])


@dataclass(frozen=True)
class ForeignCommit:
    """A commit of another writer that changed rows.

    Attributes:
        operation: by Delta's name, or the writer's.
        unseen: it may have changed any row: a vacuum deleted a file that it removed, or it took away columns.
    """

    version: int
    operation: str
    unseen: bool


@dataclass(frozen=True)
class History:
    """What was seen of a table's commits.

    Attributes:
        first: the first version that the log still has; greater than wanted if the log was cleaned up.
        commits: of others.
        lost: by version that removed data files that cannot be read, the bounds of each file's rows.
        own: version of the table by id of the batch that made it.
    """

    first: int
    commits: Sequence[ForeignCommit] = ()
    lost: Mapping[int, Sequence[Bounds]] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)

    @property
    def unseen(self) -> int | None:
        """The newest version that may have changed any older row; None: there is none."""
        return max((commit.version for commit in self.commits if commit.unseen), default=None)


def changes(
    location: str, key: str, after: int, until: int, batch_of: Callable[[Mapping[str, Any]], str | None], target: str
) -> History:
    """Writes the keys of rows that others changed after a version, as rows of :data:`TOUCHED`, into a new folder.

    Args:
        key: text column.
        batch_of: returns the batch that made a commit, given its metadata; None: it is another writer's.
        target: the folder.
    """
    first, commits, own = after + 1, list[ForeignCommit](), dict[str, int]()
    lost = dict[int, Sequence[Bounds]]()
    with folders.written(target, TOUCHED) as writer:
        for version in range(after + 1, until + 1):
            try:
                entries = actions(location, version, "")
            except (FileNotFoundError, DependencyError):  # cleaned up, or damaged: a checkpoint has what it did
                first = version + 1
                continue
            info = commit_info(entries)
            metadata = metadata_of(info)
            batch = batch_of(metadata)
            if batch is not None:
                own[batch] = version
                continue
            if (bounds := bounds_of(metadata)) is not None:
                lost[version] = bounds
                continue
            operation = str(info.get("operation", "unknown"))
            unseen = operation in _OF_COLUMNS
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
    return History(first, commits, lost, own)


def may_change(entries: Sequence[Mapping[str, Any]], batch_of: Callable[[Mapping[str, Any]], str | None]) -> bool:
    """True if a commit with these actions is another writer's and may have changed rows."""
    info = commit_info(entries)
    changed = (entry[kind].get("dataChange", True) for entry in entries for kind in ("add", "remove") if kind in entry)
    return batch_of(metadata_of(info)) is None and (info.get("operation") in _OF_COLUMNS or any(changed))


def _touched(location: str, key: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[pa.Array | None]:
    """Yields the keys of rows that a commit added or removed, a file at a time; None: a vacuum deleted the
    file, or it has no keys, or is damaged."""
    sides: list[dict[str, Any]] = []
    for kind in ("add", "remove"):
        those = (entry[kind] for entry in entries if kind in entry)
        sides.append({file["path"]: file.get("deletionVector") for file in those if file.get("dataChange", True)})
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
    """Returns the keys whose rows differ between the files that a commit removed and those that it added in their place; None:
    it did not replace files, or they have too many rows to compare."""
    if not (added.keys() - removed.keys() and removed.keys() - added.keys()):
        return None
    balance: Counter[tuple[str | None, str]] = Counter()
    left = _MOST_ROWS
    for side, sign in ((added, 1), (removed, -1)):
        for path, descriptor in side.items():
            name = own_file(path)
            try:
                if name is None:
                    return None
                with open_file(location, name) as file:
                    left -= file.metadata.num_rows
                    if left < 0:
                        return None
                    rows = file.read()
                gone = {*_deleted(location, descriptor).tolist()}
                column = _spelled(rows.column_names, key)
            except (OSError, ValueError, KeyError) as error:
                if not (isinstance(error, KeyError) or is_damage(error)):
                    raise
                return None
            for at, row in enumerate(rows.to_pylist()):
                if at not in gone:
                    balance[row[column], repr(sorted(row.items()))] += sign
    return pa.array(sorted({path for (path, _), number in balance.items() if number and path is not None}), pa.string())


def _deleted(location: str, descriptor: Mapping[str, Any] | None) -> np.ndarray:
    return np.empty(0, np.int64) if descriptor is None else vectors.positions(location, descriptor)


def _keys(location: str, name: str, key: str) -> pa.Array:
    """Returns a file's keys. Raises FileNotFoundError; KeyError if the file has none."""
    with open_file(location, name) as file:
        column = _spelled(file.schema_arrow.names, key)
        return file.read(columns=[column])[column].cast(pa.string()).combine_chunks()


def _spelled(columns: Sequence[str], key: str) -> str:
    """Returns the key's column as a file spells it. Raises KeyError if the file has none."""
    for column in columns:
        if column.lower() == key.lower():
            return column
    raise KeyError(key)
