"""The contract of every queue, run against every backend that has messages."""

from __future__ import annotations

import base64
import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.storage.queue import QueueClient

from tests.bodies import azure_body, gcs_body, oss_body, s3_body
from tests.broker import Broker
from tests.clouds import Cloud, PubSub, azure_queue, unused_name
from tests.memory import MemoryQueue
from tests.servers import AZURE_ACCOUNT, AZURE_KEY, each
from volstream.base.definitions import QueueType
from volstream.base.model.hints import KeyHint
from volstream.errors import InvalidValueError
from volstream.files.providers.access import Access
from volstream.files.providers.aws import credentials
from volstream.files.queues import open_queue
from volstream.files.queues.base import AnnouncedQueue, EventQueue, QueueSettings, QueueSpec
from volstream.testing import OpenBench, QueueBench, QueueContract


class TestQueues(QueueContract):
    @pytest.fixture(
        params=["local", "memory", "announced", "poll", *each("moto", "mns", "kafka", "localstack", "pubsub", "azurite")]
    )
    def open_bench(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenBench]:
        opened: list[EventQueue] = []

        def open_one(settings: QueueSettings) -> QueueBench:
            kind: str = request.param
            spec = QueueSpec(str(tmp_path), settings=settings)
            if kind in ("moto", "localstack"):
                bench = _sqs(request.getfixturevalue(kind), spec)
            elif kind == "mns":
                bench = _mns(request.getfixturevalue("oss"), request.getfixturevalue("mns"), spec)
            elif kind == "azurite":
                bench = _azure(request.getfixturevalue(kind), spec)
            elif kind == "pubsub":
                bench = _pubsub(request.getfixturevalue("pubsub"), spec)
            elif kind == "kafka":
                bench = _kafka(request.getfixturevalue("broker"), spec)
            else:
                bench = QueueBench(
                    open_queue("memory" if kind == "announced" else kind, spec),
                    lambda path: (tmp_path / path).write_bytes(b"x"),
                    redelivers=True,
                    counts=kind != "poll",
                )
            if isinstance(bench.queue, MemoryQueue):
                send = bench.queue.send
                bench.happen = lambda path: send(KeyHint(path))
                if kind == "announced":
                    bench.queue = AnnouncedQueue(bench.queue)
            opened.append(bench.queue)
            return bench

        yield open_one
        for queue in opened:
            queue.stop()


def _sqs(cloud: Cloud, spec: QueueSpec) -> QueueBench:
    client, name = credentials.client(cloud.access, "sqs"), unused_name()
    address = client.create_queue(QueueName=name)["QueueUrl"]
    queue = open_queue("sqs", dataclasses.replace(spec, name=name, access=cloud.access))
    return QueueBench(queue, lambda path: client.send_message(QueueUrl=address, MessageBody=s3_body(path).decode()))


def _mns(oss: Cloud, server: Any, spec: QueueSpec) -> QueueBench:
    queue = server.make(unused_name())
    address = f"{server.url}/queues/{queue.name}"
    spec = dataclasses.replace(spec, name=address, access=oss.access)
    return QueueBench(open_queue("mns", spec), lambda path: queue.send(oss_body(path).decode()))


def _azure(cloud: Cloud, spec: QueueSpec) -> QueueBench:
    address = azure_queue(cloud, unused_name())

    def happen(path: str) -> None:
        with QueueClient.from_queue_url(address, {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}) as client:
            client.send_message(base64.b64encode(azure_body(path)).decode())

    return QueueBench(open_queue("storagequeue", dataclasses.replace(spec, name=address, access=cloud.access)), happen)


def _pubsub(server: PubSub, spec: QueueSpec) -> QueueBench:
    topic = server.make(unused_name())
    spec = dataclasses.replace(spec, name=topic.subscription, access=Access("gs"))
    return QueueBench(open_queue("pubsub", spec), lambda path: topic.send(gcs_body(path)))


def _kafka(broker: Broker, spec: QueueSpec) -> QueueBench:
    topic = broker.topic()
    spec = dataclasses.replace(spec, name=topic, properties={"bootstrap.servers": broker.address}, consumer="c")
    return QueueBench(open_queue("kafka", spec), lambda path: broker.send(topic, s3_body(path)))


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
    assert ", ".join(QueueType) in str(refused.value)


def test_every_queue_type_can_be_opened() -> None:
    accesses = {"sqs": Access("s3"), "mns": Access("oss"), "pubsub": Access("gs"), "storagequeue": Access("az")}
    for queue_type in QueueType:
        spec = QueueSpec(
            "/",
            name="http://127.0.0.1:1/projects/p/subscriptions/sub"
            if queue_type == "pubsub"
            else "http://127.0.0.1:1/queues/queue",
            access=accesses.get(queue_type),
            properties={"bootstrap.servers": "127.0.0.1:1"},
        )
        assert open_queue(queue_type, spec)


def test_a_watcher_rejects_a_location_that_is_not_a_directory() -> None:
    with pytest.raises(InvalidValueError, match="memory://x"):
        open_queue("local", QueueSpec("memory://x"))
