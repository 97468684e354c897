"""Differences between current files and their rows in the directory. Pure, except for checks of a store."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from volstream.changes.directory import table
from volstream.changes.directory.ordered import PATH, aligned, one_table
from volstream.changes.directory.table import DELETE, INSERT, UPDATE


def differences(listed: Iterable[pa.Table], known: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the changes that bring a directory in line with a listing, in order.

    Args:
        listed: files in order, with the columns :data:`table.SCHEMA`.
        known: rows in order, with the columns :data:`table.FILES`.

    Returns:
        Tables of :data:`table.CHANGE`.
    """
    for files, rows in aligned(listed, known):
        yield compare(one_table(files, table.SCHEMA), one_table(rows, table.FILES))


def compare(files: pa.Table, rows: pa.Table) -> pa.Table:
    """Returns the changes that turn the known ``rows`` into ``files``, which must include every file with the rows' paths."""
    at = pc.index_in(files[PATH], value_set=rows[PATH])
    old = rows.take(at)
    changed = pc.invert(same_content(files, old))
    new = files.filter(changed)
    what = pc.if_else(pc.is_null(at.filter(changed)), INSERT, UPDATE)
    missing = rows.filter(pc.invert(pc.is_in(rows[PATH], value_set=files[PATH])))
    gone = pa.array([DELETE] * missing.num_rows, pa.string())
    return pa.concat_tables([_changes(what, new, old.filter(changed)), _changes(gone, missing, missing)])


def _changes(what: pa.Array | pa.ChunkedArray, new: pa.Table, old: pa.Table) -> pa.Table:
    columns = [what, *(new[name] for name in table.COLUMNS), *(old[name] for name in table.OLD)]
    return pa.table(columns, schema=table.CHANGE)


def same_content(one: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    """Returns which rows of two aligned tables describe the same version of a file."""
    return functools.reduce(pc.and_, (_same(one[name], other[name]) for name in table.CONTENT))


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns which values are equal, or both NULL."""
    return pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
