"""Upkeep of a directory table, so that a refresh costs the same after many refreshes: few files, few rows to read for one
path, a short log, and no files that no version needs.

Every refresh adds a small file and a version, and Delta rewrites nothing. An OPTIMIZE keeps rows and history, adds nothing to
the change feed, and loses against any other writer; to be run by the holder of the volume's lease, as refreshes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from volstream.catalog import Catalog
from volstream.delta import cleanup
from volstream.delta.log import DataFile, DeltaLog
from volstream.delta.writer import DeltaWriter
from volstream.model.objects import Volume

#: Files below this are put together; larger ones stay as they are, so that the work follows the changes, not the table.
_SMALL_BYTES = 4 << 20

#: So many small files are worth a commit. Delta keeps the list of up to 50 files at hand, and computes longer ones anew.
_SMALL_FILES = 30

#: Reading so many rows for one path costs about as much as a refresh. Files that were put together from refreshes at
#: random paths each hold rows of the whole range; then the whole table is sorted anew, once in as many changes.
_CROSSED_ROWS = 400_000

_SMALL = {"spark.databricks.delta.optimize.minFileSize": str(_SMALL_BYTES)}

#: Pages can only be skipped if the rows in a file are in order.
_SORTED = {"spark.databricks.io.skipping.mdc.sortWithinPartitions": "true"}


#: So long files stay that the newest version does not have, by the table's own property.
_FILES_KEPT = timedelta(days=14)

#: Removing files lists all of the table's folder, in seconds; so once in this time.
SWEPT_EVERY = timedelta(days=1)


@dataclass(frozen=True)
class Need:
    """What a table needs: ``small`` files put together, or all its rows ``sorted``."""

    small: bool
    sorted: bool

    def __bool__(self) -> bool:
        return self.small or self.sorted


def need(files: Iterable[DataFile]) -> Need:
    """What a table of these files needs. Pure."""
    listed = list(files)
    small = sum(one.bytes < _SMALL_BYTES for one in listed)
    large = [one for one in listed if one.bytes >= _SMALL_BYTES]
    return Need(small >= _SMALL_FILES, crossed(large) > _CROSSED_ROWS)


def crossed(files: Sequence[DataFile]) -> int:
    """How many rows are in the files that may hold one path, for the path where they are most. Pure.

    The largest such file is left out: it is the one that was sorted, of which Spark reads a page.
    """
    return max(
        (_beyond_largest([one for one in files if one.first <= at <= one.last]) for at in {one.first for one in files}),
        default=0,
    )


def _beyond_largest(files: Iterable[DataFile]) -> int:
    rows = [one.rows for one in files]
    return sum(rows) - max(rows)


def compact(delta: DeltaWriter, location: str) -> bool:
    """Does what the table at ``location`` needs; whether that was anything."""
    needed = need(DeltaLog(location).files("relative_path"))
    if needed.sorted:
        delta.optimize(location, _SORTED, by="relative_path")
    elif needed.small:
        delta.optimize(location, _SMALL)
    return bool(needed)


def shorten(catalog: Catalog, location: str, volume: Volume, versions: int) -> int:
    """Removes old versions from the log of the volume's directory table; how many.

    Behind the oldest offset of a stream on it, consumed or not, and never the newest ``versions`` (R-25).
    """
    latest = DeltaLog(location).latest_version()
    if latest is None:
        return 0
    offsets = [stream.offset for stream in catalog.streams.list(source_id=volume.id)]
    needed = [0 if offset is None else offset for offset in offsets]
    return cleanup.clean(location, min([latest - versions, *needed]))


def sweep(delta: DeltaWriter, location: str) -> bool:
    """Removes the files of versions that the log has no more, once a day; whether it did (R-25).

    Not where a kept version is older than the files that go: Delta would not know any more which it needs.
    """
    first = cleanup.earliest(location)
    if not first:
        return False
    commits, now = DeltaLog(location).commits_after(first - 1), datetime.now(UTC)
    if now - commits[0].timestamp > _FILES_KEPT:
        return False
    if any(commit.operation == "VACUUM END" and now - commit.timestamp < SWEPT_EVERY for commit in commits):
        return False
    delta.vacuum(location)
    return True
