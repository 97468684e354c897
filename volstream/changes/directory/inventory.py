"""A provider's inventory report of a bucket, read instead of a listing.

Its files are spooled to the sorted Parquet files of a listing, in constant memory. A report shows the bucket
as of the start of its scan. ``directory.reconcile`` decides how far the directory may follow it. The formats
of reports are in ``storage.inventory``.
"""

from __future__ import annotations

import os.path
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.model.paths import FileInfo, Finding, Selection, checked
from volstream.catalog import Catalog
from volstream.changes.directory.listing import Listing, spool
from volstream.changes.directory.reconcile import check_keys
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError
from volstream.files.providers.base import BucketPlace
from volstream.files.storage import open_store, place_of_reports
from volstream.files.storage.base import KeyOrdered, ObjectStore
from volstream.files.storage.inventory import MANIFEST, MAX_MANIFEST, Manifest, ReportedObject, download, objects
from volstream.files.volumes.access import access_of
from volstream.tables.delta import places

#: Rows sorted at once, and rows of each sorted file in memory during the merge. The files of a report
#: overlap, so all of them are merged at once: 200 for 10^8 objects.
_RUN_ROWS, _GROUP_ROWS = 500_000, 2_000

#: Number of objects written since the report was begun that are checked together.
_CHECKED_TOGETHER = 1_000

#: Maximum difference between clocks.
_CLOCK_SKEW = timedelta(hours=1)

#: The folder of a report, named after the start of its scan.
_REPORT = re.compile(r"(?:.*/)?\d{4}-\d\d-\d\dT\d\d-\d\dZ/")


@dataclass(frozen=True)
class Inventory:
    """A report, and the store of its whole bucket."""

    manifest: Manifest
    reports: ObjectStore


def open_inventory(uri: str, volume: Volume, catalog: Catalog, settings: Settings) -> Inventory:
    """Returns a report about a volume's bucket, read with the volume's credentials.

    Args:
        uri: the report's manifest, or an inventory's folder for its newest report.

    Raises:
        InvalidValueError: it is not a report, or a report about another bucket.
        NotFoundError: there is no report.
        StorageError: the bucket of the report cannot be read.
    """
    place = place_of_reports(uri, volume.location)
    reports = open_store(f"{place.scheme}://{place.bucket}", access_of(volume, catalog, settings))
    key = place.root.rstrip("/")
    if key.rpartition("/")[2] != MANIFEST:
        key = newest_report(reports, place.root)
    try:
        with reports.open(key) as file:
            manifest = Manifest.parse(file.read(MAX_MANIFEST + 1), reports.url(key))
    except FileNotFoundError as exc:
        raise NotFoundError(f"There is no report at {reports.url(key)}.") from exc
    check_report(manifest, volume)
    return Inventory(manifest, reports)


def newest_report(reports: ObjectStore, folder: str) -> str:
    """Returns the key of the newest complete manifest below an inventory's folder. Raises NotFoundError."""
    assert isinstance(reports, KeyOrdered), "buckets are"
    found = sorted(filter(_REPORT.fullmatch, reports.prefixes(folder)), reverse=True)
    for report in found:
        if reports.head(f"{report}{MANIFEST}") is not None:  # written last
            return f"{report}{MANIFEST}"
    raise NotFoundError(
        f"There is no inventory report in {reports.url(folder)}.",
        "Give the folder that has a folder such as 2026-01-31T00-00Z for each report; the first one arrives after a day or two.",
    )


def check_report(manifest: Manifest, volume: Volume) -> None:
    """Raises InvalidValueError if a report is about another bucket than the volume's, or from the future."""
    bucket = BucketPlace.of(volume.location).bucket
    if manifest.bucket != bucket:
        raise InvalidValueError(
            f"The report is about the bucket {manifest.bucket}, and volume {volume.name} is in {bucket}.",
            f"Give a report of the bucket {bucket}.",
        )
    if manifest.taken_on > datetime.now(UTC) + _CLOCK_SKEW:
        raise InvalidValueError(
            f"The report was begun at {manifest.taken_on:%Y-%m-%d %H:%M:%S} UTC, which is in the future.",
            "Is the clock of this host right?",
        )


def is_older(manifest: Manifest, last_listing: datetime | None) -> bool:
    """True if a directory is complete as of the time of a report or later. Ignores times in the future."""
    return last_listing is not None and manifest.taken_on <= last_listing <= datetime.now(UTC) + _CLOCK_SKEW


def check_newer(manifest: Manifest, volume: Volume) -> None:
    """Raises InvalidStateError if the directory is complete as of a later time than a report."""
    if volume.last_listing not in (None, manifest.taken_on) and is_older(manifest, volume.last_listing):
        raise InvalidStateError(
            f"The report is of {manifest.taken_on:%Y-%m-%d %H:%M:%S} UTC, and the directory of volume {volume.name} is complete "
            f"as of {volume.last_listing:%Y-%m-%d %H:%M:%S} UTC.",
            "Wait for a newer report.",
        )


def list_report(
    folder: str,
    inventory: Inventory,
    location: str,
    store: ObjectStore,
    selection: Selection,
    *,
    stopped: Callable[[], object] = lambda: False,
) -> Listing:
    """Reads a report into a folder of the warehouse, like :func:`directory.reconcile.list_subtrees` for a
    whole volume.

    Checks objects that were written after the report was begun, or that it describes incompletely.

    Args:
        location: of the volume.
        store: of the volume's files.
        stopped: see :func:`directory.listing.list_to`.

    Raises:
        InvalidValueError: the report lacks a field.
        NotFoundError: the report has no object at the location.
        StorageError: a file of the report is damaged or missing, or the store did not respond.
        InterruptedByUserError: stopped.
    """
    places.remove(folder)
    listing = Listing(as_of=inventory.manifest.taken_on)
    place = BucketPlace.of(location)
    covered = _Covered(place.root)
    entries = _checked_files(covered.recorded(_objects(inventory)), inventory.manifest, place, store, selection, listing)
    spool(f"{folder}/listed", entries, store, listing, stopped, _RUN_ROWS, _GROUP_ROWS)
    if not covered.reaches:
        places.remove(folder)
        raise NotFoundError(
            f"The report has no object at {location}.",
            "Its inventory may have a filter that excludes it, or all objects are newer: list the volume.",
        )
    listing.covers = place.path(covered.prefix)
    return listing


class _Covered:
    """The extent of a report, judged by its keys.

    Attributes:
        prefix: the longest common prefix of all keys.
        reaches: True if there are keys below ``root``.
    """

    def __init__(self, root: str) -> None:
        self.prefix = ""
        self.reaches = False
        self._root = root
        self._began = False

    def recorded(self, groups: Iterator[Sequence[ReportedObject]]) -> Iterator[ReportedObject]:
        """Passes on objects and records their keys."""
        for group in groups:
            if group:
                keys = [key for key, *_ in group]
                ends = [min(keys), max(keys)]
                # By character, because a filter need not end at a slash.
                self.prefix = os.path.commonprefix([self.prefix, *ends] if self._began else ends)  # noqa: RUF071
                self.reaches = self.reaches or any(key.startswith(self._root) for key in keys)
                self._began = True
            yield from group


def _objects(inventory: Inventory) -> Iterator[Sequence[ReportedObject]]:
    """Yields the objects of a report's files. Each file is on the local disk meanwhile."""
    for file in inventory.manifest.files:
        with tempfile.NamedTemporaryFile(prefix="volstream-") as local:
            download(inventory.reports, file, local)
            yield from objects(inventory.manifest, local.name, inventory.reports.url(file.key))


def _checked_files(
    reported: Iterator[ReportedObject],
    manifest: Manifest,
    place: BucketPlace,
    store: ObjectStore,
    selection: Selection,
    listing: Listing,
) -> Iterator[FileInfo]:
    """Yields the files of a volume, as of the report or, if checked, as of now."""
    recent: list[str] = []
    for key, size, modified, etag in reported:
        if not key.startswith(place.root):
            continue
        entry = place.entry(key, size or 0, modified or manifest.taken_on, etag, selection=selection)
        entry = None if entry is None else checked(entry)
        if isinstance(entry, Finding):
            listing.add_finding(entry)
        elif entry is None:
            continue
        elif size is None or modified is None or not etag or modified >= manifest.taken_on:
            recent.append(entry.relative_path)
            if len(recent) == _CHECKED_TOGETHER:
                yield from _current_files(recent, store, listing)
                recent = []
        else:
            yield entry
    yield from _current_files(recent, store, listing)


def _current_files(paths: Sequence[str], store: ObjectStore, listing: Listing) -> Iterator[FileInfo]:
    current, failed = check_keys(store, paths)
    for path, error in failed.items():
        listing.unsettled.append(path)
        listing.add_finding(Finding(path, error.message))
    yield from filter(None, current.values())
