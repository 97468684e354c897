"""A home under snake_case names. What its frames do is ``compat.frame``'s."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from volstream import log
from volstream import session as sessions
from volstream.compat.frame import DataFrame
from volstream.compat.leaf import Leaf
from volstream.errors import InvalidValueError
from volstream.model.names import DEFAULT_SCHEMA, Name
from volstream.spark.errors import as_sql_errors

#: Where an account elsewhere is, and who asks: a home has neither.
_ACCOUNT = frozenset(
    {"username", "password", "service", "instance", "workspace", "vcluster", "protocol", "magic_token"}
)


class Builder(sessions.Collected):
    """Makes a :class:`Session` of the settings that it collects."""

    def create(self) -> Session:
        """A new session. Raises InvalidValueError for settings that cannot be used."""
        return Session(sessions.Session.builder.configs(home_settings(self._values)).create())

    def get_or_create(self) -> Session:
        """The open session with these settings, else a new one."""
        return Session(sessions.Session.builder.configs(home_settings(self._values)).getOrCreate())


def home_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are a home's, without those of an account elsewhere.

    Raises:
        InvalidValueError: a schema other than ``public``.
    """
    schema = values.get("schema")
    if schema is not None and str(schema).lower() != DEFAULT_SCHEMA:
        raise InvalidValueError(
            f"A session cannot begin in the schema {schema!r}: it is always in {DEFAULT_SCHEMA}.",
            "Leave it out, and write schema.name where a table is named.",
        )
    ignored = sorted(_ACCOUNT & values.keys())
    if ignored:
        log.get("compat").debug("settings.ignored", names=ignored)  # not their values: one is a password
    return {key: value for key, value in values.items() if key not in _ACCOUNT and key != "schema"}


class _BuilderAttribute:
    """``Session.builder`` is a new builder at each look, as in PySpark."""

    def __get__(self, instance: object, owner: type) -> Builder:
        return Builder()


class Session:
    """A home under snake_case names. A context manager: it closes what it opened.

    Attributes:
        native: the session beneath.
    """

    builder = _BuilderAttribute()

    def __init__(self, native: sessions.Session) -> None:
        self.native = native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def sql(self, statement: str) -> DataFrame:
        """Runs one statement; DML at once, as :meth:`volstream.Session.sql`. Raises as that."""
        return DataFrame(self.native.home, self.native.sql(statement))

    def table(self, name: str) -> DataFrame:
        """A table, or a stream whose frame can consume it.

        Raises:
            SqlError: there is none of that name.
            StreamStaleError, StreamSchemaChangedError: the stream cannot be read.
        """
        stream = self.native.home.catalog.streams.find(Name.parse(name))
        if stream is None:
            return DataFrame(self.native.home, self.native.table(name))
        with as_sql_errors():
            leaf = Leaf.of(self.native.home, stream)
            return DataFrame(self.native.home, leaf.spark.table(leaf.view), frozenset([leaf]))

    def create_dataframe(self, data: Any, schema: Any = None) -> DataFrame:
        """A frame of local data: rows, or a pandas DataFrame. ``schema``: names, DDL, or a StructType."""
        with as_sql_errors():
            return DataFrame(self.native.home, self.native.createDataFrame(data, schema))

    def close(self) -> None:
        """Closes the connections, as :meth:`volstream.Session.close`."""
        self.native.close()
