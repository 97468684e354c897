"""Writes the base of a directory: the first listing as a whole, then compactions, which fold the tail into it.

A compaction rewrites only files whose path range the tail touches, so its cost depends on the changes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from volstream.changes.directory.ordered import PATH
from volstream.changes.directory.snapshot import Snapshot, combined, existing_rows
from volstream.tables.delta.datafile import AddedFile
from volstream.tables.delta.native import DataFile, NativeTable


@dataclass(frozen=True)
class FileSizes:
    """How a directory is divided into files.

    Attributes:
        rows: per file of the base: a look-up opens the files of its paths, and a compaction rewrites whole files.
        few_rows: a rewritten file of the base with fewer rows is merged with the next.
        small_files: once the tail has this many small files, they are merged: a look-up reads everything not yet in the base.
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
        self._waiting: list[pa.Table] = []
        self._added: list[Future[AddedFile]] = []
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="base")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def write(self, rows: pa.Table) -> None:
        """Appends rows, which must sort after all earlier ones."""
        self._waiting.append(rows)
        self.rows += rows.num_rows
        if self.rows >= 2 * self._file_rows:
            self._cut(self.rows // self._file_rows - 1, self._file_rows)

    def flush(self) -> None:
        """Writes all pending rows, in files of about equal size."""
        count = math.ceil(self.rows / self._file_rows)
        if count:
            self._cut(count, math.ceil(self.rows / count))

    def close(self) -> Sequence[AddedFile]:
        """Writes the pending rows; returns all files."""
        self.flush()
        return [file.result() for file in self._added]

    def _cut(self, files: int, size: int) -> None:
        rows = pa.concat_tables(self._waiting)
        for number in range(files):
            if len(self._added) > _WRITERS:  # limits the files in memory
                self._added[-_WRITERS - 1].result()
            self._added.append(self._pool.submit(self._write, rows.slice(number * size, size)))
        remainder = rows.slice(files * size)
        self._waiting, self.rows = [remainder], remainder.num_rows

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
    """Returns the files that a commit must add to the base and remove from it, to bring it to the newest refresh.

    Memory: the part of the tail being compacted, and some files of the base.
    """
    changed = snapshot.overlay(snapshot.newest)
    with BaseFiles(target, sizes.rows) as files:
        removed = _compact_into(files, snapshot, changed, sizes.few_rows)
        return files.close(), removed


def _compact_into(files: BaseFiles, snapshot: Snapshot, changed: pa.Table, few_rows: int) -> Sequence[DataFile]:
    """Rewrites the files that the changes touch; returns the replaced files."""
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
