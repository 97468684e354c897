"""A Kafka topic to which MinIO, Ceph or another sender publishes events, in any format that ``webhook``
parses.

For each partition, the offset of the first unacknowledged message is committed to the brokers under a group.
The queue does not join the group: a volume's lease ensures a single keeper, and the next keeper need not wait
for a group to notice that the last one was killed. Not here: Kafka's client (``volstream.files.kafka``).
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

# Which offsets may be committed while messages are acknowledged in any order. Pure. Not thread-safe: callers
# hold their lock.


class PartitionOffsets:
    """The offsets of one partition.

    Args:
        start: the offset of the first message to be delivered.

    Attributes:
        next: the offset after the last one delivered, or skipped because it has no message.
    """

    def __init__(self, start: int) -> None:
        self.next = start
        self._order: deque[int] = deque()
        self._unacknowledged: set[int] = set()

    def deliver(self, offset: int) -> bool:
        """Records that a message is delivered. Returns False if it was delivered before."""
        if offset < self.next:
            return False
        self._order.append(offset)
        self._unacknowledged.add(offset)
        self.next = offset + 1
        return True

    def reach(self, offset: int) -> None:
        """Records that no further message comes before ``offset``."""
        self.next = max(self.next, offset)

    def acknowledge(self, offset: int) -> None:
        """Ends the delivery of a message. Idempotent. Ignores unknown offsets."""
        self._unacknowledged.discard(offset)
        while self._order and self._order[0] not in self._unacknowledged:
            self._order.popleft()

    @property
    def safe(self) -> int:
        """The offset at which a new reader misses nothing: that of the first unacknowledged message."""
        return self._order[0] if self._order else self.next


_log = get("queue")

#: Properties of a queue: brokers, separated by commas, and the group of committed offsets. The rest are
#: librdkafka's.
_BROKERS, _GROUP = "bootstrap.servers", "group.id"

#: How long a poll may delay a stop.
_SLICE_SECONDS = 0.1

#: Interval of checks that the brokers respond, that the topic is the same, and whether it has new partitions.
_CHECK_SECONDS = 10.0

#: Maximum age of the topic's end offsets in the depth, which the daemon reads twice a second.
_COUNT_SECONDS = 2.0


def address_of(name: str | None, properties: Mapping[str, str], consumer: str) -> TopicAddress:
    """Returns the address of a queue's topic, with the group of its committed offsets.

    Args:
        name: the topic.
        properties: the queue's, as in the catalog.
        consumer: identifies the queue's consumer. Names the group unless the properties do.

    Raises:
        InvalidValueError: topic or brokers are missing.
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
    """Delivers a topic's messages, each once per start. Unacknowledged ones return after the next start.

    Begins with messages sent after the group's first start. Locks: ``_committing`` keeps commits in order and
    is taken first. ``_reading`` is held while the client polls.
    """

    def __init__(self, spec: QueueSpec) -> None:
        self._address = address_of(spec.name, spec.properties, spec.consumer)
        self._committing = threading.Lock()
        self._reading = threading.Lock()
        self._run: _Run | None = None
        self._trouble: QueueError | None = None  # why the topic could not be checked
        self._next_check = 0.0
        self._ends: Mapping[int, int] | None = None
        self._next_count = 0.0

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
        self._trouble, self._next_check, self._next_count = None, time.monotonic() + _CHECK_SECONDS, 0.0
        self._run = run

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`. May wait for a check of the topic, up to five seconds."""
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
                self._check_topic(run)
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
        """See :meth:`EventQueue.depth`. Known while the queue is started. Up to two seconds old."""
        run = self._run
        if run is None:
            return None
        if time.monotonic() >= self._next_count:
            try:
                self._ends = run.ends()
            except (BrokerError, NotFoundError):  # ``receive`` raises it
                self._ends = None
            self._next_count = time.monotonic() + _COUNT_SECONDS
        return None if self._ends is None else _behind(self._ends, run.nexts())

    def describe(self) -> QueueState:
        """See :meth:`SelfDescribing.describe`. All unacknowledged messages count as waiting."""
        with _errors(), self._address.reader() as reader:
            partitions = reader.topic().partitions
            waiting = _behind(reader.bounds(partitions)[1], reader.committed(partitions))
            return QueueState(waiting, None, None, reader.retention_seconds())

    def _check_topic(self, run: _Run) -> None:
        """Checks the topic when it is due or the client complains. Raises QueueError on the first failure."""
        complains = self._trouble is None and run.reader.complaint is not None
        if time.monotonic() < self._next_check and not complains:
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
            self._next_check = time.monotonic() + _CHECK_SECONDS


class _Run:
    """The state between a start and a stop.

    Any thread may call ``acknowledge``, ``ends`` and ``nexts``. Only one thread may call the rest.

    Args:
        topic: the current topic.

    Raises:
        BrokerError, NotFoundError: the topic is unreachable, or offsets cannot be committed.
    """

    def __init__(self, reader: TopicReader, topic: Topic) -> None:
        self.reader = reader
        self._topic = topic
        self._changed = threading.Lock()  # guards offsets; never held during a request
        first, ends = reader.bounds(topic.partitions)
        self._committed = dict(reader.committed(topic.partitions))
        # In a known group, a partition without an offset is new.
        starts = {**(first if self._committed else ends), **self._committed}
        self._offsets = {partition: PartitionOffsets(starts[partition]) for partition in topic.partitions}
        self._found: list[Message] = []  # hints that come from no message
        self._is_assigned = False
        self._assign()
        self._commit()

    def follow(self, topic: Topic) -> None:
        """Takes over new partitions, or a recreated topic of the same name, in which everything is new."""
        if topic != self._topic:
            if topic.id != self._topic.id:
                with self._changed:
                    self._offsets, self._committed = {}, {}
                    self._found.append(self._lost(-1, -1))
            self._topic, self._is_assigned = topic, False

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """Returns the next messages. Continues at the same offsets after an error."""
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
        """Ends the delivery of messages and commits the new safe offsets."""
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
        """Assigns the next offsets. Restarts at the first message if the brokers deleted the next one."""
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
    """Returns the number of messages at and after the offsets. Partitions without an offset do not count."""
    return sum(max(0, end - nexts.get(partition, end)) for partition, end in ends.items())


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (BrokerError, NotFoundError) as error:
        raise QueueError(error.message, error.remedy) from error
