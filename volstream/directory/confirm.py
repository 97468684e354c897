"""Confirms the findings of a listing when they are compared: a listing only makes proposals."""

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

#: Concurrent requests to a store, which wait for the network, not for a processor.
HEADS_AT_ONCE = 16


@dataclass(frozen=True)
class Observations:
    """Observations of the volume by this writer since the start of a listing.

    Attributes:
        keys: keys checked individually.
        prefixes: prefixes listed.
        unknown: an earlier process may have seen more, so the listing's findings are checked as well.
    """

    keys: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    unknown: bool = False

    def covers(self, path: str) -> bool:
        """True if the directory is newer than the listing for this path."""
        return path in self.keys or path.startswith(self.prefixes)


@dataclass(frozen=True)
class Confirm:
    """Drops changes that the store, or a newer observation, contradicts.

    Removes a row only if a check shows that its key no longer exists, or no longer belongs to the volume.

    Attributes:
        selection: the keys that belong to the volume.
        failed: keys that could not be checked; their changes are dropped.
    """

    store: ObjectStore
    selection: Selection
    since: Observations = field(default_factory=Observations)
    failed: dict[str, StorageError] = field(default_factory=dict)

    def __call__(self, changes: pa.Table) -> pa.Table:
        """Returns the confirmed changes. Raises StorageError if the store could not be reached at all."""
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
    """Returns the current file at each key, or None; and the keys that cannot be checked while others can.

    Raises:
        StorageError, StorageDeniedError: no key can be checked.
    """
    listed = list(keys)

    def head(key: str) -> FileInfo | StorageError | None:
        try:
            return store.head(key)
        except StorageError as error:
            return error

    if len(listed) < 2:
        answers = list(map(head, listed))
    else:
        with ThreadPoolExecutor(HEADS_AT_ONCE, thread_name_prefix="head") as pool:
            answers = list(pool.map(head, listed))
    seen: dict[str, FileInfo | None] = {}
    failed: dict[str, StorageError] = {}
    for key, answer in zip(listed, answers, strict=True):
        if isinstance(answer, StorageError):
            failed[key] = answer
        else:
            seen[key] = answer
    if failed and not seen:
        store.head(PROBE)  # raises if the problem is the store or the credentials, not the keys
    return seen, failed


def _agrees(now: FileInfo | None, change: str, etag: str, size: int) -> bool:
    if now is None or change == DELETE:
        return now is None and change == DELETE
    return (now.etag, now.size) == (etag, size)
