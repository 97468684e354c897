"""The net changes of a directory's refreshes, found in this process: the rules of :mod:`volstream.changelog.process`, without
an engine. For what fits into memory, and for the directory as a whole, which is read in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from volstream.directory import table
from volstream.directory.difference import same_content
from volstream.directory.ordered import PATH, aligned, one_table
from volstream.directory.snapshot import Snapshot, first_of_each, last_of_each, old_images
from volstream.directory.table import DELETE, INSERT

#: Up to so many changed rows are handled in memory: a hundred megabytes.
FEW = 250_000

#: What a range comes to, a row a path: the newest image (of a path that is gone, as it was before the range), the refresh that
#: made the last change, and whether there was a row before the range and is one after it.
NET = pa.schema([*table.SCHEMA, ("commit_version", pa.int64()), ("had", pa.bool_()), ("has", pa.bool_())])


def changed(snapshot: Snapshot, after: int, until: int) -> pa.Table:
    """The paths with a net change in the refreshes ``(after, until]``, in order; columns :data:`NET`.

    Raises:
        InvalidStateError: the history does not reach back so far.
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
    """The paths that were new in the refreshes ``(after, until]``, as they were first; ``after`` None: in all."""
    changes = snapshot.changed(snapshot.floor if after is None else after, until)
    first = first_of_each(changes)
    first = first.filter(pc.equal(first["change"], INSERT))
    found = _new(first)
    if after is None:
        there = [_new(rows) for rows in snapshot.at(snapshot.floor)]
        found = pa.concat_tables([*there, found.filter(pc.invert(pc.is_in(found[PATH], one_table(there, NET)[PATH])))])
    return found.sort_by(PATH)


def present(snapshot: Snapshot, version: int) -> Iterator[pa.Table]:
    """The directory at a refresh, all of it new, in order; some thousand rows a table."""
    for rows in snapshot.at(version):
        if rows.num_rows:
            yield _new(rows)


def still_there(snapshot: Snapshot, since: int, now: int) -> Iterator[pa.Table]:
    """What the directory had at one refresh and has still, as it was, at another, as :func:`present` has it."""
    if since == now:
        yield from present(snapshot, since)
        return
    for before, after in aligned(snapshot.at(since), snapshot.at(now)):
        old, new = one_table(before, table.FILES), one_table(after, table.FILES)
        kept = new.take(pc.index_in(old[PATH], value_set=new[PATH]))
        rows = old.filter(pc.and_(pc.is_valid(kept[PATH]), same_content(old, kept)))
        if rows.num_rows:
            yield _new(rows)


def _new(rows: pa.Table) -> pa.Table:
    """Images as rows of :data:`NET` that were not there before."""
    flags = [pa.array([value] * rows.num_rows, pa.bool_()) for value in (False, True)]
    return pa.table([*rows.select(table.COLUMNS).columns, rows["refresh_id"], *flags], schema=NET)
