"""What single keys differ in: look at each key, and compare it with its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volstream.directory import table
from volstream.directory.confirm import look
from volstream.directory.difference import compare
from volstream.directory.snapshot import Snapshot
from volstream.directory.writer import Changes
from volstream.errors import StorageError
from volstream.storage.base import ObjectStore


def add_keys(
    changes: Changes, snapshot: Snapshot, store: ObjectStore, keys: Sequence[str], at_once: int
) -> Mapping[str, StorageError]:
    """Adds to a refresh what ``keys`` and the directory's rows of them differ in.

    Args:
        at_once: keys that are looked at and compared together: what is in memory of them.

    Returns:
        The keys that cannot be looked at, while others can: their rows stay as they are.

    Raises:
        StorageError, StorageDeniedError: the store could not be asked for any key.
    """
    failed: dict[str, StorageError] = {}
    for start in range(0, len(keys), at_once):
        seen, odd = look(store, keys[start : start + at_once])
        failed.update(odd)
        files = [info for info in seen.values() if info is not None]
        changes.add(compare(table.rows(files, store.url), snapshot.find(list(seen))))
    return failed
