"""The definition of a table that a Kafka topic fills: brokers, topic, format, properties of the client. Reads no messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream import references
from volstream.definitions import Source
from volstream.errors import DependencyError, InvalidValueError
from volstream.sources.tables import EVENT_COLUMNS

if TYPE_CHECKING:
    from volstream.sources.kafka.client import TopicReader

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

#: Properties by which every message is read exactly once, that the definition has elsewhere, or that load code: not the user's.
OWN = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "enable.partition.eof",
        "isolation.level",
        "log_level",
        "plugin.library.paths",
    }
)

_SECRET = re.compile(r"password|passphrase|secret|key\.pem$")


@dataclass(frozen=True)
class TopicSource:
    """A topic, and how it is reached.

    Attributes:
        brokers: ``host:port`` of some brokers of the cluster.
        format: one of :data:`FORMATS`.
        properties: further properties of librdkafka; secrets as ``${env:NAME}`` or ``${file:PATH}``.
    """

    brokers: Sequence[str]
    topic: str
    format: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, source: Source) -> TopicSource:
        """Returns the source of a stored definition."""
        said = source.options
        return cls(tuple(said["brokers"]), said["topic"], said["format"], dict(said["properties"]))

    def options(self) -> dict[str, object]:
        """Returns what the catalog stores."""
        return {**asdict(self), "brokers": [*self.brokers]}

    def check(self) -> None:
        """Checks what can be checked without a broker.

        Raises:
            InvalidValueError: an unknown format or property, no brokers, or a secret that would be stored.
            DependencyError: the client is not installed.
        """
        if self.format not in FORMATS:
            raise InvalidValueError(f"The format cannot be {self.format!r}.", f"Choose one of {', '.join(FORMATS)}.")
        odd = [broker for broker in self.brokers if not re.fullmatch(r"\S+:\d{1,5}", broker) or "," in broker]
        if odd or not self.brokers:
            raise InvalidValueError(
                f"{odd[0]!r} is not the address of a broker." if odd else "No brokers are given.",
                "Write host:port, for example localhost:9092.",
            )
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", self.topic):
            raise InvalidValueError(
                f"{self.topic!r} is not the name of a topic.",
                "Letters, digits, dots, underscores and hyphens are allowed.",
            )
        for name, value in self.properties.items():
            if name in OWN:
                raise InvalidValueError(f"The property {name} is set by volstream.", "Leave it out.")
            if _SECRET.search(name) and not references.refers(value):
                raise InvalidValueError(
                    f"The property {name} is a secret, which the catalog does not store.",
                    "Write ${env:NAME} for a variable of the environment, or ${file:PATH} for a file with the value.",
                )
        # A reference may only be known where the daemon runs.
        literals = {name: value for name, value in self.properties.items() if not references.refers(value)}
        with _installed():
            from volstream.sources.kafka.client import check_properties
        check_properties(literals)

    def reader(self) -> TopicReader:
        """Returns a new reader of the topic.

        Raises:
            InvalidValueError: a reference leads nowhere, or the properties do not fit together.
            DependencyError: the client is not installed.
        """
        with _installed():
            from volstream.sources.kafka.client import TopicReader
        properties = {name: references.resolve(value) for name, value in self.properties.items()}
        try:
            return TopicReader(self.brokers, self.topic, properties)
        except InvalidValueError as error:  # it may repeat a value, which may be a secret
            message = error.message
            for name, value in self.properties.items():
                if references.refers(value):
                    message = message.replace(properties[name], value)
            raise InvalidValueError(message, error.remedy) from None


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise DependencyError(
            f"Kafka topics need the Python package {error.name!r}, which is not installed.",
            "Install it: pip install 'volstream[kafka]'.",
        ) from error
