"""SQLAlchemy's dialect of homes, for pandas, notebooks and BI tools; it reads only::

    engine = sqlalchemy.create_engine("volstream:////data/home")
    pandas.read_sql("SELECT * FROM looks", engine)

A query may do what the console's page of queries may: SELECT, SHOW and DESCRIBE of what the home has.
"""

# ruff: noqa: ARG002  # SQLAlchemy's signatures

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from sqlalchemy import URL, types
from sqlalchemy.engine import Connection, Dialect, default
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.sql.compiler import GenericTypeCompiler, IdentifierPreparer, SQLCompiler
from sqlalchemy.sql.elements import BinaryExpression

from volstream.api import dbapi
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.errors import VolstreamError
from volstream.ops.inspection.tables import missing
from volstream.sql.adapt import literal_of
from volstream.sql.text import literal
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.schema import Schema

#: By the names that Spark has for them.
_TYPES: dict[str, type[types.TypeEngine[Any]]] = {
    "string": types.String,
    "boolean": types.Boolean,
    "tinyint": types.SmallInteger,
    "smallint": types.SmallInteger,
    "int": types.Integer,
    "bigint": types.BigInteger,
    "float": types.Float,
    "double": types.Double,
    "binary": types.LargeBinary,
    "date": types.Date,
}

#: Spark's types by the words of SQLAlchemy. Spark's own FLOAT has 32 bits, and its DECIMAL no fraction.
_WRITTEN = {
    **dict.fromkeys(("VARCHAR", "CHAR", "NVARCHAR", "NCHAR", "TEXT", "CLOB", "UUID", "JSON"), "STRING"),
    **dict.fromkeys(("BLOB", "VARBINARY"), "BINARY"),
    "DATETIME": "TIMESTAMP",
    "FLOAT": "DOUBLE",
    "NUMERIC": "DECIMAL(38, 18)",
}

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


class _Literal:
    """Values that a tool may write into its statement, as Spark has them: a backslash in a text, bytes, times
    with their zone."""

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return literal_of


class _Other(types.UserDefinedType[Any]):
    """A type that only Spark has, such as an array; its values are Python's."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class _Preparer(IdentifierPreparer):
    """Quotes names as Spark does."""

    def __init__(self, dialect: default.DefaultDialect) -> None:
        super().__init__(dialect, initial_quote="`", escape_quote="`")


class _TypeCompiler(GenericTypeCompiler):
    """Writes types as Spark does."""

    def process(self, type_: types.TypeEngine[Any], **options: Any) -> str:
        written = super().process(type_, **options)
        word, opening, _ = written.partition("(")
        return written if word == "NUMERIC" and opening else _WRITTEN.get(word, written)


class _Compiler(SQLCompiler):
    """Writes operators as Spark does."""

    def visit_floordiv_binary(self, binary: BinaryExpression[Any], operator: Any, **options: Any) -> str:
        """Returns a quotient rounded down, as in Python.

        Spark divides whole numbers as doubles, which lack some of 64 bits.
        """
        sides = (binary.left, binary.right)
        texts = [self.process(one, **options) for one in sides]
        if any(one.type._type_affinity is not types.Integer for one in sides):
            return f"floor({' / '.join(texts)})"
        return f"CAST(floor({' / '.join(f'CAST({text} AS DECIMAL(19, 0))' for text in texts)}) AS BIGINT)"

    def limit_clause(self, select: Any, **options: Any) -> str:
        """Returns the end of a query. Spark refuses ``LIMIT -1``, which others need before an OFFSET."""
        limit, offset = select._limit_clause, select._offset_clause
        text = "" if limit is None else f"\n LIMIT {self.process(limit, **options)}"
        return text if offset is None else f"{text}\n OFFSET {self.process(offset, **options)}"

    def visit_regexp_match_op_binary(self, binary: BinaryExpression[Any], operator: Any, **options: Any) -> str:
        return self._regexp("{} RLIKE {}", binary, binary.right, **options)

    def visit_not_regexp_match_op_binary(self, binary: BinaryExpression[Any], operator: Any, **options: Any) -> str:
        return self._regexp("{} NOT RLIKE {}", binary, binary.right, **options)

    def visit_regexp_replace_op_binary(self, binary: BinaryExpression[Any], operator: Any, **options: Any) -> str:
        return self._regexp("regexp_replace({}, {}, {})", binary, *binary.right.clauses, **options)

    def _regexp(self, written: str, binary: BinaryExpression[Any], *others: Any, **options: Any) -> str:
        subject, pattern, *more = [self.process(one, **options) for one in (binary.left, *others)]
        flags = binary.modifiers["flags"]
        return written.format(subject, pattern if flags is None else f"concat({literal(f'(?{flags})')}, {pattern})", *more)


class VolstreamDialect(default.DefaultDialect):
    """``volstream:///relative/home`` and ``volstream:////absolute/home``; with ``?schema=name``, names
    without one are in it."""

    name = "volstream"
    driver = "home"
    statement_compiler = _Compiler
    type_compiler_cls = _TypeCompiler
    preparer = _Preparer  # type: ignore[assignment]  # a class with less arguments
    colspecs = {  # noqa: RUF012  # as SQLAlchemy declares it
        kind: type(kind.__name__, (_Literal, kind), {}) for kind in (types.String, types.LargeBinary, types.Date, types.DateTime)
    }
    div_is_floordiv = False
    default_paramstyle = "qmark"
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_alter = False
    supports_sane_rowcount = False

    @classmethod
    def import_dbapi(cls) -> Any:
        """Returns the module with the DB-API."""
        return dbapi

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of :func:`volstream.connect`."""
        return [], {"home": url.database, "read_only": True, **url.query}

    def connect(self, *arguments: Any, **options: Any) -> Any:
        """Returns a connection. Raises OperationalError, which SQLAlchemy expects, if there is no such
        home."""
        try:
            return super().connect(*arguments, **options)
        except dbapi.Error:
            raise
        except VolstreamError as error:
            raise dbapi.OperationalError(error.message, error.remedy) from error

    def initialize(self, connection: Connection) -> None:
        """Asks for nothing: a BI tool opens many connections."""
        self.default_schema_name = _opened(connection).get_schema()

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Does nothing: nothing was written."""

    def do_commit(self, dbapi_connection: Any) -> None:
        """Does nothing."""

    def get_schema_names(self, connection: Connection, **_: Any) -> list[str]:
        """Returns the schemas that have tables, and the default one."""
        return sorted({DEFAULT_SCHEMA, *(name.schema for name in self._tables(connection))})

    def get_table_names(self, connection: Connection, schema: str | None = None, **_: Any) -> list[str]:
        """Returns the names of the tables in a schema."""
        wanted = self._name(schema, "any").schema
        return [name.name for name in self._tables(connection) if name.schema == wanted]

    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> bool:
        """True if a table exists."""
        return self._name(schema, table_name) in self._tables(connection)

    def get_columns(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> list[Any]:
        """Returns the columns of a table."""
        found = self._schema(connection, table_name, schema)
        return [
            {
                "name": field["name"],
                "type": _type(found.sql_type(field["name"])),
                "nullable": field["nullable"],
                "default": None,
                "comment": (field.get("metadata") or {}).get("comment"),
            }
            for field in found.fields
        ]

    def get_pk_constraint(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> Any:
        """Returns the primary key of a table."""
        return {"constrained_columns": list(self._schema(connection, table_name, schema).primary_key), "name": None}

    def _none(self, connection: Connection, *_: Any, **__: Any) -> list[Any]:
        """Returns nothing: a home has no views, no constraints but primary keys, no indexes or sequences,
        nothing temporary."""
        return []

    get_view_names = get_foreign_keys = get_indexes = get_unique_constraints = get_check_constraints = _none
    get_sequence_names = get_temp_table_names = get_temp_view_names = _none

    def get_table_comment(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> Any:
        """Returns no comment."""
        return {"text": None}

    def _tables(self, connection: Connection) -> list[Name]:
        return list(_opened(connection).session.tables.list())

    def _name(self, schema: str | None, table_name: str) -> Name:
        return Name.of(schema or self.default_schema_name or DEFAULT_SCHEMA, table_name)

    def _schema(self, connection: Connection, table_name: str, schema: str | None) -> Schema:
        home, name = _opened(connection).session.home, self._name(schema, table_name)
        try:
            found = schema_at(places.table_location(home.warehouse, name))
        except VolstreamError as error:
            raise NoSuchTableError(str(error)) from error
        if found is None:
            raise NoSuchTableError(str(missing(home, name)))
        return found


def _opened(connection: Connection) -> dbapi.Connection:
    return cast(dbapi.Connection, connection.connection.dbapi_connection)


def _type(text: str) -> types.TypeEngine[Any]:
    low = text.lower()
    if found := _DECIMAL.fullmatch(low):
        return types.Numeric(int(found[1]), int(found[2]))
    if low.startswith("timestamp"):
        return types.TIMESTAMP(timezone=low == "timestamp")
    return _TYPES[low]() if low in _TYPES else _Other(text)
