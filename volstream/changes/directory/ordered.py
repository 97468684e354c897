"""Streams of rows in path order: merged, aligned, and compared, in constant memory.

Paths are sorted by their UTF-8 bytes: the order of text in Arrow and Spark, and of Python's ``str``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

PATH = "relative_path"


class RowCursor:
    """A position in a stream of consecutive tables in path order."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._paths: Sequence[str] = ()
        self._rows: pa.Table | None = None
        self._at = 0
        self._advance()

    @property
    def last(self) -> str | None:
        """The last path in memory; None at the end."""
        return self._paths[-1] if self._rows is not None else None

    def until(self, path: str) -> list[pa.Table]:
        """Returns the rows up to and including ``path``, and moves past them."""
        parts: list[pa.Table] = []
        while self._rows is not None:
            end = bisect_right(self._paths, path, lo=self._at)
            if end > self._at:
                parts.append(self._rows.slice(self._at, end - self._at))
            self._at = end
            if end < len(self._paths):
                break
            self._advance()
        return parts

    def _advance(self) -> None:
        self._rows, self._at = next((rows for rows in self._tables if rows.num_rows), None), 0
        self._paths = () if self._rows is None else self._rows[PATH].to_pylist()


def merged(runs: Iterable[tuple[str, Iterable[pa.Table]]]) -> Iterator[pa.Table]:
    """Merges several sorted streams into one, with each path once.

    Args:
        runs: first path and tables of each stream; a stream is read only when its first path is reached.
    """
    waiting = sorted(runs, key=lambda run: run[0], reverse=True)
    open_runs: list[RowCursor] = []
    while waiting or open_runs:
        if not open_runs:
            open_runs.append(RowCursor(waiting.pop()[1]))
        cut = min((run.last for run in open_runs if run.last is not None), default=None)
        while waiting and (cut is None or waiting[-1][0] <= cut):
            open_runs.append(RowCursor(waiting.pop()[1]))
            cut = min((run.last for run in open_runs if run.last is not None), default=None)
        if cut is not None:
            tables = [rows for run in open_runs for rows in run.until(cut)]
            yield _each_once(tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by(PATH))
        open_runs = [run for run in open_runs if run.last is not None]


def aligned(left: Iterable[pa.Table], right: Iterable[pa.Table]) -> Iterator[tuple[Sequence[pa.Table], Sequence[pa.Table]]]:
    """Yields two sorted streams, cut at the same paths: tables of either side, empty if a side has no such paths."""
    one, other = RowCursor(left), RowCursor(right)
    while one.last is not None or other.last is not None:
        cut = min(last for last in (one.last, other.last) if last is not None)
        yield one.until(cut), other.until(cut)


def one_table(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Concatenates tables of a schema; without tables, returns an empty one."""
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _each_once(rows: pa.Table) -> pa.Table:
    """Keeps only the last of consecutive rows with the same path: the file was listed twice."""
    paths = rows[PATH]
    if len(paths) < 2:
        return rows
    following = pc.not_equal(paths.slice(0, len(paths) - 1), paths.slice(1))
    if pc.all(following).as_py():
        return rows
    return rows.filter(pa.chunked_array([*following.chunks, [True]]))
