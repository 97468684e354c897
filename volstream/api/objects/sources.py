"""``session.source``: tables that are filled event by event, or item by item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from volstream.api.objects.collections import Collection, Functions
from volstream.api.objects.dynamic import DynamicTables
from volstream.base.definitions import Source, SourceDefinition, SourceType
from volstream.base.definitions.options import keys, read, to_alter
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.home import Home

if TYPE_CHECKING:  # imported on use: commands that only read definitions do not need them
    import pyarrow as pa

    from volstream.api.objects.items import ItemTable, UploadedTable
    from volstream.base.definitions.keywords import SourceChanges
    from volstream.ingest.local import LocalTables
    from volstream.ingest.sources.events import EventStream
    from volstream.ingest.sources.tables import Appender

#: The valid values of a retention.
Retention = Annotated[str | timedelta | None, "'30 days', a timedelta, or None to keep events for ever"]

RETENTION_POLICY = keys(SourceDefinition)["retention_policy"]


@checked
class Sources(Collection[Source]):
    """The tables that are filled through a session. Additions are committed every ``commit_seconds``."""

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
        """Creates a table of events. :meth:`EventStream.upload` adds to it.

        Args:
            retention_policy: age at which events are deleted, such as ``30 days``. Without it, they are kept
                forever.

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
            data: its items. Required if it is immutable.
            immutable: its items never change. Another ``version`` replaces them all, and older ones can still
                be read.
            version: number of the version to create. By default the next one, unless the newest has the same
                data.

        Raises:
            AlreadyExistsError: the name is taken, or the version exists with other data.
            InvalidValueError: an item lacks its key, or two have the same key. Nothing is created.
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
        """Returns a table that :meth:`create_table` or :meth:`Connectors.upload_file` created. Raises
        NotFoundError."""

        source = self.get(name)
        from volstream.api.objects.items import UploadedTable

        return UploadedTable(self._home, source.name) if source.kind is SourceType.FILES else self._items(name)

    def _items(self, name: str) -> ItemTable:

        source = self._of_kind(name, SourceType.ITEMS, "table of items")
        from volstream.api.objects.items import ItemTable

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
        """Drops a source with its table. Returns False if it does not exist and ``if_exists`` is set.

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
        """Commits as far as possible without starting an engine."""
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


# ``session.connector``: tables of external data.


@checked
class Connectors:
    """Imports external data into tables."""

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
            uri: a path, a bucket's URI, ``hdfs://``, or ``https://`` if the setting ``upload_hosts`` has the
                host.
            primary_key: column with a unique value in each row.
            version: number of the version to create. By default the next one, unless the newest has the same
                rows.
            format: csv, json (an array, or a value per line), parquet, avro or orc. By default, the name
                decides.
            options: how to read it, as for load jobs, such as ``delimiter``, ``encoding``, ``schema``.
            connection: the storage connection for an object store. By default, the credentials of the
                environment.

        Raises:
            InvalidValueError: the file does not exist or is broken, or keys are missing or repeated. Nothing
                is stored.
            AlreadyExistsError: the name is taken, or the version exists with other rows.
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
        from volstream.api.objects.items import UploadedTable

        return UploadedTable(self._home, parsed)

    def upload_kafka(
        self,
        brokers: Sequence[str],
        name: str,
        format: str = "json",  # the documented name
        *,
        topic: str | None = None,
        properties: Mapping[str, str] | None = None,
        retention_policy: Retention = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> Source:
        """Creates a table that a daemon fills from a Kafka topic, with every message once, from the earliest
        on.

        Args:
            brokers: ``host:port`` of some brokers of the cluster.
            format: with ``json``, text values are in the column ``event``, and other values are kept as bytes
                in ``payload``. With ``bytes`` or ``avro``, all values are bytes in ``payload``.
            topic: ``name`` by default.
            properties: properties of librdkafka, mainly for security. Secrets by reference only:
                ``${env:NAME}`` for a variable of the environment, ``${file:PATH}`` for a file with the value.
            retention_policy: age at which rows are deleted, such as ``30 days``. Without it, never.

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
        """Reads a topic's current messages into its table, for homes without a daemon. Returns their number.

        Args:
            stop: set to end early. Messages read so far stay.

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
    """Returns a table's name without its schema. Unlike a table's name, a topic's is case-sensitive."""
    return name.rpartition(".")[2].strip().strip("`")
