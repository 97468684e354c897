"""A refresh for single keys: look at each key, compare with its row, commit what differs. One commit at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from volstream.delta import rows
from volstream.delta.log import Commit
from volstream.delta.writer import one_of
from volstream.directory import table
from volstream.directory.confirm import HEADS_AT_ONCE
from volstream.directory.writer import Counts, DirectoryWriter, frame_of
from volstream.errors import StorageDeniedError
from volstream.model.files import FileInfo
from volstream.storage.base import ObjectStore

_KNOWN = pa.schema([table.SCHEMA.field(name) for name in ("relative_path", *table.CONTENT)])


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did.

    Attributes:
        commit: None where nothing differed.
        denied: keys that may not be looked at, while others may: their rows stay as they are.
    """

    counts: Counts
    commit: Commit | None
    denied: Mapping[str, StorageDeniedError]


def refresh_keys(writer: DirectoryWriter, store: ObjectStore, keys: Sequence[str], cause: str) -> Refreshed:
    """Makes the directory table true for ``keys``.

    Raises:
        StorageError, StorageDeniedError: the store could not be asked for any of them; nothing was committed.
        FencedError: another writer took over.
    """
    base = writer.open()
    seen, denied = _look(store, keys)
    where = f"relative_path IN ({', '.join(map(rows.text, seen))})"
    found = rows.read(writer.location, base.version, _KNOWN, where)
    known = {row["relative_path"]: row for row in found.to_pylist()}
    actions = {key: _action(seen[key], known.get(key)) for key in seen}
    changed = _changed(actions, seen, store)
    counts, commit = Counts.of(changed), None
    if counts:
        paths = one_of("t.relative_path", changed["relative_path"].to_pylist())
        commit = writer.commit(base, cause, counts, frame_of(changed), paths)
    return Refreshed(counts, commit, denied)


def _look(store: ObjectStore, keys: Sequence[str]) -> tuple[dict[str, FileInfo | None], dict[str, StorageDeniedError]]:
    """What is at each key now, and the keys that may not be looked at."""
    denied: dict[str, StorageDeniedError] = {}

    def head(key: str) -> FileInfo | None:
        try:
            return store.head(key)
        except StorageDeniedError as error:
            denied[key] = error
            return None

    with ThreadPoolExecutor(HEADS_AT_ONCE, thread_name_prefix="head") as pool:
        seen = dict(zip(keys, pool.map(head, keys), strict=True))
    if len(denied) == len(seen):  # the credentials, not the keys: to be tried again
        raise next(iter(denied.values()))
    return {key: info for key, info in seen.items() if key not in denied}, denied


def _action(now: FileInfo | None, row: Mapping[str, Any] | None) -> str | None:
    if now is None:
        return None if row is None else "delete"
    if row is None:
        return "insert"
    return None if all(_same(getattr(now, name), row[name]) for name in table.CONTENT) else "update"


def _same(now: object, row: object) -> bool:
    if isinstance(now, datetime) and isinstance(row, datetime):
        return now.timestamp() == row.timestamp()
    return now == row


def _changed(actions: Mapping[str, str | None], seen: Mapping[str, FileInfo | None], store: ObjectStore) -> pa.Table:
    """The changed rows; a deleted one carries placeholders where the directory allows no NULL."""
    paths = [path for path, action in actions.items() if action is not None]
    gone = FileInfo("", 0, datetime.fromtimestamp(0).astimezone(), "")
    files = [seen[path] or FileInfo(path, gone.size, gone.last_modified_time, gone.etag) for path in paths]
    return table.rows(files, store.url).append_column(
        "action", pa.array([actions[path] for path in paths], pa.string())
    )
