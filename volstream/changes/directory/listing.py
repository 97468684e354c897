"""A full listing of subtrees, spooled to Parquet files in path order. Memory use is independent of the number
of files.

Lists only settled files: a recently modified file is checked again after the settle time and only included if
unchanged.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from volstream.base import faults
from volstream.base.model.paths import FileInfo, Finding, Selection, checked
from volstream.changes.directory import table
from volstream.changes.directory.table import PATH, merge_sorted
from volstream.errors import FencedError, InterruptedByUserError, StorageError
from volstream.files.storage.base import HasLocalPaths, KeyOrdered, ObjectStore
from volstream.tables.delta import places
from volstream.tables.delta.places import files, filesystem_of, make_durable, make_folder, remove_file, replace_file

#: Rows per row group: read at once from each file during a merge.
_SPOOLED_ROWS = 10_000

#: Rows sorted in memory and written to one file.
_RUN_ROWS = 200_000

#: More findings are only counted: a million unreadable names tell no more than a thousand.
_MAX_FINDINGS = 1000


@dataclass
class Listing:
    """The result of a listing.

    Attributes:
        began: start of the listing, as :func:`time.time`.
        resumed: True if an earlier process made a part of the listing.
        findings: names that cannot become rows, at most 1,000.
        unsettled: files that were still being written at the end of the listing, or could not be checked.
            Also in ``findings``.
        as_of: time of the report that the listing comes from. It lacks later changes. None without a report.
        covers: prefix of all paths in a report.
        root: for local files: an id that distinguishes the directory from another at the same path.
    """

    files: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    unsettled: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    resumed: bool = False
    as_of: datetime | None = None
    covers: str = ""
    root: str | None = None

    @property
    def shown_time(self) -> float:
        """The time that the listing shows, as :func:`time.time`. Later changes may be missing."""
        return self.began if self.as_of is None else self.as_of.timestamp()

    def add_finding(self, finding: Finding) -> None:
        """Adds a finding. Beyond the maximum, only counts it."""
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(finding)
        self.finding_count += 1

    def add(self, other: Listing) -> None:
        """Adds the result of listing other subtrees."""
        self.files += other.files
        self.bytes += other.bytes
        for finding in other.findings:
            self.add_finding(finding)
        self.finding_count += other.finding_count - len(other.findings)
        self.unsettled += other.unsettled
        self.began = min(self.began, other.began)
        self.resumed |= other.resumed


def list_to(
    folder: str,
    store: ObjectStore,
    prefixes: Sequence[str],
    selection: Selection,
    *,
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
    stopped: Callable[[], object] = lambda: False,
) -> Listing:
    """Lists everything below the prefixes into Parquet files in ``folder``, to be read with
    :func:`listed_in`.

    Args:
        folder: path or URI of a folder without files.
        prefixes: no prefix is below another.
        settle_seconds: a file modified more recently is checked again after this time.
        wait: sleeps. The daemon passes a function that a stop interrupts.
        stopped: called after each group of rows.

    Raises:
        StorageError: the listing is incomplete and cannot be used.
        InterruptedByUserError: the listing was stopped.
    """
    listing = Listing(root=store.root_id() if isinstance(store, HasLocalPaths) else None)
    entries = (checked(entry) for prefix in prefixes for entry in store.list(prefix, selection))
    settled = _settled(entries, store, listing, settle_seconds, wait)
    spool(folder, settled, store, listing, stopped, _RUN_ROWS, _SPOOLED_ROWS)
    return listing


def spool(
    folder: str,
    files: Iterator[FileInfo],
    store: ObjectStore,
    listing: Listing,
    stopped: Callable[[], object],
    run_rows: int,
    group_rows: int,
) -> None:
    """Writes files in any order to sorted Parquet files, and counts them in ``listing``. See :func:`list_to`.

    Args:
        run_rows: rows sorted at once.
        group_rows: rows read at once when the listing is merged.
    """
    make_folder(folder)
    filesystem, path = filesystem_of(folder)
    for number in count():
        run: list[pa.Table] = []
        rows = 0
        while rows < run_rows and (group := list(islice(files, group_rows))):
            if stopped():
                raise InterruptedByUserError("The listing was stopped.")
            listing.bytes += sum(file.size for file in group)
            listing.files += len(group)
            rows += len(group)
            run.append(table.rows_of_files(group, store.url))
        if not run:
            return
        pq.write_table(
            pa.concat_tables(run).sort_by(PATH),
            f"{path}/{number:06}.parquet",
            filesystem=filesystem,
            row_group_size=group_rows,
            compression="lz4",
        )


def listed_in(folder: str, files: int = 0) -> Iterator[pa.Table]:
    """Yields the files of a listing in path order, thousands per table, with the columns
    :data:`table.SCHEMA`.

    Args:
        folder: a folder of Parquet files whose rows are sorted.
        files: the number of listed files, if known. The folder may only be empty if it is 0.

    Raises:
        FencedError: another process took over the volume and removed the listing.
    """
    filesystem, path = filesystem_of(folder)
    selector = fs.FileSelector(path, allow_not_found=True, recursive=True)
    names = [info.path for info in filesystem.get_file_info(selector) if info.base_name.endswith(".parquet")]
    if files and not names:
        raise _taken_over()
    runs: list[tuple[str, Iterable[pa.Table]]] = []
    for name in names:
        groups = _groups(filesystem, name)
        first = next(groups, None)
        if first is not None:
            runs.append((first[PATH][0].as_py(), _groups(filesystem, name)))
            groups.close()
    return merge_sorted(runs)


def _groups(filesystem: fs.FileSystem, path: str) -> Generator[pa.Table, None, None]:
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            for group in range(file.metadata.num_row_groups):
                rows = file.read_row_group(group)
                if rows.num_rows:
                    yield rows
    except FileNotFoundError as error:
        raise _taken_over() from error


def _taken_over() -> FencedError:
    return FencedError(
        "Another process took over the volume and discarded this listing; nothing was changed.", "Run the command again."
    )


def _settled(
    listed: Iterable[FileInfo | Finding],
    store: ObjectStore,
    listing: Listing,
    settle_seconds: float,
    wait: Callable[[float], object],
) -> Iterator[FileInfo]:
    """Yields the listed files that are complete. Recent files are spooled to disk and come last."""
    with tempfile.SpooledTemporaryFile(max_size=1 << 20, mode="w+", encoding="utf-8", newline="\n") as recent:
        spooled, settled_after = 0, timedelta(seconds=settle_seconds)
        for entry in listed:
            if isinstance(entry, Finding):
                listing.add_finding(entry)
            elif abs(datetime.now(UTC) - entry.last_modified_time) < settled_after:
                recent.write(f"{entry.relative_path}\0{entry.etag}\0")
                spooled += 1
            else:
                yield entry
        if not spooled:
            return
        wait(settle_seconds)
        recent.seek(0)
        for path, etag in _pairs(recent.read):
            try:
                current = store.head(path)
            except StorageError as error:  # if all keys fail, the check of missing keys raises
                listing.unsettled.append(path)
                listing.add_finding(Finding(path, error.message))
                continue
            if current is not None and current.etag == etag:
                yield current
            elif current is not None:
                listing.unsettled.append(path)
                listing.add_finding(Finding(path, "It is still being written; it will be checked again later."))


def _pairs(read: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """Yields (path, etag) pairs from fields that end in NUL, which no path contains."""
    pending = ""
    while chunk := read(1 << 16):
        *fields, pending = (pending + chunk).split("\0")
        if len(fields) % 2:
            pending = f"{fields.pop()}\0{pending}"
        yield from zip(fields[::2], fields[1::2], strict=True)


# A listing of a bucket: split among threads by sub-prefix, spooled to Parquet files, resumed after
# interruptions.
#
# ``state.json`` in the listing's folder persists between processes. It is updated after each completed file
# of rows.

#: Number of concurrent requests for pages.
_THREADS = 4

#: Rows that each thread buffers, and rows per file. The listing's state is saved after each file.
_GROUP_ROWS, _FILE_ROWS = 10_000, 100_000

#: A level with more sub-prefixes is listed as a whole, because memory and the state hold all shards.
_MAX_SHARDS = 1000

#: Maximum number of levels with a single sub-prefix to descend in search of several.
_MAX_LEVELS = 8

#: A listing older than this is restarted.
_STALE_SECONDS = 6 * 3600.0


@dataclass
class Shard:
    """A part of the keys, with its progress.

    Attributes:
        deep: include objects below sub-prefixes of ``prefix``.
        after: path up to which the rows are in completed files.
        files: number of completed files.
    """

    prefix: str
    deep: bool
    after: str = ""
    files: int = 0
    done: bool = False


@dataclass
class _State:
    listing: Listing
    shards: list[Shard]


class ShardedListing:
    """A listing of a store into a folder. Resumes an unfinished listing.

    Args:
        folder: folder in the warehouse. Its sub-folder ``listed`` receives the rows, with the columns of a
            directory table.
        stopped: called after each group of rows.
    """

    def __init__(
        self, folder: str, store: ObjectStore, prefix: str, selection: Selection, stopped: Callable[[], object] = lambda: False
    ) -> None:
        assert isinstance(store, KeyOrdered), "the caller has checked it"
        self._ordered: KeyOrdered = store
        self._store = store
        self._prefix = prefix
        self._selection = selection
        self._stopped = stopped
        self._location = folder
        self._filesystem, self._folder = filesystem_of(folder)
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> Listing:
        """Runs the listing to its end.

        Raises:
            StorageError: the store did not respond. The next run resumes here.
            InterruptedByUserError: stopped. The next run resumes here.
        """
        self._state = self._load_state() or self._new_state()
        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="listing") as pool:
                for _ in pool.map(self._list, [shard for shard in self._state.shards if not shard.done]):
                    pass
        except BaseException:
            self._ended = True
            raise
        return self._state.listing

    def _new_state(self) -> _State:
        state = _State(Listing(), self._shards())
        self._save_state(state)
        return state

    def _shards(self) -> list[Shard]:
        above: list[Shard] = []
        prefix = self._prefix
        for _ in range(_MAX_LEVELS):
            below = list(islice(self._ordered.prefixes(prefix), _MAX_SHARDS + 1))
            if not below or len(below) > _MAX_SHARDS:
                break
            above.append(Shard(prefix, deep=False))
            inside = [child for child in below if self._selection.may_contain(child[:-1])]
            if len(inside) != 1:
                return [*above, *(Shard(child, deep=True) for child in inside)]
            prefix = inside[0]
        return [*above, Shard(prefix, deep=True)]

    def _list(self, shard: Shard) -> None:
        rows = self._rows(shard)
        while True:
            first = list(islice(rows, _GROUP_ROWS))
            if not first:
                break
            self._write(shard, first, rows)
        shard.done = True
        self._save_state(self._state)

    def _rows(self, shard: Shard) -> Iterator[FileInfo | Finding]:
        return map(checked, self._ordered.list_after(shard.prefix, self._selection, shard.after, deep=shard.deep))

    def _write(self, shard: Shard, group: list[FileInfo | Finding], rows: Iterator[FileInfo | Finding]) -> None:
        """Writes one file of rows, then saves the progress."""
        name = f"{self._state.shards.index(shard):04}-{shard.files:06}.parquet"
        path = f"{self._folder}/listed/{name}"
        count, size, findings, last = 0, 0, list[Finding](), shard.after
        with (
            self._filesystem.open_output_stream(path) as sink,
            pq.ParquetWriter(sink, table.SCHEMA, compression="zstd") as writer,
        ):
            while group:
                if self._ended or self._stopped():
                    raise InterruptedByUserError("The listing was stopped.")
                files = [entry for entry in group if isinstance(entry, FileInfo)]
                findings += [entry for entry in group if isinstance(entry, Finding)]
                for file in files:
                    size += file.size
                    last = file.relative_path
                count += len(files)
                writer.write_table(table.rows_of_files(files, self._store.url))
                group = list(islice(rows, _GROUP_ROWS)) if count < _FILE_ROWS else []
        make_durable(self._filesystem, path)  # before it counts as saved progress
        faults.point("listing.file")
        with self._lock:
            shard.after, shard.files = last, shard.files + 1
            listing = self._state.listing
            listing.files, listing.bytes = listing.files + count, listing.bytes + size
            for finding in findings:
                listing.add_finding(finding)
        self._save_state(self._state)

    def _save_state(self, state: _State) -> None:
        """Replaces the saved state atomically."""
        with self._lock:
            text = json.dumps({**asdict(state), "volume": self._identity()})
            replace_file(f"{self._location}/state.json", text.encode("utf-8", "surrogateescape"))

    def _load_state(self) -> _State | None:
        """Returns the state of an unfinished listing of the same volume. Without one, clears the folder."""
        try:
            with self._filesystem.open_input_stream(f"{self._folder}/state.json") as file:
                loaded: dict[str, Any] = json.loads(file.read().decode("utf-8", "surrogateescape"))
        except (OSError, ValueError):
            loaded = {}
        saved = loaded.get("listing") if loaded.get("volume") == self._identity() else None
        if saved and time.time() - saved["began"] < _STALE_SECONDS:
            findings = [Finding(**finding) for finding in saved["findings"]]
            listing = Listing(**{**saved, "findings": findings, "resumed": True})
            state = _State(listing, [Shard(**shard) for shard in loaded["shards"]])
            self._remove_unsaved_files(state)
            return state
        places.remove(self._location)
        make_folder(f"{self._location}/listed")
        return None

    def _remove_unsaved_files(self, state: _State) -> None:
        """Removes files of rows that are not in the state."""
        names = {f"{at:04}-{number:06}.parquet" for at, shard in enumerate(state.shards) for number in range(shard.files)}
        for file in files(self._location, "listed"):
            if file.name not in names:
                remove_file(self._location, file.path)

    def _identity(self) -> str:
        """Identifies the listing, by location and selection."""
        return f"{self._store.url('')}\n{self._prefix}\n{self._selection!r}"
