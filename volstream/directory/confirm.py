"""What of a listing's findings still holds when it is compared: a listing only proposes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from volstream.directory.table import DELETE
from volstream.errors import StorageError
from volstream.model.files import FileInfo
from volstream.model.selection import Selection
from volstream.storage.base import PROBE, ObjectStore

#: Looks at a store that are under way at once: they wait for a network, not for a processor.
HEADS_AT_ONCE = 16


@dataclass(frozen=True)
class Since:
    """What this writer saw of the volume since a listing of it began, which is newer than the listing.

    Attributes:
        keys: looked at singly.
        prefixes: listed.
        unknown: an earlier process may have seen more: what the listing says is then looked at, too.
    """

    keys: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    unknown: bool = False

    def covers(self, path: str) -> bool:
        """Whether the directory is newer than the listing for this path."""
        return path in self.keys or path.startswith(self.prefixes)


@dataclass(frozen=True)
class Confirm:
    """Drops changes that a look at the store, or a newer one, contradicts.

    A row is removed only if its key, looked at now, is gone, or is none of the volume's any more.

    Attributes:
        selection: which keys are the volume's.
        failed: the keys that could not be looked at, of which no change holds.
    """

    store: ObjectStore
    selection: Selection
    since: Since = field(default_factory=Since)
    failed: dict[str, StorageError] = field(default_factory=dict)

    def __call__(self, changes: pa.Table) -> pa.Table:
        """The changes that hold. Raises StorageError where the store could not be asked at all."""
        columns = [changes[name].to_pylist() for name in ("relative_path", "change", "etag", "size")]
        rows = list(zip(*columns, strict=True))
        newer = [self.since.covers(path) for path, *_ in rows]
        asked = [
            path
            for (path, change, _, _), covered in zip(rows, newer, strict=True)
            if not covered and ((change == DELETE and self.selection.accepts(path)) or self.since.unknown)
        ]
        if not asked and not any(newer):
            return changes
        now, failed = look(self.store, asked)
        self.failed.update(failed)
        holds = [
            not covered
            and row[0] not in failed
            and (row[0] not in now or not self.selection.accepts(row[0]) or _agrees(now[row[0]], *row[1:]))
            for row, covered in zip(rows, newer, strict=True)
        ]
        return changes.filter(pa.array(holds, pa.bool_()))


def look(store: ObjectStore, keys: Iterable[str]) -> tuple[Mapping[str, FileInfo | None], Mapping[str, StorageError]]:
    """What is at each key now, None where nothing is; and the keys that cannot be looked at while others can.

    Raises:
        StorageError, StorageDeniedError: the store cannot be asked for any key.
    """
    listed = list(keys)

    def head(key: str) -> FileInfo | StorageError | None:
        try:
            return store.head(key)
        except StorageError as error:
            return error

    if len(listed) < 2:
        found = list(map(head, listed))
    else:
        with ThreadPoolExecutor(HEADS_AT_ONCE, thread_name_prefix="head") as pool:
            found = list(pool.map(head, listed))
    seen: dict[str, FileInfo | None] = {}
    failed: dict[str, StorageError] = {}
    for key, one in zip(listed, found, strict=True):
        if isinstance(one, StorageError):
            failed[key] = one
        else:
            seen[key] = one
    if failed and not seen:
        store.head(PROBE)  # raises where it is the store or the credentials, and not the keys
    return seen, failed


def _agrees(now: FileInfo | None, change: str, etag: str, size: int) -> bool:
    if now is None or change == DELETE:
        return now is None and change == DELETE
    return (now.etag, now.size) == (etag, size)
