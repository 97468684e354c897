"""The tail of a table: the Delta table for arriving rows, and matching versions of both tables for
readers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from volstream.base.model.names import quote
from volstream.errors import DependencyError, InvalidStateError, NotFoundError
from volstream.sql.text import table_at
from volstream.tables.delta import schema as delta_columns
from volstream.tables.delta.native import DataFile, TableSpec, View
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import filesystem_of

# The Delta table in which a table's rows arrive: columns, transactions, and its location beside the table.
#
# Any number of processes write a tail, without a JVM. Every append carries :data:`NEWEST`, so that Delta
# refuses one of two concurrent appends; that writer tries again. Arrivals are numbered from 1. One append
# adds one or more arrivals.
#
# Arrivals move into the table in numbered *moves*. A commit of the tail plans a move and so fixes its range.
# One commit of the table with the transaction (:func:`move_id`, number of the move) makes it. So the table's
# transaction shows which arrivals it has, whatever happens between the two commits, and repeating a move has
# no effect. Plans carry :data:`MOVE` instead of :data:`NEWEST`: arriving rows, however fast, never block a
# plan, and a plan never blocks arriving rows.

#: Columns of a tail: number of the arrival, position in the arrival, and operation (see below).
ARRIVAL, POSITION, OPERATION = OWN = ("__arrival", "__position", "__operation")

#: Keys of the metadata in a schema from :func:`tail_columns`.
CHARACTERS, PARTITION, KEY = "characters", "partition", "primary_key"

INSERT, UPSERT, DELETE = "insert", "upsert", "delete"

#: Application ids of a tail's transactions: the newest arrival; the last removed arrival; the newest planned
#: move; the last arrival of that move; the last arrival of the previous move.
NEWEST = "volstream:tail"
FLOOR, MOVE, THROUGH, BEFORE = (f"{NEWEST}:{part}" for part in ("floor", "move", "through", "before"))

#: Transactions: 1 once a tail accepts no more rows; and how often its streams were ended for a change of
#: columns.
SEALED, ENDED = f"{NEWEST}:sealed", f"{NEWEST}:ended"


#: Metadata of columns that Delta computes when rows are written.
_COMPUTED = {"delta.generationExpression", "delta.identity.start"}


def tail_location(target: str) -> str:
    """Returns the location of a table's tail. Delta ignores folders whose names begin with an underscore."""
    return f"{target}/_tail"


def tail_exists(target: str) -> bool:
    """True if the table at ``target`` has a tail. Takes one request."""
    filesystem, path = filesystem_of(f"{tail_location(target)}/_delta_log")
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)


def tail_columns(target: str) -> pa.Schema:
    """Returns the columns of the table at ``target``, with their nullability.

    The metadata of a CHAR or VARCHAR field has its type (:data:`CHARACTERS`, like ``varchar(10)``), and that
    of a partition column has :data:`PARTITION`. The schema's metadata has the primary key's columns as a JSON
    list (:data:`KEY`).

    Raises:
        InvalidStateError: a column has a name reserved for the tail, or a type that only Spark can write.
        NotFoundError: there is no table.
        DependencyError: the log cannot be read.
    """
    opened = OpenTable.newest(target)
    if opened is None:
        raise NotFoundError(f"There is no table at {target}.")
    schema, fields, key = opened.fields, opened.schema.fields, json.dumps(opened.schema.primary_key)
    reserved = {name.lower() for name in schema.names} & {*OWN}
    if reserved:
        raise InvalidStateError(
            f"The table at {target} has a column {min(reserved)}, which real-time streams use themselves.", "Rename the column."
        )
    variants = [str(field["name"]) for field in fields if delta_columns.has_type(field["type"], "variant")]
    if variants:
        raise InvalidStateError(
            f"Column {variants[0]} is a VARIANT, which real-time streams do not support.",
            "Make it a STRING, and parse_json() it when it is read.",
        )
    computed = [str(field["name"]) for field in fields if {*field["metadata"]} & _COMPUTED]
    if computed:
        raise InvalidStateError(
            f"Delta computes the column {computed[0]} of the table at {target}, which real-time streams do not support.",
            "Make it an ordinary column, or write the table by SQL.",
        )
    limits = [field["metadata"].get(delta_columns.CHARACTERS) for field in fields]
    nested = [name for name, limit in zip(schema.names, limits, strict=True) if limit and delta_columns.length_of(limit) is None]
    if nested:
        raise InvalidStateError(
            f"Column {nested[0]} has a CHAR or VARCHAR inside, which real-time streams do not support.", "Make it a STRING."
        )
    fields = []
    for field, limit in zip(schema, limits, strict=True):
        characters = {} if limit is None else {CHARACTERS: limit}
        partition = {PARTITION: "true"} if field.name in opened.schema.partitions else {}
        fields.append(pa.field(field.name, field.type, field.nullable, {**characters, **partition} or None))
    return pa.schema(fields, {KEY: key})


def tail_spec(target: str, columns: pa.Schema) -> TableSpec:
    """Returns the definition of a tail for a table with the given columns."""
    tail_fields = [pa.field(ARRIVAL, pa.int64()), pa.field(POSITION, pa.int32()), pa.field(OPERATION, pa.string())]
    schema = pa.schema([*tail_fields, *(pa.field(field.name, _plain(field.type)) for field in columns)])
    return TableSpec(tail_location(target), schema, (ARRIVAL,), (NEWEST, FLOOR, MOVE, THROUGH, BEFORE), evolves=True)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns a type without its fields' metadata, such as their numbers with column mapping."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), pa.field("value", _plain(kind.item_type), kind.item_field.nullable))
    return kind


def existing_tail(target: str) -> tuple[TableSpec, str] | None:
    """Returns the definition and Delta id of a table's existing tail, or None. Raises DependencyError."""
    opened = OpenTable.newest(tail_location(target))
    if opened is None:
        return None
    return tail_spec(target, pa.schema([field for field in opened.fields if field.name not in OWN])), opened.id


def move_id(tail_id: str) -> str:
    """Returns the application id of moves from a tail, by the tail's Delta id."""
    return f"volstream:tail:{tail_id}"


def tail_numbers(transactions: Mapping[str, int]) -> tuple[int, int, int, int, int]:
    """Returns the versions of the tail's transactions, in the order of the ids above. 0 if never set."""
    newest, floor, move, through, before = (transactions.get(name, 0) for name in (NEWEST, FLOOR, MOVE, THROUGH, BEFORE))
    return newest, floor, move, through, before


def unfitting(target: str) -> DependencyError:
    """Returns the error for a table and a tail that do not match, as after restoring only one."""
    return DependencyError(
        f"The table at {target} and the rows that have arrived for it do not match.", "Restore both from the same backup."
    )


# A table and its tail as seen by readers: matching versions of the two.

#: Attempts to read both tables consistently, because a move may be committed between the two reads.
_ATTEMPTS = 10

#: Limits of :meth:`TailedTable.few_unmoved`.
_FEW_ROWS, _FEW_BYTES = 10_000, 1 << 20


@dataclass(frozen=True)
class Tail:
    """A version of a tail, with the versions of its transactions (see above)."""

    view: View
    newest: int
    floor: int
    move: int
    through: int
    before: int

    @classmethod
    def of(cls, view: View) -> Tail:
        """Returns the tail of a view."""
        return cls(view, *tail_numbers(view.transactions))

    @property
    def move_id(self) -> str:
        """The application id of the tail's moves."""
        return move_id(self.view.table_id)

    def moved(self, move: int | None) -> int | None:
        """Returns the last arrival in the table after a move, or None if this version does not know the move.

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
        """Returns the current versions of the table at ``location`` and its tail, or None without a tail.

        Raises:
            DependencyError: one of the two cannot be read, or they do not match, as after restoring only one.
        """
        if not tail_exists(location):
            return None
        for _ in range(_ATTEMPTS):
            present = existing_tail(location)
            if present is None:
                return None
            spec, tail_id = present
            # Read the table first: rows that leave the tail afterwards are still in the tail's version read
            # next.
            base = OpenTable.newest(location)
            view = spec.view()
            if base is None or view is None or view.table_id != tail_id:
                continue
            tail = Tail.of(view)
            moved = tail.moved(base.transaction(tail.move_id))
            if moved is not None and tail.floor <= moved:
                columns, key = tuple(base.schema.columns), tuple(base.schema.primary_key)
                return cls(location, base.version, columns, key, base.schema.chars, tail, moved)
        raise unfitting(location)

    @property
    def has_unmoved(self) -> bool:
        """True if the tail has rows that the table lacks."""
        return self.tail.newest > self.moved

    def few_unmoved(self) -> pa.Table | None:
        """Returns the rows that the table lacks, or None if there are many."""
        files = self.tail.files(self.moved)
        if sum(file.rows for file in files) > _FEW_ROWS or sum(file.bytes for file in files) > _FEW_BYTES:
            return None
        rows = self.tail.rows(self.moved, self.tail.newest)
        return rows if rows.nbytes <= _FEW_BYTES else None

    def query(self, arrived: str | None = None) -> str:
        """Returns SQL for the rows of table and tail together. With a primary key, only the newest row per
        key.

        Args:
            arrived: SQL for the rows that the table lacks. By default, they are read from the tail.

        Raises:
            InvalidStateError: the table lost a column that has arrived values.
        """
        check_columns(self.location, self.tail.view.spec.schema, self.columns)
        columns = ", ".join(map(quote, self.columns))
        base = f"SELECT {columns} FROM {table_at(self.location)} VERSION AS OF {self.version}"
        if arrived is None:
            arrived = self.tail.query(self.moved, self.tail.newest)
        expressions = ", ".join(self._tail_expressions())
        if not self.key:
            return f"{base} UNION ALL SELECT {expressions} FROM ({arrived})"
        newest = newest_of_each(arrived, self.key, expressions)
        same = same_key(self.key, self.chars, "__b", "__n")
        return (
            f"SELECT {columns} FROM ({base}) __b WHERE NOT EXISTS (SELECT 1 FROM ({newest}) __n WHERE {same}) "
            f"UNION ALL SELECT {columns} FROM ({newest}) WHERE {OPERATION} <> '{DELETE}'"
        )

    def _tail_expressions(self) -> list[str]:
        """Returns the table's columns as expressions on the tail. The tail lacks columns added since."""
        present = {name.lower() for name in self.tail.view.spec.schema.names}
        return [quote(name) if name.lower() in present else f"NULL AS {quote(name)}" for name in self.columns]


def check_columns(target: str, arrived: pa.Schema, columns: Collection[str]) -> None:
    """Raises InvalidStateError if the table at ``target`` lacks columns of its tail."""
    present = {name.lower() for name in (*columns, *OWN)}
    missing = [name for name in arrived.names if name.lower() not in present]
    if missing:
        raise InvalidStateError(
            f"Rows have arrived for the table at {target} with a column {missing[0]}, which it no longer has.",
            f"Add it again: ALTER TABLE ... ADD COLUMNS ({missing[0]} ...).",
        )


def same_key(key: Sequence[str], chars: Collection[str], base: str, arrived: str) -> str:
    """Returns an SQL condition: a row of the table has the same key as an arrived row.

    Args:
        chars: columns of type CHAR. Their values may have trailing blanks in the table, but never in a tail.
        base, arrived: table aliases of the two.
    """
    columns = [(f"{base}.{quote(name)}", f"{arrived}.{quote(name)}", name in chars) for name in key]
    return " AND ".join(f"{f'rtrim({left})' if char else left} <=> {other}" for left, other, char in columns)


def newest_of_each(arrived: str, key: tuple[str, ...], columns: str) -> str:
    """Returns SQL for the newest tail row of each key, with the given columns and the operation."""
    keys = ", ".join(map(quote, key))
    order = f"struct({ARRIVAL}, {POSITION})"
    latest = f"SELECT max_by(struct({columns}, {OPERATION}), {order}) AS newest FROM ({arrived}) GROUP BY {keys}"
    return f"SELECT newest.* FROM ({latest})"
