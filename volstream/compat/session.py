"""A home with snake_case names. What does not belong here: its frames (``compat.frame``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volstream.api import session as sessions
from volstream.api.statements import metastore
from volstream.base import log
from volstream.base.model.arguments import checked
from volstream.base.model.names import DEFAULT_SCHEMA, Name, quote
from volstream.base.model.text import like
from volstream.base.threads import Closeable
from volstream.compat.frame import DataFrame, Leaf, Reader, Table, in_snake_case
from volstream.errors import NotFoundError
from volstream.spark.errors import as_sql_errors
from volstream.sql.adapt import in_schema, with_parameters
from volstream.tables.delta import places
from volstream.tables.delta.places import is_table

#: Settings of a hosted account, which a home does not have.
ACCOUNT = frozenset({"username", "password", "service", "instance", "workspace", "vcluster", "protocol", "magic_token", "hints"})


class Builder(sessions.SettingsCollector):
    """Makes a :class:`Session` from the settings that it collects."""

    def create(self) -> Session:
        """Returns a new session. Raises InvalidValueError for invalid settings."""
        return self._on(sessions.Session.builder.configs(home_settings(self._values)).create())

    def get_or_create(self) -> Session:
        """Returns the open session with these settings, or a new one."""
        return self._on(sessions.Session.builder.configs(home_settings(self._values)).getOrCreate())

    def _on(self, native: sessions.Session) -> Session:
        session = Session(native)
        if self._values.get("schema") is not None:
            session.use_schema(str(self._values["schema"]))
        return session


def home_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the home's settings, without those of a hosted account and the schema."""
    ignored = sorted(ACCOUNT & values.keys())
    if ignored:
        log.get("compat").debug("settings.ignored", names=ignored)  # without values, which include a password
    return {key: value for key, value in values.items() if key not in ACCOUNT and key != "schema"}


class _BuilderAttribute:
    """Returns a new builder at each access of ``Session.builder``, as in PySpark."""

    def __get__(self, instance: object, owner: type) -> Builder:
        return Builder()


@checked
class Session(Closeable):
    """A home with snake_case names. A context manager: it closes its connections.

    Attributes:
        native: the underlying session.
    """

    builder = _BuilderAttribute()

    def __init__(self, native: sessions.Session) -> None:
        self.native = native
        self._schema = DEFAULT_SCHEMA

    def __getattr__(self, name: str) -> Any:
        """Returns what the name means in snake_case. Raises AttributeError, with what a session has
        instead."""
        if (snake := in_snake_case(name)) != name and hasattr(type(self), snake):
            return getattr(self, snake)
        if name == "file":
            hint = "Copy files to the location of a volume by any means; volstream finds them."
        else:
            hint = like(name, [member for member in dir(type(self)) if not member.startswith("_")]) + "See session.native."
        raise AttributeError(f"A session of volstream.compat has no {name!r}. {hint}")

    @property
    def read(self) -> Reader:
        """Reads files into frames."""
        return Reader(self.native.home, self.native.read)

    def use_schema(self, name: str) -> None:
        """Sets the schema for names without one. Raises NotFoundError if there is no such schema."""
        schema = Name.parse(name).name
        if schema != DEFAULT_SCHEMA and schema not in places.inside(f"{self.native.home.warehouse}/tables"):
            raise NotFoundError(f"There is no schema {schema}.", f"First: CREATE SCHEMA {schema}.")
        self._schema = schema

    def sql(
        self,
        statement: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        hints: Mapping[str, Any] | None = None,  # noqa: ARG002  # ignored
    ) -> DataFrame:
        """Runs one statement, DML at once, like :meth:`volstream.Session.sql`, with the same errors.

        Args:
            params: values for ``?`` or ``%s``; or a dict for ``:name`` or ``%(name)s``.
            hints: ignored, like the settings of an account.
        """
        text = statement if params is None else with_parameters(statement, params)
        return DataFrame(self.native.home, self.native.sql(in_schema(text, self._schema)), schema=self._schema)

    def table(self, name: str) -> DataFrame:
        """Returns a table, or a stream, which its frame can consume.

        Raises:
            SqlError: there is neither a table nor a stream of that name.
            StreamStaleError, StreamSchemaChangedError: the stream cannot be read.
        """
        parsed = Name.parse(name, self._schema)
        stream = self.native.home.catalog.streams.find(parsed)
        if stream is None:
            return self._table(parsed)
        with as_sql_errors():
            leaf = Leaf.of(self.native.home, stream)
            return DataFrame(self.native.home, leaf.spark.table(leaf.view), frozenset([leaf]), self._schema)

    def _table(self, name: Name) -> DataFrame:
        home = self.native.home
        if is_table(metastore.locate(home, name)):
            return Table(home, self.native.table(str(name)), name)
        # Temporary views have no schema.
        return self.sql(f"SELECT * FROM {quote(name.name) if name.schema == self._schema else name.qualified}")

    def create_dataframe(self, data: Any, schema: Any = None) -> DataFrame:
        """Returns a frame of local data: rows, or a pandas DataFrame. ``schema``: names, DDL, or a
        StructType."""
        with as_sql_errors():
            return DataFrame(self.native.home, self.native.createDataFrame(data, schema), schema=self._schema)

    createDataFrame = create_dataframe  # noqa: N815  # its snake_case is no create_data_frame

    def create_table_from_volume(self, name: str, volume: str, **options: Any) -> DataFrame:
        """Loads a volume's files as rows of a table, like
        :meth:`volstream.Session.create_table_from_volume`."""
        table, source = (str(Name.parse(written, self._schema)) for written in (name, volume))
        self.native.create_table_from_volume(table, source, **options)
        return self.table(table)

    def __repr__(self) -> str:
        return repr(self.native)

    def close(self) -> None:
        """Closes the connections, like :meth:`volstream.Session.close`."""
        self.native.close()
