"""The columns of a result: conversion from DDL, a dataclass or a PyArrow schema to a PyArrow schema, and back to DDL."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from volstream.definitions import FileJob
from volstream.errors import FunctionLoadError, InvalidValueError, SqlError
from volstream.functions.hints import hints_of
from volstream.model.files import is_utf8, printable
from volstream.model.names import quote
from volstream.sqltext import tree_of

#: Columns that volstream adds to each row of a result table.
PROVENANCE = pa.schema(
    [
        ("_file_path", pa.string()),
        ("_file_version", pa.string()),
        ("_refresh_id", pa.int64()),
        ("_batch_id", pa.string()),
        ("_processed_at", pa.timestamp("us", tz="UTC")),
    ]
)

#: A column of Delta's change feed: changes of tables that have it themselves cannot be tracked.
FEEDS_VERSION = "_commit_version"

#: Names of a type in sqlglot, its Arrow type, and its name in Spark.
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

#: Names that sqlglot or Spark misread unless they are quoted.
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
    """Parses ``label STRING, score DOUBLE, tags ARRAY<STRING>``, with types as in Spark.

    Raises:
        InvalidValueError: not a list of columns, or a type that is not supported in results.
    """
    # Imported late: only commands that define or change jobs parse DDL.
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    from volstream.sql.types import in_sparks_words

    if not is_utf8(text):
        raise InvalidValueError(f"The result columns {printable(text)!r} are not valid UTF-8.")
    try:
        parsed = tree_of(f"CREATE TABLE t ({in_sparks_words(text)})")
    except (SqlError, SqlglotError) as error:
        raise InvalidValueError(
            f"The result columns {text!r} cannot be parsed: {reason_of(error)}.",
            "Write for example: label STRING, score DOUBLE.",
        ) from None
    columns = parsed.this.expressions if isinstance(parsed.this, exp.Schema) else []
    if not columns or not all(isinstance(column, exp.ColumnDef) and column.kind for column in columns):
        raise InvalidValueError(
            f"The result columns {text!r} cannot be parsed.", "Write for example: label STRING, score DOUBLE."
        )
    return checked(pa.schema([pa.field(column.name, _type_of(column.kind)) for column in columns]))


def reason_of(error: Exception) -> str:
    """Returns sqlglot's error message in one line, without the text itself."""
    found: list[dict[str, str]] = getattr(error, "errors", [])
    return found[0]["description"] if found else str(error).partition("\n")[0]


def of_job(job: FileJob) -> pa.Schema:
    """Returns the columns that a job's function returns."""
    assert job.returns is not None, "a job of a statement has no function"
    return from_ddl(job.returns)


def of_function(function: Callable[..., Any]) -> pa.Schema | None:
    """Returns the schema that a function declares: ``@volstream.function(returns=...)`` or a dataclass as return type."""
    declared = getattr(function, "__volstream_returns__", None)
    if declared is not None:
        return from_declaration(declared)
    target = function if not isinstance(function, type) else function.__call__
    found = _dataclass_in(hints_of(target).get("return"))
    return None if found is None else from_declaration(found)


def check_declared(function: Callable[..., Any], columns: pa.Schema) -> None:
    """Raises FunctionLoadError if a function declares a column that is missing from these columns, or has another type.

    A column that it no longer declares is NULL from then on.
    """
    declared = of_function(function)
    known = {field.name: field.type for field in columns}
    for field in declared or ():
        if field.name not in known:
            what = f"a column {quote_column(field.name)} {_ddl_of(field.type)}, which is new"
        elif field.type != known[field.name]:
            what = f"the column {field.name} as {_ddl_of(field.type)}, which was {_ddl_of(known[field.name])}"
        else:
            continue
        raise FunctionLoadError(
            f"It declares {what}.",
            "Accept its columns with `volstream alter-job JOB --function ...`, or undo the change.",
        )


def from_declaration(declared: object) -> pa.Schema:
    """Returns the schema of DDL text, a dataclass or a PyArrow schema. Raises InvalidValueError."""
    if isinstance(declared, str):
        return from_ddl(declared)
    if isinstance(declared, pa.Schema):
        return checked(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        try:
            hints = typing.get_type_hints(declared)
        except Exception as error:  # noqa: BLE001  # text that is resolved can raise anything
            raise InvalidValueError(
                f"The annotations of the dataclass {declared.__name__} cannot be resolved: {error}."
            ) from None
        fields = [
            pa.field(field.name, _type_of_hint(field.name, hints[field.name])) for field in dataclasses.fields(declared)
        ]
        return checked(pa.schema(fields))
    raise InvalidValueError(
        f"{declared!r} does not declare result columns.", "Give a DDL string, a dataclass or a PyArrow schema."
    )


def checked(schema: pa.Schema) -> pa.Schema:
    """Returns ``schema`` as nullable. Raises InvalidValueError for repeated or reserved names, or types that Spark lacks."""
    names = [name.lower() for name in schema.names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidValueError(f"The result column {repeated[0]!r} is declared twice.")
    reserved = sorted(set(names) & {*PROVENANCE.names, FEEDS_VERSION, "_metadata"})
    if reserved:
        raise InvalidValueError(
            f"The result column {reserved[0]!r} is reserved for volstream or Delta.", "Choose another name."
        )
    to_ddl(schema)
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def to_ddl(schema: pa.Schema) -> str:
    """Returns the schema as Spark DDL. Raises InvalidValueError for a type that Spark lacks."""
    return ", ".join(f"{quote_column(field.name)} {_ddl_of(field.type)}" for field in schema)


def type_names(schema: pa.Schema) -> Mapping[str, str]:
    """Returns the columns with their types as in Spark DDL."""
    return {field.name: _ddl_of(field.type) for field in schema}


def quote_column(name: str) -> str:
    """Returns a column's name quoted for SQL."""
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
    raise InvalidValueError(f"A result column cannot have the Arrow type {kind}.", "Use a Spark SQL type.")


def _decimal(precision: str = "10", scale: str = "0") -> pa.DataType:
    try:
        if 0 <= int(scale) <= int(precision):
            return pa.decimal128(int(precision), int(scale))
    except (ValueError, OverflowError):  # OverflowError: beyond Arrow's limits
        pass
    raise InvalidValueError(
        f"There is no type DECIMAL({precision},{scale}).",
        "A decimal has at most 38 digits; its scale cannot exceed its precision.",
    )


def _type_of(kind: Any) -> pa.DataType:
    """Returns the Arrow type for a sqlglot data type."""
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
    """Returns the dataclass in ``D``, ``D | None``, ``list[D]``, ``Iterator[D]`` etc."""
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
        f"The type {hint!r} of the result column {name!r} has no SQL equivalent.", "Declare it by returns."
    )
