"""Reads a topic from a cluster. The only module that imports confluent-kafka.

Assigns partitions and offsets explicitly, without joining a group. Commits offsets for a group only on
request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]  # it lists no exports

from volstream.base.threads import Closeable, attempts_at
from volstream.errors import BrokerError, InvalidValueError, NotFoundError

if TYPE_CHECKING:
    import stamina

#: Limits of one poll: messages, bytes (plus the messages of one more call), and seconds.
_MAX_MESSAGES, _MAX_BYTES, _GATHER_SECONDS = 20_000, 8 << 20, 0.5

#: Interval of checks whether a poll is done.
_CHECK_SECONDS = 0.05

#: Messages per call of the client. At a megabyte each, the brokers' default maximum, they fit into memory.
_CHUNK = 100

#: Timeout of requests to the cluster.
_ANSWER_SECONDS = 5.0

#: The id that clients report with brokers older than 2.8, which have no topic ids.
_NO_ID = str(Uuid(0, 0))

_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)

_SILENT = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)

#: A group's coordinator or a partition's leader starts (in a new topic) or moves to another broker.
_MOVING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)

#: Prefix of the client's message for properties that contradict each other or the capabilities of this host.
_CONFLICT = "Failed to create consumer"


@dataclass(frozen=True)
class Topic:
    """A topic at one moment.

    Attributes:
        id: unique to a topic: a recreated topic has another id. None if the brokers have no ids.
        partitions: their numbers.
    """

    id: str | None
    partitions: Sequence[int]


@dataclass
class PollResult:
    """The result of a poll.

    Attributes:
        messages: by partition, in order.
        reached: the offset after the last message, for each partition with news.
        at_end: partitions whose end this was when it was fetched.
        out_of_range: True if the brokers do not have the next message of a partition (any more).
    """

    messages: dict[int, list[Message]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    at_end: set[int] = field(default_factory=set)
    out_of_range: bool = False


class TopicReader(Closeable):
    """Reads one topic. Does no I/O before its first call.

    For use by one thread. Other threads may only send requests to the cluster and commit.

    Methods raise BrokerError if the cluster is unreachable or refuses, NotFoundError if it has no such topic.

    Args:
        properties: librdkafka's, with secrets.

    Raises:
        InvalidValueError: the properties contradict each other.
    """

    def __init__(self, brokers: Sequence[str], topic: str, properties: Mapping[str, str]) -> None:
        self._brokers = ",".join(brokers)
        self._topic = topic
        _check_group(properties)
        self._group = properties.get("group.id", "volstream")
        self._last_error: str | None = None
        config: dict[str, Any] = {
            "queued.max.messages.kbytes": 32 << 10,
            **properties,
            "group.id": self._group,  # required by Kafka's clients, although the group is not joined
            "bootstrap.servers": self._brokers,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,  # errors are raised
            "error_cb": self._on_error,
        }
        self._admin_config = {key: value for key, value in config.items() if key in properties} | {
            key: config[key] for key in ("bootstrap.servers", "log_level", "error_cb")
        }
        with _refusals():
            self._consumer = Consumer(config)
            self._admin = AdminClient(self._admin_config)

    def topic(self) -> Topic:
        """Returns the current topic."""
        with self._mapped():
            futures = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=_ANSWER_SECONDS)
            description = futures[self._topic].result()
        self._last_error = None
        topic_id = str(description.topic_id)
        return Topic(None if topic_id == _NO_ID else topic_id, sorted(partition.id for partition in description.partitions))

    def bounds(self, partitions: Sequence[int]) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Returns each partition's first offset, and the offset after the last readable message.

        Open transactions hold back the messages after them.
        """
        with self._mapped():
            for attempt in _attempts():
                with attempt:
                    futures = [
                        self._admin.list_offsets(
                            {TopicPartition(self._topic, partition): wanted for partition in partitions},
                            isolation_level=IsolationLevel.READ_COMMITTED,
                            request_timeout=_ANSWER_SECONDS,
                        )
                        for wanted in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
                    ]
                    first, after = (
                        {position.partition: future.result().offset for position, future in each.items()} for each in futures
                    )
        return first, after

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Assigns partitions, at these offsets, for the next poll."""
        with self._mapped():
            self._consumer.assign([TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()])

    def poll(self, ends: Mapping[int, int]) -> PollResult:
        """Returns the next messages of the assigned partitions. Waits up to half a second for more.

        Args:
            ends: offsets by partition. Returns as soon as all of them are reached. Ignored if empty.
        """
        polled = PollResult()
        count = size = 0
        deadline = time.monotonic() + _GATHER_SECONDS
        while count < _MAX_MESSAGES and size < _MAX_BYTES and not polled.out_of_range:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or (ends and all(polled.reached.get(partition, -1) >= end for partition, end in ends.items())):
                break
            with self._mapped():
                messages = self._consumer.consume(_CHUNK, min(remaining, _CHECK_SECONDS))
                for message in messages:
                    size += self._take(polled, message)
            count += len(messages)
        return polled

    def take(self, limit: int, wait_seconds: float) -> PollResult:
        """Returns up to ``limit`` messages of the assigned partitions once there is one, or none after
        ``wait_seconds``."""
        polled = PollResult()
        with self._mapped():
            first = self._consumer.poll(wait_seconds)
            more = self._consumer.consume(limit - 1, 0) if first is not None and limit > 1 else ()
            for message in (first, *more):
                if message is not None:
                    self._take(polled, message)
        return polled

    @property
    def complaint(self) -> str | None:
        """The client's last connection error since the topic was last requested, or None."""
        return self._last_error

    def committed(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Returns the committed offsets of the group ``group.id``. Partitions may be missing."""
        # Not with the admin client: librdkafka 2.16 crashes the process if the group's coordinator is not
        # ready to respond.
        positions = [TopicPartition(self._topic, partition) for partition in partitions]
        with self._mapped():
            for attempt in _attempts():
                with attempt:
                    found = self._consumer.committed(positions, timeout=_ANSWER_SECONDS)
                    for position in found:
                        if position.error is not None:
                            raise KafkaException(position.error)
        return {position.partition: position.offset for position in found if position.offset != OFFSET_INVALID}

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commits offsets for the group ``group.id``, durably. Refused while others are members of the
        group."""
        wanted = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(self._group, wanted)
        try:
            with self._mapped():
                for attempt in _attempts():
                    with attempt:
                        self._alter(request)
        except BrokerError:
            # A client that has lost the group's coordinator keeps waiting for its response, even once it is
            # back.
            self._admin = AdminClient(self._admin_config)
            raise

    def retention_seconds(self) -> float | None:
        """Returns the age at which brokers delete messages, or None if they never do or do not report it."""
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        try:
            [future] = self._admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS).values()
            milliseconds = int(future.result()["retention.ms"].value)
        except KafkaException:  # it needs a separate permission
            return None
        return None if milliseconds < 0 else milliseconds / 1000

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close()

    def _alter(self, request: ConsumerGroupTopicPartitions) -> None:
        response = self._admin.alter_consumer_group_offsets([request], request_timeout=_ANSWER_SECONDS)
        for position in response[self._group].result().topic_partitions:
            if position.error is not None:
                raise KafkaException(position.error)

    def _take(self, polled: PollResult, message: Message) -> int:
        """Adds a message or an event to the result. Returns its size in bytes."""
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert partition is not None, "it comes from a partition"
        assert offset is not None, "it comes from a partition"
        if error is None:
            polled.messages.setdefault(partition, []).append(message)
            polled.reached[partition] = offset + 1
            polled.at_end.discard(partition)
            return len(message)
        if error.code() == KafkaError._PARTITION_EOF:
            polled.reached[partition] = offset
            polled.at_end.add(partition)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            polled.out_of_range = True
        else:
            raise KafkaException(error)
        return 0

    def _on_error(self, error: KafkaError) -> None:
        # this error has no reason
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last_error is None:
            self._last_error = error.str()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.code() in _GONE:
                raise NotFoundError(
                    f"There is no topic {self._topic} on {self._brokers}.", "Create it; reading then begins."
                ) from raised
            # a request that timed out has no reason; its connections have, and report it now
            self._admin.poll(0)
            reason = f"{error.str()} ({self._last_error})" if self._last_error else error.str()
            what = "do not answer" if error.code() in _SILENT else "cannot be read"
            raise BrokerError(f"The Kafka brokers {self._brokers} {what}: {reason}.") from raised


def _attempts() -> Iterable[stamina.Attempt]:
    """Returns attempts at a request that brokers refuse during the election of a coordinator or leader."""
    return attempts_at(_is_temporary, attempts=None, timeout=_ANSWER_SECONDS, wait_initial=0.1, wait_max=1.0)


def _is_temporary(error: Exception) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _MOVING


def check_properties(properties: Mapping[str, str]) -> None:
    """Raises InvalidValueError if librdkafka does not know a property or rejects its value."""
    _check_group(properties)
    try:
        with _refusals():
            Consumer({**properties, "bootstrap.servers": "127.0.0.1:9", "group.id": "volstream", "log_level": 0}).close()
    except InvalidValueError as error:
        if _CONFLICT not in error.message:
            raise


def _check_group(properties: Mapping[str, str]) -> None:
    """Raises InvalidValueError for an empty group, with which librdkafka would end the process."""
    if not properties.get("group.id", "volstream"):
        raise InvalidValueError("The property group.id is empty.", "Give a name, or leave it out.")


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    # the latter for text that cannot be encoded
    except (KafkaException, TypeError, ValueError, AttributeError) as raised:
        reason = raised.args[0].str() if isinstance(raised, KafkaException) else str(raised)
        raise InvalidValueError(
            f"Kafka's client rejects its properties: {reason}.",
            "They are named as in librdkafka: https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md.",
        ) from raised
