"""Net changes of a directory's refreshes, computed in this process by the rules of ``changes.changelog``.

Needs no engine. For changes that fit in memory, and for whole directories, which are read in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot, first_of_each, last_of_each, old_images
from volstream.changes.directory.table import DELETE, INSERT, PATH, align_sorted, concatenate, same_content

#: Maximum number of changed rows handled in memory: a hundred megabytes.
FEW = 250_000

#: The net result of a range, one row per path: the newest image (for a deleted path, the image before the
#: range), the refresh of the last change, and whether the row existed before and after the range.
NET = pa.schema([*table.SCHEMA, ("commit_version", pa.int64()), ("had", pa.bool_()), ("has", pa.bool_())])


def changed(snapshot: Snapshot, after: int, until: int) -> pa.Table:
    """Returns the paths with a net change in the refreshes ``(after, until]``, in order, with the columns
    :data:`NET`.

    Raises:
        InvalidStateError: the range begins before the kept history.
    """
    snapshot.check(after)
    changes = snapshot.changed(after, until)
    if not changes.num_rows:
        return NET.empty_table()
    first, last = first_of_each(changes), last_of_each(changes)
    before = old_images(first)
    had, has = pc.not_equal(first["change"], INSERT), pc.not_equal(last["change"], DELETE)
    same = pc.and_(pc.and_(had, has), same_content(before, last))
    image = [pc.if_else(has, last[name], before[name]) for name in table.COLUMNS]
    net = pa.table([*image, last["refresh_id"], had, has], schema=NET)
    return net.filter(pc.and_(pc.or_(had, has), pc.invert(same)))


def appended(snapshot: Snapshot, after: int | None, until: int) -> pa.Table:
    """Returns the paths added in the refreshes ``(after, until]``, with their first image. ``after`` None
    means all."""
    changes = snapshot.changed(snapshot.floor if after is None else after, until)
    first = first_of_each(changes)
    first = first.filter(pc.equal(first["change"], INSERT))
    added = _new(first)
    if after is None:
        before = [_new(rows) for rows in snapshot.at(snapshot.floor)]
        added = pa.concat_tables([*before, added.filter(pc.invert(pc.is_in(added[PATH], concatenate(before, NET)[PATH])))])
    return added.sort_by(PATH)


def present(snapshot: Snapshot, version: int) -> Iterator[pa.Table]:
    """Yields the directory at a refresh in order, with every row as new, thousands per table."""
    for rows in snapshot.at(version):
        if rows.num_rows:
            yield _new(rows)


def still_there(snapshot: Snapshot, since: int, now: int) -> Iterator[pa.Table]:
    """Yields the rows of one refresh that are unchanged at another, in the format of :func:`present`."""
    if since == now:
        yield from present(snapshot, since)
        return
    for before, after in align_sorted(snapshot.at(since), snapshot.at(now)):
        old, new = concatenate(before, table.FILES), concatenate(after, table.FILES)
        current = new.take(pc.index_in(old[PATH], value_set=new[PATH]))
        rows = old.filter(pc.and_(pc.is_valid(current[PATH]), same_content(old, current)))
        if rows.num_rows:
            yield _new(rows)


def _new(rows: pa.Table) -> pa.Table:
    """Converts images to rows of :data:`NET` without an image before."""
    flags = [pa.array([value] * rows.num_rows, pa.bool_()) for value in (False, True)]
    return pa.table([*rows.select(table.COLUMNS).columns, rows["refresh_id"], *flags], schema=NET)
