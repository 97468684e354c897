"""``session.connector``: tables of data that come from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from volstream.api.objects.sources import RETENTION_POLICY, Retention
from volstream.base.definitions import Source, SourceType
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.home import Home

if TYPE_CHECKING:  # imported where it is used: commands that only read definitions need none of it
    from volstream.api.objects.uploads import UploadedTable


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
        from volstream.api.objects.uploads import UploadedTable
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
