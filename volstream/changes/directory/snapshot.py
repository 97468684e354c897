"""A directory as readers see it: matching versions of its two tables, and everything derived from them.

The directory at refresh *m* is the base without the paths that the tail changed between the base's refresh
and *m*, plus their images as of *m*. For an *m* before the base's refresh, the same works backwards with the
old images. The net change of a path in ``(after, until]`` is the old image of its first change and the new
image of its last change. These rules are implemented twice: in Python, and as SQL for Spark.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.threads import map_at_once
from volstream.changes.directory import table
from volstream.changes.directory.table import DELETE, INSERT, PATH
from volstream.errors import DependencyError, InvalidStateError
from volstream.sql.text import literal
from volstream.tables.delta.native import DataFile, View

#: Attempts to read both tables consistently, because a compaction or a trim may commit between the two reads.
_ATTEMPTS = 10

#: Files read concurrently: decoding releases the GIL.
_READERS = 2

#: Columns of an image: the directory's columns, and the refresh that wrote it.
IMAGE = (*table.COLUMNS, *table.WROTE)


@dataclass(frozen=True)
class Snapshot:
    """A directory, pinned at a version.

    Attributes:
        newest: number of the newest refresh, 0 before the first.
        through: number of the refresh that the base represents.
        floor: the tail has all changes of later refreshes.
    """

    base: View
    tail: View
    newest: int
    through: int
    floor: int

    @classmethod
    def open(cls, root: str, volume_id: str) -> Snapshot | None:
        """Returns the current directory in folder ``root``, or None if it was never written.

        Raises:
            DependencyError: a table cannot be read.
        """
        for _ in range(_ATTEMPTS):
            base, tail = table.base_spec(root, volume_id).view(), table.tail_spec(root, volume_id).view()
            if base is None or tail is None:
                return None
            snapshot = cls.of(volume_id, base, tail)
            if snapshot.is_consistent:
                return snapshot
        raise DependencyError(f"The directory at {root} changes faster than it can be read.")

    @classmethod
    def of(cls, volume_id: str, base: View, tail: View) -> Snapshot:
        """Returns the directory of two views. The base's view must be the older one."""
        through = base.transactions.get(table.through_id(volume_id), 0)
        newest = tail.transactions.get(table.app_id(volume_id), 0)
        if through > newest:  # the first listing was committed to the base, but not yet to the tail
            return cls(base, tail, through, through, through)
        return cls(base, tail, newest, through, tail.transactions.get(table.floor_id(volume_id), 0))

    @property
    def is_consistent(self) -> bool:
        """True if the two views match: every change is in at least one of them."""
        return self.floor <= self.through <= self.newest

    @property
    def table_id(self) -> str:
        """Delta's id of the tail, which changes when the directory is re-created."""
        return self.tail.table_id

    @property
    def rows(self) -> int:
        """Upper bound of the number of rows at any refresh since the floor."""
        return self.base.rows + self.tail.rows

    @property
    def uncompacted(self) -> int:
        """Upper bound of the number of tail rows not in the base yet. Exact unless refreshes share files."""
        return self.changed_rows(self.through, self.newest)

    @cached_property
    def base_files(self) -> Sequence[DataFile]:
        """The base's files in path order. Their ranges do not overlap."""
        return sorted(self.base.files, key=lambda file: str(file.minimum[PATH]))

    def check(self, refresh: int) -> None:
        """Raises InvalidStateError if the directory's state at a refresh is no longer available."""
        if refresh < min(self.floor, self.through):
            raise InvalidStateError(
                f"The directory's history begins at refresh {self.floor}, but refresh {refresh} is needed.",
                "The setting directory_versions controls how much history is kept.",
            )

    # In this process

    def at(self, refresh: int | None = None, prefixes: Sequence[str] = ("",)) -> Iterator[pa.Table]:
        """Yields the directory's rows at a refresh in path order, thousands per table.

        Args:
            refresh: defaults to the newest.
            prefixes: include only paths that begin with a prefix.

        Returns:
            Tables of :data:`table.FILES`.

        Raises:
            InvalidStateError: the refresh is older than the kept history.
        """
        if refresh == 0:
            return iter(())  # the directory was empty, regardless of the history
        changed = self.overlay(self.newest if refresh is None else refresh)
        return self._overlaid(changed, prefixes)

    def overlay(self, refresh: int) -> pa.Table:
        """Returns the directory's differences from the base at a refresh, one row per path, in order.

        ``refresh_id`` is NULL for a missing file.

        Raises:
            InvalidStateError: the refresh is older than the kept history.
        """
        self.check(refresh)
        if refresh >= self.through:
            changes = last_of_each(self.changed(self.through, refresh))
            return _without(changes.select(IMAGE), pc.equal(changes["change"], DELETE))
        changes = first_of_each(self.changed(refresh, self.through))
        return old_images(changes)

    def find(self, paths: Sequence[str]) -> pa.Table:
        """Returns the newest rows of some paths, in no particular order. Only reads row groups that may have
        them, and the tail.

        Args:
            paths: without duplicates.
        """
        wanted = sorted(paths)
        values = pa.array(wanted, pa.string())
        tail = last_of_each(self.changed(self.through, self.newest, among=values))
        parts = [tail.filter(pc.not_equal(tail["change"], DELETE)).select(IMAGE)]
        touched = set(tail[PATH].to_pylist())
        remaining = [path for path in wanted if path not in touched] if touched else wanted
        return pa.concat_tables([*parts, *self._find_in_base(remaining)])

    def changed(self, after: int, until: int, *, among: pa.Array | None = None) -> pa.Table:
        """Returns the tail's rows of the refreshes ``(after, until]``, sorted by path and refresh.

        Args:
            among: include only these paths.
        """
        parts = [table.CHANGES.empty_table()]
        for rows in self.tail.between("refresh_id", after, until):
            parts.append(rows if among is None else rows.filter(pc.is_in(rows[PATH], value_set=among)))
        changes = pa.concat_tables(parts)
        return changes.sort_by([(PATH, "ascending"), ("refresh_id", "ascending")])

    def history(self) -> pa.Table:
        """Returns all rows of the tail, sorted by path and refresh."""
        return self.changed(0, self.newest)

    def removed_since(self, moment: datetime) -> set[str]:
        """Returns the paths whose rows were removed at ``moment`` or later, as far back as the tail goes."""
        removed: set[str] = set()
        since = pa.scalar(moment, pa.timestamp("us", tz="UTC"))
        for rows in self.tail.between("refresh_id", self.floor, self.newest):
            matching = pc.and_(pc.equal(rows["change"], DELETE), pc.greater_equal(rows["refreshed_on"], since))
            removed.update(rows.filter(matching)[PATH].to_pylist())
        return removed

    def changed_rows(self, after: int, until: int) -> int:
        """Returns an upper bound of the number of tail rows in the refreshes ``(after, until]``."""
        return sum(file.rows for file in self.tail.files_between("refresh_id", after, until))

    def _overlaid(self, changed: pa.Table, prefixes: Sequence[str]) -> Iterator[pa.Table]:
        paths: list[str] = changed[PATH].to_pylist()
        begin = 0
        files = [file for file in self.base_files if any(_may_begin_with(file, prefix) for prefix in prefixes)]
        for number, file in enumerate(files):
            end = bisect_right(paths, file.maximum[PATH], lo=begin) if number + 1 < len(files) else len(paths)
            rows = self.base.read(file)
            if end > begin:
                rows = combined(rows, changed.slice(begin, end - begin))
            begin = end
            yield _beginning_with(rows, prefixes)
        if not files:
            yield _beginning_with(existing_rows(changed), prefixes)

    def _find_in_base(self, wanted: Sequence[str]) -> list[pa.Table]:
        lasts = [str(file.maximum[PATH]) for file in self.base_files]
        by_file: dict[int, list[str]] = {}
        for path in wanted:
            at = bisect_left(lasts, path)
            if at < len(lasts) and str(self.base_files[at].minimum[PATH]) <= path:
                by_file.setdefault(at, []).append(path)
        return map_at_once(lambda item: self._find_in(self.base_files[item[0]], item[1]), by_file.items(), _READERS)

    def _find_in(self, file: DataFile, wanted: Sequence[str]) -> pa.Table:
        """Returns the rows of some paths, in order, from a file of the base."""
        with self.base.open(file) as opened:
            groups = [group for group in range(opened.metadata.num_row_groups) if _may_contain(opened, group, wanted)]
            rows = opened.read_row_groups(groups, use_threads=False)
        return self.base.fitted(rows.filter(pc.is_in(rows[PATH], value_set=pa.array(wanted, pa.string()))))

    # As SQL

    def at_query(self, refresh: int) -> str:
        """Returns SQL for the directory's rows at a refresh, with the columns :data:`IMAGE`. Raises like
        :meth:`at`."""
        columns = ", ".join(IMAGE)
        base = f"SELECT {columns} FROM {self.base.relation}"
        if refresh == 0:
            return f"{base} LIMIT 0"
        self.check(refresh)
        if refresh == self.through or not self.changed_rows(*sorted((refresh, self.through))):
            return base
        if refresh > self.through:
            newest = f"max_by(struct({columns}), refresh_id) AS image, max_by(change, refresh_id) AS change"
            touched = f"SELECT {PATH}, {newest} FROM ({self._tail_query(self.through, refresh)}) GROUP BY {PATH}"
            condition = f"change <> '{DELETE}'"
        else:
            image = f"min_by({_old_struct()}, refresh_id) AS image"
            touched = f"SELECT {PATH}, {image} FROM ({self._tail_query(refresh, self.through)}) GROUP BY {PATH}"
            condition = "image.refresh_id IS NOT NULL"
        return (
            f"SELECT {columns} FROM ({base}) b WHERE NOT EXISTS (SELECT 1 FROM ({touched}) t WHERE t.{PATH} = b.{PATH}) "
            f"UNION ALL SELECT {', '.join(f'image.{name}' for name in IMAGE)} FROM ({touched}) WHERE {condition}"
        )

    def changes_query(self, after: int, until: int) -> str:
        """Returns SQL for the images that the refreshes ``(after, until]`` added or removed.

        Columns: the directory's, ``_change_type`` (``insert``, ``delete``, ``update_preimage``,
        ``update_postimage``), ``_commit_version`` and ``_commit_timestamp`` of the refresh, and ``wrote`` and
        ``wrote_on`` of the refresh that wrote the image. With ``after`` 0, rows older than the tail count as
        inserted when they were written.

        Raises:
            InvalidStateError: the range begins before the kept history.
        """
        start = max(after, self.floor) if after <= 0 else after
        self.check(start)
        new = f"struct({', '.join(IMAGE)})"
        entries = (
            f"CASE change WHEN '{INSERT}' THEN array({_entry('insert', new)}) "
            f"WHEN '{DELETE}' THEN array({_entry('delete', _old_struct())}) "
            f"ELSE array({_entry('update_preimage', _old_struct())}, {_entry('update_postimage', new)}) END"
        )
        images = ", ".join(f"e.image.{name}" for name in table.COLUMNS)
        query = (
            f"SELECT {images}, e.kind AS _change_type, e.made AS _commit_version, e.made_on AS _commit_timestamp, "
            f"e.image.refresh_id AS wrote, e.image.refreshed_on AS wrote_on "
            f"FROM (SELECT inline({entries}) FROM ({self._tail_query(start, until)})) e"
        )
        if after > 0 or not start:
            return query
        before = self.at_query(start)
        columns = ", ".join(table.COLUMNS)
        return (
            f"SELECT {columns}, 'insert' AS _change_type, refresh_id AS _commit_version, "
            f"refreshed_on AS _commit_timestamp, refresh_id AS wrote, refreshed_on AS wrote_on FROM ({before}) "
            f"UNION ALL {query}"
        )

    def _tail_query(self, after: int, until: int) -> str:
        return self.tail.query_between("refresh_id", after, until)


def old_images(changes: pa.Table) -> pa.Table:
    """Returns the images before the changes, with the columns :data:`IMAGE`. ``refresh_id`` is NULL without
    an image."""
    columns = [changes[name if name in (PATH, "url") else f"old_{name}"] for name in IMAGE]
    return pa.table(columns, schema=table.FILES)


def existing_rows(changed: pa.Table) -> pa.Table:
    """Returns the rows of existing files in an overlay from :meth:`Snapshot.overlay`."""
    return changed.filter(pc.is_valid(changed["refresh_id"]))


def combined(rows: pa.Table, changed: pa.Table) -> pa.Table:
    """Merges rows of the base with an overlay of their range, in order."""
    untouched = rows.filter(pc.invert(pc.is_in(rows[PATH], value_set=_array(changed[PATH]))))
    new = existing_rows(changed)
    if not new.num_rows:
        return untouched
    return pa.concat_tables([untouched, new]).sort_by(PATH)


def _without(images: pa.Table, deleted: pa.ChunkedArray) -> pa.Table:
    """Sets ``refresh_id`` to NULL in deleted images."""
    at = images.column_names.index("refresh_id")
    number = pc.if_else(deleted, pa.scalar(None, pa.int64()), images["refresh_id"])
    return images.set_column(at, pa.field("refresh_id", pa.int64()), number)


def first_of_each(changes: pa.Table) -> pa.Table:
    """Returns the first change of each path. The changes must be sorted by path and refresh."""
    return changes.filter(_ends(changes[PATH], first=True)) if changes.num_rows else changes


def last_of_each(changes: pa.Table) -> pa.Table:
    """Returns the last change of each path. The changes must be sorted by path and refresh."""
    return changes.filter(_ends(changes[PATH], first=False)) if changes.num_rows else changes


def _ends(paths: pa.ChunkedArray, *, first: bool) -> pa.Array:
    """Returns the first or last position of each run of equal values."""
    flat = _array(paths)
    differs = pc.not_equal(flat.slice(0, len(flat) - 1), flat.slice(1))
    edge = pa.array([True])
    return pa.concat_arrays([edge, differs] if first else [differs, edge])


def _array(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _may_contain(opened: pa.parquet.ParquetFile, group: int, wanted: Sequence[str]) -> bool:
    """True if, by its statistics, a row group may have one of the sorted paths. Very long paths have no
    statistics."""
    statistics = opened.metadata.row_group(group).column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    at = bisect_left(wanted, statistics.min)
    return at < len(wanted) and wanted[at] <= statistics.max


def _may_begin_with(file: DataFile, prefix: str) -> bool:
    """True if a file may have paths with a prefix."""
    return str(file.maximum[PATH]) >= prefix and (str(file.minimum[PATH]) <= prefix or str(file.minimum[PATH]).startswith(prefix))


def _beginning_with(rows: pa.Table, prefixes: Sequence[str]) -> pa.Table:
    if "" in prefixes or not rows.num_rows:
        return rows
    first, last = rows[PATH][0].as_py(), rows[PATH][-1].as_py()
    fitting = [prefix for prefix in prefixes if last >= prefix and (first <= prefix or first.startswith(prefix))]
    masks = [pc.starts_with(rows[PATH], prefix) for prefix in fitting]
    return rows.filter(functools.reduce(pc.or_, masks)) if masks else rows.slice(0, 0)


def _old_struct() -> str:
    """Returns SQL for the old image of a change."""
    return f"struct({', '.join(name if name in (PATH, 'url') else f'old_{name} AS {name}' for name in IMAGE)})"


def _entry(kind: str, image: str) -> str:
    return f"named_struct('kind', {literal(kind)}, 'image', {image}, 'made', refresh_id, 'made_on', refreshed_on)"
