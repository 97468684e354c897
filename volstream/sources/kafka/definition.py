"""Stores the definition of a table that a Kafka topic fills, and creates the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.definitions import Source, SourceType
from volstream.delta import folders
from volstream.model.names import Name
from volstream.sources.kafka.topic import COLUMNS, TopicSource
from volstream.sources.tables import create, new_source

if TYPE_CHECKING:
    from volstream.home import Home


def create_topic_table(
    home: Home, name: Name, source: TopicSource, retention: int | None, comment: str | None
) -> Source:
    """Creates an empty table, which a daemon then fills from the topic. The brokers need not be there yet.

    Raises:
        InvalidValueError: see :meth:`~volstream.sources.kafka.topic.TopicSource.check`.
        DependencyError: the client is not installed.
        AlreadyExistsError: the name is taken.
        InvalidStateError: the warehouse is in an object store.
    """
    source.check()
    table = new_source(name, SourceType.KAFKA, retention=retention, options=source.options(), comment=comment)
    create(home, table, COLUMNS)
    home.catalog.tails.add(name, folders.table_location(home.warehouse, name))
    return table
