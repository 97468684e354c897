"""Stores the definition of a table that a Kafka topic fills, and creates the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.base.definitions import Source, SourceType
from volstream.base.model.names import Name
from volstream.ingest.sources.kafka.topic import COLUMNS, TopicSource
from volstream.ingest.sources.tables import create, new_source
from volstream.tables.delta import places

if TYPE_CHECKING:
    from volstream.jobs.home import Home


def create_topic_table(home: Home, name: Name, source: TopicSource, retention: int | None, comment: str | None) -> Source:
    """Creates an empty table, which a daemon then fills from the topic. The brokers need not be there yet.

    Raises:
        InvalidValueError: see :meth:`~volstream.ingest.sources.kafka.topic.TopicSource.check`.
        DependencyError: the client is not installed.
        AlreadyExistsError: the name is taken.
        InvalidStateError: the warehouse is in an object store.
    """
    source.check()
    table = new_source(name, SourceType.KAFKA, retention=retention, options=source.options(), comment=comment)
    create(home, table, COLUMNS)
    home.catalog.tails.put(name, places.table_location(home.warehouse, name))
    return table
