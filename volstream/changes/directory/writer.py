"""The only writer of a volume's directory. Commits numbered refreshes to the tail, and compacts and trims the
two tables.

Refresh *n* carries the transaction version *n* of the volume's application id, so the tail itself identifies
the newest refresh. The catalog's record follows it, even after a crash between the two. Delta refuses the
next commit of a writer that lost its lease, because the version that it read lacks the other writer's commit.

Comparisons are in ``directory.keeper`` (single keys) and ``directory.reconcile`` (listings).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base import faults
from volstream.base.definitions import Volume
from volstream.base.log import get
from volstream.base.model.work import Refresh
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot, combined, existing_rows
from volstream.changes.directory.table import DELETE, INSERT, PATH, UPDATE
from volstream.errors import FencedError, NotFoundError
from volstream.tables.delta.datafile import AddedFile, NewFile
from volstream.tables.delta.native import DataFile, NativeTable

# Writes the base of a directory: first the first listing, then compactions, which fold the tail into it.
#
# A compaction rewrites only files whose path range the tail touches, so its cost depends on the changes.


@dataclass(frozen=True)
class FileSizes:
    """Sizes of a directory's files.

    Attributes:
        rows: per file of the base. A look-up opens the files of its paths, and a compaction rewrites whole
            files.
        few_rows: a rewritten file of the base with fewer rows is merged with the next file.
        small_files: with this many small files in the tail, they are merged: a look-up reads everything not
            yet in the base.
    """

    rows: int = 10_000
    few_rows: int = 2_500
    small_files: int = 16


#: The default sizes.
SIZES = FileSizes()

#: Files written concurrently: encoding and disk writes release the GIL.
_WRITERS = 2


class BaseFiles:
    """Sorted rows, cut into files that are written while the next rows are collected. A context manager."""

    def __init__(self, target: NativeTable, file_rows: int) -> None:
        self.rows = 0  #: rows not written yet
        self._target = target
        self._file_rows = file_rows
        self._pending: list[pa.Table] = []
        self._added: list[Future[AddedFile]] = []
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="base")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def write(self, rows: pa.Table) -> None:
        """Appends rows. They must sort after all earlier rows."""
        self._pending.append(rows)
        self.rows += rows.num_rows
        if self.rows >= 2 * self._file_rows:
            self._cut(self.rows // self._file_rows - 1, self._file_rows)

    def flush(self) -> None:
        """Writes all pending rows, in files of about equal size."""
        count = math.ceil(self.rows / self._file_rows)
        if count:
            self._cut(count, math.ceil(self.rows / count))

    def close(self) -> Sequence[AddedFile]:
        """Writes the pending rows. Returns all files."""
        self.flush()
        return [file.result() for file in self._added]

    def _cut(self, files: int, size: int) -> None:
        rows = pa.concat_tables(self._pending)
        for number in range(files):
            if len(self._added) > _WRITERS:  # limits the files in memory
                self._added[-_WRITERS - 1].result()
            self._added.append(self._pool.submit(self._write, rows.slice(number * size, size)))
        remainder = rows.slice(files * size)
        self._pending, self.rows = [remainder], remainder.num_rows

    def _write(self, rows: pa.Table) -> AddedFile:
        file = self._target.new_file()
        file.write(rows)
        return file.close()


def write_base(target: NativeTable, tables: Iterable[pa.Table], sizes: FileSizes = SIZES) -> Sequence[AddedFile]:
    """Writes the files of a base from sorted rows with the columns :data:`table.FILES`."""
    with BaseFiles(target, sizes.rows) as files:
        for rows in tables:
            files.write(rows)
        return files.close()


def compact(target: NativeTable, snapshot: Snapshot, sizes: FileSizes = SIZES) -> tuple[Sequence[AddedFile], Sequence[DataFile]]:
    """Returns the files that a commit must add to the base and remove from it, to bring it to the newest
    refresh.

    Memory holds the part of the tail being compacted, and some files of the base.
    """
    changed = snapshot.overlay(snapshot.newest)
    with BaseFiles(target, sizes.rows) as files:
        removed = _compact_into(files, snapshot, changed, sizes.few_rows)
        return files.close(), removed


def _compact_into(files: BaseFiles, snapshot: Snapshot, changed: pa.Table, few_rows: int) -> Sequence[DataFile]:
    """Rewrites the files that the changes touch. Returns the replaced files."""
    removed: list[DataFile] = []
    begin, paths = 0, changed[PATH].to_pylist()
    listed = snapshot.base_files
    for number, file in enumerate(listed):
        end = len(paths) if number + 1 == len(listed) else bisect_right(paths, file.maximum[PATH], lo=begin)
        if end > begin or 0 < files.rows < few_rows:
            rows = snapshot.base.read(file)
            if end > begin:
                rows = combined(rows, changed.slice(begin, end - begin))
            files.write(rows)
            removed.append(file)
        else:
            files.flush()
        begin = end
    if not listed:
        files.write(existing_rows(changed))
    return removed


_log = get("directory")

#: A file of the tail with fewer rows is small.
_SMALL_ROWS = 5_000

#: The base is rewritten once the uncompacted tail has this share of the base's rows, and at least this many.
_COMPACT_SHARE, _COMPACT_ROWS = 0.05, 10_000

#: Rewriting a base with at most this many rows takes about as long as a refresh.
_CHEAP_ROWS = 100_000


@dataclass(frozen=True)
class Counts:
    """Rows inserted, updated and deleted by a refresh, and the bytes of new and changed files."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, changed: pa.Table) -> Counts:
        """Counts changes from the columns ``change`` and ``size``."""
        numbers = {count["values"]: count["counts"] for count in pc.value_counts(changed["change"]).to_pylist()}
        size = pc.sum(pc.if_else(pc.equal(changed["change"], DELETE), 0, changed["size"])).as_py() or 0
        inserted, updated, deleted = (numbers.get(change, 0) for change in (INSERT, UPDATE, DELETE))
        return cls(inserted, updated, deleted, size)

    @property
    def rows(self) -> int:
        """The total number of rows."""
        return self.inserted + self.updated + self.deleted

    def __bool__(self) -> bool:
        return self.rows > 0

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(first + second for first, second in pairs))


@dataclass
class RefreshChanges:
    """The changes of one refresh, written to a file of the tail as they are found, in constant memory."""

    number: int
    made_on: datetime
    target: NativeTable
    counts: Counts = field(default_factory=Counts)
    _file: NewFile | None = None

    def add(self, changes: pa.Table) -> None:
        """Adds changes with the columns :data:`table.CHANGE`. Each path may be added once."""
        if not changes.num_rows:
            return
        if self._file is None:
            self._file = self.target.new_file()
        wrote = table.written_columns(self.number, self.made_on, changes.num_rows)
        self._file.write(pa.table([*wrote, *changes.select(table.CHANGE.names).columns], schema=table.CHANGES))
        self.counts += Counts.of(changes)

    def close(self) -> list[AddedFile]:
        """Returns the files to commit."""
        return [] if self._file is None else [self._file.close()]

    def drop(self) -> None:
        """Discards the changes."""
        if self._file is not None:
            self._file.drop()


class DirectoryWriter:
    """Commits refreshes of one volume. For the holder of the volume's lease, in one thread.

    Args:
        kept: number of newest refreshes whose changes are kept, even if no stream needs them.
    """

    def __init__(self, volume: Volume, catalog: Catalog, warehouse: str, kept: int, sizes: FileSizes = SIZES) -> None:
        self.volume = volume
        self.root = table.directory_location(warehouse, volume.id)
        self._catalog = catalog
        self._kept = kept
        self._sizes = sizes
        self._base = NativeTable(table.base_spec(self.root, volume.id))
        self._tail = NativeTable(table.tail_spec(self.root, volume.id))
        self._last = datetime.min.replace(tzinfo=UTC)  # time of the newest refresh

    def open(self) -> Snapshot:
        """Returns the current directory, as the base for changes. Records refreshes missing from the catalog
        after a crash.

        Raises:
            NotFoundError: the volume was dropped.
            FencedError: another writer is active.
        """
        current = self._catalog.volumes.by_id(self.volume.id)
        if current is None:
            raise NotFoundError(f"The volume {self.volume.name} was dropped.")
        base, tail = self._base.open(), self._tail.open()
        snapshot = Snapshot.of(self.volume.id, base, tail)
        if not snapshot.is_consistent:
            raise FencedError(f"Another process is compacting the directory of volume {self.volume.name}.")
        if (current.table_id, current.refresh_count) != (snapshot.table_id, snapshot.newest):
            current = self._record_missing(current, snapshot)
        if current.refresh_count > snapshot.newest > 0:
            snapshot = self._catch_up(current, snapshot)
        self.volume = current
        return snapshot

    def begin(self, snapshot: Snapshot) -> RefreshChanges:
        """Returns an empty set of changes against the directory."""
        last = self._catalog.refreshes.last(self.volume.id)
        self._last = max(self._last, last.committed_on) if last is not None else self._last
        # the catalog's number counts if the tables were removed
        number = max(snapshot.newest, self.volume.refresh_count) + 1
        return RefreshChanges(number, max(datetime.now(UTC), self._last), self._tail)

    def commit(self, snapshot: Snapshot, changes: RefreshChanges, cause: str) -> Refresh | None:
        """Commits a refresh on top of the directory against which its changes were computed. Returns None
        without changes.

        Raises:
            FencedError: another writer took over meanwhile. Nothing was committed.
        """
        if not changes.counts:
            changes.drop()
            return None
        faults.point("refresh.intent")
        refresh = self._refresh(changes.number, cause, changes.counts, changes.made_on)
        self._commit_tail(snapshot, changes.number, added=changes.close(), metadata=self._metadata(refresh))
        return self._committed(refresh)

    def commit_first(self, snapshot: Snapshot, listed: Iterable[pa.Table], size: int) -> Refresh | None:
        """Commits the first refresh of an empty directory as the base itself, with no changes in the tail.

        Args:
            listed: the files, in order, with the columns :data:`table.SCHEMA`.
            size: total size of the files in bytes.
        """
        changes = self.begin(snapshot)
        count = 0

        def rows() -> Iterable[pa.Table]:
            nonlocal count
            for group in listed:
                count += group.num_rows
                wrote = table.written_columns(changes.number, changes.made_on, group.num_rows)
                yield pa.table([*group.select(table.COLUMNS).columns, *wrote], schema=table.FILES)

        added = write_base(self._base, rows(), self._sizes)
        if not count:
            return None
        faults.point("refresh.intent")
        refresh = self._refresh(changes.number, "first-listing", Counts(inserted=count, bytes=size), changes.made_on)
        # From here on, Delta refuses a writer that read the empty directory. Then the tail is set to begin at
        # the base.
        self._commit_tail(snapshot, snapshot.newest)
        through = {table.through_id(self.volume.id): changes.number}
        self._base.commit(snapshot.base, through, added=added, metadata=self._metadata(refresh))
        faults.point("refresh.first")
        self._commit_tail(self._reopened(), changes.number, floor=changes.number)
        return self._committed(refresh)

    def maintain(self) -> bool:
        """Folds the tail into the base if worthwhile, and drops unneeded history. Returns True if it made a
        commit."""
        snapshot = self.open()
        done = False
        if self._is_worth_folding(snapshot):
            snapshot, done = self._fold(snapshot), True
        if self._trim(snapshot):
            done = True
        return done

    def sweep(self) -> None:
        """Deletes data files that no version needs. Lists the folders."""
        for part in (self._base, self._tail):
            part.open()
            part.sweep()

    @staticmethod
    def _is_worth_folding(snapshot: Snapshot) -> bool:
        if snapshot.base.rows <= _CHEAP_ROWS:
            return snapshot.newest > snapshot.through
        return snapshot.uncompacted >= max(_COMPACT_ROWS, _COMPACT_SHARE * snapshot.base.rows)

    def _fold(self, snapshot: Snapshot) -> Snapshot:
        added, removed = compact(self._base, snapshot, self._sizes)
        faults.point("compaction.written")
        self._base.commit(snapshot.base, {table.through_id(self.volume.id): snapshot.newest}, added=added, removed=removed)
        faults.point("compaction.committed")
        _log.debug("compacted", volume=str(self.volume.name), through=snapshot.newest, files=len(added))
        return self._reopened()

    def _trim(self, snapshot: Snapshot) -> bool:
        """Removes unneeded files of the tail and merges small ones. Returns True if there were any."""
        needed = self._catalog.refreshes.needed_after(self.volume.id)
        history = snapshot.newest - self._kept
        floor = max(snapshot.floor, min(snapshot.through, history, history if needed is None else needed))
        unneeded = [file for file in snapshot.tail.files if file.maximum["refresh_id"] <= floor]
        small = [file for file in snapshot.tail.files if file.rows < _SMALL_ROWS and file.maximum["refresh_id"] > floor]
        if len(small) < self._sizes.small_files:
            small = []
        if not (unneeded or small):
            return False
        added = [self._tail.merged(snapshot.tail, small, ("refresh_id", "relative_path"))] if small else []
        self._commit_tail(snapshot, snapshot.newest, floor=floor, added=added, removed=[*unneeded, *small], rewrite=True)
        return True

    def _commit_tail(
        self,
        snapshot: Snapshot,
        number: int,
        *,
        floor: int | None = None,
        added: Iterable[AddedFile] = (),
        removed: Iterable[DataFile] = (),
        rewrite: bool = False,
        metadata: dict[str, object] | None = None,
    ) -> None:
        # Every commit sets the floor: after a crash in the first listing it is known, but not yet in the
        # tail.
        new_floor = snapshot.floor if floor is None else floor
        transactions = {table.app_id(self.volume.id): number, table.floor_id(self.volume.id): new_floor}
        self._tail.commit(snapshot.tail, transactions, added=added, removed=removed, changes_data=not rewrite, metadata=metadata)

    def _catch_up(self, current: Volume, snapshot: Snapshot) -> Snapshot:
        """Advances tables that are older than the catalog, as after a restore or a power cut, to the
        catalog's refresh number.

        This way, numbers are never reused. A full listing restores the tables' lost rows, even for jobs whose
        tables already have results for them.
        """
        _log.warning(
            "directory_older_than_catalog",
            volume=str(current.name),
            refresh=snapshot.newest,
            catalog=current.refresh_count,
            next="a full listing; files may be processed again",
        )
        self._catalog.consumptions.mark_unclean(current.id)
        self._catalog.refreshes.ask_check(current.id, [""])
        self.volume = current
        self._commit_tail(snapshot, current.refresh_count)
        return self._reopened()

    def _record_missing(self, current: Volume, snapshot: Snapshot) -> Volume:
        """Records committed refreshes that are missing from the catalog after a crash."""
        for refresh in self._unrecorded(current.refresh_count, snapshot):
            self._catalog.refreshes.record(refresh)
            _log.info("refresh_recovered", volume=str(current.name), refresh=refresh.number)
        changed = self._catalog.volumes.by_id(current.id)
        if changed is None:
            raise NotFoundError(f"The volume {current.name} was dropped.")
        if changed.table_id != snapshot.table_id:
            changed = self._catalog.volumes.change(changed, table_id=snapshot.table_id)
        return changed

    def _unrecorded(self, count: int, snapshot: Snapshot) -> Iterable[Refresh]:
        if count < snapshot.through and snapshot.through == snapshot.floor:  # the first listing
            rows = [snapshot.base.read(file, ["size", "refreshed_on"]) for file in snapshot.base.files]
            size = sum(pc.sum(row["size"]).as_py() or 0 for row in rows)
            made_on = max((pc.max(row["refreshed_on"]).as_py() for row in rows), default=datetime.now(UTC))
            counts = Counts(inserted=snapshot.base.rows, bytes=size)
            yield self._refresh(snapshot.through, "first-listing", counts, made_on)
        changed = snapshot.changed(max(count, snapshot.floor), snapshot.newest)
        for number in sorted(set(changed["refresh_id"].to_pylist())):
            of_refresh = changed.filter(pc.equal(changed["refresh_id"], number))
            yield self._refresh(number, "recovered", Counts.of(of_refresh), of_refresh["refreshed_on"][0].as_py())

    def _reopened(self) -> Snapshot:
        return Snapshot.of(self.volume.id, self._base.open(), self._tail.open())

    def _refresh(self, number: int, cause: str, counts: Counts, made_on: datetime) -> Refresh:
        return Refresh(self.volume.id, number, cause, counts.inserted, counts.updated, counts.deleted, counts.bytes, made_on)

    def _metadata(self, refresh: Refresh) -> dict[str, object]:
        """Returns a refresh's description for the commit's metadata."""
        return {
            "refresh": refresh.number,
            "volume": str(self.volume.name),
            "cause": refresh.cause,
            "inserted": refresh.inserted,
            "updated": refresh.updated,
            "deleted": refresh.deleted,
            "bytes": refresh.bytes,
        }

    def _committed(self, refresh: Refresh) -> Refresh:
        faults.point("refresh.committed")
        self._catalog.refreshes.record(refresh)
        self._last = refresh.committed_on
        self.volume = replace(self.volume, refresh_count=refresh.number)
        return refresh
