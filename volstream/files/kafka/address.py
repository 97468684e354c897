"""The address of a topic: brokers, name, properties of the client. Reads no messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from volstream.base import privacy
from volstream.errors import DependencyError, InvalidValueError

if TYPE_CHECKING:
    from volstream.files.kafka.client import TopicReader

#: Properties that users cannot set: they ensure that every message is read exactly once, the definition has
#: them elsewhere, or they load code.
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
        # They load code, or run a command.
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
    }
)


@dataclass(frozen=True)
class TopicAddress:
    """A topic, and how to connect to it.

    Attributes:
        brokers: ``host:port`` of some brokers of the cluster.
        properties: further properties of librdkafka. Secrets are given as ``${env:NAME}`` or
            ``${file:PATH}``.
    """

    brokers: Sequence[str]
    topic: str
    properties: Mapping[str, str]

    def check(self) -> None:
        """Checks the address without contacting a broker.

        Raises:
            InvalidValueError: an unknown property, no brokers, or a secret that would be stored.
            DependencyError: the client is not installed.
        """
        invalid = [broker for broker in self.brokers if not re.fullmatch(r"\S+:\d{1,5}", broker) or "," in broker]
        if invalid or not self.brokers:
            raise InvalidValueError(
                f"{invalid[0]!r} is not the address of a broker." if invalid else "No brokers are given.",
                "Write host:port, for example localhost:9092.",
            )
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", self.topic):
            raise InvalidValueError(
                f"{self.topic!r} is not the name of a topic.", "Letters, digits, dots, underscores and hyphens are allowed."
            )
        for name in self.properties:
            if name in OWN:
                raise InvalidValueError(f"The property {name} is set by volstream.", "Leave it out.")
        privacy.check_secrets(self.properties)
        # A reference may be resolvable only where the daemon runs.
        literals = {name: value for name, value in self.properties.items() if not privacy.has_references(value)}
        with _installed():
            from volstream.files.kafka.client import check_properties
        check_properties(literals)

    def reader(self) -> TopicReader:
        """Returns a new reader of the topic.

        Raises:
            InvalidValueError: a reference cannot be resolved, or the properties contradict each other.
            DependencyError: the client is not installed.
        """
        with _installed():
            from volstream.files.kafka.client import TopicReader
        properties = {name: privacy.resolve_references(value) for name, value in self.properties.items()}
        try:
            return TopicReader(self.brokers, self.topic, properties)
        except InvalidValueError as error:  # the message may contain a value, which may be a secret
            message = privacy.with_references(error.message, self.properties, properties)
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
