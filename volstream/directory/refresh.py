"""A refresh for single keys: look at each key, compare with its row, commit what differs. One commit at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pyarrow as pa

from volstream.delta import rows
from volstream.delta.log import Commit
from volstream.directory import table
from volstream.directory.writer import Counts, DirectoryWriter, among, frame_of
from volstream.model.files import FileInfo
from volstream.storage.base import ObjectStore

#: Looks at a store that are under way at once: they wait for a network, not for a processor.
_HEADS_AT_ONCE = 16

_KNOWN = pa.schema([table.SCHEMA.field(name) for name in ("relative_path", *table.CONTENT)])


def refresh_keys(
    writer: DirectoryWriter, store: ObjectStore, keys: Sequence[str], cause: str
) -> tuple[Counts, Commit | None]:
    """Makes the directory table true for ``keys``.

    Returns:
        What changed, and the commit; None where nothing differed.

    Raises:
        StorageError: the store could not be asked; nothing was committed.
        FencedError: another writer took over.
    """
    base = writer.open()
    seen = look(store, keys)
    where = f"relative_path IN ({', '.join(map(rows.text, keys))})"
    found = rows.read(writer.location, base.version, _KNOWN, where)
    known = {row["relative_path"]: row for row in found.to_pylist()}
    actions = {key: _action(seen[key], known.get(key)) for key in keys}
    changed = _changed(actions, seen, store)
    counts = Counts.of(changed)
    if not counts:
        return counts, None
    return counts, writer.commit(base, cause, counts, frame_of(changed), among(changed["relative_path"].to_pylist()))


def look(store: ObjectStore, keys: Iterable[str]) -> dict[str, FileInfo | None]:
    """What is at each key now; None where nothing is."""
    with ThreadPoolExecutor(_HEADS_AT_ONCE, thread_name_prefix="head") as pool:
        listed = list(keys)
        return dict(zip(listed, pool.map(store.head, listed), strict=True))


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
