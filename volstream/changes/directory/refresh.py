"""Checks single keys and compares them with their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from volstream.base.model.work import groups
from volstream.changes.directory import table
from volstream.changes.directory.confirm import look
from volstream.changes.directory.difference import compare
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.writer import RefreshChanges
from volstream.errors import StorageError
from volstream.files.storage.base import ObjectStore


def add_keys(
    changes: RefreshChanges, snapshot: Snapshot, store: ObjectStore, keys: Sequence[str], at_once: int
) -> Mapping[str, StorageError]:
    """Adds the differences between ``keys`` and the directory's rows for them to a refresh.

    Args:
        at_once: number of keys checked and compared together, which bounds memory use.

    Returns:
        The keys that cannot be checked while others can; their rows stay unchanged.

    Raises:
        StorageError, StorageDeniedError: no key can be checked.
    """
    failed: dict[str, StorageError] = {}
    for some in groups(keys, at_once):
        seen, odd = look(store, some)
        failed.update(odd)
        files = [info for info in seen.values() if info is not None]
        changes.add(compare(table.rows(files, store.url), snapshot.find(list(seen))))
    return failed
