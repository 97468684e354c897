"""The definition of a table that a Kafka topic fills: the topic's address, and the format of its messages. Reads no messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pyarrow as pa

from volstream.base.definitions import Source
from volstream.errors import InvalidValueError
from volstream.files.kafka.address import TopicAddress
from volstream.ingest.sources.tables import EVENT_COLUMNS

#: What the values of messages are taken for: ``avro`` is kept as it is, like ``bytes``.
FORMATS = ("json", "bytes", "avro")

#: Columns of the table. ``event`` is the text of a value that is JSON, ``payload`` any other value.
COLUMNS = pa.schema(
    [
        *EVENT_COLUMNS,
        pa.field("key", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True)
class TopicSource(TopicAddress):
    """A topic that fills a table.

    Attributes:
        format: one of :data:`FORMATS`.
    """

    format: str

    @classmethod
    def of(cls, source: Source) -> TopicSource:
        """Returns the source of a stored definition."""
        said = source.options
        return cls(tuple(said["brokers"]), said["topic"], dict(said["properties"]), said["format"])

    def options(self) -> dict[str, object]:
        """Returns what the catalog stores."""
        return {**asdict(self), "brokers": [*self.brokers]}

    def check(self) -> None:
        """See :meth:`TopicAddress.check`. Also raises InvalidValueError for an unknown format."""
        if self.format not in FORMATS:
            raise InvalidValueError(f"The format cannot be {self.format!r}.", f"Choose one of {', '.join(FORMATS)}.")
        super().check()
