"""The Delta table in which a table's rows arrive: its columns, its transactions, and its location beside the table.

Any number of processes write a tail, without a JVM: every append carries :data:`NEWEST`, so that Delta refuses one of two
concurrent appends, which then tries again. Arrivals are numbered from 1; one append is one or more arrivals.

Arrivals move into the table in numbered *moves*. A commit of the tail plans a move, which fixes its range; one commit of the
table with the transaction (:func:`move_id`, number of the move) makes it. So the table's own transaction shows which arrivals
it has, whatever happens between the two, and repeating a move has no effect. Plans carry :data:`MOVE` instead of
:data:`NEWEST`: arriving rows, however fast, never prevent the commit of a plan, nor does a plan prevent rows from arriving.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
from pyarrow import fs

from volstream.errors import DependencyError, InvalidStateError, NotFoundError
from volstream.tables.delta import columns as delta_columns
from volstream.tables.delta.native import TableSpec
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import filesystem_of

#: Number of the arrival, position in the arrival, and one of the operations below.
ARRIVAL, POSITION, OPERATION = OWN = ("__arrival", "__position", "__operation")

#: Keys of the metadata in a schema from :func:`columns_of`.
CHARACTERS, KEY = "characters", "primary_key"

INSERT, UPSERT, DELETE = "insert", "upsert", "delete"

#: Application ids of a tail's transactions: the newest arrival; the last removed arrival; the newest planned move; the last
#: arrival of that move; the last arrival of the previous move.
NEWEST = "volstream:tail"
FLOOR, MOVE, THROUGH, BEFORE = (f"{NEWEST}:{part}" for part in ("floor", "move", "through", "before"))

#: Set to 1 once a tail accepts no more rows; and how often its streams were ended, because the table's columns change.
SEALED, ENDED = f"{NEWEST}:sealed", f"{NEWEST}:ended"


#: Metadata of columns that Delta computes when rows are written.
_COMPUTED = {"delta.generationExpression", "delta.identity.start"}


def location(target: str) -> str:
    """Returns the location of the tail of the table at ``target``. Delta ignores folders whose names begin like this."""
    return f"{target}/_tail"


def exists(target: str) -> bool:
    """True if the table at ``target`` has a tail. Accesses the file system once."""
    filesystem, path = filesystem_of(f"{location(target)}/_delta_log")
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)


def columns_of(target: str) -> pa.Schema:
    """Returns the columns of the table at ``target``, with their nullability.

    A CHAR or VARCHAR field's metadata has its type (:data:`CHARACTERS`, like ``varchar(10)``); the schema's metadata has the
    primary key's columns as a JSON list (:data:`KEY`).

    Raises:
        InvalidStateError: a column has a name reserved for the tail, or a type that only Spark can write.
        NotFoundError: there is no table.
        DependencyError: the log cannot be read.
    """
    opened = OpenTable.newest(target)
    if opened is None:
        raise NotFoundError(f"There is no table at {target}.")
    schema, fields, key = opened.fields, opened.schema.fields, json.dumps(opened.schema.primary_key)
    taken = {name.lower() for name in schema.names} & {*OWN}
    if taken:
        raise InvalidStateError(
            f"The table at {target} has a column {min(taken)}, which real-time streams use themselves.", "Rename the column."
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
    inside = [name for name, limit in zip(schema.names, limits, strict=True) if limit and delta_columns.length_of(limit) is None]
    if inside:
        raise InvalidStateError(
            f"Column {inside[0]} has a CHAR or VARCHAR inside, which real-time streams do not support.", "Make it a STRING."
        )
    fields = [
        pa.field(field.name, field.type, field.nullable, None if limit is None else {CHARACTERS: limit})
        for field, limit in zip(schema, limits, strict=True)
    ]
    return pa.schema(fields, {KEY: key})


def spec_of(target: str, columns: pa.Schema) -> TableSpec:
    """Returns the definition of a tail for a table with the given columns."""
    own = [pa.field(ARRIVAL, pa.int64()), pa.field(POSITION, pa.int32()), pa.field(OPERATION, pa.string())]
    schema = pa.schema([*own, *(pa.field(field.name, _plain(field.type)) for field in columns)])
    return TableSpec(location(target), schema, (ARRIVAL,), (NEWEST, FLOOR, MOVE, THROUGH, BEFORE), evolves=True)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns a type without the metadata of its fields, such as their numbers in a table with column mapping."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _plain(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), pa.field("value", _plain(kind.item_type), kind.item_field.nullable))
    return kind


def existing(target: str) -> tuple[TableSpec, str] | None:
    """Returns the definition and Delta id of the existing tail of the table at ``target``, or None. Raises DependencyError."""
    opened = OpenTable.newest(location(target))
    if opened is None:
        return None
    return spec_of(target, pa.schema([field for field in opened.fields if field.name not in OWN])), opened.id


def move_id(tail_id: str) -> str:
    """Returns the application id of moves from a tail, by the tail's Delta id."""
    return f"volstream:tail:{tail_id}"


def numbers(transactions: Mapping[str, int]) -> tuple[int, int, int, int, int]:
    """Returns the versions of the tail's transactions, in the order of the ids above; 0: never set."""
    newest, floor, move, through, before = (transactions.get(name, 0) for name in (NEWEST, FLOOR, MOVE, THROUGH, BEFORE))
    return newest, floor, move, through, before


def unfitting(target: str) -> DependencyError:
    """Returns the error for a table and a tail that do not match, as after a restore of one of them."""
    return DependencyError(
        f"The table at {target} and the rows that have arrived for it do not match.", "Restore both from the same backup."
    )
