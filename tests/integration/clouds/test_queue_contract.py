"""The contract of every queue, run against every backend that has messages."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bodies import oss_body, s3_body
from tests.broker import Broker
from tests.clouds import Cloud, unused_name
from tests.waiting import eventually
from volstream.cloud import aws
from volstream.cloud.access import Access
from volstream.errors import InvalidValueError
from volstream.model.hints import KeyHint
from volstream.queues import QUEUE_TYPES, open_queue
from volstream.queues.base import EventQueue, Message, QueueSettings, QueueSpec
from volstream.queues.memory import MemoryQueue

SETTINGS = QueueSettings(debounce_seconds=0.02, poll_seconds=0.04, visibility_seconds=0.04)
PATIENT = QueueSettings(debounce_seconds=0.03, poll_seconds=0.05, visibility_seconds=60)


@dataclass
class Bench:
    """A queue, and how to cause something that it reports."""

    kind: str
    queue: EventQueue
    happen: Callable[[str], object]

    def receive(self, limit: int = 10) -> Sequence[Message]:
        """The next messages; waits until there are some."""
        received: Sequence[Message] = ()

        def something() -> bool:
            nonlocal received
            received = self.queue.receive(limit, 1)
            return bool(received)

        eventually(something)
        return received


Open = Callable[[QueueSettings], Bench]


#: In these a message that is not acknowledged comes back while its consumer lives.
IMPATIENT = ("local", "memory", "poll")


@pytest.fixture(params=[*IMPATIENT, "sqs", "mns", "kafka"])
def open_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    opened: list[EventQueue] = []

    def open_one(settings: QueueSettings) -> Bench:
        kind: str = request.param
        spec = QueueSpec(str(tmp_path), settings=dataclasses.replace(settings, wait_seconds=1))
        if kind == "sqs":
            bench = _sqs(request.getfixturevalue("s3"), spec)
        elif kind == "mns":
            bench = _mns(request.getfixturevalue("oss"), request.getfixturevalue("mns"), spec)
        elif kind == "kafka":
            bench = _kafka(request.getfixturevalue("broker"), spec)
        else:
            bench = Bench(kind, open_queue(kind, spec), lambda path: (tmp_path / path).write_bytes(b"x"))
        if isinstance(bench.queue, MemoryQueue):
            send = bench.queue.send
            bench.happen = lambda path: send(KeyHint(path))
        opened.append(bench.queue)
        return bench

    yield open_one
    for queue in opened:
        queue.stop()


def _sqs(s3: Cloud, spec: QueueSpec) -> Bench:
    client, name = aws.client(s3.access, "sqs"), unused_name()
    address = client.create_queue(QueueName=name)["QueueUrl"]
    queue = open_queue("sqs", dataclasses.replace(spec, name=name, access=s3.access))
    return Bench("sqs", queue, lambda path: client.send_message(QueueUrl=address, MessageBody=s3_body(path).decode()))


def _mns(oss: Cloud, server: Any, spec: QueueSpec) -> Bench:
    queue = server.make(unused_name())
    address = f"{server.url}/queues/{queue.name}"
    spec = dataclasses.replace(spec, name=address, access=oss.access)
    return Bench("mns", open_queue("mns", spec), lambda path: queue.send(oss_body(path).decode()))


def _kafka(broker: Broker, spec: QueueSpec) -> Bench:
    topic = broker.topic()
    spec = dataclasses.replace(spec, name=topic, properties={"bootstrap.servers": broker.address}, consumer="c")
    return Bench("kafka", open_queue("kafka", spec), lambda path: broker.send(topic, s3_body(path)))


def test_nothing_is_received_before_the_start(open_bench: Open) -> None:
    bench = open_bench(SETTINGS)
    bench.happen("a")
    assert not bench.queue.receive(10, 0.05)


def test_what_happens_after_the_start_is_received_and_can_be_read(open_bench: Open) -> None:
    bench = open_bench(PATIENT)
    bench.queue.start()
    bench.happen("a")
    for message in bench.receive():
        assert message.rejection is None
        assert message.hints


@pytest.mark.parametrize("open_bench", IMPATIENT, indirect=True)
def test_unacknowledged_deliveries_are_redelivered(open_bench: Open) -> None:
    bench = open_bench(SETTINGS)
    bench.queue.start()
    bench.happen("a")
    first = bench.receive()
    assert [message.hints for message in bench.receive()] == [message.hints for message in first]


def test_acknowledged_deliveries_are_not_redelivered(open_bench: Open) -> None:
    bench = open_bench(SETTINGS)
    bench.queue.start()
    bench.happen("a")
    receipts = {message.receipt for message in bench.receive()}
    messages = [Message(receipt) for receipt in receipts]
    bench.queue.acknowledge(messages)
    bench.queue.acknowledge(messages)
    again = bench.queue.receive(10, 2 * SETTINGS.visibility_seconds)
    assert not receipts & {message.receipt for message in again}


@pytest.mark.parametrize("open_bench", IMPATIENT, indirect=True)
def test_a_late_acknowledgement_counts(open_bench: Open) -> None:
    bench = open_bench(SETTINGS)
    bench.queue.start()
    bench.happen("a")
    first = bench.receive()
    bench.receive()
    bench.queue.acknowledge(first)
    again = bench.queue.receive(10, 2 * SETTINGS.visibility_seconds)
    assert not {message.receipt for message in first} & {message.receipt for message in again}


def test_deliveries_unacknowledged_at_a_stop_are_redelivered_after_the_next_start(open_bench: Open) -> None:
    bench = open_bench(PATIENT)
    bench.queue.start()
    bench.happen("a")
    first = bench.receive()
    bench.queue.stop()
    assert not bench.queue.receive(10, 0.05)
    bench.queue.start()
    assert {tuple(message.hints) for message in first} <= {tuple(message.hints) for message in bench.receive()}


def test_a_stop_wakes_a_blocked_receive_and_can_be_repeated(open_bench: Open) -> None:
    bench = open_bench(QueueSettings(poll_seconds=60))
    bench.queue.start()
    results: list[Sequence[Message]] = []
    thread = threading.Thread(target=lambda: results.append(bench.queue.receive(10, 60)), daemon=True)
    thread.start()
    bench.queue.stop()
    bench.queue.stop()
    thread.join(5)
    assert [list(result) for result in results] == [[]]


def test_receive_without_messages_waits_as_long_as_asked(open_bench: Open) -> None:
    bench = open_bench(QueueSettings(poll_seconds=60))
    bench.queue.start()
    began = time.monotonic()
    assert not bench.queue.receive(10, 0.05)
    assert 0.05 <= time.monotonic() - began < 5


def test_no_more_than_the_limit_is_received_at_once(open_bench: Open) -> None:
    bench = open_bench(PATIENT)
    bench.queue.start()
    for name in ("a", "b", "c"):
        bench.happen(name)
    if bench.kind != "poll":
        eventually(lambda: bench.queue.depth() == 3)
    assert len(bench.receive(limit=1)) == 1


def test_the_depth_is_a_number(open_bench: Open) -> None:
    bench = open_bench(PATIENT)
    assert bench.queue.depth() in (0, None)
    bench.queue.start()
    bench.happen("a")
    eventually(lambda: bench.queue.depth() == 1)
    bench.receive()
    assert bench.queue.depth() == 0


def test_a_queue_of_type_none_waits_and_delivers_nothing() -> None:
    queue = open_queue("none", QueueSpec("/"))
    queue.start()
    assert not queue.receive(10, 0.05)
    assert queue.depth() == 0
    threading.Timer(0.05, queue.stop).start()
    began = time.monotonic()
    assert not queue.receive(10, 60)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("queue_type", ["pigeons", ""])
def test_an_unknown_queue_type_is_rejected_with_the_known_ones(queue_type: str) -> None:
    with pytest.raises(InvalidValueError, match="not available in this version") as refused:
        open_queue(queue_type, QueueSpec("/"))
    assert ", ".join(QUEUE_TYPES) in str(refused.value)


def test_every_queue_type_can_be_opened() -> None:
    accesses = {"sqs": Access("s3"), "mns": Access("oss")}
    for queue_type in QUEUE_TYPES:
        spec = QueueSpec(
            "/",
            name="http://127.0.0.1:1/queues/q",
            access=accesses.get(queue_type),
            properties={"bootstrap.servers": "127.0.0.1:1"},
        )
        assert open_queue(queue_type, spec)


def test_a_watcher_rejects_a_location_that_is_not_a_directory() -> None:
    with pytest.raises(InvalidValueError, match="memory://x"):
        open_queue("local", QueueSpec("memory://x"))
