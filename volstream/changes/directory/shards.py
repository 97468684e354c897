"""A listing of a bucket: split among threads by sub-prefix, spooled to Parquet files, resumed after an interruption.

``state.json`` in the listing's folder persists between processes and is updated after each completed file of rows. Listings
in general, and of stores without key order, are in ``directory.listing``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow.parquet as pq

from volstream.base import faults
from volstream.base.model.paths import FileInfo, Finding, Selection, checked
from volstream.changes.directory import table
from volstream.changes.directory.listing import Listing
from volstream.errors import InterruptedByUserError
from volstream.files.storage.base import KeyOrdered, ObjectStore
from volstream.tables.delta import places
from volstream.tables.delta.places import files, filesystem_of, make_durable, make_folder, remove_file, replace_file

#: Number of concurrent requests for pages.
_THREADS = 4

#: Rows that each thread buffers, and rows per file; the listing's state is saved after each file.
_GROUP_ROWS, _FILE_ROWS = 10_000, 100_000

#: A level with more sub-prefixes is listed as a whole, because shards are in memory and in the state.
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
    """A listing of a store into a folder; resumes an unfinished one.

    Args:
        folder: folder in the warehouse; its sub-folder ``listed`` receives the rows, with the columns of a directory table.
        stopped: called after each group of rows.
    """

    def __init__(
        self, folder: str, store: ObjectStore, prefix: str, selection: Selection, stopped: Callable[[], object] = lambda: False
    ) -> None:
        assert isinstance(store, KeyOrdered), "asked before"
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
            StorageError: the store did not answer; the next run resumes here.
            InterruptedByUserError: stopped; the next run resumes here.
        """
        self._state = self._kept() or self._begun()
        try:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="listing") as pool:
                for _ in pool.map(self._list, [shard for shard in self._state.shards if not shard.done]):
                    pass
        except BaseException:
            self._ended = True
            raise
        return self._state.listing

    def _begun(self) -> _State:
        state = _State(Listing(), self._shards())
        self._keep(state)
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
        self._keep(self._state)

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
                writer.write_table(table.rows(files, self._store.url))
                group = list(islice(rows, _GROUP_ROWS)) if count < _FILE_ROWS else []
        make_durable(self._filesystem, path)  # before the saved progress includes it
        faults.point("listing.file")
        with self._lock:
            shard.after, shard.files = last, shard.files + 1
            listing = self._state.listing
            listing.files, listing.bytes = listing.files + count, listing.bytes + size
            for finding in findings:
                listing.note(finding)
        self._keep(self._state)

    def _keep(self, state: _State) -> None:
        """Replaces the saved state atomically."""
        with self._lock:
            text = json.dumps({**asdict(state), "volume": self._identity()})
            replace_file(f"{self._location}/state.json", text.encode("utf-8", "surrogateescape"))

    def _kept(self) -> _State | None:
        """Returns the state of an unfinished listing of the same volume; else None, after clearing the folder of rows."""
        try:
            with self._filesystem.open_input_stream(f"{self._folder}/state.json") as file:
                kept: dict[str, Any] = json.loads(file.read().decode("utf-8", "surrogateescape"))
        except (OSError, ValueError):
            kept = {}
        saved = kept.get("listing") if kept.get("volume") == self._identity() else None
        if saved and time.time() - saved["began"] < _STALE_SECONDS:
            findings = [Finding(**finding) for finding in saved["findings"]]
            listing = Listing(**{**saved, "findings": findings, "resumed": True})
            state = _State(listing, [Shard(**shard) for shard in kept["shards"]])
            self._forget_others(state)
            return state
        places.remove(self._location)
        make_folder(f"{self._location}/listed")
        return None

    def _forget_others(self, state: _State) -> None:
        """Removes files of rows that the state does not include."""
        kept = {f"{at:04}-{number:06}.parquet" for at, shard in enumerate(state.shards) for number in range(shard.files)}
        for file in files(self._location, "listed"):
            if file.name not in kept:
                remove_file(self._location, file.path)

    def _identity(self) -> str:
        """Identifies the listing: another location or selection makes another listing."""
        return f"{self._store.url('')}\n{self._prefix}\n{self._selection!r}"
