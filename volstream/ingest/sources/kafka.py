"""Tables filled from Kafka topics: their definitions, messages as rows, and exactly-once reading."""

from __future__ import annotations

import ctypes
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from volstream.base import faults
from volstream.base.definitions import Source, SourceType
from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.processes import new_owner
from volstream.base.threads import Backoff, Closeable, Stop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import lease, of_source
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, TailFullError, VolstreamError, reason_of
from volstream.files.kafka.address import TopicAddress
from volstream.ingest.local import commit, writer_of
from volstream.ingest.sources.tables import EVENT_COLUMNS, create_source_table, new_source
from volstream.tables.delta import places
from volstream.tables.tails.tail import INSERT, OPERATION, tail_columns
from volstream.tables.tails.writer import Flush

if TYPE_CHECKING:
    from volstream.files.kafka.client import PollResult, Topic, TopicReader
    from volstream.home import Home

# The definition of a table filled from a Kafka topic: the topic's address, and the format of its messages.

#: Formats of message values. ``avro`` is stored unparsed, like ``bytes``.
FORMATS = ("json", "bytes", "avro")

#: Columns of the table. ``event`` is the text of a JSON value, ``payload`` any other value.
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
        format: an element of :data:`FORMATS`.
    """

    format: str

    @classmethod
    def of(cls, source: Source) -> TopicSource:
        """Returns the source of a stored definition."""
        options = source.options
        return cls(tuple(options["brokers"]), options["topic"], dict(options["properties"]), options["format"])

    def options(self) -> dict[str, object]:
        """Returns the options that the catalog stores."""
        return {**asdict(self), "brokers": [*self.brokers]}

    def check(self) -> None:
        """See :meth:`TopicAddress.check`. Also raises InvalidValueError for an unknown format."""
        if self.format not in FORMATS:
            raise InvalidValueError(f"The format cannot be {self.format!r}.", f"Choose one of {', '.join(FORMATS)}.")
        super().check()


# Creates a table filled from a Kafka topic, and stores its definition.


def create_topic_table(home: Home, name: Name, source: TopicSource, retention: int | None, comment: str | None) -> Source:
    """Creates an empty table, which a daemon then fills from the topic. The brokers need not exist yet.

    Raises:
        InvalidValueError: see :meth:`~volstream.ingest.sources.kafka.TopicSource.check`.
        DependencyError: the client is not installed.
        AlreadyExistsError: a source, a table or a stream has the name.
        InvalidStateError: the warehouse is in an object store.
    """
    source.check()
    table = new_source(name, SourceType.KAFKA, retention=retention, options=source.options(), comment=comment)
    create_source_table(home, table, COLUMNS)
    home.catalog.tails.put(name, places.table_location(home.warehouse, name))
    return table


# Converts messages of a Kafka topic to rows of its table. Pure.

#: Stands for a header name that is not UTF-8.
UNREADABLE = "\ufffd"

#: The last millisecond of the year 9999. Kafka accepts any number, but Spark displays no later time.
_LAST_MILLISECOND = 253_402_300_799_999


class KafkaMessage(Protocol):
    """The interface of confluent-kafka's messages."""

    def key(self) -> bytes | None:
        """Returns the key."""

    def value(self) -> bytes | None:
        """Returns the value, or None for a tombstone."""

    def offset(self) -> int | None:
        """Returns the position in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """Returns the kind of time, 0 for none, and milliseconds since 1970."""

    def headers(self) -> Any:
        """Returns pairs of a name and bytes or None, if the message has headers."""


M = TypeVar("M", bound=KafkaMessage)


def new_messages(messages: Sequence[M], first: int) -> list[M]:
    """Returns the messages of a partition from offset ``first`` on, without duplicates.

    After a new assignment, only the client's care prevents it from delivering already fetched messages.
    """
    new: list[M] = []
    for message in messages:
        offset = message.offset()
        if offset is not None and offset >= first:
            new.append(message)
            first = offset + 1
    return new


def rows(messages: Sequence[KafkaMessage], source_format: str, topic: str, partition: int, arrived_at: datetime) -> pa.Table:
    """Returns a row for each message: the operation, then :data:`~volstream.ingest.sources.kafka.COLUMNS`."""
    count = len(messages)
    values = [message.value() for message in messages]
    texts: Sequence[str | None] = [None] * count
    if source_format == "json":
        texts = [None if value is None else json_text(value) for value in values]
        values = [value if text is None else None for value, text in zip(values, texts, strict=True)]
    columns = [
        pa.repeat(pa.scalar(arrived_at, COLUMNS.field("arrived_at").type), count),
        pa.repeat(source_format, count),
        pa.array(texts, pa.string()),
        pa.array(values, pa.binary()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.repeat(topic, count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([_microseconds(message) for message in messages], COLUMNS.field("timestamp").type),
        pa.array([_headers(message) for message in messages], COLUMNS.field("headers").type),
    ]
    return pa.table([pa.repeat(INSERT, count), *columns], schema=COLUMNS.insert(0, pa.field(OPERATION, pa.string())))


def json_text(value: bytes) -> str | None:
    """Returns a message's value as text if it is JSON in UTF-8, else None.

    Checks only JSON's grammar: numbers may be too large for any type. A value nested deeper than Python's
    recursion limit does not count as JSON.
    """
    try:
        text = value.decode()
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return text


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON.")


#: Integers are parsed as ``float``: Python refuses to parse integers of more than 4,300 digits.
_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_int=float)


def _microseconds(message: KafkaMessage) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds * 1000 if kind and 0 <= milliseconds <= _LAST_MILLISECOND else None


def _headers(message: KafkaMessage) -> list[dict[str, object]]:
    try:
        pairs = _read_headers(message) or ()
    except (SystemError, UnicodeDecodeError):
        # confluent-kafka decodes names as UTF-8. If a name is not UTF-8, its slot is a null pointer, and the
        # second call and later ones return that list. Reading the null pointer in Python would crash the
        # process.
        pairs = _read_headers(message) or ()
    return [{"name": pair[0] if _tuple_item(pair, 0) else UNREADABLE, "value": pair[1]} for pair in pairs]


#: Calls ``headers()`` of a message. Unlike a Python call that has run often, it always checks whether an
#: error was set.
_read_headers = operator.methodcaller("headers")

#: Returns the address of a tuple's item, or None for a null pointer, which only C code can store.
_tuple_item = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_ssize_t)(("PyTuple_GetItem", ctypes.pythonapi))


# Reads a topic into its table. A batch and the offsets that it reaches are one commit of the table's tail.
# Each partition is a stream of the tail (``tails.writer.Flush``). Its number is the offset of the next
# message to read. The next reader continues there, and a reader that has read the same messages is refused.


class TopicIngestion(Closeable):
    """Reads a topic into its table, step by step. For one thread. Of several processes, only one succeeds.

    Args:
        lost: called with a description of the messages that the brokers deleted before they were read.

    Raises:
        NotFoundError: the table was dropped.
        InvalidStateError: the table lacks a column, or has it with another type.
        InvalidValueError: the properties of the topic cannot be used on this host.
        DependencyError: the table cannot be read, or the client is not installed.
    """

    def __init__(self, home: Home, source: Source, lost: Callable[[str], object]) -> None:
        location = places.table_location(home.warehouse, source.name)
        _check_columns(source, location)
        self._home = home
        self._source = source
        self._address = TopicSource.of(source)
        self._lost = lost
        self._location = location
        self._writer = writer_of(home, source.name, location)
        self._tail_offsets: dict[int, int] = {}
        self._read_offsets: dict[int, int] = {}
        self._at_end: set[int] = set()
        self._assigned = False
        self._polled: PollResult | None = None
        home.catalog.tails.put(source.name, location)
        self._reader: TopicReader = self._address.reader()

    @property
    def has_caught_up(self) -> bool:
        """True if the latest poll of each partition reached its end."""
        return self._assigned and self._at_end == self._tail_offsets.keys()

    def ends(self) -> Mapping[int, int]:
        """Returns each partition's current end offset, after its last message. Raises as :meth:`step`."""
        return self._reader.bounds(self._topic().partitions)[1]

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        """True if all messages before these offsets are in the table."""
        return self._assigned and all(self._read_offsets.get(partition, 0) >= end for partition, end in ends.items())

    def step(self, ends: Mapping[int, int] | None = None) -> int:
        """Reads for half a second or until a batch is full, and appends the messages. Returns their number.

        May be called again after an error.

        Args:
            ends: offsets by partition. The step does not wait for messages after them.

        Raises:
            BrokerError, NotFoundError: the brokers, or the topic, cannot be reached.
            InvalidStateError: the topic or the tail was replaced since the table was filled.
            FencedError: another process reads the topic.
            TailFullError: the tail is full, and another process commits it.
            VolstreamError: the messages cannot be appended or committed. None of them is in the table.
        """
        if self._polled is None:
            if not self._assigned:
                self._assign(self._topic())
            self._assigned = False  # if the poll fails, it is unknown what it has consumed
            remaining = {partition: end for partition, end in (ends or {}).items() if self._read_offsets.get(partition, 0) < end}
            self._polled = self._reader.poll(remaining)
            self._assigned = True
            faults.point("kafka.polled")
        # Ids are never reused: if the topic still exists, the polled messages came from it.
        topic = self._topic()
        count = self._append(self._polled)
        polled, self._polled = self._polled, None
        if polled.out_of_range or {*topic.partitions} - self._tail_offsets.keys():
            self._assign(topic)
        return count

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._reader.close()

    def _topic(self) -> Topic:
        """Returns the topic. Raises InvalidStateError if it was re-created."""
        topic = self._reader.topic()
        recorded_id = self._source.options.get("topic_id")
        if recorded_id is not None and topic.id is not None and topic.id != recorded_id:
            raise _replaced(self._source, self._address.topic)
        if recorded_id is None and topic.id is not None:
            self._record_option("topic_id", topic.id)
        return topic

    def _assign(self, topic: Topic) -> None:
        """Continues after the tail's offsets, or with the first message that the brokers still have."""
        tail_id, newest = self._writer.newest([self._stream(partition) for partition in topic.partitions])
        if self._source.options.get("tail_id") is None:
            self._record_option("tail_id", tail_id)
        elif self._source.options["tail_id"] != tail_id:
            raise InvalidStateError(
                f"The table {self._source.name} lost its record of the offsets up to which topic {self._address.topic} was read.",
                "Restore the home from a backup; or drop the table and create it again, to read the topic from its start.",
            )
        first, after = self._reader.bounds(topic.partitions)
        self._tail_offsets = {partition: newest[self._stream(partition)] for partition in topic.partitions}
        for partition, offset in self._tail_offsets.items():
            if offset > after[partition]:
                raise _replaced(self._source, self._address.topic)
            if 0 < offset < first[partition]:
                self._lost(
                    f"The brokers deleted messages {offset} to {first[partition] - 1} of partition {partition} of topic "
                    f"{self._address.topic} before they were read."
                )
        self._read_offsets = {partition: max(offset, first[partition]) for partition, offset in self._tail_offsets.items()}
        self._at_end = set()
        self._reader.assign(self._read_offsets)
        self._assigned = True

    def _append(self, polled: PollResult) -> int:
        now = datetime.now(UTC)
        flushes: dict[int, Flush] = {}
        count = 0
        for partition, reached in polled.reached.items():
            new = new_messages(polled.messages.get(partition, ()), self._read_offsets[partition])
            # Offsets advance without messages, too: the client skips aborted transactions and the markers
            # that end others.
            if reached > self._tail_offsets[partition]:
                batch = rows(new, self._address.format, self._address.topic, partition, now)
                flushes[partition] = Flush(self._stream(partition), reached, batch, self._tail_offsets[partition])
                count += len(new)
        if flushes:
            waiting = [*flushes.values()]
            try:
                self._writer.append(waiting)
            except TailFullError:
                if not self._commit():
                    raise
                self._writer.append(waiting)
            if self._home.settings.commit_seconds == 0:
                self._commit()
        self._tail_offsets |= {partition: flush.sequence for partition, flush in flushes.items()}
        self._read_offsets |= polled.reached
        self._at_end = (self._at_end - polled.reached.keys()) | polled.at_end
        return count

    def _commit(self) -> int:
        return commit(self._home.catalog, self._source.name, self._location, lambda: self._home.gateway)

    def _stream(self, partition: int) -> str:
        return f"{self._source.id}/{partition}"

    def _record_option(self, key: str, value: str) -> None:
        self._source = self._home.catalog.sources.change(self._source, options={**self._source.options, key: value})


def _check_columns(source: Source, location: str) -> None:
    """Raises NotFoundError, InvalidStateError. Call before opening the tail, which adapts to the table."""
    try:
        present = tail_columns(location)
    except NotFoundError:
        raise NotFoundError(f"The table {source.name} no longer exists.", f"Run: DROP TABLE {source.name}.") from None
    for expected in COLUMNS:
        if expected.name not in present.names or not present.field(expected.name).type.equals(expected.type):
            raise InvalidStateError(
                f"The table {source.name} has no column {expected.name} of the type that messages need.",
                "Do not drop, rename or retype its columns; columns may be added.",
            )


def _replaced(source: Source, topic: str) -> InvalidStateError:
    return InvalidStateError(
        f"The topic {topic} was deleted and re-created, or truncated: its offsets do not match those in table {source.name}.",
        f"Read it into another table; or drop {source.name} and create it again.",
    )


# Reads a topic's current messages into its table, for homes without a daemon.

_log = get("sources")

#: Delay while another process commits a full tail.
_FULL = Backoff(cap_seconds=5.0)


def read_to_end(home: Home, source: Source, stop: Stop) -> int:
    """Reads a topic's messages as of now into its table, and commits them. Returns their number.

    Records or clears the source's condition.

    Args:
        stop: set to end early. Messages that were read stay in the table.

    Raises:
        InvalidStateError: another process, such as a daemon, reads the topic.
        VolstreamError: see :class:`TopicIngestion`.
    """
    name, owner, purpose = of_source(source.id), new_owner(), f"reading of source {source.name}"
    lease_lost = Stop()
    lost: list[str] = []
    count = failures = 0
    with lease(home.catalog.leases, name, owner, purpose, home.settings.lease_seconds, lease_lost.set) as other:
        if other is not None:
            raise InvalidStateError(
                f"Source {source.name} is in use: {other.purpose}.",
                "A daemon reads it; stop it first, or wait for the command that reads.",
            )
        try:
            with TopicIngestion(home, source, lost.append) as reading:
                ends = reading.ends()
                # A table that is dropped is deleted once the lease is free.
                while not (reading.has_reached(ends) or stop or lease_lost) and home.catalog.sources.by_id(source.id) is not None:
                    try:
                        count += reading.step(ends)
                        failures = 0
                    except TailFullError:  # the process that commits the tail makes room
                        failures += 1
                        stop.wait(_FULL.delay(failures))
            commit(home.catalog, source.name, places.table_location(home.warehouse, source.name), lambda: home.gateway)
        except VolstreamError as error:
            home.catalog.conditions.note(ConditionKind.SOURCE, source.id, reason_of(error))
            raise
        home.catalog.conditions.note(ConditionKind.SOURCE, source.id, " ".join(lost) or None)
    for loss in lost:
        _log.error("messages_lost", source=str(source.name), why=loss)
    return count
