"""Browses a directory of any size like a file manager: one folder at a time, page by page.

A page reads a few row groups of the base, found by statistics, because folders are skipped as a whole. Not
here: whole listings of a directory (:meth:`Snapshot.at`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from volstream.changes.directory.snapshot import Snapshot, existing_rows
from volstream.changes.directory.table import PATH
from volstream.tables.delta.native import DataFile

#: The displayed attributes of a file.
_COLUMNS = (PATH, "size", "last_modified_time", "content_type", "refresh_id", "refreshed_on")

#: Rows that one search reads. The next search continues from there.
SEARCHED_ROWS = 200_000

#: Sorts immediately after "/": the end of a folder.
_AFTER_SLASH = chr(ord("/") + 1)


@dataclass(frozen=True)
class Entry:
    """A file, or a folder that contains something.

    Attributes:
        path: ends in a slash for a folder.
        name: the part after the displayed folder.
    """

    path: str
    name: str
    is_folder: bool
    size: int | None = None
    last_modified_time: Any = None
    content_type: str | None = None
    refresh_id: int | None = None
    refreshed_on: Any = None


@dataclass(frozen=True)
class DirectoryPage:
    """Some entries in path order, and the position at which the next page continues (None at the end)."""

    entries: Sequence[Entry]
    next: str | None


def children(snapshot: Snapshot, prefix: str, after: str | None, maximum: int) -> DirectoryPage:
    """Returns files and folders whose paths begin with ``prefix``, up to the next slash.

    Args:
        after: the end of an earlier page. Starts at the beginning by default.
    """
    rows, folder = _Rows(snapshot), prefix.rpartition("/")[0]
    start = len(folder) + 1 if folder else 0
    entries: list[Entry] = []
    position = prefix if after is None else after
    while len(entries) <= maximum:
        row = rows.at_or_after(position)
        if row is None or not row[PATH].startswith(prefix):
            return DirectoryPage(entries, None)
        path: str = row[PATH]
        name, slash, _ = path[start:].partition("/")
        if slash:
            entries.append(Entry(f"{path[:start]}{name}/", name, is_folder=True))
            position = f"{path[:start]}{name}{_AFTER_SLASH}"
        else:
            entries.append(_file(row, name))
            position = f"{path}\0"
    last = entries[-2]
    return DirectoryPage(entries[:-1], f"{last.path[:-1]}{_AFTER_SLASH}" if last.is_folder else f"{last.path}\0")


def between(snapshot: Snapshot, after: str | None, until: str | None, maximum: int, refresh: int | None = None) -> DirectoryPage:
    """Returns the files with ``after < path <= until`` at a refresh (default: newest). Raises
    InvalidStateError."""
    rows, entries = _Rows(snapshot, refresh), list[Entry]()
    position = "" if after is None else f"{after}\0"
    while len(entries) < maximum:
        row = rows.at_or_after(position)
        if row is None or (until is not None and row[PATH] > until):
            return DirectoryPage(entries, None)
        entries.append(_file(row, row[PATH]))
        position = f"{row[PATH]}\0"
    return DirectoryPage(entries, entries[-1].path)


def search(snapshot: Snapshot, text: str, after: str | None, maximum: int, rows: int = SEARCHED_ROWS) -> DirectoryPage:
    """Returns files whose paths contain ``text``, ignoring case.

    Reads about ``rows`` rows, so a page may have few or no entries although another page follows.
    """
    entries, searched = list[Entry](), 0
    for group in _Rows(snapshot).groups_after(after or ""):
        hits = group.filter(pc.match_substring(group[PATH], text, ignore_case=True))
        for row in hits.to_pylist():
            entries.append(_file(row, row[PATH]))
            if len(entries) == maximum:
                return DirectoryPage(entries, f"{row[PATH]}\0")
        searched += group.num_rows
        if searched >= rows:
            return DirectoryPage(entries, f"{group[PATH][-1].as_py()}\0")
    return DirectoryPage(entries, None)


def _file(row: dict[str, Any], name: str) -> Entry:
    attributes = {key: row[key] for key in _COLUMNS if key != PATH}
    return Entry(row[PATH], name, is_folder=False, **attributes)


class _Rows:
    """The rows of a directory at a refresh, in path order, from any position.

    Decodes row groups of the base on demand, and keeps the latest one.
    """

    def __init__(self, snapshot: Snapshot, refresh: int | None = None) -> None:
        self._snapshot = snapshot
        overlay = snapshot.overlay(snapshot.newest if refresh is None else refresh)
        self._touched: set[str] = set(overlay[PATH].to_pylist())
        self._changed = existing_rows(overlay).select(_COLUMNS)
        self._lasts = [str(file.maximum[PATH]) for file in snapshot.base_files]
        self._opened: tuple[int, pq.ParquetFile] | None = None
        self._group: tuple[int, int, pa.Table, list[str]] | None = None

    @cached_property
    def _changed_paths(self) -> list[str]:
        paths: list[str] = self._changed[PATH].to_pylist()
        return paths

    def at_or_after(self, position: str) -> dict[str, Any] | None:
        """Returns the first row whose path is not before a position, or None."""
        at = bisect_left(self._changed_paths, position)
        changed = self._changed_paths[at] if at < len(self._changed_paths) else None
        for table, paths in self._base_after(position):
            for number in range(bisect_left(paths, position), len(paths)):
                if changed is not None and changed < paths[number]:
                    return _row(self._changed, at)
                if paths[number] not in self._touched:
                    return _row(table, number)
        return None if changed is None else _row(self._changed, at)

    def groups_after(self, position: str) -> Iterator[pa.Table]:
        """Yields the rows from a position on by row group, each including the changed rows of its range."""
        begin = bisect_left(self._changed_paths, position)
        for table, paths in self._base_after(position):
            end = bisect_left(self._changed_paths, f"{paths[-1]}\0", lo=begin)
            is_current = pa.array([path >= position and path not in self._touched for path in paths])
            yield pa.concat_tables([table.filter(is_current), self._changed.slice(begin, end - begin)]).sort_by(PATH)
            begin = end
        if begin < len(self._changed_paths):
            yield self._changed.slice(begin)

    def _base_after(self, position: str) -> Iterator[tuple[pa.Table, list[str]]]:
        files = self._snapshot.base_files
        for number in range(bisect_left(self._lasts, position), len(files)):
            opened = self._open(number, files[number])
            for group in range(opened.metadata.num_row_groups):
                statistics = opened.metadata.row_group(group).column(0).statistics
                bounded = statistics is not None and statistics.has_min_max  # not for very long paths
                if not bounded or statistics.max >= position:
                    table, paths = self._read(number, opened, group)
                    if paths and paths[-1] >= position:
                        yield table, paths

    def _open(self, number: int, file: DataFile) -> pq.ParquetFile:
        if self._opened is None or self._opened[0] != number:
            if self._opened is not None:
                self._opened[1].close()
            self._opened = (number, self._snapshot.base.open(file))
        return self._opened[1]

    def _read(self, number: int, opened: pq.ParquetFile, group: int) -> tuple[pa.Table, list[str]]:
        if self._group is None or self._group[:2] != (number, group):
            rows = opened.read_row_group(group, columns=list(_COLUMNS), use_threads=False)
            table = self._snapshot.base.fitted(rows, _COLUMNS)
            self._group = (number, group, table, table[PATH].to_pylist())
        return self._group[2], self._group[3]


def _row(table: pa.Table, number: int) -> dict[str, Any]:
    row: dict[str, Any] = table.slice(number, 1).to_pylist()[0]
    return row
