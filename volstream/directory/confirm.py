"""What of a listing's findings still holds when it is compared. Runs on executors: imports stay light."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from volstream.model.files import FileInfo
from volstream.storage.base import ObjectStore

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
    """Drops from rows of changes those that a look at the store, or a newer one, contradicts.

    A row is removed only if its key, looked at now, is gone: a listing only proposes.
    """

    store: ObjectStore
    since: Since = field(default_factory=Since)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns of a directory table and ``action``, filtered."""
        for batch in batches:
            yield batch.filter(self.holds(batch))

    def holds(self, changed: pa.RecordBatch | pa.Table) -> pa.Array:
        """For each row, whether it holds. Raises StorageError where the store could not be asked."""
        columns = [changed[name].to_pylist() for name in ("relative_path", "action", "etag", "size")]
        rows = [row for row in zip(*columns, strict=True) if not self.since.covers(row[0])]
        asked = [path for path, action, _, _ in rows if action == "delete" or self.since.unknown]
        now = look(self.store, asked)
        kept = {path for path, action, etag, size in rows if path not in now or _agrees(now[path], action, etag, size)}
        return pa.array([path in kept for path in columns[0]], pa.bool_())


def look(store: ObjectStore, keys: Iterable[str]) -> Mapping[str, FileInfo | None]:
    """What is at each key now; None where nothing is. Raises StorageError, StorageDeniedError."""
    with ThreadPoolExecutor(HEADS_AT_ONCE, thread_name_prefix="head") as pool:
        listed = list(keys)
        return dict(zip(listed, pool.map(store.head, listed), strict=True))


def _agrees(now: FileInfo | None, action: str, etag: str, size: int) -> bool:
    if now is None or action == "delete":
        return now is None and action == "delete"
    return (now.etag, now.size) == (etag, size)
