"""What a table requires of a commit without a JVM, and of each row.

What does not belong here: the commits (``direct``), and what tracked changes need (``tracking``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from volstream.tables.delta.columns import CHARACTERS, is_char, length_of
from volstream.tables.delta.log import is_on
from volstream.tables.delta.parts import can_partition
from volstream.tables.delta.tracking import FEATURES

#: Supported writer features. A table with columns of ``variantType`` is not written: see :func:`_is_simple`.
_KNOWN = FEATURES | {"appendOnly", "invariants", "deletionVectors", "timestampNtz", "variantType"}

#: Metadata of columns that requires nothing of a commit, or only what :class:`ColumnRules` checks.
_HARMLESS = frozenset({"comment", CHARACTERS})


class NeedsSparkError(Exception):
    """Only Spark can make a commit, or find rows: the table requires more than is known here. Never leaves the package."""


def can_commit(table: DeltaTable, gone_by: str | None) -> bool:
    """True if a commit can maintain everything that the table requires.

    Args:
        gone_by: the column by which the commit removes rows; None: it only adds rows.
    """
    protocol, metadata = table.protocol(), table.metadata()
    writable = protocol.min_writer_version <= 2 or (
        protocol.min_writer_version == 7 and _KNOWN.issuperset(protocol.writer_features or ())
    )
    if not writable or is_on(metadata.configuration, "delta.appendOnly"):
        return False
    fields, parts = _fields(table.schema()), metadata.partition_columns
    if gone_by in parts or not all(can_partition(field["type"]) for field in fields if field["name"] in parts):
        return False
    # A CHAR may be stored with or without trailing blanks, but rows to remove are looked up by the stored value.
    by_char = any(column["name"] == gone_by and is_char(column["metadata"].get(CHARACTERS)) for column in fields)
    return not by_char and all(map(_is_simple, fields))


def _is_simple(column: Mapping[str, Any]) -> bool:
    """True if a column requires nothing that :class:`ColumnRules` cannot check, such as lengths or NOT NULL inside values."""
    metadata = column["metadata"]
    unknown_length = CHARACTERS in metadata and length_of(metadata[CHARACTERS]) is None
    type_ = json.dumps(column["type"])
    is_plain = not any(word in type_ for word in ('"nullable": false', '"variant"'))
    return _HARMLESS.issuperset(metadata) and not unknown_length and is_plain


def has_columns(schema: pa.Schema, table: DeltaTable) -> bool:
    """True if a table has the columns of a schema, with their types. It may have been replaced since the rows were created."""
    columns = {column["name"].lower(): _kind(column["type"]) for column in _fields(table.schema())}
    return all(columns.get(column["name"].lower()) == _kind(column["type"]) for column in _fields(Schema.from_arrow(schema)))


def _fields(schema: Schema) -> Sequence[Mapping[str, Any]]:
    """Returns a schema's columns as in the log."""
    fields: list[Mapping[str, Any]] = json.loads(schema.to_json())["fields"]
    return fields


def _kind(type_: Any) -> Any:
    """Returns Delta's type as JSON without nullability and metadata."""
    if not isinstance(type_, dict):
        return type_
    inside = {name: _kind(type_[name]) for name in ("elementType", "keyType", "valueType") if name in type_}
    return type_["type"], inside, [(child["name"], _kind(child["type"])) for child in type_.get("fields", ())]


@dataclass(frozen=True)
class ColumnRules:
    """A table's requirements on column values, as far as this module can check them.

    Attributes:
        required: NOT NULL columns.
        lengths: maximum number of characters of text, by column.
    """

    required: Collection[str]
    lengths: Mapping[str, int]

    @classmethod
    def of(cls, table: DeltaTable) -> ColumnRules:
        fields = table.schema().fields
        limits = {column.name: length_of((column.metadata or {}).get(CHARACTERS)) for column in fields}
        lengths = {name: length for name, length in limits.items() if length is not None}
        return cls([column.name for column in fields if not column.nullable], lengths)

    @property
    def allow_all(self) -> bool:
        """True if any rows can be added."""
        return not self.required and not self.lengths

    def allow(self, rows: pa.Table) -> bool:
        """True if rows, with the table's spelling of its columns, can be added; if not, Spark reports the problem."""
        if any(name not in rows.column_names or rows[name].null_count for name in self.required):
            return False
        for name in self.lengths.keys() & {*rows.column_names}:
            if (pc.max(pc.utf8_length(rows[name])).as_py() or 0) > self.lengths[name]:
                return False
        return True
