"""SQS and MNS through their SDKs: over servers of SQS, and over the stand-in under ``localstack/``."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import aiohttp
import botocore.exceptions
import pytest
from botocore.stub import Stubber

from tests.bodies import oss_body
from tests.clouds import Cloud, unused_name
from tests.servers import each
from tests.waiting import eventually
from volstream.base.model.hints import ObjectHint
from volstream.errors import InvalidValueError, QueueError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.alibaba.queue import MnsService, address
from volstream.files.providers.aws import credentials
from volstream.files.providers.aws.queue import SqsService
from volstream.files.queues import open_queue, remote
from volstream.files.queues.base import Message, QueueSettings, QueueSpec, SelfDescribing
from volstream.files.queues.remote import RemoteQueue

SHORT = QueueSettings(visibility_seconds=1, wait_seconds=1)
LONG = QueueSettings(visibility_seconds=600, wait_seconds=1)


@dataclass
class Place:
    """A queue at a provider, and how it is opened here."""

    kind: str
    spec: QueueSpec
    send: Callable[[str], object]
    open: Callable[[QueueSettings], RemoteQueue]

    def in_flight(self) -> int:
        """The messages the provider has."""
        return self._counts()[1]

    def left(self) -> int:
        """The messages the provider has, in flight or not."""
        return sum(self._counts())

    def _counts(self) -> tuple[int, int]:
        state = self.open(LONG).describe()
        assert state.waiting is not None
        assert state.in_flight is not None
        return state.waiting, state.in_flight


@pytest.fixture(params=each("moto", "mns", "localstack"))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    opened: list[RemoteQueue] = []
    name = unused_name()
    kind = "mns" if request.param == "mns" else "sqs"
    if kind == "sqs":
        cloud: Cloud = request.getfixturevalue(request.param)
        client = credentials.client(cloud.access, "sqs")
        address = client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "1"})["QueueUrl"]
        spec = QueueSpec("s3://photos/in", name=name, access=cloud.access)
    else:
        queue = request.getfixturevalue("mns").make(name, VisibilityTimeout=1)
        url = request.getfixturevalue("mns").url
        access = request.getfixturevalue("oss").access
        spec = QueueSpec("oss://photos/in", name=f"{url}/queues/{name}", access=access)

    def send(body: str) -> object:
        return client.send_message(QueueUrl=address, MessageBody=body) if kind == "sqs" else queue.send(body)

    def open_one(settings: QueueSettings) -> RemoteQueue:
        made = open_queue(kind, dataclasses.replace(spec, settings=settings))
        assert isinstance(made, RemoteQueue)
        opened.append(made)
        return made

    yield Place(kind, spec, send, open_one)
    for queue_here in opened:
        queue_here.stop()


def take(queue: RemoteQueue, count: int) -> list[Message]:
    """The next ``count`` messages."""
    messages: list[Message] = []

    def enough() -> bool:
        messages.extend(queue.receive(100, 0.2))
        return len(messages) >= count

    eventually(enough)
    return messages


def test_more_than_one_batch_is_received_and_deleted(place: Place) -> None:
    for number in range(35):
        place.send(f"body {number} ü")
    queue = place.open(dataclasses.replace(LONG, pollers=2))
    queue.start()
    messages = take(queue, 35)
    assert {message.rejection.subject for message in messages if message.rejection} == {
        f"body {number} ü" for number in range(35)
    }
    queue.acknowledge(messages)
    assert place.left() == 0


def test_requests_wait_without_a_thread_until_their_signatures_get_old(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*threading.enumerate()}
    queue = place.open(dataclasses.replace(SHORT, pollers=2))
    # What is refused without a thread, such as a wrong signature, is requested by one, which gets nothing here.
    monkeypatch.setattr(type(queue._service), "receive", lambda *_: ())
    queue.start()
    eventually(lambda: not [one for one in {*threading.enumerate()} - before if one.name == "queue"])
    place.send("one")
    queue.acknowledge(take(queue, 1))
    monkeypatch.setattr(remote, "_SIGNED_SECONDS", 0.0)  # each request is signed anew
    for _ in range(3):
        place.send("more")
        queue.acknowledge(take(queue, 1))
    assert place.left() == 0


def test_what_the_event_loop_cannot_request_a_thread_requests(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def fail(*request: object, **more: object) -> None:
        asked.append(request)
        raise aiohttp.ClientError("a proxy that only the SDK knows how to pass")

    monkeypatch.setattr(aiohttp.ClientSession, "request", fail)
    queue = place.open(SHORT)
    queue.start()
    place.send("one")
    queue.acknowledge(take(queue, 1))
    assert asked
    assert place.left() == 0


def test_messages_stay_invisible_to_others_during_a_commit_longer_than_their_visibility_timeout(place: Place) -> None:
    for number in range(3):
        place.send(f"body {number}")
    queue, other = place.open(SHORT), place.open(SHORT)
    queue.start()
    messages = take(queue, 3)
    other.start()
    assert not other.receive(10, 1.4)
    queue.acknowledge(messages)
    assert place.left() == 0


def test_a_stop_makes_unacknowledged_messages_available_to_others_at_once(place: Place) -> None:
    for number in range(12):
        place.send(f"body {number}")
    queue, other = place.open(LONG), place.open(LONG)
    queue.start()
    eventually(lambda: place.in_flight() == 12)
    queue.acknowledge(queue.receive(2, 1))
    queue.receive(1, 1)
    queue.stop()
    other.start()
    other.acknowledge(take(other, 10))
    assert place.left() == 0


def test_a_message_deleted_elsewhere_is_not_a_failure(place: Place) -> None:
    place.send("body")
    queue = place.open(SHORT)
    queue.start()
    messages = take(queue, 1)
    service = SqsService(place.spec) if place.kind == "sqs" else MnsService(place.spec)
    service.open()
    handles = list(queue._received.handles([messages[0].receipt]).values())
    assert not service.delete(handles)
    assert not service.delete(handles)
    queue.acknowledge(messages)


def test_a_missing_queue_is_an_error_with_a_remedy(place: Place) -> None:
    spec = dataclasses.replace(place.spec, name=f"{place.spec.name}-missing")
    queue = open_queue(place.kind, spec)
    with pytest.raises(QueueError, match="-missing") as error:
        queue.start()
    assert "queue name" in error.value.remedy
    assert queue.depth() is None
    assert not queue.receive(1, 0)


def test_a_queue_describes_its_state_at_the_provider(place: Place) -> None:
    place.send("body")
    queue = place.open(LONG)
    assert isinstance(queue, SelfDescribing)
    state = queue.describe()
    assert (state.waiting, state.in_flight, state.visibility_seconds) == (1, 0, 1.0)
    assert state.retention_seconds == 345_600
    assert (state.dead_letter_queue, state.max_receives) == ("", None)


def test_a_dead_letter_queue_of_mns_is_reported_and_receives_unacknowledged_messages(oss: Cloud, mns: Any) -> None:
    at, dead = mns.make(unused_name(), VisibilityTimeout=1), mns.make(unused_name())
    at.dead_letters, at.most_receives = dead, 2
    spec = QueueSpec("oss://photos", settings=LONG, name=f"{mns.url}/queues/{at.name}", access=oss.access)
    service = MnsService(spec)
    state = service.describe()
    assert (state.dead_letter_queue, state.max_receives) == (dead.name, 2)
    at.send("poison")
    for _ in range(2):
        (delivery,) = service.receive(1, 1)
        service.keep([delivery.handle], 0)
    assert not service.receive(1, 0)
    assert (at.counts(), dead.counts()) == ((0, 0), (1, 0))


@pytest.mark.parametrize("kind", ["sqs", "mns"])
def test_a_volume_without_a_queue_or_a_connection_is_rejected(kind: str) -> None:
    with pytest.raises(InvalidValueError, match="no name or connection"):
        open_queue(kind, QueueSpec("s3://photos/in", name="q"))


def test_a_dead_letter_queue_is_reported(sqs: Cloud) -> None:
    client, name = credentials.client(sqs.access, "sqs"), unused_name()
    dead = client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "20"})
    client.create_queue(QueueName=name, Attributes={"RedrivePolicy": policy})
    state = SqsService(QueueSpec("s3://photos/in", name=name, access=sqs.access)).describe()
    assert (state.dead_letter_queue, state.max_receives) == (f"{name}-dead", 20)


def test_a_server_that_reports_no_retention_describes_its_queue(sqs: Cloud) -> None:
    # ElasticMQ, for one.
    attributes = {"ApproximateNumberOfMessages": "3", "ApproximateNumberOfMessagesNotVisible": "1", "VisibilityTimeout": "30"}
    with Stubber(credentials.client(sqs.access, "sqs", "http://127.0.0.1:1")) as stubber:
        stubber.add_response("get_queue_attributes", {"Attributes": attributes})
        state = SqsService(QueueSpec("s3://photos/in", name="http://127.0.0.1:1/0/q", access=sqs.access)).describe()
    assert (state.waiting, state.in_flight, state.retention_seconds) == (3, 1, None)


def test_a_queue_of_sqs_may_be_given_by_its_url(sqs: Cloud) -> None:
    url = credentials.client(sqs.access, "sqs").create_queue(QueueName=unused_name())["QueueUrl"]
    access = dataclasses.replace(sqs.access, endpoint="http://127.0.0.1:1")
    SqsService(QueueSpec("s3://photos/in", name=url, access=access)).open()


@pytest.mark.parametrize(
    ("url", "endpoint", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/q", "https://sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "https://sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("https://eu-west-1.queue.amazonaws.com/1/q", "https://eu-west-1.queue.amazonaws.com", "eu-west-1"),
        ("http://127.0.0.1:4566/000000000000/q", "http://127.0.0.1:4566", "us-east-1"),
    ],
)
def test_the_url_of_a_queue_gives_its_region_and_endpoint(url: str, endpoint: str, region: str) -> None:
    access = Access("s3", "us-east-1", credentials="static", keys=Keys("id", "secret"))
    client = SqsService(QueueSpec("s3://photos/in", name=url, access=access))._client
    assert (client.meta.endpoint_url, client.meta.region_name) == (endpoint, region)


def test_the_endpoint_of_an_mns_queue_comes_from_its_region_or_url() -> None:
    access = Access("oss", region="cn-hangzhou", role_arn="acs:ram::1234567890:role/volstream")
    own = ("https://1234567890.mns.cn-hangzhou.aliyuncs.com", "q")
    assert address("q", access) == own
    assert address("https://1234567890.mns.cn-hangzhou.aliyuncs.com/queues/q", Access("oss")) == own
    assert address("http://127.0.0.1:4567/queues/q/", access) == ("http://127.0.0.1:4567", "q")


@pytest.mark.parametrize(
    ("name", "access", "reason"),
    [
        ("q", Access("oss", region="cn-hangzhou"), "no role, whose ARN"),
        ("q", Access("oss", role_arn="acs:ram::1:role/x"), "no region"),
        ("https://1.mns.cn-hangzhou.aliyuncs.com/topics/q", Access("oss"), "not the URL"),
        ("ftp://host/queues/q", Access("oss"), "not the URL"),
    ],
)
def test_an_mns_queue_without_an_endpoint_is_rejected(name: str, access: Access, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason) as error:
        address(name, access)
    assert "aliyuncs.com/queues/NAME" in error.value.remedy


def test_keys_unknown_to_mns_are_an_error_with_a_remedy(oss: Cloud, mns: Any) -> None:
    access = dataclasses.replace(oss.access, keys=Keys("LTAITEST", "wrong"))
    spec = QueueSpec("oss://photos", name=f"{mns.url}/queues/{mns.make(unused_name()).name}", access=access)
    queue = open_queue("mns", spec)
    with pytest.raises(QueueError, match="SignatureDoesNotMatch") as error:
        queue.start()
    assert "keys" in error.value.remedy
    assert "wrong" not in str(error.value)


def test_raw_base64_and_poison_bodies_arrive_in_one_mns_batch(oss: Cloud, mns: Any) -> None:
    at = mns.make(unused_name())
    at.send(oss_body("raw").decode())
    at.send(base64.b64encode(oss_body("encoded")).decode())
    at.send("no event & no <base64>")
    spec = QueueSpec("oss://photos", settings=LONG, name=f"{mns.url}/queues/{at.name}", access=oss.access)
    queue = open_queue("mns", spec)
    queue.start()
    assert isinstance(queue, RemoteQueue)
    messages = take(queue, 3)
    assert [message.hints for message in messages[:2]] == [(ObjectHint("photos", "raw"),), (ObjectHint("photos", "encoded"),)]
    assert messages[2].rejection is not None
    assert messages[2].rejection.subject == "no event & no <base64>"
    queue.acknowledge(messages)
    queue.stop()
    assert at.counts() == (0, 0)


def raising(error: Exception) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    "error",
    [
        botocore.exceptions.ClientError({"Error": {"Code": "OverLimit", "Message": "too many"}}, "ReceiveMessage"),
        botocore.exceptions.EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
        botocore.exceptions.NoCredentialsError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_boto3_exceptions_become_queue_errors(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://127.0.0.1:1/1/q"
    service = SqsService(QueueSpec("s3://b", name=url, access=Access("s3")))
    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", raising(error))
    for ask in _requests(service):
        with pytest.raises(QueueError, match=re.escape(url)):
            ask()


def test_no_exception_of_the_mns_sdk_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    from mns import mns_exception as exceptions
    from mns.mns_http import MNSHttp

    access = Access("oss", credentials="static", keys=Keys("id", "secret"))
    service = MnsService(QueueSpec("oss://b", name="http://127.0.0.1:1/queues/q", access=access))
    errors = [
        exceptions.MNSExceptionBase("type", "message"),
        exceptions.MNSClientException("type", "message"),
        exceptions.MNSClientNetworkException("type", "message"),
        exceptions.MNSClientParameterException("type", "message"),
        exceptions.MNSServerException("InternalError", "message", "0", "host"),
        AttributeError("data"),
        TimeoutError("timed out"),
    ]
    for error in errors:
        monkeypatch.setattr(MNSHttp, "send_request", raising(error))
        for ask in _requests(service):
            with pytest.raises(QueueError):
                ask()


def _requests(service: SqsService | MnsService) -> Sequence[Callable[[], object]]:
    return (
        service.open,
        lambda: service.receive(10, 1),
        lambda: service.delete(["h"]),
        lambda: service.keep(["h"], 1),
        service.describe,
    )


def test_each_thread_has_its_own_mns_connection_that_ends_with_it(oss: Cloud, mns: Any) -> None:
    name = f"{mns.url}/queues/{mns.make(unused_name()).name}"
    service = MnsService(QueueSpec("oss://photos", name=name, access=oss.access))
    states: list[object] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=lambda: states.append(service.describe())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(states) == 8


def test_an_s3_event_travels_all_the_way_from_the_bucket(sqs: Cloud) -> None:
    client, name = credentials.client(sqs.access, "sqs"), unused_name()
    url = client.create_queue(QueueName=name)["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sqs.make_bucket(name)
    events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
    wiring = {"QueueConfigurations": [{"QueueArn": arn, "Events": events}]}
    credentials.client(sqs.access, "s3").put_bucket_notification_configuration(Bucket=name, NotificationConfiguration=wiring)
    keys = ["in/sp ace", "in/a+b%41", "in/日本", "in/"]
    for key in keys:
        sqs.put(name, key, b"x")
    sqs.delete(name, keys[0])
    queue = open_queue("sqs", QueueSpec(f"s3://{name}", settings=LONG, name=name, access=sqs.access))
    queue.start()
    assert isinstance(queue, RemoteQueue)
    hints: list[Any] = []
    for message in take(queue, 6):  # one of them is s3:TestEvent
        assert message.rejection is None
        hints.extend(message.hints)
    queue.stop()
    reported_keys = {hint.key for hint in hints}
    assert {*keys[:3]} <= reported_keys
    assert {key if key in keys else unquote_plus(key) for key in reported_keys} == {
        *keys[:3]
    }  # some servers spell them in two ways


def test_an_oss_event_travels_all_the_way_from_the_bucket_to_the_holder_of_an_assumed_role(oss: Cloud, mns: Any) -> None:
    name, role = unused_name(), f"acs:ram::1234567890:role/{unused_name()}"
    oss.service.roles[role] = "x"
    oss.make_bucket(name)
    queue_there = mns.make(name)
    oss.service.tell = lambda body: queue_there.send(body.decode())
    try:
        for key in ("in/sp ace", "in/a+b%41", "in/"):
            oss.put(name, key, b"x")
        oss.delete(name, "in/sp ace")
    finally:
        oss.service.tell = None
    access = dataclasses.replace(oss.access, role_arn=role, external_id="x")
    queue = open_queue("mns", QueueSpec(f"oss://{name}", settings=LONG, name=f"{mns.url}/queues/{name}", access=access))
    queue.start()
    assert isinstance(queue, RemoteQueue)
    messages = take(queue, 4)
    hints: list[Any] = []
    for message in messages:
        assert message.rejection is None
        hints.extend(message.hints)
    queue.acknowledge(messages)
    queue.stop()
    assert hints == [ObjectHint(name, key) for key in ("in/sp ace", "in/a+b%41", "in/a+bA", "in/sp ace")]
    assert queue_there.counts() == (0, 0)
