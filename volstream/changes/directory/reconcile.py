"""A reconcile: compares a full listing of a volume, or of subtrees, or a report, with the directory; makes at most one commit.

A listing only makes proposals. A row is removed only after a check found no object at its key; newer observations of the writer
override findings; and differences are computed against the exact state that the refresh builds on. Removing half of a directory
or more requires confirmation.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.definitions import Volume
from volstream.base.log import get
from volstream.base.model.hints import Rejection
from volstream.base.model.paths import Selection, printable
from volstream.base.model.work import Completeness, Refresh, RemovalLimit
from volstream.base.threads import Closeable
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.directory.confirm import Confirm, ConfirmReport, Observations
from volstream.changes.directory.difference import differences
from volstream.changes.directory.listing import Listing, list_to, listed_in
from volstream.changes.directory.shards import ShardedListing
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import DELETE, INSERT
from volstream.changes.directory.writer import Counts, DirectoryWriter, RefreshChanges
from volstream.errors import StorageError
from volstream.files.storage.base import KeyOrdered, ObjectStore
from volstream.files.volumes.access import job_emptying
from volstream.tables.delta import places

_log = get("directory")

#: An event takes seconds or, according to providers, minutes under high load.
LATE_SECONDS = 120.0


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a reconcile.

    Attributes:
        counts: rows that were missing, changed, and phantom.
        late: missing and changed files whose events may still have been under way.
        held: removals found but not applied, because they exceed the volume's limit.
        commit: None if nothing differed.
        unsettled: files still being written, to be checked again.
        as_of: None: the volume was listed. Otherwise the directory is complete as of this time, that of a report.
        resumed: an earlier process began the listing, which does not show what has changed since.
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
    as_of: datetime | None = None
    resumed: bool = False

    @classmethod
    def of(cls, listing: Listing, counts: Counts, late: int, commit: Refresh | None, held: int = 0) -> ReconcileResult:
        """Returns what became of a listing."""
        return cls(
            listing.files,
            listing.bytes,
            counts,
            late,
            commit,
            listing.finding_count,
            listing.unsettled,
            time.time() - listing.began,
            held,
            listing.as_of,
            listing.resumed,
        )


def list_subtrees(
    folder: str,
    store: ObjectStore,
    prefixes: Sequence[str],
    selection: Selection,
    *,
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
    stopped: Callable[[], object] = lambda: False,
    resume: bool = False,
) -> Listing:
    """Lists everything below the prefixes into a folder of the warehouse, for :func:`add_differences`. Makes no commit.

    Args:
        folder: what is there is removed.
        prefixes: no prefix is below another.
        wait: sleeps; a daemon passes a function that its stop signal interrupts.
        stopped: called after each group of rows.
        resume: continue the interrupted listing of a bucket in the folder: it does not show what has changed since.

    Raises:
        StorageError: the listing is incomplete.
        InterruptedByUserError: the listing was stopped.
    """
    if not (resume and isinstance(store, KeyOrdered)):
        places.remove(folder)
    if not isinstance(store, KeyOrdered):
        return list_to(f"{folder}/listed", store, prefixes, selection, settle_seconds=settle_seconds, wait=wait, stopped=stopped)
    listing = Listing()
    for number, prefix in enumerate(prefixes):
        part = folder if len(prefixes) == 1 else f"{folder}/{number:04}"
        listing.add(ShardedListing(part, store, prefix, selection, stopped).run())
    return listing


def add_differences(
    changes: RefreshChanges,
    snapshot: Snapshot,
    folder: str,
    prefixes: Sequence[str],
    listing: Listing,
    confirm: Confirm | ConfirmReport,
    removals: Removals | None = None,
) -> int:
    """Adds the differences between a listing and the directory to a refresh.

    Args:
        folder: location of the listing.
        removals: collects the removals, which are then not added to the refresh.

    Returns:
        The number of new and changed files so recent that their events may still have been under way.

    Raises:
        StorageError: a key missing from the listing could not be checked.
    """
    late = 0
    rows = snapshot.at(prefixes=prefixes)
    for difference in differences(listed_in(folder, listing.files), rows if removals is None else removals.counted(rows)):
        if difference.num_rows:
            confirmed = confirm(difference)
            changes.add(confirmed if removals is None else removals.take(confirmed))
            late += late_in(confirmed, listing.shows)
    return late


def reconcile(
    writer: DirectoryWriter, store: ObjectStore, catalog: Catalog, folder: str, listing: Listing, cause: str, since: Observations
) -> ReconcileResult:
    """Brings the directory in line with a listing of the whole volume.

    Args:
        folder: location of the listing, which is deleted.
        since: the writer's observations of the volume since the listing began.

    Raises:
        StorageError: a key missing from the listing could not be checked, or the report does not cover all of the volume; nothing
            was changed.
        FencedError: another writer took over.
    """
    snapshot = writer.open()
    note_findings(catalog, writer.volume.id, listing)
    late = held = 0
    if snapshot.newest == 0 and since == Observations():
        commit = writer.commit_first(snapshot, listed_in(folder, listing.files), listing.bytes)
    else:
        changes = writer.begin(snapshot)
        confirm: Confirm | ConfirmReport = Confirm(store, writer.volume.selection, since)
        if listing.as_of is not None:
            since = replace(since, keys=since.keys | snapshot.removed_since(listing.as_of))
            confirm = ConfirmReport(store, writer.volume.selection, since, listing.as_of, listing.covers)
        with Removals(writer.volume.selection) as removals:
            late = add_differences(changes, snapshot, folder, [""], listing, confirm, removals)
            held = _held(catalog, writer.volume, removals, replaced=writer.volume.is_replaced_by(listing.root))
            for removed in removals if not held else ():
                changes.add(removed)
        commit = writer.commit(snapshot, changes, cause)
        note_failed(catalog, writer.volume.id, confirm.failed)
    places.remove(folder)
    counts = Counts() if commit is None else Counts(commit.inserted, commit.updated, commit.deleted, commit.bytes)
    done = ReconcileResult.of(listing, counts, late, commit, held)
    _note(writer, catalog, listing, done, cause if commit is None else commit.cause)
    return done


def note_findings(catalog: Catalog, volume_id: str, listing: Listing) -> None:
    """Records names that cannot become rows."""
    if listing.findings:
        rejections = [Rejection(finding.path, finding.reason) for finding in listing.findings]
        catalog.refreshes.reject(volume_id, rejections)


def note_failed(catalog: Catalog, volume_id: str, failed: Mapping[str, StorageError]) -> None:
    """Records keys that could not be checked, with the reason."""
    rejections = [Rejection(printable(key), error.message) for key, error in failed.items()]
    catalog.refreshes.reject(volume_id, rejections)


def _held(catalog: Catalog, volume: Volume, removals: Removals, *, replaced: bool) -> int:
    """Returns the number of removals that wait for confirmation: all or none."""
    limit = RemovalLimit.parse(volume.max_removals)
    if volume.accept_removals or not limit.holds(removals.count, removals.of, replaced=replaced):
        return 0
    if not limit.holds(removals.lost(), removals.of, replaced=replaced):  # within the limit, because the others were moved
        return 0
    if not replaced and job_emptying(catalog, volume) is not None:  # it empties the volume, and all rows stay
        return 0
    _log.warning(
        "removals_held",
        volume=str(volume.name),
        removals=removals.count,
        of=removals.of,
        next=f"volstream refresh {volume.name} --accept-removals, if these files were deleted",
    )
    return removals.count


def _note(writer: DirectoryWriter, catalog: Catalog, listing: Listing, done: ReconcileResult, cause: str) -> None:
    """Records how complete the directory was. Findings of the first listing do not count as missed events."""
    added = 0 if writer.volume.last_listing is None else done.counts.inserted
    now, before = datetime.now(UTC), writer.volume.last_listing
    complete = now
    if listing.resumed or listing.as_of is not None:
        shows = datetime.fromtimestamp(listing.shows, UTC)
        complete = max(shows, min(before or shows, now))
    root = {} if done.held or listing.root is None else {"root_id": listing.root}
    writer.volume = catalog.volumes.change(
        writer.volume, last_listing=complete, held_removals=done.held, accept_removals=False, **root
    )
    catalog.refreshes.note_reconcile(
        Completeness(
            volume_id=writer.volume.id,
            began_on=datetime.fromtimestamp(listing.began, UTC),
            seconds=done.seconds,
            cause=cause,
            listed=done.files,
            bytes=done.bytes,
            added_by_listing=added,
            changed_by_listing=done.counts.updated,
            removed_by_listing=done.counts.deleted,
            late_events=done.late,
            findings=done.findings,
        )
    )


def late_in(changes: pa.Table, began: float) -> int:
    """Returns how many new and changed files are so recent that, when a listing began, their events may have been under way."""
    since = datetime.fromtimestamp(began, UTC) - timedelta(seconds=LATE_SECONDS)
    recent = pc.greater_equal(changes["last_modified_time"], pa.scalar(since, pa.timestamp("us", tz="UTC")))
    return pc.sum(pc.and_(recent, pc.not_equal(changes["change"], DELETE))).as_py() or 0


class Removals(Closeable):
    """Removals in the order found, in constant memory. A context manager.

    Args:
        selection: files that the volume's patterns now exclude were not deleted, and do not count.

    Attributes:
        count: number of removals.
        of: number of directory rows compared.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.count = 0
        self.of = 0
        self._new = array("q")  # hash of each new file's content
        self._file = tempfile.TemporaryFile(prefix="volstream-")  # noqa: SIM115  # closed by `close`
        self._writer = pa.ipc.new_stream(self._file, table.CHANGE)

    def close(self) -> None:
        """Removes the file that keeps the removals."""
        self._writer.close()
        self._file.close()

    def counted(self, known: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Passes on the directory's rows while counting them."""
        for rows in known:
            self.of += rows.num_rows
            yield rows

    def take(self, changes: pa.Table) -> pa.Table:
        """Takes the removals out of changes; returns the other changes."""
        self._new.extend(_contents(changes.filter(pc.equal(changes["change"], INSERT)), "etag", "size"))
        rows = zip(changes["change"].to_pylist(), changes["relative_path"].to_pylist(), strict=True)
        gone = pa.array([change == DELETE and self._selection.accepts(path) for change, path in rows], pa.bool_())
        removed = changes.filter(gone)
        if not removed.num_rows:
            return changes
        self._writer.write_table(removed.cast(table.CHANGE))
        self.count += removed.num_rows
        return changes.filter(pc.invert(gone))

    def lost(self) -> int:
        """Returns the number of removals whose content is in no new file; the others are moves. Call after the last take."""
        new = {*self._new}
        return sum(content not in new for removed in self for content in _contents(removed, "old_etag", "old_size"))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields all removals; call after the last take."""
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])


def _contents(rows: pa.Table, etag: str, size: str) -> Iterator[int]:
    """Yields hashes that identify contents."""
    return map(hash, zip(rows[etag].to_pylist(), rows[size].to_pylist(), strict=True))
