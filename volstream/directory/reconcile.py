"""A reconcile: a full listing of a volume or subtree, compared with the directory table; one commit at most.

A listing only proposes (events.md, rule 5): a row is removed only after a look at its key found nothing, what the writer saw
since the listing began is dropped from its findings, and what is missing is computed against the very version that the
refresh commits upon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from volstream.catalog import Catalog
from volstream.delta import folders
from volstream.delta.log import Commit
from volstream.directory.confirm import Since
from volstream.directory.difference import Comparison
from volstream.directory.listing import Listing, list_to
from volstream.directory.shards import ShardedListing
from volstream.directory.writer import Base, Counts, DirectoryWriter
from volstream.model.hints import Rejection
from volstream.model.selection import Selection
from volstream.model.work import Completeness
from volstream.storage.base import KeyOrdered, ObjectStore

if TYPE_CHECKING:
    from volstream.spark.session import SparkGateway


@dataclass(frozen=True)
class Reconciled:
    """What a reconcile found.

    Attributes:
        counts: rows that were missing, changed, and phantom.
        late: of the missing and changed files, those whose events may have been under way.
        commit: None where nothing differed.
        unsettled: files that were still being written; they should be looked at again.
    """

    files: int
    bytes: int
    counts: Counts
    late: int
    commit: Commit | None
    findings: int
    unsettled: Sequence[str]
    seconds: float


def listed(
    folder: str,
    store: ObjectStore,
    prefix: str,
    selection: Selection,
    *,
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
) -> Listing:
    """Lists everything below ``prefix`` into the sub-folder ``listed`` of a folder of the warehouse. Commits nothing.

    Where a listing of a bucket was interrupted there, it is gone on with.

    Args:
        wait: sleeps; true where it was interrupted by a stop.

    Raises:
        StorageError: the listing did not end.
        InterruptedByUserError: it was stopped.
    """
    if isinstance(store, KeyOrdered):
        return ShardedListing(folder, store, prefix, selection, lambda: wait(0.0)).run()
    folders.remove(folder)
    target = f"{folder}/listed/all.parquet"
    return list_to(target, store, prefix, selection, settle_seconds=settle_seconds, wait=wait)


def reconcile(
    writer: DirectoryWriter,
    gateway: SparkGateway,
    store: ObjectStore,
    catalog: Catalog,
    folder: str,
    listing: Listing,
    *,
    prefix: str = "",
    cause: str = "reconcile",
    since: Since,
) -> Reconciled:
    """Makes the directory table true for what was listed.

    Args:
        folder: where the listing is; it is gone afterwards.
        since: what the writer saw of the volume since the listing began.

    Raises:
        StorageError: a key that the listing lacks could not be looked at; nothing was changed.
        FencedError: another writer took over.
    """
    base = writer.open()
    catalog.refreshes.reject(
        writer.volume.id, [Rejection(finding.path, finding.reason) for finding in listing.findings]
    )
    counts, late, commit = Counts(), 0, None
    if not _unchanged(writer, base, listing, prefix):
        found = Comparison(store, writer.location, base.version, folder, prefix, listing, since).difference(gateway)
        counts, late = found.counts, found.late
        if counts:
            cause = "bootstrap" if base.version == 0 else cause
            commit = writer.commit(base, cause, counts, found.changes, found.pruning)
    folders.remove(folder)
    done = Reconciled(
        listing.files, listing.bytes, counts, late, commit, listing.finding_count, listing.unsettled,
        time.time() - listing.began,
    )  # fmt: skip
    if not prefix:
        _note(writer, catalog, listing, done, cause)
    return done


def _note(writer: DirectoryWriter, catalog: Catalog, listing: Listing, done: Reconciled, cause: str) -> None:
    """Tells the catalog how complete the directory was found, and what a listing that finds the same looks like."""
    changes: dict[str, Any] = {"reconciled_on": datetime.now(UTC)}
    if not listing.unsettled:
        changes |= {"listing_digest": listing.digest, "listing_refresh": writer.volume.refresh_count}
    writer.volume = catalog.volumes.change(writer.volume, **changes)
    catalog.refreshes.note_reconcile(
        Completeness(
            volume_id=writer.volume.id, began_on=datetime.fromtimestamp(listing.began, UTC), seconds=done.seconds,
            cause=cause, listed=done.files, bytes=done.bytes, missing=done.counts.inserted, changed=done.counts.updated,
            phantom=done.counts.deleted, late=done.late, findings=done.findings,
        )
    )  # fmt: skip


def _unchanged(writer: DirectoryWriter, base: Base, listing: Listing, prefix: str) -> bool:
    """Whether this is the listing of the last reconcile, and nothing was committed since: no need to ask Spark."""
    volume = writer.volume
    same = volume.listing_digest == listing.digest and volume.listing_refresh == base.refresh_count
    return not prefix and not listing.unsettled and same
