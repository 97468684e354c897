"""A topic as a volume's queue: which offsets it commits, which events it cannot deliver, and what it reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.bodies import s3_body
from tests.broker import Broker, running
from tests.integration.files.kafka.conftest import Kept
from tests.waiting import eventually
from volstream.api.objects.sql import rows as rows_of
from volstream.base.model.hints import KeyHint, ObjectHint, SubtreeHint
from volstream.base.model.work import CheckState
from volstream.errors import InvalidValueError, QueueError
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.kafka import KafkaQueue
from volstream.ops.inspection.doctor import examine

GROUP = "volstream-c"

Open = Callable[..., KafkaQueue]


@pytest.fixture
def opened(broker: Broker) -> Iterator[Open]:
    queues: list[KafkaQueue] = []

    def open_one(topic: str, address: str = "", **properties: str) -> KafkaQueue:
        reached = {"bootstrap.servers": address or broker.address, **properties}
        queue = KafkaQueue(QueueSpec("/files", name=topic, properties=reached, consumer="c"))
        queues.append(queue)
        queue.start()
        return queue

    yield open_one
    for queue in queues:
        queue.stop()


def received(queue: KafkaQueue, count: int) -> list[Message]:
    """The next messages, at least so many."""
    found: list[Message] = []

    def enough() -> bool:
        found.extend(queue.receive(100, 1))
        return len(found) >= count

    eventually(enough, 30)
    return found


def paths(*names: str) -> list[str]:
    return [json.dumps({"path": name}) for name in names]


def hints(messages: list[Message]) -> list[Any]:
    return [hint for message in messages for hint in message.hints]


def test_events_of_every_form_are_hints_and_others_are_rejected(broker: Broker, opened: Open) -> None:
    topic = broker.topic()
    queue = opened(topic)
    minio = {"EventName": "s3:ObjectCreated:Put", "Key": "photos/a b", **json.loads(s3_body("a b"))}
    broker.send(topic, s3_body("a"), json.dumps(minio), *paths("p"), "no event", None)
    messages = received(queue, 5)
    assert hints(messages) == [ObjectHint("photos", "a"), ObjectHint("photos", "a b"), ObjectHint("photos", "a+b"), KeyHint("p")]
    assert [message.rejection is not None for message in messages] == [False, False, False, True, True]


def test_offsets_are_committed_up_to_the_first_message_that_is_not_acknowledged(broker: Broker, opened: Open) -> None:
    topic = broker.topic(2)
    broker.send(topic, *paths("before"))
    queue = opened(topic)
    assert broker.committed(topic, GROUP) == 1, "what was sent before is not its"
    broker.send(topic, *paths("a", "b", "c"))
    broker.send(topic, *paths("d"), partition=1)
    messages = {message.hints[0]: message for message in received(queue, 4)}
    a, b, c, d = (messages[KeyHint(name)] for name in "abcd")
    queue.acknowledge([b, d])
    assert (broker.committed(topic, GROUP), broker.committed(topic, GROUP, 1)) == (1, 1)
    queue.acknowledge([a])
    assert broker.committed(topic, GROUP) == 3
    assert queue.describe().waiting == 1
    queue.acknowledge([c])
    assert (broker.committed(topic, GROUP), queue.describe().waiting) == (4, 0)


def test_another_consumer_goes_on_with_what_was_not_acknowledged(broker: Broker, opened: Open) -> None:
    topic = broker.topic()
    first = opened(topic)
    broker.send(topic, *paths("a", "b"))
    a, _ = received(first, 2)
    first.acknowledge([a])
    broker.send(topic, *paths("c"))
    # The first one never stops, as if its process were frozen; the second does not wait for it.
    assert hints(received(opened(topic), 2)) == [KeyHint("b"), KeyHint("c")]


def test_the_group_may_be_named(broker: Broker, opened: Open) -> None:
    topic = broker.topic()
    opened(topic, **{"group.id": "mine"})
    assert (broker.committed(topic, "mine"), broker.committed(topic, GROUP)) == (0, None)


def test_the_volume_is_listed_when_the_brokers_have_deleted_events(broker: Broker, opened: Open) -> None:
    topic = broker.topic()
    queue = opened(topic)
    broker.send(topic, *paths(*map(str, range(10))))
    queue.acknowledge(received(queue, 10)[:5])
    queue.stop()
    broker.cut(topic, 0, 8)
    queue.start()
    messages = received(queue, 3)
    assert hints(messages) == [SubtreeHint("", "events lost"), KeyHint("8"), KeyHint("9")]
    queue.acknowledge(messages[1:])
    queue.stop()
    queue.start()
    assert hints(received(queue, 1))[0] == SubtreeHint("", "events lost"), "the listing was not acknowledged"


@pytest.mark.long
def test_a_topic_that_is_made_anew_or_grows_is_read_from_its_beginning(broker: Broker, opened: Open) -> None:
    topic = broker.topic()
    queue = opened(topic)
    broker.send(topic, *paths("a", "b"))
    old = received(queue, 2)
    broker.delete(topic)
    broker.topic(name=topic)
    broker.send(topic, *paths("c", "d", "e"))
    found: list[Any] = []

    def complete() -> bool:
        try:
            found.extend(hints([*queue.receive(100, 1)]))
        except QueueError:  # the topic does not exist at the moment
            return False
        return {SubtreeHint("", "events lost"), *map(KeyHint, "cde")} <= {*found}

    eventually(complete, 40)
    queue.acknowledge(old)
    assert broker.committed(topic, GROUP) in (0, None), "receipts of the old topic say nothing about the new one"
    broker.add_partitions(topic, 2)
    broker.send(topic, *paths("f"), partition=1)
    assert hints(received(queue, 1)) == [KeyHint("f")]


@pytest.mark.long
def test_an_empty_group_is_refused(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for value in ("", f"${{file:{tmp_path}/empty}}"):
        properties = {"bootstrap.servers": broker.address, "group.id": value}
        queue = KafkaQueue(QueueSpec("/", name="topic", properties=properties, consumer="c"))
        with pytest.raises(InvalidValueError, match=r"group\.id is empty"):
            queue.start()


@pytest.mark.long
def test_brokers_that_are_away_are_told_and_read_on_when_they_are_back(opened: Open) -> None:
    with running() as own:
        topic = own.topic()
        queue = opened(topic, own.address)
        own.send(topic, *paths("a"))
        [a] = received(queue, 1)
        own.stop()
        with pytest.raises(QueueError, match="do not answer"):
            received(queue, 1)
        with pytest.raises(QueueError):
            queue.receive(10, 0.1)
        with pytest.raises(QueueError):
            queue.acknowledge([a])
        assert queue.depth() is None
        own.start()
        own.send(topic, *paths("b"))
        found: list[Any] = []

        def is_back() -> bool:
            try:
                found.extend(hints([*queue.receive(10, 0.5)]))
            except QueueError:
                return False
            return found == [KeyHint("b")]

        eventually(is_back, 40)

        def is_committed() -> bool:
            with suppress(QueueError):
                queue.acknowledge([a])
            return own.committed(topic, GROUP) == 1

        eventually(is_committed, 40)
        queue.stop()


def test_a_volume_needs_a_topic_that_is_there_and_doctor_looks_at_it(kept: Kept, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    broker, volumes = kept.broker, kept.session.volumes
    brokers = {"bootstrap.servers": broker.address}
    with pytest.raises(QueueError, match="There is no topic nowhere"):
        volumes.create("v", str(files), queue_type="kafka", queue_name="nowhere", queue_properties=brokers)
    topic = broker.topic(1, None, **{"retention.ms": "60000"})
    rows_of(
        kept.session,
        f"CREATE EXTERNAL VOLUME v LOCATION '{files}' NOTIFICATION = "
        f"(QUEUE_TYPE = 'KAFKA', QUEUE_NAME = '{topic}', 'bootstrap.servers' = '{broker.address}')",
    )
    assert volumes.get("v").queue_properties == brokers
    checks = {check.what: check for check in examine(kept.session.home, "v")}
    assert checks["queue"].said == f"{topic}: 0 waiting"
    assert checks["retention"].state is CheckState.WARNING
    assert checks["wiring"].state is CheckState.SKIPPED
