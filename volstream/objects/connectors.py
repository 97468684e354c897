"""Tables that are filled from elsewhere: from topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from volstream.errors import InvalidStateError
from volstream.lifecycle.stop import Stop
from volstream.model.names import Name
from volstream.model.objects import FeedKind, FeedTable
from volstream.objects.base import Collection
from volstream.objects.sources import parse_retention

if TYPE_CHECKING:
    from volstream.home import Home


class Connectors(Collection[FeedTable]):
    """Connections to data elsewhere, and the tables that they fill."""

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.feeds)

    def upload_kafka(
        self,
        brokers: Sequence[str],
        name: str,
        format: str = "json",  # the document's word for it
        *,
        topic: str | None = None,
        properties: Mapping[str, str] | None = None,
        retention_policy: str | timedelta | None = None,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> FeedTable:
        """Creates a table that a daemon fills from a Kafka topic: with every message once, from the earliest on.

        Args:
            brokers: ``host:port`` of some brokers of the cluster.
            format: ``json``: values are text in the column ``event``, others are kept as bytes in ``payload``. ``bytes``,
                ``avro``: all values are bytes in ``payload``.
            topic: default: ``name``.
            properties: properties of librdkafka, for security above all. Secrets by reference only: ``env:NAME`` for a variable
                of the environment, ``file:PATH`` for a file with the value.
            retention_policy: age at which rows are deleted, such as ``30 days``; None: never.

        Raises:
            InvalidValueError: an unknown format or property, no brokers, or a secret that would be stored.
            AlreadyExistsError: the name is taken.
            InvalidStateError: the warehouse is in an object store.
            DependencyError: the client is not installed.
        """
        from volstream.sources.kafka.definition import create_topic_table
        from volstream.sources.kafka.topic import TopicSource

        parsed = Name.parse(name)
        existing = self._definitions.meeting(parsed, or_replace=False, if_not_exists=if_not_exists)
        if existing is not None:
            return existing
        source = TopicSource(tuple(brokers), topic or parsed.name, format, dict(properties or {}))
        return create_topic_table(self._home, parsed, source, parse_retention(retention_policy), comment)

    def poll(self, name: str, stop: Stop | None = None) -> int:
        """Reads what a topic has when called into its table, for homes without a daemon; returns the number of messages.

        Args:
            stop: set to end early; what was read stays.

        Raises:
            NotFoundError: there is no such source or topic.
            InvalidStateError: it is no topic; a daemon reads it; or it was re-created.
            BrokerError: the brokers cannot be reached.
        """
        from volstream.sources.kafka.feed import read_to_end

        feed = self.get(name)
        if feed.kind is not FeedKind.KAFKA:
            raise InvalidStateError(f"{feed.name} is not filled from a topic.", f"It is a source of kind {feed.kind}.")
        return read_to_end(self._home, feed, stop or Stop())
