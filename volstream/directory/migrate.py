"""Migrates directories of volstream 0.1, single Delta tables with a change feed written by Spark, to a base and a tail.

Stream offsets were versions of that table. The catalog's own migration renumbers them; this module moves the rows, and the
changes that may still be read, into the two new tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder
from pyarrow import fs

from volstream.catalog import Catalog
from volstream.definitions import Volume
from volstream.delta import folders, rows
from volstream.delta.log import DeltaLog
from volstream.delta.native import NativeTable
from volstream.delta.places import filesystem_of, is_remote, mapped, open_table
from volstream.directory import table
from volstream.directory.base import write_base
from volstream.directory.table import DELETE, INSERT, UPDATE
from volstream.log import get

_log = get("directory")

#: Change types of the change feed that correspond to a row of the tail.
_KINDS = {"insert": INSERT, "update_postimage": UPDATE, "delete": DELETE}


def if_needed(catalog: Catalog, volume: Volume, root: str) -> None:
    """Migrates the directory in folder ``root`` if volstream 0.1 created it. Called by the volume's writer.

    After a crash the old table is still there, and the next call starts over.

    Raises:
        DependencyError: the old table cannot be read.
    """
    if is_remote(root):  # volstream 0.1 did not support object stores
        return
    filesystem, path = filesystem_of(root)
    if filesystem.get_file_info(f"{path}/_delta_log").type != fs.FileType.Directory:
        return
    _log.info("migrating", volume=str(volume.name))
    old = DeltaLog(root)
    if table.tail(root, volume.id).view() is None:
        _Migration(catalog, volume, old).run(f"{root}/_migrated")
        for name in ("files", "changes"):
            folders.remove(f"{root}/{name}")
            filesystem.move(f"{path}/_migrated/{name}", f"{path}/{name}")
    tail = table.tail(root, volume.id).view()
    assert tail is not None, "just made"
    catalog.refreshes.adopt_table(volume.id, str(old.table_id()), tail.table_id)
    _remove_old(filesystem, path)
    _log.info("migrated", volume=str(volume.name), rows=tail.rows)


class _Migration:
    """Creates the two tables from an old one."""

    def __init__(self, catalog: Catalog, volume: Volume, old: DeltaLog) -> None:
        self._volume = volume
        self._old = old
        self._times = {one.number: one.committed_on for one in catalog.refreshes.committed(volume.id)}
        needed = catalog.refreshes.needed_after(volume.id)
        commits = old.commits_after(-1)
        numbers = {one.version: int(one.metadata["refresh"]) for one in commits if "refresh" in one.metadata}
        self._newest = max([volume.refresh_count, *numbers.values()])
        self._floor = self._newest if needed is None else needed
        self._numbers = {version: number for version, number in numbers.items() if number > self._floor}
        known = [one.version for one in commits]
        if (
            self._numbers and min(self._numbers) - 1 not in known
        ):  # the log is cleaned up to there, so that earlier times cannot be requested
            self._floor = min(self._numbers.values())
            del self._numbers[min(self._numbers)]

    def run(self, root: str) -> None:
        """Writes the tables into a new folder."""
        folders.remove(root)
        base = NativeTable(table.base(root, self._volume.id))
        tail = NativeTable(table.tail(root, self._volume.id))
        base_view, tail_view = base.open(), tail.open()
        through = {table.through_id(self._volume.id): self._newest}
        base.commit(base_view, through, added=write_base(base, self._rows()))
        file = tail.new_file()
        if self._numbers:
            file.write(self._changes())
        added = [file.close()] if file.rows else []
        if not added:
            file.drop()
        numbers = {table.app_id(self._volume.id): self._newest, table.floor_id(self._volume.id): self._floor}
        tail.commit(tail_view, numbers, added=added)

    def _rows(self) -> Iterator[pa.Table]:
        columns = ", ".join((*table.COLUMNS, "refresh_id"))
        with mapped(self._old.location):
            query = QueryBuilder().register("old", open_table(self._old.location))
            found = query.execute(f"SELECT {columns} FROM old ORDER BY relative_path")
            for batch in pa.RecordBatchReader.from_stream(found):
                old = pa.Table.from_batches([batch])
                times = self._times_of(old["refresh_id"])
                yield old.append_column("refreshed_on", times).cast(table.FILES)

    def _changes(self) -> pa.Table:
        """Returns the tail's rows for the versions that may still be read."""
        found = rows.changes(self._old.location, min(self._numbers), max(self._numbers))
        made = {}
        olds = {}
        for row in found.to_pylist():
            at = (row["_commit_version"], row["relative_path"])
            if row["_change_type"] in ("delete", "update_preimage"):
                olds[at] = row
            if row["_change_type"] in _KINDS:
                made[at] = row
        changes = [self._change(version, row, olds.get((version, path))) for (version, path), row in made.items()]
        return pa.Table.from_pylist(changes, schema=table.CHANGES).sort_by(
            [("refresh_id", "ascending"), ("relative_path", "ascending")]
        )

    def _change(self, version: int, row: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
        number = self._numbers[version]
        found = {name: row[name] for name in table.COLUMNS}
        found |= {"refresh_id": number, "refreshed_on": self._time(number), "change": _KINDS[row["_change_type"]]}
        if old is not None:
            found |= {f"old_{name}": old[name] for name in table.OLD if name != "refreshed_on"}
            found["old_refreshed_on"] = self._time(old["refresh_id"])
        return found

    def _times_of(self, numbers: pa.ChunkedArray) -> pa.Array:
        known = {number: self._time(number) for number in pc.unique(numbers).to_pylist()}
        return pa.array([known[number] for number in numbers.to_pylist()], pa.timestamp("us", tz="UTC"))

    def _time(self, number: int) -> datetime:
        return self._times.get(number, self._volume.created_on)


def _remove_old(filesystem: fs.FileSystem, path: str) -> None:
    """Removes the old table's files; its log last, because it marks the table's existence."""
    kept = (f"{path}/files", f"{path}/changes", f"{path}/_delta_log")
    for info in filesystem.get_file_info(fs.FileSelector(path)):
        if info.path in kept:
            continue
        if info.type == fs.FileType.Directory:
            filesystem.delete_dir(info.path)
        else:
            filesystem.delete_file(info.path)
    filesystem.delete_dir(f"{path}/_delta_log")
