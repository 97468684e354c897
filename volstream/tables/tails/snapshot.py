"""A table and its tail as seen by readers: matching versions of the two."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from volstream.base.model.names import quote
from volstream.errors import InvalidStateError
from volstream.sql.text import table_at
from volstream.tables.delta.native import DataFile, View
from volstream.tables.delta.opened import OpenTable
from volstream.tables.tails import table
from volstream.tables.tails.table import ARRIVAL, DELETE, OPERATION, POSITION

#: Attempts to read both tables consistently, because a move may be committed between the two reads.
_LOOKS = 10

#: Up to this many rows and bytes are few.
_FEW_ROWS, _FEW_BYTES = 10_000, 1 << 20


@dataclass(frozen=True)
class Tail:
    """A version of a tail, with its numbers; see :mod:`volstream.tables.tails.table`."""

    view: View
    newest: int
    floor: int
    move: int
    through: int
    before: int

    @classmethod
    def of(cls, view: View) -> Tail:
        """Returns the tail of a view."""
        return cls(view, *table.numbers(view.transactions))

    @property
    def move_id(self) -> str:
        """The application id of the tail's moves."""
        return table.move_id(self.view.table_id)

    def moved(self, move: int | None) -> int | None:
        """Returns the last arrival that a table has after one of this tail's moves; None if this version cannot tell.

        Args:
            move: version of the table's transaction :attr:`move_id`.
        """
        number = move or 0
        return self.through if number == self.move else self.before if number == self.move - 1 else None

    def files(self, after: int) -> list[DataFile]:
        """Returns the data files with arrivals later than ``after``."""
        return self.view.files_between(ARRIVAL, after, self.newest)

    def parts(self, after: int, until: int) -> Iterator[pa.Table]:
        """Yields the rows of arrivals in ``(after, until]`` file by file, in no particular order."""
        return self.view.between(ARRIVAL, after, until)

    def rows(self, after: int, until: int) -> pa.Table:
        """Returns the rows of :meth:`parts` in the order of arrival."""
        rows = pa.concat_tables([self.view.spec.schema.empty_table(), *self.parts(after, until)])
        return rows.sort_by([(ARRIVAL, "ascending"), (POSITION, "ascending")])

    def query(self, after: int, until: int) -> str:
        """Returns SQL for the rows of :meth:`parts`, in no particular order."""
        return self.view.query_between(ARRIVAL, after, until)


@dataclass(frozen=True)
class TailedTable:
    """A table and its tail, pinned.

    Attributes:
        location: of the table.
        version: the table's Delta version.
        columns: the table's columns, in order.
        key: columns of its primary key; empty: rows are only added.
        chars: columns of type CHAR.
        moved: the last arrival that this version of the table has.
    """

    location: str
    version: int
    columns: tuple[str, ...]
    key: tuple[str, ...]
    chars: Collection[str]
    tail: Tail
    moved: int

    @classmethod
    def open(cls, location: str) -> TailedTable | None:
        """Returns the table at ``location`` with its tail, in their current versions; None if it has no tail.

        Raises:
            DependencyError: one of the two cannot be read; or they do not match, as after a restore of one of them.
        """
        if not table.exists(location):
            return None
        for _ in range(_LOOKS):
            present = table.existing(location)
            if present is None:
                return None
            spec, tail_id = present
            # The table first: rows that leave the tail afterwards are still in the tail's version read next, or in a later one.
            base = OpenTable.newest(location)
            view = spec.view()
            if base is None or view is None or view.table_id != tail_id:
                continue
            tail = Tail.of(view)
            moved = tail.moved(base.transaction(tail.move_id))
            if moved is not None and tail.floor <= moved:
                columns, key = tuple(base.schema.columns), tuple(base.schema.primary_key)
                return cls(location, base.version, columns, key, base.schema.chars, tail, moved)
        raise table.unfitting(location)

    @property
    def has_unmoved(self) -> bool:
        """True if the tail has rows that the table lacks."""
        return self.tail.newest > self.moved

    def few_unmoved(self) -> pa.Table | None:
        """Returns the rows that the table lacks; None if there are many."""
        files = self.tail.files(self.moved)
        if sum(file.rows for file in files) > _FEW_ROWS or sum(file.bytes for file in files) > _FEW_BYTES:
            return None
        rows = self.tail.rows(self.moved, self.tail.newest)
        return rows if rows.nbytes <= _FEW_BYTES else None

    def query(self, arrived: str | None = None) -> str:
        """Returns SQL for the table's rows together with its tail's; with a key, the newest row of each key.

        Args:
            arrived: SQL for the rows that the table lacks; default: read from the tail.

        Raises:
            InvalidStateError: the table lost a column for which values have arrived.
        """
        check_columns(self.location, self.tail.view.spec.schema, self.columns)
        columns = ", ".join(map(quote, self.columns))
        base = f"SELECT {columns} FROM {table_at(self.location)} VERSION AS OF {self.version}"
        if arrived is None:
            arrived = self.tail.query(self.moved, self.tail.newest)
        own = ", ".join(self._own())
        if not self.key:
            return f"{base} UNION ALL SELECT {own} FROM ({arrived})"
        newest = newest_of_each(arrived, self.key, own)
        same = same_key(self.key, self.chars, "__b", "__n")
        return (
            f"SELECT {columns} FROM ({base}) __b WHERE NOT EXISTS (SELECT 1 FROM ({newest}) __n WHERE {same}) "
            f"UNION ALL SELECT {columns} FROM ({newest}) WHERE {OPERATION} <> '{DELETE}'"
        )

    def _own(self) -> list[str]:
        """Returns the table's columns as expressions on the tail, which lacks columns added since."""
        present = {name.lower() for name in self.tail.view.spec.schema.names}
        return [quote(name) if name.lower() in present else f"NULL AS {quote(name)}" for name in self.columns]


def check_columns(target: str, arrived: pa.Schema, columns: Collection[str]) -> None:
    """Raises InvalidStateError if the table at ``target`` lacks columns of its tail."""
    present = {name.lower() for name in (*columns, *table.OWN)}
    gone = [name for name in arrived.names if name.lower() not in present]
    if gone:
        raise InvalidStateError(
            f"Rows have arrived for the table at {target} with a column {gone[0]}, which it no longer has.",
            f"Add it again: ALTER TABLE ... ADD COLUMNS ({gone[0]} ...).",
        )


def same_key(key: Sequence[str], chars: Collection[str], base: str, arrived: str) -> str:
    """Returns SQL that is true if a row of the table has the same key as an arrived row.

    Args:
        chars: columns of type CHAR, whose values may have trailing blanks in the table, but never in a tail.
        base, arrived: aliases of the two.
    """
    columns = [(f"{base}.{quote(name)}", f"{arrived}.{quote(name)}", name in chars) for name in key]
    return " AND ".join(f"{f'rtrim({left})' if char else left} <=> {other}" for left, other, char in columns)


def newest_of_each(arrived: str, key: tuple[str, ...], columns: str) -> str:
    """Returns SQL for the newest row of each key among rows of a tail, with the given columns and the operation."""
    keys = ", ".join(map(quote, key))
    order = f"struct({ARRIVAL}, {POSITION})"
    latest = f"SELECT max_by(struct({columns}, {OPERATION}), {order}) AS newest FROM ({arrived}) GROUP BY {keys}"
    return f"SELECT newest.* FROM ({latest})"
