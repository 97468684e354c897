"""Homes without an engine, and what has arrived in their tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from deltalake import QueryBuilder

from tests.broker import Broker, broker
from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.model.names import Name
from volstream.catalog.alerts import ConditionKind
from volstream.spark.session import SparkGateway
from volstream.tables.delta import places
from volstream.tables.delta.places import open_table
from volstream.tables.tails.tail import TailedTable

__all__ = ["broker"]


def no_engine() -> SparkGateway:
    """For sessions that need no Spark."""
    raise AssertionError("no engine is needed")


@dataclass
class Kept:
    """A session without an engine, and the rows of its tables."""

    session: Session
    broker: Broker

    def create(self, name: str, topic: str, **options: Any) -> None:
        self.session.connector.upload_kafka([self.broker.address], name, topic=topic, **options)

    def poll(self, name: str = "t") -> int:
        return self.session.connector.poll(name)

    def rows(self, name: str = "t") -> list[dict[str, Any]]:
        """All that has arrived, in the order of partitions and offsets."""
        location = places.table_location(self.session.home.warehouse, Name.parse(name))
        found = TailedTable.open(location)
        # The version to which the tail belongs: rows may move meanwhile.
        version = None if found is None else found.version
        base = pa.table(QueryBuilder().register("t", open_table(location, version)).execute("SELECT * FROM t").read_all())
        rows = base.to_pylist()
        if found is not None:
            rows += found.tail.rows(found.moved, found.tail.newest).to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def read(self, name: str = "t") -> list[tuple[int, int, str | None]]:
        """Partition, offset and text of all messages that have arrived."""
        return [(row["partition"], row["offset"], row["event"]) for row in self.rows(name)]

    def error(self, name: str = "t") -> str:
        source = self.session.source.get(name)
        return self.session.home.catalog.conditions.cause(ConditionKind.SOURCE, source.id) or ""


@pytest.fixture
def kept(settings: Settings, broker: Broker) -> Iterator[Kept]:  # the fixture
    with Session(settings, no_engine) as session:
        yield Kept(session, broker)
