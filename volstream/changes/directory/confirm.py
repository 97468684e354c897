"""Confirms the findings of a listing or a report when they are compared: both only make proposals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.model.paths import FileInfo, Selection
from volstream.base.threads import map_at_once
from volstream.changes.directory import table
from volstream.changes.directory.difference import compare
from volstream.changes.directory.snapshot import existing_rows, old_images
from volstream.changes.directory.table import DELETE
from volstream.errors import StorageError
from volstream.files.storage.base import PROBE, ObjectStore

#: Concurrent requests to a store, which wait for the network, not for a processor.
HEADS_AT_ONCE = 16

#: New and changed files of a report that are looked at: as many requests as it takes to list 10^8 objects.
MOST_LOOKS = 100_000

#: Objects that were written so long before a report are in it: S3 may leave out what was written shortly before.
_SETTLED = timedelta(days=1)


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


@dataclass
class ConfirmReport:
    """Replaces the changes that a report proposes by what a look at the files finds, as far as that is necessary.

    A report says nothing of what came after it. Rows of files that are newer than the report are left alone. A row is removed
    only if a look finds no object, as after a listing. A row that was written after the report is looked at. Of other new and
    changed files a number is looked at; beyond it they become as the report has them: that was true, and an event, the next
    report, or the job that finds the file missing corrects it.

    Attributes:
        since: what this writer observed since the report was read, and rows that were removed since it was begun.
        as_of: when the report was begun.
        covers: prefix of all paths in the report.
        looks: new and changed files that may still be looked at.
        failed: as in :class:`Confirm`.
    """

    store: ObjectStore
    selection: Selection
    since: Observations
    as_of: datetime
    covers: str
    looks: int = MOST_LOOKS
    failed: dict[str, StorageError] = field(default_factory=dict)

    def __call__(self, changes: pa.Table) -> pa.Table:
        """Returns the confirmed changes.

        Raises:
            StorageError: the store could not be reached at all; the report does not cover all of the volume.
        """
        moment = pa.scalar(self.as_of, pa.timestamp("us", tz="UTC"))
        columns = (
            changes["relative_path"],
            changes["change"],
            pc.fill_null(pc.greater_equal(changes["old_last_modified_time"], moment), False),
            pc.fill_null(pc.greater_equal(changes["old_refreshed_on"], moment), False),
        )
        asked, stays = [], []
        for path, change, newer, rewritten in zip(*(column.to_pylist() for column in columns), strict=True):
            accepted = self.selection.accepts(path)
            left = accepted and (newer or self.since.covers(path))
            ask = accepted and not left
            if ask and change != DELETE and not rewritten:
                ask = self.looks > 0
                self.looks -= ask
            asked.append(ask)
            stays.append(not (ask or left))
        looked_at = self._looked_at(changes.filter(pa.array(asked, pa.bool_())))
        return pa.concat_tables([changes.filter(pa.array(stays, pa.bool_())), looked_at])

    def _looked_at(self, proposed: pa.Table) -> pa.Table:
        """Returns the differences between the rows of proposed changes and the files as they are now."""
        now, failed = look(self.store, proposed["relative_path"].to_pylist())
        self.failed.update(failed)
        files = [file for file in now.values() if file is not None]
        for file in files:
            if not file.relative_path.startswith(self.covers) and file.last_modified_time < self.as_of - _SETTLED:
                raise StorageError(
                    f"The report lacks {self.store.url(file.relative_path)}, although the file is older, and has only keys below "
                    f"{self.store.url(self.covers)}.",
                    "Give a report of an inventory whose filter includes all of the volume. Nothing was changed.",
                )
        known = existing_rows(old_images(proposed))
        checked = pc.is_in(known["relative_path"], value_set=pa.array(list(now), pa.string()))
        return compare(table.rows(files, self.store.url), known.filter(checked))


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

    seen: dict[str, FileInfo | None] = {}
    failed: dict[str, StorageError] = {}
    for key, answer in zip(listed, map_at_once(head, listed, HEADS_AT_ONCE), strict=True):
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
