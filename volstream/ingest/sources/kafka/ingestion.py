"""Reads a topic into its table. A batch and the offsets up to which it reaches are one commit of the table's tail.

Each partition is a stream of the tail (``tails.writer.Flush``): its number is the offset of the next message
to read, so that the next reader goes on there, and one that has read the same messages before is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.base import faults
from volstream.base.definitions import Source
from volstream.base.threads import Closeable
from volstream.errors import InvalidStateError, NotFoundError, TailFullError
from volstream.ingest.local import commit, writer_of
from volstream.ingest.sources.kafka.rows import new_messages, rows
from volstream.ingest.sources.kafka.topic import COLUMNS, TopicSource
from volstream.tables.delta import places
from volstream.tables.tails.tail import tail_columns
from volstream.tables.tails.writer import Flush

if TYPE_CHECKING:
    from volstream.files.kafka.client import PollResult, Topic, TopicReader
    from volstream.jobs.home import Home


class TopicIngestion(Closeable):
    """Reads a topic into its table, step by step. For one thread. Of several processes one gets on: see :meth:`step`.

    Args:
        lost: called with what the brokers had deleted before it was read.

    Raises:
        NotFoundError: the table was dropped.
        InvalidStateError: the table lacks one of the columns, or has it with another type.
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
        self._have: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._at_end: set[int] = set()
        self._assigned = False
        self._polled: PollResult | None = None
        home.catalog.tails.put(source.name, location)
        self._reader: TopicReader = self._address.reader()

    @property
    def has_caught_up(self) -> bool:
        """True if the newest look at each partition found its end."""
        return self._assigned and self._at_end == self._have.keys()

    def ends(self) -> Mapping[int, int]:
        """Returns the offset after the last message of each partition, as of now. Raises as :meth:`step`."""
        return self._reader.bounds(self._topic().partitions)[1]

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        """True if everything before these offsets is in the table."""
        return self._assigned and all(self._reached.get(partition, 0) >= end for partition, end in ends.items())

    def step(self, ends: Mapping[int, int] | None = None) -> int:
        """Reads for half a second, or until a batch is full, and appends what was read; returns the number of messages.

        May be called again after an error.

        Args:
            ends: offsets by partition, at which it need not wait for more.

        Raises:
            BrokerError, NotFoundError: the brokers, or the topic, cannot be reached.
            InvalidStateError: it is not the topic that was read before; or the tail is not the one that has the offsets.
            FencedError: another process reads the topic.
            TailFullError: the tail is full, and another process commits it.
            VolstreamError: it cannot be appended or committed; nothing of it is in the table.
        """
        if self._polled is None:
            if not self._assigned:
                self._assign(self._topic())
            self._assigned = False  # unless the poll succeeds, nobody knows what it has taken
            remaining = {partition: end for partition, end in (ends or {}).items() if self._reached.get(partition, 0) < end}
            self._polled = self._reader.poll(remaining)
            self._assigned = True
            faults.point("kafka.polled")
        # Ids are never given again: what was polled came from this topic if it is still there.
        topic = self._topic()
        count = self._append(self._polled)
        polled, self._polled = self._polled, None
        if polled.out_of_range or {*topic.partitions} - self._have.keys():
            self._assign(topic)
        return count

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._reader.close()

    def _topic(self) -> Topic:
        """Returns the topic. Raises InvalidStateError if it was re-created."""
        topic = self._reader.topic()
        noted = self._source.options.get("topic_id")
        if noted is not None and topic.id is not None and topic.id != noted:
            raise _replaced(self._source, self._address.topic)
        if noted is None and topic.id is not None:
            self._note("topic_id", topic.id)
        return topic

    def _assign(self, topic: Topic) -> None:
        """Goes on after what the tail has, or with the first message that the brokers still have."""
        tail_id, have = self._writer.newest([self._stream(partition) for partition in topic.partitions])
        if self._source.options.get("tail_id") is None:
            self._note("tail_id", tail_id)
        elif self._source.options["tail_id"] != tail_id:
            raise InvalidStateError(
                f"The table {self._source.name} lost its record of the offsets up to which topic {self._address.topic} was read.",
                "Restore the home from a backup; or drop the table and create it again, to read the topic from its start.",
            )
        first, after = self._reader.bounds(topic.partitions)
        self._have = {partition: have[self._stream(partition)] for partition in topic.partitions}
        for partition, offset in self._have.items():
            if offset > after[partition]:
                raise _replaced(self._source, self._address.topic)
            if 0 < offset < first[partition]:
                self._lost(
                    f"The brokers deleted messages {offset} to {first[partition] - 1} of partition {partition} of topic "
                    f"{self._address.topic} before they were read."
                )
        self._reached = {partition: max(offset, first[partition]) for partition, offset in self._have.items()}
        self._at_end = set()
        self._reader.assign(self._reached)
        self._assigned = True

    def _append(self, polled: PollResult) -> int:
        now = datetime.now(UTC)
        flushes: dict[int, Flush] = {}
        count = 0
        for partition, reached in polled.reached.items():
            new = new_messages(polled.messages.get(partition, ()), self._reached[partition])
            # It may be reached without messages: those of aborted transactions are skipped, as are the marks of others' ends.
            if reached > self._have[partition]:
                batch = rows(new, self._address.format, self._address.topic, partition, now)
                flushes[partition] = Flush(self._stream(partition), reached, batch, self._have[partition])
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
        self._have |= {partition: flush.sequence for partition, flush in flushes.items()}
        self._reached |= polled.reached
        self._at_end = (self._at_end - polled.reached.keys()) | polled.at_end
        return count

    def _commit(self) -> int:
        return commit(self._home.catalog, self._source.name, self._location, lambda: self._home.gateway)

    def _stream(self, partition: int) -> str:
        return f"{self._source.id}/{partition}"

    def _note(self, key: str, value: str) -> None:
        self._source = self._home.catalog.sources.change(self._source, options={**self._source.options, key: value})


def _check_columns(source: Source, location: str) -> None:
    """Raises NotFoundError, InvalidStateError. Before the tail is opened, which would adapt itself to the table."""
    try:
        present = tail_columns(location)
    except NotFoundError:
        raise NotFoundError(f"The table {source.name} no longer exists.", f"Run: DROP TABLE {source.name}.") from None
    for wanted in COLUMNS:
        if wanted.name not in present.names or not present.field(wanted.name).type.equals(wanted.type):
            raise InvalidStateError(
                f"The table {source.name} has no column {wanted.name} of the type that messages need.",
                "Do not drop, rename or retype its columns; columns may be added.",
            )


def _replaced(source: Source, topic: str) -> InvalidStateError:
    return InvalidStateError(
        f"The topic {topic} was deleted and re-created, or truncated: its offsets do not match those in table {source.name}.",
        f"Read it into another table; or drop {source.name} and create it again.",
    )
