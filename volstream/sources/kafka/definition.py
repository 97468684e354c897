"""Stores the definition of a table that a Kafka topic fills, and creates the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.definitions import FeedKind, FeedTable
from volstream.delta import folders
from volstream.model.names import Name
from volstream.sources.kafka.topic import COLUMNS, TopicSource
from volstream.sources.tables import create, new_feed

if TYPE_CHECKING:
    from volstream.home import Home


def create_topic_table(
    home: Home, name: Name, source: TopicSource, retention: int | None, comment: str | None
) -> FeedTable:
    """Creates an empty table, which a daemon then fills from the topic. The brokers need not be there yet.

    Raises:
        InvalidValueError: see :meth:`~volstream.sources.kafka.topic.TopicSource.check`.
        DependencyError: the client is not installed.
        AlreadyExistsError: the name is taken.
        InvalidStateError: the warehouse is in an object store.
    """
    source.check()
    feed = new_feed(name, FeedKind.KAFKA, retention=retention, options=source.options(), comment=comment)
    create(home, feed, COLUMNS)
    home.catalog.tails.add(name, folders.table_location(home.warehouse, name))
    return feed
