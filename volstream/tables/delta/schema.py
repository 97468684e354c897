"""The columns of a table as defined by a version of its log, and conversion between the types of versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.schema import Schema as DeltaSchema

from volstream.base.model.text import shortened
from volstream.sql.text import literal, quote_column, type_of

# Type changes between versions of a table, and SQL that converts older values to newer types. Types are
# Delta's JSON. Pure functions.

#: Metadata of a column or field: the number that identifies its values across renames.
ID = "delta.columnMapping.id"

#: Metadata of a column: its name in data files, which never changes. Without column mapping, it is the
#: column's name.
PHYSICAL = "delta.columnMapping.physicalName"

#: Types that a type can be widened to. For decimals, see :func:`_is_wider`.
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}

#: Digits before the point that Delta requires of a decimal to hold an integer.
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}


def reads(new: Any, old: Any) -> bool:
    """True if Delta reads values of an older type as a newer one: the types differ only in added fields."""
    return _fits(new, old, lambda now, then: bool(now == then), named=True)


def holds(new: Any, old: Any) -> bool:
    """True if a newer type can hold all values of an older one. Allows renamed fields and wider types."""
    return _fits(new, old, _is_wider, named=False)


def converted(value: str, new: Any, old: Any) -> str:
    """Returns SQL that converts a value to a newer type that :func:`holds` it. Added fields are NULL."""
    if reads(new, old) and reads(old, new):
        return value
    if isinstance(new, str):
        return f"CAST({value} AS {type_of(new)})"
    match new["type"]:
        case "array":
            return f"transform({value}, e -> {converted('e', new['elementType'], old['elementType'])})"
        case "map":
            key, item = (converted(f"e.{part}", new[f"{part}Type"], old[f"{part}Type"]) for part in ("key", "value"))
            return f"map_from_entries(transform(map_entries({value}), e -> struct({key} AS key, {item} AS value)))"
    fields = []
    for field in new["fields"]:
        before = same_field(field, old["fields"])
        name = quote_column(field["name"])
        if before is None:
            fields.append(f"CAST(NULL AS {type_of(field['type'])}) AS {name}")
        else:
            former = f"{value}.{quote_column(before['name'])}"
            fields.append(f"{converted(former, field['type'], before['type'])} AS {name}")
    return f"CASE WHEN {value} IS NOT NULL THEN struct({', '.join(fields)}) END"


def numbered(kind: Any, newer: Any) -> Any:
    """Returns a type with the field numbers that a newer version assigns to the same names.

    Delta numbers columns when column mapping is enabled. Neither that commit nor earlier ones rename columns.
    """
    if isinstance(kind, str) or isinstance(newer, str) or kind["type"] != newer["type"]:
        return kind
    if kind["type"] != "struct":
        parts = {part: numbered(kind[part], newer[part]) for part in ("elementType", "keyType", "valueType") if part in kind}
        return {**kind, **parts}
    later = {field["name"]: field for field in newer["fields"]}
    fields = []
    for field in kind["fields"]:
        now, metadata = later.get(field["name"]), field.get("metadata") or {}
        if now is not None and ID not in metadata:
            numbers = {key: value for key, value in (now.get("metadata") or {}).items() if key in (ID, PHYSICAL)}
            field = {**field, "type": numbered(field["type"], now["type"]), "metadata": {**metadata, **numbers}}
        fields.append(field)
    return {**kind, "fields": fields}


def same_field(field: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the same field in another version: matched by number, or by name if either has no number."""
    number = field.get("metadata", {}).get(ID)
    for other in others:
        other_number = other.get("metadata", {}).get(ID)
        if other_number == number if None not in (other_number, number) else other["name"] == field["name"]:
            return other
    return None


def _fits(new: Any, old: Any, leaf: Callable[[str, str], bool], *, named: bool) -> bool:
    if isinstance(new, str) or isinstance(old, str):
        return isinstance(new, str) and isinstance(old, str) and leaf(new, old)
    if new["type"] != old["type"]:
        return False
    if new["type"] != "struct":
        parts = [part for part in ("elementType", "keyType", "valueType") if part in new]
        return all(_fits(new[part], old[part], leaf, named=named) for part in parts)
    for field in old["fields"]:
        now = same_field(field, new["fields"])
        if now is None or (named and now["name"] != field["name"]):
            return False
        if not _fits(now["type"], field["type"], leaf, named=named):
            return False
    return True


def _is_wider(new: str, old: str) -> bool:
    if new == old or new in _WIDER.get(old, ()):
        return True
    now, then = (re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind) for kind in (new, old))
    if now is None or not (then or old in _DIGITS):
        return False
    whole, scale = (int(then[1]) - int(then[2]), int(then[2])) if then else (_DIGITS[old], 0)
    return int(now[1]) - int(now[2]) >= whole and int(now[2]) >= scale


# The columns of a table as defined by a version of its log.

#: The property that stores a table's PRIMARY KEY as a JSON list of columns, because Delta has no primary
#: keys.
PRIMARY_KEY = "volstream.primary_key"


#: Metadata of a STRING column that Spark treats as CHAR or VARCHAR: its type, like ``varchar(10)``.
CHARACTERS = "__CHAR_VARCHAR_TYPE_STRING"


def length_of(characters: str | None) -> int | None:
    """Returns the maximum length in characters by a value of :data:`CHARACTERS`, or None if unlimited."""
    limit = re.fullmatch(r"(?:var)?char\((\d+)\)", characters or "")
    return None if limit is None else int(limit[1])


def is_char(characters: str | None) -> bool:
    """True if a value of :data:`CHARACTERS` ignores trailing blanks, which files may contain or omit."""
    return (characters or "").startswith("char(")


#: Strings in a partition column that Delta's writers store as NULL.
EMPTY, NAME_OF_NULL = NULL_TEXTS = ("", "__HIVE_DEFAULT_PARTITION__")

#: Characters that Spark escapes to three bytes in a partition folder's name, and the longest name in bytes.
_ESCAPED, _LONGEST_FOLDER = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""), 255


def partition_text(column: str, text: str, *, nullable: bool) -> str | None:
    """Returns a string of a partition column as Delta stores it.

    Raises:
        ValueError: no commit can store it; the message has the reason. A NULL in the log for a NOT NULL
            column would make the whole table unreadable for deltalake.
    """
    if text in NULL_TEXTS:
        if nullable:
            return None
        raise ValueError("Delta stores this text as NULL in a partition column, and the column is NOT NULL; use another text")
    if "\0" in text:
        raise ValueError("it partitions the table, and the name of a partition's folder cannot contain NUL; remove it")
    length = len(_ESCAPED.sub("%00", f"{column}{text}").encode()) + len("=")
    if length > _LONGEST_FOLDER:
        raise ValueError(
            f"it partitions the table, and the name of the partition's folder would have {length} bytes instead of at most "
            f"{_LONGEST_FOLDER}; use a shorter text"
        )
    return text


def partition_texts(column: str, texts: pa.ChunkedArray, *, nullable: bool) -> pa.ChunkedArray:
    """Applies :func:`partition_text` to a column of strings. Raises ValueError like it."""
    nulls = []
    for text in pc.unique(texts).drop_null().to_pylist():
        try:
            if partition_text(column, text, nullable=nullable) is None:
                nulls.append(text)
        except ValueError as error:
            raise ValueError(f"it cannot be {shortened(text)}: {error}") from None
    return pc.if_else(pc.is_in(texts, pa.array(nulls, texts.type)), None, texts) if nulls else texts


def has_type(kind: Any, *names: str) -> bool:
    """True if a type in Delta's JSON has any of these names, or contains a type with one."""
    if isinstance(kind, str):
        return kind in names
    inside = [kind[part] for part in ("elementType", "keyType", "valueType") if part in kind]
    inside += [field["type"] for field in kind.get("fields", ())]
    return kind["type"] in names or any(has_type(inner, *names) for inner in inside)


def definition_of(field: Mapping[str, Any], kind: str) -> str:
    """Returns the SQL definition of a column, given its log entry and its SQL type."""
    metadata = field.get("metadata") or {}
    default, computed = metadata.get("CURRENT_DEFAULT"), metadata.get("delta.generationExpression")
    return " ".join(
        [
            quote_column(field["name"]),
            kind,
            *([] if field["nullable"] else ["NOT NULL"]),
            *([] if default is None else [f"DEFAULT {default}"]),
            *([] if computed is None else [f"GENERATED ALWAYS AS ({computed})"]),
            *([f"COMMENT {literal(metadata['comment'])}"] if metadata.get("comment") else []),
        ]
    )


@dataclass(frozen=True)
class Schema:
    """A table's columns at a version.

    Attributes:
        types: Delta's type of each column as JSON, in order.
        fields: the columns as in the log, with their numbers if columns are mapped.
        partitions: partition columns.
        required: columns that are NOT NULL.
        expressions: descriptions of the expressions that Spark would evaluate on writes.
        chars: columns of type CHAR.
    """

    types: Mapping[str, str]
    fields: Sequence[Mapping[str, Any]]
    partitions: Sequence[str]
    properties: Mapping[str, str]
    required: Sequence[str] = ()
    expressions: Sequence[str] = ()
    chars: Collection[str] = ()

    @property
    def columns(self) -> Sequence[str]:
        """Column names, in order."""
        return list(self.types)

    @property
    def comparable(self) -> Sequence[str]:
        """Columns whose values can be compared in SQL."""
        return [name for name, type_ in self.types.items() if not has_type(json.loads(type_), "map", "variant")]

    @property
    def primary_key(self) -> Sequence[str]:
        """Columns of the primary key. Empty without one."""
        return self.named(json.loads(self.properties.get(PRIMARY_KEY, "[]")))

    def ids_of(self, columns: Collection[str]) -> Sequence[str]:
        """Returns the permanent ids of columns: their names in data files, which survive renames."""
        ids = {field["name"]: str((field.get("metadata") or {}).get(PHYSICAL, field["name"])) for field in self.fields}
        return [ids.get(column, column) for column in columns]

    def named(self, ids: Sequence[str]) -> Sequence[str]:
        """Returns the names of columns, given their :meth:`ids_of`. An unknown id counts as a name."""
        names = dict(zip(self.ids_of(self.columns), self.columns, strict=True))
        return [names.get(id, str(id)) for id in ids]

    def numbered_as(self, newer: Schema) -> Schema:
        """Returns this schema with a newer schema's numbers for the same names. Keeps existing numbers."""
        return replace(self, fields=numbered(self._row, newer._row)["fields"])

    def redefines(self, older: Schema) -> bool:
        """True if a query on an ``older`` schema may yield another value for an unchanged row.

        So it is if a column's type changed, or if its name is missing or belongs to another column now.
        """
        now = {field["name"].lower(): field for field in self.fields}
        for field in older.fields:
            same = now.get(field["name"].lower())
            if same is None or same_field(field, [same]) is None or same["type"] != field["type"]:
                return True
        return False

    def sql_type(self, column: str) -> str:
        """Returns the SQL type of a column."""
        return type_of(json.loads(self.types[column]))

    def accepts_rows_of(self, older: Schema) -> bool:
        """True if rows of an ``older`` schema fit this one: columns and struct fields may have been added,
        renamed with column mapping, or widened."""
        return holds(self._row, older._row)

    def reads_rows_of(self, older: Schema) -> bool:
        """True if Delta can read rows of an ``older`` schema with this one: columns and struct fields may
        have been added."""
        return reads(self._row, older._row) and self.has_layout_of(older)

    def has_layout_of(self, older: Schema) -> bool:
        """True if data files of an ``older`` schema have the same layout: equal partition columns, and
        columns mapped or not."""
        return (self.partitions, self.is_mapped) == (older.partitions, older.is_mapped)

    def has_values_of(self, other: Schema) -> bool:
        """True if the columns shared with another schema can hold its values."""
        shared = ((field, same_field(field, other.fields)) for field in self.fields)
        return all(before is None or holds(field["type"], before["type"]) for field, before in shared)

    def names_of(self, columns: Sequence[str], other: Schema) -> Sequence[str]:
        """Returns another schema's names for columns of this one, without columns that it lacks."""
        selected = (field for field in self.fields if field["name"] in columns)
        found = (same_field(field, other.fields) for field in selected)
        return [field["name"] for field in found if field is not None]

    def values_of(self, older: Schema) -> Mapping[str, str]:
        """Returns SQL for each column in terms of an ``older`` schema. Columns missing there are NULL."""
        return {
            field["name"]: f"CAST(NULL AS {type_of(field['type'])})"
            if (before := same_field(field, older.fields)) is None
            else converted(quote_column(before["name"]), field["type"], before["type"])
            for field in self.fields
        }

    @property
    def is_mapped(self) -> bool:
        """True if columns have numbers that survive renames."""
        return self.properties.get("delta.columnMapping.mode", "none") != "none"

    @property
    def _row(self) -> Mapping[str, Any]:
        return {"type": "struct", "fields": self.fields}


def types_of(schema: pa.Schema) -> Sequence[str]:
    """Returns the types of columns as in a table's :attr:`Schema.columns`."""
    fields = json.loads(DeltaSchema.from_arrow(schema).to_json())["fields"]
    return [json.dumps(field["type"], sort_keys=True) for field in fields]


def schema_of(table: DeltaTable) -> Schema:
    metadata = table.metadata()
    properties = {key: str(value) for key, value in metadata.configuration.items()}
    constraints = [name[len(_CONSTRAINT) :] for name in sorted(properties) if name.lower().startswith(_CONSTRAINT)]
    schema = _schema_of(table.schema().to_json())
    return replace(
        schema,
        partitions=list(metadata.partition_columns),
        properties=properties,
        expressions=[*schema.expressions, *(f"the constraint {name}" for name in constraints)],
    )


@lru_cache(maxsize=128)  # a batch of a few files would spend a twentieth of its time here
def _schema_of(text: str) -> Schema:
    """Parses a schema's JSON, which lacks partition columns and properties. These stay empty."""
    fields = json.loads(text)["fields"]
    return Schema(
        {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields},
        fields,
        [],
        {},
        [field["name"] for field in fields if not field["nullable"]],
        [expression for field in fields for expression in _expressions_of(field)],
        [field["name"] for field in fields if is_char(field.get("metadata", {}).get(CHARACTERS))],
    )


#: Keys in a column's metadata, and their descriptions.
_EXPRESSIONS = {
    "delta.generationExpression": "a generation expression",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default",
    "EXISTS_DEFAULT": "a default",
}


_CONSTRAINT = "delta.constraints."


def _expressions_of(field: Mapping[str, Any]) -> Iterator[str]:
    """Yields what Spark would evaluate for a column, like ``a generation expression of column a``."""
    kinds = {description for metadata in _metadata(field) for key, description in _EXPRESSIONS.items() if key in metadata}
    yield from (f"{description} of column {field['name']}" for description in sorted(kinds))


def _metadata(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the metadata of a column and of the fields inside its type."""
    if isinstance(part, list):
        for item in part:
            yield from _metadata(item)
    elif isinstance(part, dict):
        yield part.get("metadata") or {}
        for key in ("type", "fields", "elementType", "keyType", "valueType"):
            yield from _metadata(part.get(key))
