"""A reconcile: compares a listing of a volume or of subtrees, or a report, with the directory. Makes at most
one commit.

A listing only makes proposals. A row is removed only after a check found no object at its key. Newer
observations of the writer override findings. Differences are computed against the exact state that the
refresh builds on. Removing half of a directory or more requires confirmation.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.log import get
from volstream.base.model.hints import Rejection
from volstream.base.model.paths import FileInfo, Selection, printable
from volstream.base.model.work import Completeness, Refresh, RemovalLimit, groups
from volstream.base.threads import Closeable, Stop, map_at_once
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.directory.listing import Listing, ShardedListing, list_to, listed_in
from volstream.changes.directory.snapshot import Snapshot, existing_rows, old_images
from volstream.changes.directory.table import DELETE, INSERT, PATH, UPDATE, compare_files, differences
from volstream.changes.directory.writer import Counts, DirectoryWriter, RefreshChanges
from volstream.errors import NotFoundError, StorageError
from volstream.files.storage.base import PROBE, KeyOrdered, ObjectStore
from volstream.files.volumes.access import job_emptying, store_of
from volstream.tables.delta import places

# Confirms the findings of a listing or a report, because both only make proposals.

#: Concurrent requests to a store: they wait for the network, not for a processor.
HEADS_AT_ONCE = 16

#: Maximum number of new and changed files of a report to check: as many requests as for listing 10^8 objects.
MAX_CHECKS = 100_000

#: Objects written this long before a report are in it. S3 may leave out objects written shortly before.
_SETTLED = timedelta(days=1)


@dataclass(frozen=True)
class Observations:
    """Observations of the volume by this writer since the start of a listing.

    Attributes:
        keys: keys checked individually.
        prefixes: prefixes listed.
        unknown: True if an earlier process may have seen more, so that the listing's findings need a check,
            too.
    """

    keys: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    unknown: bool = False

    def covers(self, path: str) -> bool:
        """True if the directory is newer than the listing for this path."""
        return path in self.keys or path.startswith(self.prefixes)


@dataclass(frozen=True)
class Confirm:
    """Drops changes that the store or a newer observation contradicts.

    Removes a row only if a check shows that its key no longer exists, or no longer belongs to the volume.

    Attributes:
        selection: the keys that belong to the volume.
        failed: keys that could not be checked. Their changes are dropped.
    """

    store: ObjectStore
    selection: Selection
    since: Observations = field(default_factory=Observations)
    failed: dict[str, StorageError] = field(default_factory=dict)

    def __call__(self, changes: pa.Table) -> pa.Table:
        """Returns the confirmed changes. Raises StorageError if the store is unreachable."""
        columns = [changes[name].to_pylist() for name in ("relative_path", "change", "etag", "size")]
        rows = list(zip(*columns, strict=True))
        newer = [self.since.covers(path) for path, *_ in rows]
        to_check = [
            path
            for (path, change, _, _), covered in zip(rows, newer, strict=True)
            if not covered and ((change == DELETE and self.selection.accepts(path)) or self.since.unknown)
        ]
        if not to_check and not any(newer):
            return changes
        current, failed = check_keys(self.store, to_check)
        self.failed.update(failed)
        holds = [
            not covered
            and row[0] not in failed
            and (row[0] not in current or not self.selection.accepts(row[0]) or _agrees(current[row[0]], *row[1:]))
            for row, covered in zip(rows, newer, strict=True)
        ]
        return changes.filter(pa.array(holds, pa.bool_()))


@dataclass
class ConfirmReport:
    """Replaces the changes proposed by a report with the results of checks, where necessary.

    A report lacks everything that came after it. Rows of files newer than the report are left alone. A row is
    removed only if a check finds no object, as after a listing. A row written after the report is checked. Of
    the other new and changed files, a limited number is checked. The rest follow the report: it was true
    once, and an event, the next report, or the job that finds the file missing corrects it.

    Attributes:
        since: this writer's observations since the report was read, and rows removed since the report was
            begun.
        as_of: when the report was begun.
        covers: prefix of all paths in the report.
        checks: number of new and changed files that may still be checked.
        failed: as in :class:`Confirm`.
    """

    store: ObjectStore
    selection: Selection
    since: Observations
    as_of: datetime
    covers: str
    checks: int = MAX_CHECKS
    failed: dict[str, StorageError] = field(default_factory=dict)

    def __call__(self, changes: pa.Table) -> pa.Table:
        """Returns the confirmed changes.

        Raises:
            StorageError: the store is unreachable, or the report does not cover the whole volume.
        """
        moment = pa.scalar(self.as_of, pa.timestamp("us", tz="UTC"))
        columns = (
            changes["relative_path"],
            changes["change"],
            pc.fill_null(pc.greater_equal(changes["old_last_modified_time"], moment), False),
            pc.fill_null(pc.greater_equal(changes["old_refreshed_on"], moment), False),
        )
        to_check, unchecked = [], []
        for path, change, newer, rewritten in zip(*(column.to_pylist() for column in columns), strict=True):
            accepted = self.selection.accepts(path)
            keeps_row = accepted and (newer or self.since.covers(path))
            checks_row = accepted and not keeps_row
            if checks_row and change != DELETE and not rewritten:
                checks_row = self.checks > 0
                self.checks -= checks_row
            to_check.append(checks_row)
            unchecked.append(not (checks_row or keeps_row))
        checked = self._checked_changes(changes.filter(pa.array(to_check, pa.bool_())))
        return pa.concat_tables([changes.filter(pa.array(unchecked, pa.bool_())), checked])

    def _checked_changes(self, proposed: pa.Table) -> pa.Table:
        """Returns the differences between the rows of proposed changes and the current files."""
        current, failed = check_keys(self.store, proposed["relative_path"].to_pylist())
        self.failed.update(failed)
        files = [file for file in current.values() if file is not None]
        for file in files:
            if not file.relative_path.startswith(self.covers) and file.last_modified_time < self.as_of - _SETTLED:
                raise StorageError(
                    f"The report lacks {self.store.url(file.relative_path)}, although the file is older, and has only keys below "
                    f"{self.store.url(self.covers)}.",
                    "Give a report of an inventory whose filter includes all of the volume. Nothing was changed.",
                )
        known = existing_rows(old_images(proposed))
        is_known = pc.is_in(known["relative_path"], value_set=pa.array(list(current), pa.string()))
        return compare_files(table.rows_of_files(files, self.store.url), known.filter(is_known))


def check_keys(store: ObjectStore, keys: Iterable[str]) -> tuple[Mapping[str, FileInfo | None], Mapping[str, StorageError]]:
    """Returns the current file (or None) at each key, and the keys that could not be checked although others
    could.

    Raises:
        StorageError, StorageDeniedError: no key can be checked.
    """
    key_list = list(keys)

    def head(key: str) -> FileInfo | StorageError | None:
        try:
            return store.head(key)
        except StorageError as error:
            return error

    current: dict[str, FileInfo | None] = {}
    failed: dict[str, StorageError] = {}
    for key, result in zip(key_list, map_at_once(head, key_list, HEADS_AT_ONCE), strict=True):
        if isinstance(result, StorageError):
            failed[key] = result
        else:
            current[key] = result
    if failed and not current:
        store.head(PROBE)  # raises if the problem is the store or the credentials, not the keys
    return current, failed


def _agrees(current: FileInfo | None, change: str, etag: str, size: int) -> bool:
    if current is None or change == DELETE:
        return current is None and change == DELETE
    return (current.etag, current.size) == (etag, size)


# Checks of single keys.


def add_keys(
    changes: RefreshChanges, snapshot: Snapshot, store: ObjectStore, keys: Sequence[str], at_once: int
) -> Mapping[str, StorageError]:
    """Adds the differences between the current files at ``keys`` and the directory's rows to a refresh.

    Args:
        at_once: number of keys checked and compared together, which bounds memory use.

    Returns:
        The keys that could not be checked although others could. Their rows stay unchanged.

    Raises:
        StorageError, StorageDeniedError: no key can be checked.
    """
    failed: dict[str, StorageError] = {}
    for batch in groups(keys, at_once):
        current, batch_failed = check_keys(store, batch)
        failed.update(batch_failed)
        files = [info for info in current.values() if info is not None]
        changes.add(compare_files(table.rows_of_files(files, store.url), snapshot.find(list(current))))
    return failed


_log = get("directory")

#: An event takes seconds or, according to providers, minutes under high load. A more recent file's event may
#: still come.
LATE_SECONDS = 120.0


@dataclass(frozen=True)
class ReconcileResult:
    """The result of a reconcile.

    Attributes:
        counts: rows that were missing, changed, and phantom.
        late: number of missing and changed files whose events may have been still under way.
        held: removals found but not applied, because they exceed the volume's limit.
        commit: None if nothing differed.
        unsettled: files still being written, to be checked again.
        as_of: time of the report as of which the directory is complete. None if the volume was listed.
        resumed: True if an earlier process began the listing, which then lacks changes since.
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
        """Returns the result of a listing."""
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
    """Lists everything below the prefixes into a folder of the warehouse, for :func:`add_differences`. Makes
    no commit.

    Args:
        folder: removed first if it exists.
        prefixes: no prefix is below another.
        wait: sleeps. A daemon passes a function that its stop signal interrupts.
        stopped: called after each group of rows.
        resume: continue the interrupted listing of a bucket in the folder, which lacks changes since.

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
        removals: collects the removals. They are then not added to the refresh.

    Returns:
        The number of new and changed files so recent that their events may have been still under way.

    Raises:
        StorageError: a key missing from the listing could not be checked.
    """
    late = 0
    rows = snapshot.at(prefixes=prefixes)
    for difference in differences(listed_in(folder, listing.files), rows if removals is None else removals.counted(rows)):
        if difference.num_rows:
            confirmed = confirm(difference)
            changes.add(confirmed if removals is None else removals.take(confirmed))
            late += late_in(confirmed, listing.shown_time)
    return late


def reconcile(
    writer: DirectoryWriter, store: ObjectStore, catalog: Catalog, folder: str, listing: Listing, cause: str, since: Observations
) -> ReconcileResult:
    """Brings the directory in line with a listing of the whole volume.

    Args:
        folder: location of the listing. Deleted at the end.
        since: the writer's observations of the volume since the listing began.

    Raises:
        StorageError: a key missing from the listing could not be checked, or the report does not cover the
            whole volume. Nothing was changed.
        FencedError: another writer took over.
    """
    snapshot = writer.open()
    record_findings(catalog, writer.volume.id, listing)
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
            held = _held_removals(catalog, writer.volume, removals, replaced=writer.volume.is_replaced_by(listing.root))
            for removed in removals if not held else ():
                changes.add(removed)
        commit = writer.commit(snapshot, changes, cause)
        record_failed(catalog, writer.volume.id, confirm.failed)
    places.remove(folder)
    counts = Counts() if commit is None else Counts(commit.inserted, commit.updated, commit.deleted, commit.bytes)
    done = ReconcileResult.of(listing, counts, late, commit, held)
    _record_reconcile(writer, catalog, listing, done, cause if commit is None else commit.cause)
    return done


def record_findings(catalog: Catalog, volume_id: str, listing: Listing) -> None:
    """Records names that cannot become rows."""
    if listing.findings:
        rejections = [Rejection(finding.path, finding.reason) for finding in listing.findings]
        catalog.refreshes.reject(volume_id, rejections)


def record_failed(catalog: Catalog, volume_id: str, failed: Mapping[str, StorageError]) -> None:
    """Records keys that could not be checked, with the reason."""
    rejections = [Rejection(printable(key), error.message) for key, error in failed.items()]
    catalog.refreshes.reject(volume_id, rejections)


def _held_removals(catalog: Catalog, volume: Volume, removals: Removals, *, replaced: bool) -> int:
    """Returns the number of removals that wait for confirmation: all or 0."""
    limit = RemovalLimit.parse(volume.max_removals)
    if volume.accept_removals or not limit.holds(removals.count, removals.of, replaced=replaced):
        return 0
    # within the limit, because the rest were moves
    if not limit.holds(removals.lost(), removals.of, replaced=replaced):
        return 0
    # the job empties the volume, and all rows stay
    if not replaced and job_emptying(catalog, volume) is not None:
        return 0
    _log.warning(
        "removals_held",
        volume=str(volume.name),
        removals=removals.count,
        of=removals.of,
        next=f"volstream refresh {volume.name} --accept-removals, if these files were deleted",
    )
    return removals.count


def _record_reconcile(writer: DirectoryWriter, catalog: Catalog, listing: Listing, done: ReconcileResult, cause: str) -> None:
    """Records how complete the directory was. Files found by the first listing do not count as missed
    events."""
    added = 0 if writer.volume.last_listing is None else done.counts.inserted
    now, previous = datetime.now(UTC), writer.volume.last_listing
    complete = now
    if listing.resumed or listing.as_of is not None:
        shown = datetime.fromtimestamp(listing.shown_time, UTC)
        complete = max(shown, min(previous or shown, now))
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
    """Returns how many new and changed files are so recent that their events may have been under way when a
    listing began."""
    since = datetime.fromtimestamp(began, UTC) - timedelta(seconds=LATE_SECONDS)
    recent = pc.greater_equal(changes["last_modified_time"], pa.scalar(since, pa.timestamp("us", tz="UTC")))
    return pc.sum(pc.and_(recent, pc.not_equal(changes["change"], DELETE))).as_py() or 0


class Removals(Closeable):
    """Collects removals in the order found, in constant memory. A context manager.

    Args:
        selection: files that the volume's patterns exclude by now were not deleted and do not count.

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
        """Removes the temporary file."""
        self._writer.close()
        self._file.close()

    def counted(self, known: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Passes on the directory's rows while counting them."""
        for rows in known:
            self.of += rows.num_rows
            yield rows

    def take(self, changes: pa.Table) -> pa.Table:
        """Takes the removals out of changes. Returns the other changes."""
        self._new.extend(_contents(changes.filter(pc.equal(changes["change"], INSERT)), "etag", "size"))
        rows = zip(changes["change"].to_pylist(), changes["relative_path"].to_pylist(), strict=True)
        is_removal = pa.array([change == DELETE and self._selection.accepts(path) for change, path in rows], pa.bool_())
        removed = changes.filter(is_removal)
        if not removed.num_rows:
            return changes
        self._writer.write_table(removed.cast(table.CHANGE))
        self.count += removed.num_rows
        return changes.filter(pc.invert(is_removal))

    def lost(self) -> int:
        """Returns the number of removals whose content is in no new file: the rest are moves. Call it after
        the last take."""
        new = {*self._new}
        return sum(content not in new for removed in self for content in _contents(removed, "old_etag", "old_size"))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yields all removals. Call it after the last take."""
        self._writer.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield pa.Table.from_batches([batch])


def _contents(rows: pa.Table, etag: str, size: str) -> Iterator[int]:
    """Yields hashes that identify contents."""
    return map(hash, zip(rows[etag].to_pylist(), rows[size].to_pylist(), strict=True))


# Compares a volume's directory with its files, without changing anything.

#: Files named in a report.
_EXAMPLES = 20


class Difference(StrEnum):
    """``MISSING``: the directory lacks the file. ``CHANGED``: it has another version. ``GONE``: the file does
    not exist."""

    MISSING = "missing"
    CHANGED = "changed"
    GONE = "gone"


_DIFFERENCES = {INSERT: Difference.MISSING, UPDATE: Difference.CHANGED, DELETE: Difference.GONE}


@dataclass(frozen=True)
class ComparedDirectory:
    """The result of comparing a directory with its volume.

    Attributes:
        files, bytes: of the volume.
        wrong: number of files by difference, without zeros.
        examples: some of these files, with their differences.
        late: how many of these are so recent that their events may be still under way.
        unusable: number of names that cannot be rows, and of files still being written. They were not
            compared.
    """

    files: int
    bytes: int
    wrong: Mapping[Difference, int]
    examples: Sequence[tuple[str, Difference]]
    late: int
    unusable: int

    @property
    def count(self) -> int:
        """Number of files that are wrong in the directory."""
        return sum(self.wrong.values())


def compared(catalog: Catalog, settings: Settings, volume: Volume, stop: Stop) -> ComparedDirectory:
    """Lists a volume and compares the directory with the listing. A daemon's commits meanwhile do not count.

    Raises:
        NotFoundError: the volume was never listed.
        StorageError: the listing failed, or files missing from it could not be checked.
        InterruptedByUserError: stopped.
    """
    store = store_of(volume, catalog, settings)
    wrong, examples, late = Counter[Difference](), list[tuple[str, Difference]](), 0
    with places.staged(settings.warehouse_path, "verify") as folder:
        listing = list_subtrees(
            folder, store, [""], volume.selection, settle_seconds=settings.settle_seconds, wait=stop.wait, stopped=stop.__bool__
        )
        snapshot = Snapshot.open(table.directory_location(settings.warehouse_path, volume.id), volume.id)
        if snapshot is None:
            raise NotFoundError(f"The volume {volume.name} was never listed.", f"Run: volstream refresh {volume.name}")
        confirm = Confirm(store, volume.selection, Observations(unknown=True))
        began = pa.scalar(datetime.fromtimestamp(listing.began, UTC), pa.timestamp("us", tz="UTC"))
        for difference in differences(listed_in(folder), snapshot.at()):
            newer = pc.fill_null(pc.greater_equal(difference["old_refreshed_on"], began), False)
            found = confirm(difference.filter(pc.invert(newer)))
            kinds = [_DIFFERENCES[change] for change in found["change"].to_pylist()]
            wrong.update(kinds)
            late += late_in(found, listing.began)
            if len(examples) < _EXAMPLES:
                paths = found[PATH].slice(0, _EXAMPLES).to_pylist()
                examples += list(zip(paths, kinds, strict=False))[: _EXAMPLES - len(examples)]
    return ComparedDirectory(
        listing.files, listing.bytes, dict(sorted(wrong.items())), sorted(examples), late, listing.finding_count
    )
