"""A home with snake_case names. What does not belong here: its frames (``compat.frame``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volstream import log
from volstream import session as sessions
from volstream.compat.frame import DataFrame
from volstream.compat.leaf import Leaf
from volstream.errors import InvalidValueError
from volstream.lifecycle.closeable import Closeable
from volstream.model.arguments import checked
from volstream.model.names import DEFAULT_SCHEMA, Name
from volstream.spark.errors import as_sql_errors

#: Settings of a hosted account, which a home does not have.
_ACCOUNT = frozenset(
    {"username", "password", "service", "instance", "workspace", "vcluster", "protocol", "magic_token"}
)


class Builder(sessions.Collected):
    """Makes a :class:`Session` from the settings that it collects."""

    def create(self) -> Session:
        """Returns a new session. Raises InvalidValueError for invalid settings."""
        return Session(sessions.Session.builder.configs(home_settings(self._values)).create())

    def get_or_create(self) -> Session:
        """Returns the open session with these settings, or a new one."""
        return Session(sessions.Session.builder.configs(home_settings(self._values)).getOrCreate())


def home_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the home's settings, without those of a hosted account.

    Raises:
        InvalidValueError: a schema other than ``public``.
    """
    schema = values.get("schema")
    if schema is not None and str(schema).lower() != DEFAULT_SCHEMA:
        raise InvalidValueError(
            f"A session cannot start in the schema {schema!r}: it is always in {DEFAULT_SCHEMA}.",
            "Leave it out, and write schema.name for tables.",
        )
    ignored = sorted(_ACCOUNT & values.keys())
    if ignored:
        log.get("compat").debug("settings.ignored", names=ignored)  # without values, which include a password
    return {key: value for key, value in values.items() if key not in _ACCOUNT and key != "schema"}


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

    def sql(self, statement: str) -> DataFrame:
        """Runs one statement, DML at once, like :meth:`volstream.Session.sql`, with the same errors."""
        return DataFrame(self.native.home, self.native.sql(statement))

    def table(self, name: str) -> DataFrame:
        """Returns a table, or a stream, which its frame can consume.

        Raises:
            SqlError: there is neither a table nor a stream of that name.
            StreamStaleError, StreamSchemaChangedError: the stream cannot be read.
        """
        stream = self.native.home.catalog.streams.find(Name.parse(name))
        if stream is None:
            return DataFrame(self.native.home, self.native.table(name))
        with as_sql_errors():
            leaf = Leaf.of(self.native.home, stream)
            return DataFrame(self.native.home, leaf.spark.table(leaf.view), frozenset([leaf]))

    def create_dataframe(self, data: Any, schema: Any = None) -> DataFrame:
        """Returns a frame of local data: rows, or a pandas DataFrame. ``schema``: names, DDL, or a StructType."""
        with as_sql_errors():
            return DataFrame(self.native.home, self.native.createDataFrame(data, schema))

    def create_table_from_volume(self, name: str, volume: str, **options: Any) -> DataFrame:
        """Loads a volume's files as rows of a table, like :meth:`volstream.Session.create_table_from_volume`."""
        return DataFrame(self.native.home, self.native.create_table_from_volume(name, volume, **options))

    def close(self) -> None:
        """Closes the connections, like :meth:`volstream.Session.close`."""
        self.native.close()
