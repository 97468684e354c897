"""The columns of a result: converts DDL, a class of rows or a PyArrow schema to a PyArrow schema, and back to
DDL."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from volstream.base.definitions import FileJob
from volstream.base.model.names import NOT_IN_COLUMNS, RESERVED_COLUMNS, folded
from volstream.base.model.paths import is_utf8, printable
from volstream.base.model.text import counted
from volstream.errors import FunctionLoadError, InvalidValueError, SqlError
from volstream.functions.output import FILE, OutputFile
from volstream.functions.rows import ArrowRows, fields_of, hints_of_fields, is_row_class, row_of
from volstream.functions.signature import hints_of
from volstream.functions.types.kinds import BY_CLASS, BY_NAME, TIMESTAMP, is_number, name_of, of_arrow, of_scalar
from volstream.functions.types.values import NoColumnError, type_of_class
from volstream.functions.types.widen import DifferentTypesError, widen, without_null
from volstream.sql.text import quote_column, tree_of

#: Columns that volstream adds to each row of a result table.
PROVENANCE = pa.schema(
    [
        ("_file_path", pa.string()),
        ("_file_version", pa.string()),
        ("_refresh_id", pa.int64()),
        ("_batch_id", pa.string()),
        ("_processed_at", TIMESTAMP),
    ]
)

#: The columns :data:`PROVENANCE` for rows of sets of files.
PROVENANCE_OF_SETS = PROVENANCE.set(0, pa.field("_group_key", pa.string()))

#: Names that a result's column cannot have, as :func:`folded`.
RESERVED = RESERVED_COLUMNS | {*PROVENANCE.names, *PROVENANCE_OF_SETS.names}

#: sqlglot's type names, with Spark's names if they differ.
_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(("TEXT", "VARCHAR", "CHAR", "NVARCHAR", "NCHAR"), "STRING"),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ"), "TIMESTAMP"),
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "VARBINARY": "BINARY",
}

#: A column as :func:`to_ddl` usually writes it. A job's columns were parsed when it was created, by a parser
#: that takes a tenth of a second to import.
_COLUMN = re.compile(r"(\w+) (\w+)")

#: Column types for values of Python classes and their subclasses.
_BY_CLASS: Mapping[Any, pa.DataType] = {**BY_CLASS, OutputFile: FILE}


def from_ddl(text: str, *, given: bool = False) -> pa.Schema:
    """Parses ``label STRING, score DOUBLE, tags ARRAY<STRING>``, with Spark's types.

    Args:
        given: the text is from a user. Raises an error for properties that a result's column does not keep:
            NOT NULL, a length, a default.

    Raises:
        InvalidValueError: it is not a list of columns, or a type is not supported in results.
    """
    # Late: only commands that define or change jobs parse DDL.
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    from volstream.sql.adapt import columns_in_sparks_words

    if not is_utf8(text):
        raise InvalidValueError(f"The result columns {printable(text)!r} are not valid UTF-8.")
    try:
        parsed = tree_of(f"CREATE TABLE t ({columns_in_sparks_words(text)})")
    except (SqlError, SqlglotError) as error:
        raise InvalidValueError(
            f"The result columns {text!r} cannot be parsed: {reason_of(error)}.", "Write for example: label STRING, score DOUBLE."
        ) from None
    columns = parsed.this.expressions if isinstance(parsed.this, exp.Schema) else []
    if not columns or not all(isinstance(column, exp.ColumnDef) and column.kind for column in columns):
        raise InvalidValueError(
            f"The result columns {text!r} cannot be parsed.", "Write for example: label STRING, score DOUBLE."
        )
    if given and (lost := _not_kept(parsed)) is not None:
        raise InvalidValueError(
            f"The result columns {text!r} have {lost}, which a column of a job does not keep.",
            "Leave it out, and say what rows must satisfy: --expect 'label IS NOT NULL', --expect 'length(label) <= 3'.",
        )
    return checked(pa.schema([pa.field(column.name, _type_of(column.kind)) for column in columns]))


def _not_kept(parsed: Any) -> str | None:
    """Returns a property of parsed columns other than names, types and comments, or None."""
    from sqlglot import expressions as exp

    texts = (exp.DataType.Type.CHAR, exp.DataType.Type.NCHAR, exp.DataType.Type.VARCHAR, exp.DataType.Type.NVARCHAR)
    for node in parsed.walk():
        if isinstance(node, exp.ColumnConstraint) and not isinstance(node.kind, exp.CommentColumnConstraint):
            return str(node.sql(dialect="spark"))
        if isinstance(node, exp.DataType) and node.this in texts and node.expressions:
            return str(node.sql(dialect="spark"))
    return None


def type_named(ddl: str) -> pa.DataType:
    """Returns the type with this name in Spark. Raises InvalidValueError if no result column can have it."""
    return from_ddl(f"c {ddl}").field(0).type


def reason_of(error: Exception) -> str:
    """Returns sqlglot's error message on one line, without the statement's text."""
    errors: list[dict[str, str]] = getattr(error, "errors", [])
    return errors[0]["description"] if errors else str(error).partition("\n")[0]


def of_job(job: FileJob) -> pa.Schema:
    """Returns the columns that a job's function returns."""
    assert job.returns is not None, "a job of a statement has no function"
    columns = [_COLUMN.fullmatch(column) for column in job.returns.split(", ")]
    if all(column and column[2] in BY_NAME for column in columns):
        return pa.schema([(column[1], BY_NAME[column[2]]) for column in columns if column])
    return from_ddl(job.returns)


def of_declaration(declared: str | pa.Schema | None) -> pa.Schema | None:
    """Returns the schema of a result of :func:`declaration_of`. Raises InvalidValueError."""
    return from_ddl(declared) if isinstance(declared, str) else declared


def declaration_of(function: Callable[..., Any]) -> str | pa.Schema | None:
    """Returns a function's declaration: ``@volstream.function(returns=...)``, or the row class in its return
    annotation.

    Returns None without a declaration, or if an annotation such as ``dict`` leaves the columns open. DDL is
    not parsed: environments have no parser.

    Raises:
        InvalidValueError: its annotation, such as ``int``, does not describe rows, or a column has no SQL
            type.
    """
    declared = getattr(function, "__volstream_returns__", None)
    if declared is not None:
        return declared if isinstance(declared, str) else from_declaration(declared)
    target = function if hasattr(function, "__code__") else getattr(function, "__call__", function)  # noqa: B004
    hints = hints_of(target)
    if "return" not in hints:
        return None
    try:
        row_class = row_class_in(hints["return"])
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InvalidValueError(
            f"{name} is annotated `-> {_annotation_text(hints['return'])}`, but {error}.",
            "Annotate it with a dataclass, a NamedTuple, a TypedDict or a pydantic model, or with dict to have the columns "
            "inferred; or give returns, 'label STRING, score DOUBLE'.",
        ) from None
    return None if row_class is None else from_declaration(row_class)


def _annotation_text(annotation: Any) -> str:
    """Returns an annotation as source text."""
    if annotation is type(None):
        return "None"
    plain = isinstance(annotation, type) and typing.get_origin(annotation) is None
    return str(annotation.__qualname__ if plain else annotation).replace("typing.", "")


def check_declared(declared: pa.Schema | None, columns: pa.Schema) -> None:
    """Raises FunctionLoadError if a function declares a column that these columns lack, or have with another
    type.

    A column that the function no longer declares is NULL from now on.
    """
    known = {field.name: field.type for field in columns}
    for field in declared or ():
        if field.name not in known:
            what = f"a column {quote_column(field.name)} {name_of(field.type)}, which is new"
        elif field.type != known[field.name]:
            what = f"the column {field.name} as {name_of(field.type)}, which was {name_of(known[field.name])}"
        else:
            continue
        raise FunctionLoadError(
            f"It declares {what}.", "Accept its columns with `volstream alter-job JOB --function ...`, or undo the change."
        )


def from_declaration(declared: object) -> pa.Schema:
    """Returns the schema of DDL text, a PyArrow schema, or a row class (:func:`is_row_class`). Raises
    InvalidValueError."""
    if isinstance(declared, str):
        return from_ddl(declared)
    if isinstance(declared, pa.Schema):
        return checked(declared)
    if is_row_class(declared):
        try:
            hints = hints_of_fields(declared)
        except Exception as error:  # noqa: BLE001  # resolving text can raise anything
            raise InvalidValueError(f"The annotations of {declared.__name__} cannot be resolved: {error}.") from None
        return checked(pa.schema([pa.field(name, _type_of_hint(name, hints[name])) for name in fields_of(declared)]))
    raise InvalidValueError(
        f"{declared!r} does not declare result columns.",
        "Give a DDL string, a PyArrow schema, a dataclass, a NamedTuple, a TypedDict or a pydantic model.",
    )


def provenance_of(job: FileJob) -> pa.Schema:
    """Returns the columns that volstream adds to a job's rows. The first column identifies a row's file or
    set."""
    return PROVENANCE if job.group_by is None else PROVENANCE_OF_SETS


def of_table(job: FileJob) -> pa.Schema:
    """Returns the columns of a job's rows in its table."""
    return pa.schema([*of_job(job), *provenance_of(job)])


def key_column(job: FileJob) -> str:
    """Returns the column that identifies a row's file or set of files."""
    return str(provenance_of(job).names[0])


def checked(schema: pa.Schema) -> pa.Schema:
    """Makes the columns nullable. Raises InvalidValueError for repeated or reserved names, or types that
    Spark lacks."""
    names = [*map(folded, schema.names)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        spellings = sorted({name for name in schema.names if folded(name) == repeated[0]})
        if len(spellings) > 1:
            raise InvalidValueError(
                f"The result columns {spellings[0]!r} and {spellings[1]!r} differ only in case.", "Rename one."
            )
        raise InvalidValueError(f"The result column {repeated[0]!r} is declared twice.")
    reserved = sorted(RESERVED & {*names})
    if reserved:
        raise InvalidValueError(f"The result column {reserved[0]!r} is reserved for volstream or Delta.", "Choose another name.")
    to_ddl(schema)
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def to_ddl(schema: pa.Schema) -> str:
    """Returns the schema as Spark DDL. Raises InvalidValueError for a type that Spark lacks."""
    return ", ".join(f"{quote_column(field.name)} {name_of(field.type)}" for field in schema)


def as_declared(schema: pa.Schema) -> str:
    """Returns the schema as DDL that a user would write, with ``FILE``, which Spark does not know. Raises as
    :func:`to_ddl`."""
    return to_ddl(schema).replace(name_of(FILE), "FILE")


def check_names(columns: Iterable[pa.Field]) -> None:
    """Raises InvalidValueError for invalid names of columns, or of fields in them, in a new table."""
    for column in columns:
        if NOT_IN_COLUMNS.search(column.name):
            raise InvalidValueError(
                f"The result column {column.name!r} cannot be in a table.",
                "Choose another name, without spaces, control characters and , ; { } ( ) =.",
            )
        kind = column.type
        check_names(kind.field(at) for at in range(kind.num_fields))


def _decimal(precision: str = "10", scale: str = "0") -> pa.DataType:
    try:
        if 0 <= int(scale) <= int(precision):
            return pa.decimal128(int(precision), int(scale))
    except (ValueError, OverflowError):  # OverflowError beyond Arrow's limits
        pass
    raise InvalidValueError(
        f"There is no type DECIMAL({precision},{scale}).",
        "A decimal has at most 38 digits; its scale cannot exceed its precision.",
    )


def _type_of(kind: Any) -> pa.DataType:
    """Returns the Arrow type for a sqlglot data type."""
    name = kind.this.name if hasattr(kind.this, "name") else str(kind.this)
    inner = kind.expressions
    if (simple := BY_NAME.get(_SYNONYMS.get(name, name))) is not None:
        return simple
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


#: Annotations that leave the columns open.
_OPEN = (Any, object, pa.Table, pa.RecordBatch, pa.RecordBatchReader)


def row_class_in(annotation: Any) -> type | None:
    """Returns the row class in ``D``, ``D | None``, ``list[D]``, ``AsyncIterator[D]`` etc., or None if the
    columns are left open.

    Raises:
        TypeError: the annotation has something other than a row. The message continues a sentence.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_row_class(annotation):
        return annotation
    if origin in (typing.Union, types.UnionType):
        rows = [argument for argument in arguments if argument is not type(None) and not _is_subclass(argument, BaseException)]
        classes = [row_class_in(row) for row in rows]
        if any(row_class != classes[0] for row_class in classes):
            raise TypeError("its rows have different columns")
        return classes[0] if classes else None
    kind = origin or annotation
    if kind in _OPEN or not isinstance(kind, type) or issubclass(kind, Mapping):
        return None
    if issubclass(kind, Iterable | AsyncIterable) and not issubclass(kind, str | bytes | bytearray):
        # A generator's send and return types are not rows; all types of a tuple are.
        items = arguments if issubclass(kind, tuple) else arguments[:1]
        classes = [row_class_in(item) for item in items if item is not ...]
        return classes[0] if classes else None
    raise TypeError(f"a function returns rows, and {_with_article(kind)} is not a row")


def _is_subclass(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _with_article(kind: type) -> str:
    name = "None" if kind is type(None) else kind.__qualname__
    return name if name == "None" else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _type_of_hint(name: str, hint: Any) -> pa.DataType:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return _type_of_hint(name, others[0])
    elif hint in _BY_CLASS:
        return _BY_CLASS[hint]
    elif origin is typing.Literal and len({type(argument) for argument in arguments}) == 1:
        return _type_of_hint(name, type(arguments[0]))
    elif (origin in (list, Sequence) and arguments) or (origin is tuple and len({*arguments} - {...}) == 1):
        return pa.list_(_type_of_hint(name, arguments[0]))
    elif origin in (dict, Mapping) and len(arguments) == 2:
        return pa.map_(_type_of_hint(name, arguments[0]), _type_of_hint(name, arguments[1]))
    elif is_row_class(hint):
        return pa.struct(list(from_declaration(hint)))
    elif isinstance(hint, type):
        try:
            kind = type_of_class(hint)
        except NoColumnError as error:
            raise InvalidValueError(f"The result column {name!r} is a {error}.", "Or declare it with returns.") from None
        if kind is not None:
            return _type_of_hint(name, kind) if isinstance(kind, type) else kind
        base = next((base for base in hint.__mro__ if base in _BY_CLASS), None)
        if base is not None:
            return _BY_CLASS[base]
    raise InvalidValueError(
        f"The type {_annotation_text(hint)} of the result column {name!r} has no SQL equivalent.", "Declare it with returns."
    )


# The columns of a function that declares none, inferred from the rows that it returned for some files. Pure.


@dataclass
class _SeenColumn:
    """The observations of a column: its type, and the first file with this type."""

    type: pa.DataType = dataclasses.field(default_factory=pa.null)
    path: str = ""


@dataclass(frozen=True)
class InferredColumns:
    """Inferred columns.

    Attributes:
        columns: all columns. A column that was always empty is STRING.
        files: number of files that gave rows.
        empty: names of columns that were always empty.
        failed: for how many files the function failed, and why, or an empty text.
    """

    columns: pa.Schema
    files: int
    empty: Sequence[str] = ()
    failed: str = ""

    @property
    def ddl(self) -> str:
        """The columns as DDL for ``returns``."""
        return as_declared(self.columns)

    def excluding(self, known: Collection[str]) -> InferredColumns | None:
        """Returns only the columns that are not among ``known`` (names in lower case), or None without such
        columns."""
        new = [column for column in self.columns if folded(column.name) not in known]
        empty = [name for name in self.empty if folded(name) not in known]
        return InferredColumns(pa.schema(new), self.files, empty, self.failed) if new else None

    def __str__(self) -> str:
        """Returns a description for users."""
        return f"Inferred columns from {counted(self.files, 'file')}: {self.ddl}.{self.caveat}"

    @property
    def caveat(self) -> str:
        """A caveat about the columns, as the continuation of a line, or an empty text."""
        failed = f" But the function failed for {self.failed}." if self.failed else ""
        if not self.empty:
            return failed
        were, are = ("was", "it is") if len(self.empty) == 1 else ("were", "they are")
        return f"{failed} {', '.join(self.empty)} {were} always empty, so {are} STRING; to say otherwise, give returns."


#: The type of a column whose values are all NaN, which pandas uses for missing values. Any other value
#: decides. No value has this type.
_ONLY_NAN = pa.float16()


class Inference:
    """Collects the rows of files and infers their columns.

    Attributes:
        files: number of files that gave rows.
    """

    def __init__(self) -> None:
        self.files = 0
        self._seen: dict[str, _SeenColumn] = {}

    @property
    def complete(self) -> bool:
        """Whether every column seen so far had a value."""
        return bool(self._seen) and not any(pa.types.is_null(column.type) for column in self._seen.values())

    def add(self, path: str, rows: Sequence[Mapping[str, Any]] | ArrowRows) -> None:
        """Adds the rows that a function returned for a file.

        Raises:
            InvalidValueError: a value has a type that no column can have, or that does not fit an earlier
                row.
        """
        self.add_types(path, types_of(path, rows) if len(rows) else None)

    def add_types(self, path: str, types: Mapping[str, pa.DataType] | None) -> None:
        """Adds the column types of a file's rows, as returned by :func:`types_of`, or None without rows.
        Raises as :meth:`add`."""
        if types is None:
            return
        self.files += 1
        for name, kind in types.items():
            seen = self._seen.setdefault(name, _SeenColumn())
            merged = _merge_types(name, seen.type, kind, seen.path, path)
            if merged != seen.type:
                seen.type, seen.path = merged, path

    def result(self) -> InferredColumns:
        """Returns the columns. Raises InvalidValueError if there are none, or their names are invalid."""
        if not self._seen:
            raise InvalidValueError(
                "The columns cannot be inferred: the function returned no rows.",
                "Name the columns: returns='label STRING, score DOUBLE', or a dataclass as the annotation.",
            )
        empty = [name for name, column in self._seen.items() if pa.types.is_null(column.type)]
        types = {name: pa.float64() if column.type == _ONLY_NAN else column.type for name, column in self._seen.items()}
        columns = [pa.field(name, without_null(kind)) for name, kind in types.items()]
        return InferredColumns(checked(pa.schema(columns)), self.files, empty)


def types_of(path: str, rows: Sequence[Mapping[str, Any]] | ArrowRows) -> Mapping[str, pa.DataType]:
    """Returns the column types of a file's rows, with null for a column that is always empty. Raises
    InvalidValueError."""
    if isinstance(rows, ArrowRows):
        return {column.name: of_arrow(column.type, utc=True) for column in rows.columns}
    types: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            if not isinstance(name, str):
                raise InvalidValueError(f"{printable(path)}: the function returned a column {name!r} whose name is not a string.")
            kind = _ONLY_NAN if isinstance(value, float) and value != value else _inferred_type(path, name, value)
            types[name] = _merge_types(name, types.get(name, pa.null()), kind, path, path)
    return types


def _merge_types(name: str, one: pa.DataType, other: pa.DataType, first: str, second: str) -> pa.DataType:
    """Returns the type of a column with values of one type in a first file, and of another type in a second
    file."""
    if _ONLY_NAN in (one, other):
        one, other = (pa.null() if kind == _ONLY_NAN else kind for kind in (one, other))
        if pa.types.is_null(one) and pa.types.is_null(other):
            return _ONLY_NAN
    try:
        return widen(one, other, python=True)
    except DifferentTypesError:
        was, now = (name_of(without_null(kind)) for kind in (one, other))
        where = "" if first == second else f" in {printable(first)}"
        raise InvalidValueError(
            f"The column {name!r} is {was}{where}, but {now} in {printable(second)}.",
            f"Return values of one type, or declare the columns: give returns, '{name} {was}, ...'.",
        ) from None


def with_known(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Returns a table's columns, followed by new ones.

    A column keeps its type unless it cannot hold the values found.
    """
    found = {folded(column.name): column for column in new}
    kept = [column if _may_keep(column.type, found.get(folded(column.name))) else found[folded(column.name)] for column in known]
    names = {folded(name) for name in known.names}
    return checked(pa.schema([*kept, *(column for column in new if folded(column.name) not in names)]))


def _may_keep(kind: pa.DataType, found: pa.Field | None) -> bool:
    """Returns False for a number and a text, bool or time, in either order."""
    if found is None or pa.types.is_nested(kind) or pa.types.is_nested(found.type):
        return True
    return all(test(kind) == test(found.type) for test in (is_number, pa.types.is_boolean, pa.types.is_temporal))


def _inferred_type(path: str, name: str, value: Any) -> pa.DataType:
    if (kind := FILE if isinstance(value, OutputFile) else of_scalar(value)) is not None:
        return kind
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = (_inferred_type(path, name, element) for element in value)
        try:
            return pa.list_(functools.reduce(functools.partial(widen, python=True), items, pa.null()))
        except DifferentTypesError:
            raise InvalidValueError(
                f"{printable(path)}: a list in the column {name!r} has values of different types.",
                "Return lists of values of one type.",
            ) from None
    row = row_of(value)
    if row is not None and all(isinstance(key, str) for key in row):
        return pa.struct([pa.field(key, _inferred_type(path, name, element)) for key, element in row.items()])
    raise InvalidValueError(
        f"{printable(path)}: the column {name!r} has a {type(value).__name__}, which no column can hold.",
        f"Return a number, text, bytes, a time, a list or a dict, for example str({name}).",
    )
