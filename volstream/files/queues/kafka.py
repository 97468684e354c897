"""A Kafka topic to which MinIO, Ceph or another sender publishes events, in any form that ``webhook`` parses.

The offset of the first unacknowledged message of each partition is committed to the brokers, for a group. It is not joined: a
volume has one keeper at a time, by its lease, and the next one need not wait until a killed one is missed.
What does not belong here: Kafka's client (``volstream.files.kafka``), which offset is safe (``offsets``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from volstream.base.log import get
from volstream.base.model.hints import SubtreeHint
from volstream.errors import BrokerError, InvalidValueError, NotFoundError, QueueError
from volstream.files.kafka.address import TopicAddress
from volstream.files.queues.base import Message, QueueSpec, QueueState
from volstream.files.queues.bodies import parse

if TYPE_CHECKING:
    from volstream.files.kafka.client import PollResult, Topic, TopicReader

# Up to where the messages of a topic may be committed, while they are acknowledged in any order. Pure.
#
# What does not belong here: requests to the brokers (``kafka``). Not thread-safe: callers hold their lock.


class PartitionOffsets:
    """The offsets of one partition.

    Args:
        start: the offset of the first message to be delivered.

    Attributes:
        next: the offset after the last one that was delivered, or passed because there is nothing at it.
    """

    def __init__(self, start: int) -> None:
        self.next = start
        self._order: deque[int] = deque()
        self._unacknowledged: set[int] = set()

    def deliver(self, offset: int) -> bool:
        """Notes that a message is delivered. False: it was before."""
        if offset < self.next:
            return False
        self._order.append(offset)
        self._unacknowledged.add(offset)
        self.next = offset + 1
        return True

    def reach(self, offset: int) -> None:
        """Notes that no message comes before ``offset``."""
        self.next = max(self.next, offset)

    def acknowledge(self, offset: int) -> None:
        """Ends the delivery of a message. Idempotent; others are ignored."""
        self._unacknowledged.discard(offset)
        while self._order and self._order[0] not in self._unacknowledged:
            self._order.popleft()

    @property
    def safe(self) -> int:
        """The offset from which on a reader that starts anew misses nothing: that of the first unacknowledged message."""
        return self._order[0] if self._order else self.next


_log = get("queue")

#: Properties of a queue: brokers, separated by commas, and the group for which offsets are committed. Others are librdkafka's.
_BROKERS, _GROUP = "bootstrap.servers", "group.id"

#: How long a poll keeps a stop waiting.
_SLICE_SECONDS = 0.1

#: Interval of looks at the topic: whether the brokers answer, it is still the same, and has new partitions.
_LOOK_SECONDS = 10.0

#: Maximum age of the topic's end in the depth: the daemon asks for it twice a second.
_COUNT_SECONDS = 2.0


def address_of(name: str | None, properties: Mapping[str, str], consumer: str) -> TopicAddress:
    """Returns where a queue's topic is, with the group for which offsets are committed.

    Args:
        name: the topic.
        properties: the queue's, as the catalog has them.
        consumer: identifies the queue's consumer; its group is named after it, unless the properties name one.

    Raises:
        InvalidValueError: there is no topic, or there are no brokers.
    """
    if not name or not properties.get(_BROKERS):
        raise InvalidValueError(
            f"A queue of the type kafka needs {'the property ' + _BROKERS if name else 'a queue name, which is the topic'}.",
            f"Give for example --queue-name events --queue-property {_BROKERS}=localhost:9092.",
        )
    brokers = tuple(broker.strip() for broker in properties[_BROKERS].split(","))
    others = {key: value for key, value in properties.items() if key != _BROKERS}
    return TopicAddress(brokers, name, {_GROUP: f"volstream-{consumer}", **others})


class KafkaQueue:
    """Delivers a topic's messages, each once while it is started; those that were not acknowledged again after the next start.

    Begins with what is sent after the group's first start. Locks: ``_committing`` keeps commits in order, and is taken first;
    ``_reading`` is held while the client polls.
    """

    def __init__(self, spec: QueueSpec) -> None:
        self._address = address_of(spec.name, spec.properties, spec.consumer)
        self._committing = threading.Lock()
        self._reading = threading.Lock()
        self._run: _Run | None = None
        self._trouble: QueueError | None = None  # why the topic could not be looked at
        self._looks_at = 0.0
        self._ends: Mapping[int, int] | None = None
        self._counts_at = 0.0

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        if self._run is not None:
            return
        with _errors():
            reader = self._address.reader()
            try:
                run = _Run(reader, reader.topic())
            except BaseException:
                reader.close()
                raise
        self._trouble, self._looks_at, self._counts_at = None, time.monotonic() + _LOOK_SECONDS, 0.0
        self._run = run

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`. Waits for a look at the topic, which takes five seconds if no broker answers."""
        run, self._run = self._run, None
        if run is not None:
            with self._reading:
                run.reader.close()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See :meth:`EventQueue.receive`."""
        deadline = time.monotonic() + wait_seconds
        while True:
            with self._reading:
                run = self._run
                if run is None:
                    return ()
                self._look(run)
                with _errors():
                    messages = run.receive(limit, max(0.0, min(deadline - time.monotonic(), _SLICE_SECONDS)))
            if messages:
                self._trouble = None
                return messages
            if time.monotonic() >= deadline:
                if self._trouble is not None:
                    raise self._trouble
                return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""
        run = self._run
        if run is None:
            return
        with self._committing, _errors():
            run.acknowledge([message.receipt for message in messages])

    def depth(self) -> int | None:
        """See :meth:`EventQueue.depth`. Known while it is started; up to two seconds old."""
        run = self._run
        if run is None:
            return None
        if time.monotonic() >= self._counts_at:
            try:
                self._ends = run.ends()
            except (BrokerError, NotFoundError):  # ``receive`` raises it
                self._ends = None
            self._counts_at = time.monotonic() + _COUNT_SECONDS
        return None if self._ends is None else _behind(self._ends, run.nexts())

    def describe(self) -> QueueState:
        """See :meth:`SelfDescribing.describe`. All messages that are not acknowledged are waiting."""
        with _errors(), self._address.reader() as reader:
            partitions = reader.topic().partitions
            waiting = _behind(reader.bounds(partitions)[1], reader.committed(partitions))
            return QueueState(waiting, None, None, reader.retention_seconds())

    def _look(self, run: _Run) -> None:
        """Looks at the topic when it is time to, or the client complains. Raises QueueError when it fails for the first time."""
        complains = self._trouble is None and run.reader.complaint is not None
        if time.monotonic() < self._looks_at and not complains:
            return
        known, self._trouble = self._trouble, None
        try:
            with _errors():
                run.follow(run.reader.topic())
        except QueueError as error:
            self._trouble = error
            if known is None:
                raise
        finally:
            self._looks_at = time.monotonic() + _LOOK_SECONDS


class _Run:
    """What is known between a start and a stop. ``acknowledge``, ``ends`` and ``nexts`` are for any thread, the rest for one.

    Args:
        topic: as it is now.

    Raises:
        BrokerError, NotFoundError: the topic cannot be reached, or offsets not be committed.
    """

    def __init__(self, reader: TopicReader, topic: Topic) -> None:
        self.reader = reader
        self._topic = topic
        self._changed = threading.Lock()  # guards offsets; never held during a request
        first, ends = reader.bounds(topic.partitions)
        self._committed = dict(reader.committed(topic.partitions))
        # Of a group that is known, a partition without an offset is new.
        starts = {**(first if self._committed else ends), **self._committed}
        self._offsets = {partition: PartitionOffsets(starts[partition]) for partition in topic.partitions}
        self._found: list[Message] = []  # hints that come from no message
        self._is_assigned = False
        self._assign()
        self._commit()

    def follow(self, topic: Topic) -> None:
        """Takes note of new partitions; and of a topic of the same name, of which everything is new."""
        if topic != self._topic:
            if topic.id != self._topic.id:
                with self._changed:
                    self._offsets, self._committed = {}, {}
                    self._found.append(self._lost(-1, -1))
            self._topic, self._is_assigned = topic, False

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """Returns the next messages. After an error it goes on where it was."""
        if not self._is_assigned:
            self._assign()
        if self._found:
            found, self._found = self._found, []
            return found
        self._is_assigned = False  # a poll that fails may have taken messages from the client
        polled = self.reader.take(limit, wait_seconds)
        self._is_assigned = not polled.out_of_range
        with self._changed:
            return self._delivered(polled)

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Ends the delivery of messages, and commits what follows from that."""
        with self._changed:
            for receipt in receipts:
                topic, partition, offset = receipt.rsplit("/", 2)
                if topic == str(self._topic.id) and int(partition) in self._offsets:
                    self._offsets[int(partition)].acknowledge(int(offset))
        self._commit()

    def ends(self) -> Mapping[int, int]:
        """Returns the offset after the last message of each partition."""
        return self.reader.bounds(self._topic.partitions)[1]

    def nexts(self) -> Mapping[int, int]:
        """Returns the offset of the next message to be delivered, by partition."""
        with self._changed:
            return {partition: offsets.next for partition, offsets in self._offsets.items()}

    def _assign(self) -> None:
        """Assigns the next offsets; restarts at the first message if the brokers have deleted the next one."""
        first, ends = self.reader.bounds(self._topic.partitions)
        with self._changed:
            for partition in self._topic.partitions:
                offsets = self._offsets.setdefault(partition, PartitionOffsets(first[partition]))
                if not first[partition] <= offsets.next <= ends[partition]:
                    offsets = self._offsets[partition] = PartitionOffsets(first[partition] - 1)
                    self._committed.pop(partition, None)
                    offsets.deliver(first[partition] - 1)
                    self._found.append(self._lost(partition, first[partition] - 1))
        self.reader.assign(self.nexts())
        self._is_assigned = True

    def _commit(self) -> None:
        with self._changed:
            safe = {partition: offsets.safe for partition, offsets in self._offsets.items()}
            due = {key: offset for key, offset in safe.items() if offset >= 0 and offset != self._committed.get(key)}
        if due:
            self.reader.commit(due)
            with self._changed:
                self._committed |= due

    def _delivered(self, polled: PollResult) -> list[Message]:
        delivered = []
        for partition, messages in polled.messages.items():
            for message in messages:
                offset = message.offset()
                assert offset is not None, "it comes from a partition"
                if self._offsets[partition].deliver(offset):
                    receipt = self._receipt(partition, offset)
                    delivered.append(Message.of(receipt, parse(message.value() or b"")))
        for partition, reached in polled.reached.items():
            self._offsets[partition].reach(reached)
        return delivered

    def _lost(self, partition: int, offset: int) -> Message:
        _log.warning("events_lost", partition=partition, before=offset + 1, consequence="the volume is listed")
        return Message(self._receipt(partition, offset), (SubtreeHint("", "events lost"),))

    def _receipt(self, partition: int, offset: int) -> str:
        return f"{self._topic.id}/{partition}/{offset}"


def _behind(ends: Mapping[int, int], nexts: Mapping[int, int]) -> int:
    """Returns how many messages are from the offsets on; of a partition without one, none."""
    return sum(max(0, end - nexts.get(partition, end)) for partition, end in ends.items())


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (BrokerError, NotFoundError) as error:
        raise QueueError(error.message, error.remedy) from error
