"""A reconcile: a full listing of a volume, or of subtrees, compared with the directory; one commit at most.

A listing only proposes: a row is removed only after a look at its key found nothing, what the writer saw since the listing
began is dropped from its findings, and what is missing is computed against the very state that the refresh commits upon.
Removals by the half of a directory wait for a word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from volstream.catalog import Catalog
from volstream.delta import folders
from volstream.directory.confirm import Confirm, Since
from volstream.directory.difference import differences
from volstream.directory.listing import Listing, list_to, listed_in
from volstream.directory.removals import Removals
from volstream.directory.shards import ShardedListing
from volstream.directory.snapshot import Snapshot
from volstream.directory.table import DELETE
from volstream.directory.writer import Changes, Counts, DirectoryWriter
from volstream.errors import StorageError
from volstream.log import get
from volstream.model.files import printable
from volstream.model.hints import Rejection
from volstream.model.objects import Volume
from volstream.model.removals import RemovalLimit
from volstream.model.selection import Selection
from volstream.model.work import Completeness, Refresh
from volstream.storage.base import KeyOrdered, ObjectStore

_log = get("directory")

#: An event takes seconds; providers say minutes where much is going on.
LATE_SECONDS = 120.0


@dataclass(frozen=True)
class Reconciled:
    """What a reconcile found.

    Attributes:
        counts: rows that were missing, changed, and phantom.
        late: of the missing and changed files, those whose events may have been under way.
        held: removals that were found and not made: they are more than the volume's limit lets through.
        commit: None where nothing differed.
        unsettled: files that were still being written; they should be looked at again.
    """

    files: int
    bytes: int
    counts: Counts
    late: int
    commit: Refresh | None
    findings: int
    unsettled: Sequence[str]
    seconds: float
    held: int = 0


def list_subtrees(
    folder: str,
    store: ObjectStore,
    prefixes: Sequence[str],
    selection: Selection,
    *,
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
    stopped: Callable[[], object] = lambda: False,
) -> Listing:
    """Lists everything below some prefixes into a folder of the warehouse, for :func:`add_differences`. Commits nothing.

    An interrupted listing of a bucket is resumed.

    Args:
        prefixes: none of them below another.
        wait: sleeps; a daemon passes one that its stop signal interrupts.
        stopped: asked after each group of rows.

    Raises:
        StorageError: the listing did not end.
        InterruptedByUserError: it was stopped.
    """
    if not isinstance(store, KeyOrdered):
        folders.remove(folder)
        return list_to(
            f"{folder}/listed",
            store,
            prefixes,
            selection,
            settle_seconds=settle_seconds,
            wait=wait,
            stopped=stopped,
        )
    listing = Listing()
    for number, prefix in enumerate(prefixes):
        part = folder if len(prefixes) == 1 else f"{folder}/{number:04}"
        listing.add(ShardedListing(part, store, prefix, selection, stopped).run())
    return listing


def add_differences(
    changes: Changes,
    snapshot: Snapshot,
    folder: str,
    prefixes: Sequence[str],
    listing: Listing,
    confirm: Confirm,
    removals: Removals | None = None,
) -> int:
    """Adds to a refresh what a listing and the directory differ in.

    Args:
        folder: where the listing is.
        removals: is given what would be removed, instead.

    Returns:
        How many of the new and changed files are so new that their events may have been under way.

    Raises:
        StorageError: a key that the listing lacks could not be looked at.
    """
    late = 0
    known = snapshot.at(prefixes=prefixes)
    for found in differences(listed_in(folder), known if removals is None else removals.counted(known)):
        if found.num_rows:
            confirmed = confirm(found)
            changes.add(confirmed if removals is None else removals.take(confirmed))
            late += _late(confirmed, listing.began)
    return late


def reconcile(
    writer: DirectoryWriter,
    store: ObjectStore,
    catalog: Catalog,
    folder: str,
    listing: Listing,
    cause: str,
    since: Since,
) -> Reconciled:
    """Makes the directory true for a listing of the whole volume.

    Args:
        folder: where the listing is; it is gone afterwards.
        since: what the writer saw of the volume since the listing began.

    Raises:
        StorageError: a key that the listing lacks could not be looked at; nothing was changed.
        FencedError: another writer took over.
    """
    snapshot = writer.open()
    note_findings(catalog, writer.volume.id, listing)
    late = held = 0
    if snapshot.newest == 0 and since == Since():
        commit = writer.commit_first(snapshot, listed_in(folder), listing.bytes)
    else:
        changes, confirm = writer.begin(snapshot), Confirm(store, writer.volume.selection, since)
        with Removals(writer.volume.selection) as removals:
            late = add_differences(changes, snapshot, folder, [""], listing, confirm, removals)
            held = _held(writer.volume, removals)
            for found in removals if not held else ():
                changes.add(found)
        commit = writer.commit(snapshot, changes, cause)
        note_failed(catalog, writer.volume.id, confirm.failed)
    folders.remove(folder)
    counts = Counts() if commit is None else Counts(commit.inserted, commit.updated, commit.deleted, commit.bytes)
    done = Reconciled(
        listing.files,
        listing.bytes,
        counts,
        late,
        commit,
        listing.finding_count,
        listing.unsettled,
        time.time() - listing.began,
        held,
    )
    _note(writer, catalog, listing, done, cause if commit is None else commit.cause)
    return done


def note_findings(catalog: Catalog, volume_id: str, listing: Listing) -> None:
    """Keeps the names that cannot be rows."""
    if listing.findings:
        rejections = [Rejection(finding.path, finding.reason) for finding in listing.findings]
        catalog.refreshes.reject(volume_id, rejections)


def note_failed(catalog: Catalog, volume_id: str, failed: Mapping[str, StorageError]) -> None:
    """Keeps the keys that could not be looked at, and why."""
    rejections = [Rejection(printable(key), error.message) for key, error in failed.items()]
    catalog.refreshes.reject(volume_id, rejections)


def _held(volume: Volume, removals: Removals) -> int:
    """How many removals wait for a word: all of them, or none."""
    limit = RemovalLimit.parse(volume.max_removals)
    if volume.accept_removals or not limit.holds(removals.count, removals.of):
        return 0
    if not limit.holds(removals.lost(), removals.of):  # nearly all of them were moved
        return 0
    _log.warning(
        "removals_held",
        volume=str(volume.name),
        removals=removals.count,
        of=removals.of,
        next=f"volstream refresh {volume.name} --accept-removals, if these files were deleted",
    )
    return removals.count


def _note(writer: DirectoryWriter, catalog: Catalog, listing: Listing, done: Reconciled, cause: str) -> None:
    """Tells the catalog how complete the directory was found. Of what the first listing finds nothing was missed."""
    missing = 0 if writer.volume.reconciled_on is None else done.counts.inserted
    writer.volume = catalog.volumes.change(
        writer.volume, reconciled_on=datetime.now(UTC), held_removals=done.held, accept_removals=False
    )
    catalog.refreshes.note_reconcile(
        Completeness(
            volume_id=writer.volume.id,
            began_on=datetime.fromtimestamp(listing.began, UTC),
            seconds=done.seconds,
            cause=cause,
            listed=done.files,
            bytes=done.bytes,
            missing=missing,
            changed=done.counts.updated,
            phantom=done.counts.deleted,
            late=done.late,
            findings=done.findings,
        )
    )


def _late(changes: pa.Table, began: float) -> int:
    since = datetime.fromtimestamp(began, UTC) - timedelta(seconds=LATE_SECONDS)
    recent = pc.greater_equal(changes["last_modified_time"], pa.scalar(since, pa.timestamp("us", tz="UTC")))
    return pc.sum(pc.and_(recent, pc.not_equal(changes["change"], DELETE))).as_py() or 0
