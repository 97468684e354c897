"""SQLAlchemy's dialect of homes, for pandas, notebooks and BI tools; it reads only::

    engine = sqlalchemy.create_engine("volstream:////data/home")
    pandas.read_sql("SELECT * FROM looks", engine)

A query may do what the console's page of queries may: SELECT, SHOW and DESCRIBE of what the home has.
"""

# ruff: noqa: ARG002  # SQLAlchemy's signatures

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import URL, types
from sqlalchemy.engine import Connection, default
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.sql.compiler import IdentifierPreparer

from volstream.api import dbapi
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.errors import VolstreamError

#: By the names that Spark has for them; of others, such as arrays, values are Python's.
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

_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


class _Preparer(IdentifierPreparer):
    """Quotes names as Spark does."""

    def __init__(self, dialect: default.DefaultDialect) -> None:
        super().__init__(dialect, initial_quote="`", escape_quote="`")


class VolstreamDialect(default.DefaultDialect):
    """``volstream:///relative/home`` and ``volstream:////absolute/home``; with ``?schema=name``, names without one are in it."""

    name = "volstream"
    driver = "home"
    preparer = _Preparer  # type: ignore[assignment]  # a class with less arguments
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

    def initialize(self, connection: Connection) -> None:
        """Asks for nothing: a BI tool opens many connections."""
        self.default_schema_name = DEFAULT_SCHEMA

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Does nothing: nothing was written."""

    def do_commit(self, dbapi_connection: Any) -> None:
        """Does nothing."""

    def get_schema_names(self, connection: Connection, **_: Any) -> list[str]:
        """Returns the schemas that have tables, and the default one."""
        return sorted({DEFAULT_SCHEMA, *(name.schema for name in self._tables(connection))})

    def get_table_names(self, connection: Connection, schema: str | None = None, **_: Any) -> list[str]:
        """Returns the names of the tables in a schema."""
        return [name.name for name in self._tables(connection) if name.schema == (schema or DEFAULT_SCHEMA)]

    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> bool:
        """True if a table exists."""
        return Name.of(schema or DEFAULT_SCHEMA, table_name) in self._tables(connection)

    def get_columns(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> list[Any]:
        """Returns the columns of a table."""
        described = self._described(connection, table_name, schema)
        return [
            {"name": one.column, "type": _type(one.type), "nullable": True, "default": None, "comment": None}
            for one in described.columns
        ]

    def get_pk_constraint(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> Any:
        """Returns the primary key of a table."""
        return {"constrained_columns": list(self._described(connection, table_name, schema).primary_key), "name": None}

    def get_view_names(self, connection: Connection, schema: str | None = None, **_: Any) -> list[str]:
        """Returns nothing: a home has no views."""
        return []

    def get_foreign_keys(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> list[Any]:
        """Returns nothing, as the two below."""
        return []

    def get_indexes(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> list[Any]:
        """Returns nothing."""
        return []

    def get_table_comment(self, connection: Connection, table_name: str, schema: str | None = None, **_: Any) -> Any:
        """Returns no comment."""
        return {"text": None}

    def _tables(self, connection: Connection) -> list[Name]:
        return list(_session(connection).tables.list())

    def _described(self, connection: Connection, table_name: str, schema: str | None) -> Any:
        try:
            return _session(connection).tables.get(Name.of(schema or DEFAULT_SCHEMA, table_name))
        except VolstreamError as error:
            raise NoSuchTableError(str(error)) from error


def _session(connection: Connection) -> Any:
    opened: Any = connection.connection.dbapi_connection
    return opened.session


def _type(text: str) -> types.TypeEngine[Any]:
    low = text.lower()
    if found := _DECIMAL.fullmatch(low):
        return types.Numeric(int(found[1]), int(found[2]))
    if low.startswith("timestamp"):
        return types.TIMESTAMP(timezone=low == "timestamp")
    return _TYPES.get(low, types.NullType)()
