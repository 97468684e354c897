"""What single keys differ in: look at each key, and compare it with its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from volstream.directory import table
from volstream.directory.confirm import HEADS_AT_ONCE
from volstream.directory.difference import compare
from volstream.directory.snapshot import Snapshot
from volstream.directory.writer import Changes
from volstream.errors import StorageDeniedError
from volstream.model.files import FileInfo
from volstream.storage.base import ObjectStore


def add_keys(
    changes: Changes, snapshot: Snapshot, store: ObjectStore, keys: Sequence[str], at_once: int
) -> Mapping[str, StorageDeniedError]:
    """Adds to a refresh what ``keys`` and the directory's rows of them differ in.

    Args:
        at_once: keys that are looked at and compared together: what is in memory of them.

    Returns:
        The keys that may not be looked at, while others may: their rows stay as they are.

    Raises:
        StorageError, StorageDeniedError: the store could not be asked for any of them.
    """
    denied: dict[str, StorageDeniedError] = {}
    for start in range(0, len(keys), at_once):
        seen = _look(store, keys[start : start + at_once], denied)
        files = [info for info in seen.values() if info is not None]
        changes.add(compare(table.rows(files, store.url), snapshot.find(list(seen))))
    if keys and len(denied) == len(keys):  # the credentials, not the keys: to be tried again
        raise next(iter(denied.values()))
    return denied


def _look(
    store: ObjectStore, keys: Sequence[str], denied: dict[str, StorageDeniedError]
) -> Mapping[str, FileInfo | None]:
    """What is at each key now, without the keys that may not be looked at, which are noted."""

    def head(key: str) -> FileInfo | None:
        try:
            return store.head(key)
        except StorageDeniedError as error:
            denied[key] = error
            return None

    with ThreadPoolExecutor(HEADS_AT_ONCE, thread_name_prefix="head") as pool:
        seen = dict(zip(keys, pool.map(head, keys), strict=True))
    return {key: info for key, info in seen.items() if key not in denied}
