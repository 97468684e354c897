"""``session.source``: tables that are filled event by event, or item by item."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import pyarrow as pa

from volstream.api.objects.collections import Collection, Functions
from volstream.api.objects.dynamic import DynamicTables
from volstream.base.definitions import Source, SourceDefinition, SourceType
from volstream.base.definitions.options import keys, read, to_alter
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name, quote
from volstream.base.model.work import groups
from volstream.base.threads import Stop
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.home import Home
from volstream.ingest.sources import tables, versions
from volstream.ingest.sources.events import ITEM, columns_of, key_text, stored
from volstream.ingest.sources.tables import Appender
from volstream.sql.text import literal
from volstream.tables.delta import places
from volstream.tables.tails.lookup import Lookup
from volstream.tables.tails.tail import DELETE, OPERATION, UPSERT
from volstream.tables.tails.writer import TailWriter, commit_tail

if TYPE_CHECKING:
    from volstream.base.definitions.keywords import SourceChanges
    from volstream.ingest.local import LocalTables
    from volstream.ingest.sources.events import EventStream

#: What a retention may be.
Retention = Annotated[str | timedelta | None, "'30 days', a timedelta, or None to keep events for ever"]

RETENTION_POLICY = keys(SourceDefinition)["retention_policy"]


@checked
class Sources(Collection[Source]):
    """The tables that are filled through a session. What is added is committed every ``commit_seconds``."""

    def __init__(self, home: Home, functions: Functions, dynamic_tables: DynamicTables) -> None:
        super().__init__(home, home.catalog.sources)
        self._functions = functions
        self._dynamic_tables = dynamic_tables

    @cached_property
    def _tables(self) -> LocalTables:
        from volstream.ingest.local import LocalTables

        return LocalTables(self._home)

    def create_stream(
        self, name: str, retention_policy: Retention = None, *, comment: str | None = None, if_not_exists: bool = False
    ) -> EventStream:
        """Creates a table of events; :meth:`EventStream.upload` adds to it.

        Args:
            retention_policy: age at which events are deleted, like ``30 days``; None: they are kept for ever.

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidValueError: not a duration.
        """
        from volstream.ingest.sources import tables

        source = tables.new_source(
            Name.parse(name), SourceType.EVENTS, retention=RETENTION_POLICY.read(retention_policy), comment=comment
        )
        self._create(source, tables.EVENT_COLUMNS, if_not_exists=if_not_exists)
        return self.get_stream(name)

    def get_stream(self, name: str) -> EventStream:
        """Returns a stream that :meth:`create_stream` created. Raises NotFoundError."""
        from volstream.ingest.sources.events import EventStream

        source = self._of_kind(name, SourceType.EVENTS, "stream of events")
        return EventStream(source, self._appender(source))

    def create_table(
        self,
        name: str,
        primary_key: str,
        data: Iterable[Mapping[str, Any]] | None = None,
        immutable: bool = False,
        version: int | None = None,
        *,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> ItemTable:
        """Creates a keyed table of items, or a version of an immutable one.

        Args:
            primary_key: the name of the items' key.
            data: its items; required if it is immutable.
            immutable: its items never change; another ``version`` replaces them all, and older ones can still be read.
            version: number of the version to create; default: the next one, unless the newest has the same data.

        Raises:
            AlreadyExistsError: the name is taken; or the version exists with other data.
            InvalidValueError: an item lacks its key, or two have the same one; then nothing is created.
        """
        import pyarrow as pa

        from volstream.ingest.sources import tables, versions
        from volstream.ingest.sources.events import columns_of, stored

        parsed = Name.parse(name)
        if not immutable and version is not None:
            raise InvalidValueError("Only immutable tables have versions.", "Pass immutable=True.")
        if immutable and data is None:
            raise InvalidValueError("An immutable table needs its data.", "Pass data=[...].")
        columns = columns_of(primary_key)
        data = list(data or ())
        rows = [stored(item, primary_key) for item in data]
        keys, texts = zip(*rows, strict=True) if rows else ((), ())
        items = pa.table([pa.array(keys, pa.string()), pa.array(texts, pa.string())], schema=columns)
        versions.check_keys(items, primary_key)
        source = tables.new_source(parsed, SourceType.ITEMS, primary_key=primary_key, immutable=immutable, comment=comment)
        existing = self._definitions.find(parsed) if immutable else None
        if existing is None:
            self._create(source, columns, if_not_exists=if_not_exists)
        elif not (existing.immutable and existing.kind is SourceType.ITEMS and existing.primary_key == primary_key):
            raise InvalidValueError(
                f"{existing.name} is not an immutable table with the primary key {primary_key}.", "Choose another name."
            )
        else:
            source = existing
        if immutable:
            versions.add(self._home, source, version, items)
        table = self._items(name)
        if not immutable and rows:
            table.insert_all(data)
        return table

    def get_table(self, name: str) -> ItemTable | UploadedTable:
        """Returns a table that :meth:`create_table` or :meth:`Connectors.upload_file` created. Raises NotFoundError."""

        source = self.get(name)
        return UploadedTable(self._home, source.name) if source.kind is SourceType.FILES else self._items(name)

    def _items(self, name: str) -> ItemTable:

        source = self._of_kind(name, SourceType.ITEMS, "table of items")
        return ItemTable(self._home, source, self._appender(source), self._functions, self._dynamic_tables)

    @takes(to_alter(SourceDefinition), changes=True)
    def alter(self, name: str, **changes: Unpack[SourceChanges]) -> Source:
        """Changes a source: its ``retention_policy``, as in :meth:`create_stream`, or its ``comment``.

        Raises:
            NotFoundError: there is no such source.
            InvalidValueError: not a duration.
        """
        values = read(SourceDefinition, changes)
        return self._definitions.change(self.get(name), **values)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a source with its table; returns False if it does not exist and ``if_exists`` is set.

        Raises:
            NotFoundError: there is no such source.
            ObjectInUseError: a stream or a dynamic table reads it.
        """
        from volstream.ingest.sources import tables

        source = self._definitions.find(Name.parse(name)) if if_exists else self.get(name)
        if source is None:
            return False
        tables.drop_source(self._home, source)
        return True

    def close(self) -> None:
        """Commits what can be committed without starting an engine."""
        if "_tables" in self.__dict__:
            self._tables.close()

    def _create(self, source: Source, columns: pa.Schema, *, if_not_exists: bool) -> None:
        from volstream.ingest.sources import tables

        existing = self._definitions.find(source.name)
        if existing is None or not if_not_exists:
            tables.create_source_table(self._home, source, columns)

    def _of_kind(self, name: str, kind: SourceType, noun: str) -> Source:
        source = self.get(name)
        if source.kind is not kind:
            raise InvalidValueError(f"{source.name} is not a {noun}.", f"Its kind is {source.kind}.")
        return source

    def _appender(self, source: Source) -> Appender:
        from volstream.ingest.sources.tables import Appender

        return Appender(self._home, source.name, self._tables.table(source.name))


# Keyed tables without a schema: items are JSON objects, and a new item replaces the one with the same key.

#: Items of one flush at most.
_TOGETHER = 10_000


@checked
class ItemTable:
    """A keyed table of items. Thread-safe.

    Its columns: the primary key, a STRING, and ``item``, the whole item as JSON. Keys are texts or integers; an integer and
    its text are the same key.

    Attributes:
        name: the table's name, for SQL.
    """

    def __init__(
        self, home: Home, source: Source, appender: Appender, functions: Functions, dynamic_tables: DynamicTables
    ) -> None:
        self.name = str(source.name)
        self._home = home
        self._source_name = source.name
        self._key = str(source.primary_key)
        self._location = places.table_location(home.warehouse, source.name)
        self._appender = appender
        self._functions = functions
        self._dynamic_tables = dynamic_tables
        self._lookup = Lookup(self._location, [self._key])
        self._versions = versions.VersionReader(home, source.name)
        self._schema = pa.schema([(OPERATION, pa.string()), (self._key, pa.string()), (ITEM, pa.string())])

    @property
    def source(self) -> Source:
        """Its present definition. Raises NotFoundError."""
        return self._home.catalog.sources.get(self._source_name)

    @property
    def versions(self) -> Sequence[int]:
        """The versions of an immutable table, ascending."""
        return versions.numbers(self.source)

    def insert(self, item: Mapping[str, Any]) -> None:
        """Adds an item, or replaces the one with its key; it is safe, and :meth:`get` returns it, when this returns.

        Raises:
            InvalidValueError: it lacks the key, or contains what JSON does not have.
            InvalidStateError: the table is immutable.
            VolstreamError: it cannot be written.
        """
        self.insert_all([item])

    def insert_all(self, items: Iterable[Mapping[str, Any]]) -> int:
        """Adds items in order, many at a time; returns their number. See :meth:`insert`.

        They are added by groups of 10,000, each as a whole: if an item is wrong, none of its group is.
        """
        return self._send((UPSERT, *stored(item, self._key)) for item in items)

    def delete(self, key: str | int) -> None:
        """Deletes the item with a key; does nothing if there is none. Raises as :meth:`insert`."""
        self._send([(DELETE, key_text(key, self._key), None)])

    def get(self, key: str | int, version: int | None = None) -> dict[str, Any] | None:
        """Returns the item with a key, or None. Sees everything that was inserted before.

        Args:
            version: of an immutable table; default: its newest.

        Raises:
            InvalidValueError: the table does not have the version.
        """
        text = key_text(key, self._key)
        if self.source.immutable:
            row = self._versions.get(text, version)
        elif version is None:
            row = self._lookup.get(text)
        else:
            raise InvalidValueError(f"The table {self.name} has no versions.", "Only immutable tables do.")
        item: dict[str, Any] | None = None if row is None else json.loads(row[ITEM])
        return item

    def make_immutable(self, version: int = 1) -> None:
        """Commits what was inserted, as a version that stays; nothing can be inserted any more.

        Raises:
            InvalidStateError: the table is immutable already.
            ObjectInUseError: somebody else is doing it.
        """

        with versions.alone(self._home, self._source_name):
            source = self.source
            if source.immutable and source.options.get("versions"):
                raise InvalidStateError(f"The table {self.name} is immutable already.")
            number = versions.number_for(source, version)
            self._home.catalog.sources.change(source, immutable=True)
            TailWriter(self._location).seal()  # rows that were acknowledged are in the version
            commit_tail(self._location, lambda: self._home.gateway)
            self._home.delta.set_properties(self._location, tables.KEPT)
            versions.note(self._home, source, number)

    def project(self, name: str, transformation: str | Callable[[dict[str, Any]], Any], primary_key: str | None = None) -> None:
        """Creates a table ``name`` of this table's items, transformed, which follows all changes; the daemon keeps it.

        It is a dynamic table: SQL, streams and further projections can read it, and nothing can be inserted.

        Args:
            transformation: a function of an item, which returns an item, or None to leave it out; it is imported from its
                file wherever it runs, so it must be at the top of a module. Or the text of a query on this table.
            primary_key: of the resulting items; default: this table's. Of a query it has no meaning.

        Raises:
            InvalidValueError: the function cannot be pickled.
            SqlError, AlreadyExistsError: the query is wrong; the name is taken.
        """
        if isinstance(transformation, str):
            self._dynamic_tables.create(name, transformation, on_change=True)
            return
        key = primary_key or self._key
        columns_of(key)
        target = Name.parse(name)
        function = Name(target.schema, f"{target.name}_projection")
        self._functions.create(str(function), transformation, "STRING", of_items=True, or_replace=True)
        path = literal(f"$['{key}']")
        query = (
            f"SELECT coalesce(get_json_object({ITEM}, {path}), raise_error({literal(f'An item has no {key}.')})) "
            f"AS {quote(key)}, {ITEM} FROM (SELECT {function.qualified}({ITEM}) AS {ITEM} FROM {self._source_name.qualified}) "
            f"WHERE {ITEM} IS NOT NULL"
        )
        try:
            self._dynamic_tables.create(name, query, on_change=True)
        except BaseException:
            self._functions.drop(str(function), if_exists=True)
            raise

    def __repr__(self) -> str:
        return f"ItemTable({self.name!r})"

    def _send(self, rows: Iterable[tuple[str, str, str | None]]) -> int:
        if self.source.immutable:
            raise InvalidStateError(
                f"The table {self.name} is immutable.",
                "Create its next version: session.source.create_table(..., immutable=True, version=...).",
            )
        return sum(self._append(some) for some in groups(rows, _TOGETHER))

    def _append(self, rows: Sequence[tuple[str, str, str | None]]) -> int:
        columns = zip(*rows, strict=True)
        self._appender.append(pa.table([pa.array(column, pa.string()) for column in columns], schema=self._schema))
        return len(rows)


# Tables of uploaded files.


@checked
class UploadedTable:
    """An immutable table of uploaded files, each of which is a version. Thread-safe.

    Attributes:
        name: the table's name, for SQL, which sees the newest version.
    """

    def __init__(self, home: Home, name: Name) -> None:
        self.name = str(name)
        self._home = home
        self._source_name = name
        self._reader = versions.VersionReader(home, name)

    @property
    def versions(self) -> Sequence[int]:
        """Its versions, ascending."""
        return versions.numbers(self._home.catalog.sources.get(self._source_name))

    def get(self, key: Any, version: int | None = None) -> Mapping[str, Any] | None:
        """Returns the row with a key, by column, or None.

        Args:
            key: a value of the key column's type.
            version: default: the newest.

        Raises:
            InvalidValueError: the table does not have the version.
        """
        return self._reader.get(key, version)

    def __repr__(self) -> str:
        return f"UploadedTable({self.name!r})"


# ``session.connector``: tables of data that come from elsewhere.


@checked
class Connectors:
    """Brings data from elsewhere into tables."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def upload_file(
        self,
        uri: str,
        name: str,
        primary_key: str,
        version: int | None = None,
        *,
        format: str | None = None,  # PySpark's name
        options: Mapping[str, Any] | None = None,
        connection: str | None = None,
        comment: str | None = None,
    ) -> UploadedTable:
        """Copies the rows of a file into an immutable table, as a version of it.

        Args:
            uri: a path, a bucket's URI, ``hdfs://``, or ``https://`` if the setting ``upload_hosts`` has the host.
            primary_key: column with a value of its own in each row.
            version: number of the version to create; default: the next one, unless the newest has the same rows.
            format: csv, json (an array, or a value per line), parquet, avro or orc; default: by the name.
            options: how it is read, as by jobs that load files, such as ``delimiter``, ``encoding``, ``schema``.
            connection: the storage connection by which an object store is reached; default: the credentials of the environment.

        Raises:
            InvalidValueError: the file does not exist or is broken, or keys are missing or occur twice; nothing is stored.
            AlreadyExistsError: the name is taken; or the version exists with other rows.
        """
        from volstream.ingest.sources import files, tables

        parsed = Name.parse(name)
        reached_by = None if connection is None else self._home.catalog.connections.get(Name.parse(connection))
        upload = files.Upload.of(uri, format, options or {}, reached_by)
        source = self._home.catalog.sources.find(parsed)
        if source is None:
            tables.check_free(self._home, parsed)
            source = tables.new_source(parsed, SourceType.FILES, primary_key=primary_key, immutable=True, comment=comment)
        elif source.kind is not SourceType.FILES or str(source.primary_key).lower() != primary_key.lower():
            raise InvalidValueError(
                f"{parsed} is not a table of uploaded files with the primary key {primary_key}.", "Choose another name."
            )
        files.add(self._home, source, version, upload)
        return UploadedTable(self._home, parsed)

    def upload_kafka(
        self,
        brokers: Sequence[str],
        name: str,
        format: str = "json",  # the document's word for it
        *,
        topic: str | None = None,
        properties: Mapping[str, str] | None = None,
        retention_policy: Retention = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> Source:
        """Creates a table that a daemon fills from a Kafka topic: with every message once, from the earliest on.

        Args:
            brokers: ``host:port`` of some brokers of the cluster.
            format: ``json``: values are text in the column ``event``, others are kept as bytes in ``payload``. ``bytes``,
                ``avro``: all values are bytes in ``payload``.
            topic: default: ``name``.
            properties: properties of librdkafka, for security above all. Secrets by reference only: ``${env:NAME}`` for a
                variable of the environment, ``${file:PATH}`` for a file with the value.
            retention_policy: age at which rows are deleted, such as ``30 days``; None: never.

        Raises:
            InvalidValueError: an unknown format or property, no brokers, or a secret that would be stored.
            AlreadyExistsError: the name is taken.
            InvalidStateError: only Spark can create tables in the warehouse.
            DependencyError: the client is not installed.
        """
        from volstream.ingest.sources.kafka import TopicSource, create_topic_table

        parsed = Name.parse(name)
        existing = self._home.catalog.sources.resolve_existing(parsed, or_replace=False, if_not_exists=if_not_exists)
        if existing is not None:
            return existing
        source = TopicSource(tuple(brokers), topic or as_written(name), dict(properties or {}), format)
        return create_topic_table(self._home, parsed, source, RETENTION_POLICY.read(retention_policy), comment)

    def poll(self, name: str, stop: Stop | None = None) -> int:
        """Reads the messages that a topic has now into its table, for homes without a daemon; returns their number.

        Args:
            stop: set to end early; what was read stays.

        Raises:
            NotFoundError: there is no such source or topic.
            InvalidStateError: the source is not a topic, a daemon reads it, or it was re-created.
            BrokerError: the brokers cannot be reached.
        """
        from volstream.ingest.sources.kafka import read_to_end

        source = self._home.catalog.sources.get(Name.parse(name))
        if source.kind is not SourceType.KAFKA:
            raise InvalidStateError(f"{source.name} is not filled from a topic.", f"Its kind is {source.kind}.")
        return read_to_end(self._home, source, stop or Stop())


def as_written(name: str) -> str:
    """Returns a table's name without its schema; unlike a table's, a topic's is case-sensitive."""
    return name.rpartition(".")[2].strip().strip("`")
