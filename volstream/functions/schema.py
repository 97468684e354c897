"""The columns of a result: from DDL, a dataclass or a PyArrow schema to one PyArrow schema, and back to DDL."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.model.files import is_utf8, printable
from volstream.model.names import quote
from volstream.model.objects import FileJob
from volstream.sqltext import tree_of

#: What volstream adds to each row of a result table.
PROVENANCE = pa.schema(
    [
        ("_file_path", pa.string()),
        ("_file_version", pa.string()),
        ("_refresh_id", pa.int64()),
        ("_batch_id", pa.string()),
        ("_processed_at", pa.timestamp("us", tz="UTC")),
    ]
)

#: What the ``_refresh_id`` of result tables was called before. Delta's change feed has a column of that name, so that changes
#: of such a table cannot be tracked.
FORMER_REFRESH_ID = "_commit_version"

#: Name of sqlglot's type, what it is in Arrow, and what Spark calls it.
_SIMPLE: Sequence[tuple[tuple[str, ...], pa.DataType, str]] = (
    (("BOOLEAN",), pa.bool_(), "BOOLEAN"),
    (("TINYINT",), pa.int8(), "TINYINT"),
    (("SMALLINT",), pa.int16(), "SMALLINT"),
    (("INT",), pa.int32(), "INT"),
    (("BIGINT",), pa.int64(), "BIGINT"),
    (("FLOAT",), pa.float32(), "FLOAT"),
    (("DOUBLE",), pa.float64(), "DOUBLE"),
    (("TEXT", "VARCHAR", "CHAR", "NVARCHAR", "NCHAR"), pa.string(), "STRING"),
    (("BINARY", "VARBINARY"), pa.binary(), "BINARY"),
    (("DATE",), pa.date32(), "DATE"),
    (("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ"), pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
    (("TIMESTAMPNTZ",), pa.timestamp("us"), "TIMESTAMP_NTZ"),
)

#: Names that sqlglot or Spark read as something else where they are not quoted.
_WORDS = frozenset(
    [
        "any",
        "case",
        "connect_by_root",
        "constraint",
        "curdate",
        "current_date",
        "current_time",
        "current_timestamp",
        "current_user",
        "exclude",
        "false",
        "if",
        "like",
        "not",
        "null",
        "select",
        "session_user",
        "true",
        "unique",
        "user",
        "with",
    ]
)

_BY_PYTHON: Mapping[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", tz="UTC"),
    Decimal: pa.decimal128(38, 18),
}


def from_ddl(text: str) -> pa.Schema:
    """Reads ``label STRING, score DOUBLE, tags ARRAY<STRING>``, as Spark writes types.

    Raises:
        InvalidValueError: not a list of columns, or a type that a result cannot have.
    """
    # Late: only what defines or changes jobs reads DDL.
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    if not is_utf8(text):
        raise InvalidValueError(f"The result columns {printable(text)!r} are not text in UTF-8.")
    try:
        parsed = tree_of(f"CREATE TABLE t ({text})")
    except SqlglotError as error:
        raise InvalidValueError(
            f"The result columns {text!r} cannot be read: {reason_of(error)}.",
            "Write for example: label STRING, score DOUBLE.",
        ) from None
    columns = parsed.this.expressions if isinstance(parsed.this, exp.Schema) else []
    if not columns or not all(isinstance(column, exp.ColumnDef) and column.kind for column in columns):
        raise InvalidValueError(
            f"The result columns {text!r} cannot be read.", "Write for example: label STRING, score DOUBLE."
        )
    return checked(pa.schema([pa.field(column.name, _type_of(column.kind)) for column in columns]))


def reason_of(error: Exception) -> str:
    """What sqlglot says is wrong with a text, in one line, without the text itself."""
    found: list[dict[str, str]] = getattr(error, "errors", [])
    return found[0]["description"] if found else str(error).partition("\n")[0]


def of_job(job: FileJob) -> pa.Schema:
    """The columns that the function of a job gives."""
    assert job.returns is not None, "a job of a statement has no function"
    return from_ddl(job.returns)


def of_function(function: Callable[..., Any]) -> pa.Schema | None:
    """The schema that a function declares: ``@volstream.function(returns=...)`` or a dataclass as its return type."""
    declared = getattr(function, "__volstream_returns__", None)
    if declared is not None:
        return from_declaration(declared)
    target = function if not isinstance(function, type) else function.__call__
    try:
        annotation = typing.get_type_hints(target).get("return")
    except (NameError, TypeError, AttributeError):  # an annotation that cannot be resolved declares nothing
        return None
    found = _dataclass_in(annotation)
    return None if found is None else from_declaration(found)


def check_declared(function: Callable[..., Any], columns: pa.Schema) -> None:
    """Raises FunctionLoadError where a function declares a column that a result with these columns has not, or of another type.

    One that it declares no more is NULL from then on.
    """
    declared = of_function(function)
    known = {field.name: field.type for field in columns}
    for field in declared or ():
        if field.name not in known:
            what = f"a column {quote_column(field.name)} {_ddl_of(field.type)}, which is new"
        elif field.type != known[field.name]:
            what = f"the column {field.name} as {_ddl_of(field.type)}, and it was {_ddl_of(known[field.name])}"
        else:
            continue
        raise FunctionLoadError(
            f"It declares {what}.", "Accept its columns with `volstream alter-job JOB --function ...`, or undo that."
        )


def from_declaration(declared: object) -> pa.Schema:
    """A schema of DDL text, a dataclass or a PyArrow schema. Raises InvalidValueError."""
    if isinstance(declared, str):
        return from_ddl(declared)
    if isinstance(declared, pa.Schema):
        return checked(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        hints = typing.get_type_hints(declared)
        fields = [
            pa.field(field.name, _type_of_hint(field.name, hints[field.name])) for field in dataclasses.fields(declared)
        ]
        return checked(pa.schema(fields))
    raise InvalidValueError(
        f"{declared!r} declares no result columns.", "Give a DDL string, a dataclass or a PyArrow schema."
    )


def checked(schema: pa.Schema) -> pa.Schema:
    """``schema``, all nullable. Raises InvalidValueError for repeated or reserved names and types Spark lacks."""
    names = [name.lower() for name in schema.names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidValueError(f"The result column {repeated[0]!r} is declared twice.")
    reserved = sorted(set(names) & {*PROVENANCE.names, FORMER_REFRESH_ID, "_metadata"})
    if reserved:
        raise InvalidValueError(
            f"The result column {reserved[0]!r} is one that volstream or Delta adds itself.", "Choose another name."
        )
    to_ddl(schema)
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def to_ddl(schema: pa.Schema) -> str:
    """The schema as Spark's DDL. Raises InvalidValueError for a type that Spark lacks."""
    return ", ".join(f"{quote_column(field.name)} {_ddl_of(field.type)}" for field in schema)


def quote_column(name: str) -> str:
    """A column's name as SQL takes it."""
    return quote(name) if name.islower() and name not in _WORDS else "`" + name.replace("`", "``") + "`"


def _ddl_of(kind: pa.DataType) -> str:
    for _, arrow, ddl in _SIMPLE:
        if kind == arrow:
            return ddl
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{_ddl_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{_ddl_of(kind.key_type)},{_ddl_of(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quote_column(field.name)}: {_ddl_of(field.type)}' for field in kind)}>"
    raise InvalidValueError(f"A result column cannot have the Arrow type {kind}.", "Use a type that Spark SQL has.")


def _decimal(precision: str = "10", scale: str = "0") -> pa.DataType:
    try:
        if 0 <= int(scale) <= int(precision):
            return pa.decimal128(int(precision), int(scale))
    except (ValueError, OverflowError):  # the second: more than Arrow counts
        pass
    raise InvalidValueError(
        f"There is no type DECIMAL({precision},{scale}).",
        "A decimal has up to 38 digits, and no more behind the point than in all.",
    )


def _type_of(kind: Any) -> pa.DataType:
    """Arrow's type of a sqlglot data type."""
    name = kind.this.name if hasattr(kind.this, "name") else str(kind.this)
    inner = kind.expressions
    for names, arrow, _ in _SIMPLE:
        if name in names:
            return arrow
    match name:
        case "DECIMAL" if len(inner) <= 2:
            return _decimal(*(part.name for part in inner))
        case "ARRAY" if inner:
            return pa.list_(_type_of(inner[0]))
        case "MAP" if len(inner) == 2:
            return pa.map_(_type_of(inner[0]), _type_of(inner[1]))
        case "STRUCT" if inner and all(part.args.get("kind") for part in inner):
            return pa.struct([pa.field(part.name, _type_of(part.kind)) for part in inner])
    raise InvalidValueError(f"A result column cannot have the type {kind.sql(dialect='databricks')}.")


def _dataclass_in(annotation: Any) -> type | None:
    """The dataclass in ``D``, ``D | None``, ``list[D]``, ``Iterator[D]`` and the like."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    origin = typing.get_origin(annotation)
    containers = (typing.Union, types.UnionType, list, tuple, Iterable, Iterator, Sequence)
    if origin in containers or (
        isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping)
    ):
        for argument in typing.get_args(annotation):
            if (found := _dataclass_in(argument)) is not None:
                return found
    return None


def _type_of_hint(name: str, hint: Any) -> pa.DataType:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        if len(rest) == 1:
            return _type_of_hint(name, rest[0])
    elif hint in _BY_PYTHON:
        return _BY_PYTHON[hint]
    elif origin in (list, Sequence) and arguments:
        return pa.list_(_type_of_hint(name, arguments[0]))
    elif origin in (dict, Mapping) and len(arguments) == 2:
        return pa.map_(_type_of_hint(name, arguments[0]), _type_of_hint(name, arguments[1]))
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return pa.struct(list(from_declaration(hint)))
    raise InvalidValueError(
        f"The type {hint!r} of the result column {name!r} has no SQL type.", "Declare it with --returns."
    )
