"""A reconcile: a full listing of a volume or subtree, compared with the directory table; one commit at most.

A listing only proposes (events.md, rule 5): a row is removed only after a look at its key found nothing, and what is missing
is computed against the very version that the refresh commits upon. Events that arrive while the listing runs are folded
after it by the same writer, so they have the last word.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.catalog import Catalog
from volstream.delta import folders
from volstream.delta.log import Commit
from volstream.directory.difference import Comparison
from volstream.directory.listing import Listing, list_to
from volstream.directory.writer import Base, Counts, DirectoryWriter
from volstream.model.hints import Rejection
from volstream.storage.base import ObjectStore

if TYPE_CHECKING:
    from volstream.spark.session import SparkGateway


@dataclass(frozen=True)
class Reconciled:
    """What a reconcile found.

    Attributes:
        counts: rows that were missing, changed, and phantom.
        commit: None where nothing differed.
        unsettled: files that were still being written; they should be looked at again.
    """

    files: int
    bytes: int
    counts: Counts
    commit: Commit | None
    findings: int
    unsettled: Sequence[str]
    seconds: float


def reconcile(
    writer: DirectoryWriter,
    gateway: SparkGateway,
    store: ObjectStore,
    catalog: Catalog,
    staging: str,
    *,
    prefix: str = "",
    cause: str = "reconcile",
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
) -> Reconciled:
    """Lists everything below ``prefix`` and makes the directory table true for it.

    Args:
        staging: folder of the warehouse for files that live only as long as this call.

    Raises:
        StorageError: the listing did not end; nothing was changed.
        FencedError: another writer took over.
    """
    started = time.monotonic()
    base = writer.open()
    folder = f"{staging}/listing-{uuid.uuid4().hex}"
    try:
        listing = list_to(
            f"{folder}/listed.parquet", store, prefix, writer.volume.selection, settle_seconds=settle_seconds, wait=wait
        )
        catalog.refreshes.reject(
            writer.volume.id, [Rejection(finding.path, finding.reason) for finding in listing.findings]
        )
        counts, commit = Counts(), None
        if not _unchanged(writer, base, listing, prefix):
            found = Comparison(store, writer.location, base.version, folder, prefix, listing).difference(gateway)
            counts = found.counts
            if counts:
                commit = writer.commit(
                    base, "bootstrap" if base.version == 0 else cause, counts, found.changes, found.pruning
                )
    finally:
        folders.remove(folder)
    if not prefix and not listing.unsettled:
        writer.volume = catalog.volumes.change(
            writer.volume,
            listing_digest=listing.digest,
            listing_refresh=writer.volume.refresh_count,
            reconciled_on=datetime.now(UTC),
        )
    elif not prefix:
        writer.volume = catalog.volumes.change(writer.volume, reconciled_on=datetime.now(UTC))
    return Reconciled(
        listing.files,
        listing.bytes,
        counts,
        commit,
        listing.finding_count,
        listing.unsettled,
        time.monotonic() - started,
    )


def _unchanged(writer: DirectoryWriter, base: Base, listing: Listing, prefix: str) -> bool:
    """Whether this is the listing of the last reconcile, and nothing was committed since: no need to ask Spark."""
    volume = writer.volume
    same = volume.listing_digest == listing.digest and volume.listing_refresh == base.refresh_count
    return not prefix and not listing.unsettled and same
