"""Clouds for tests, on 127.0.0.1 and without Docker: servers of S3, SQS and STS, of Cloud Storage and Pub/Sub; the stand-ins of
``localstack/`` for Alibaba's."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from azure.storage.queue import QueueClient
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.servers import AZURE_ACCOUNT, AZURE_KEY, KEY_ID, SECRET, each, served
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.aws import credentials
from volstream.files.providers.azure import credentials as azure
from volstream.files.providers.google.store import client as google_client

STANDINS = Path(__file__).parent.parent / "localstack"


@dataclass(frozen=True)
class Cloud:
    """A provider's object store.

    Attributes:
        server: its name.
        access: with long-lived keys.
        service: the stand-in's module and state, where it is one.
    """

    server: str
    access: Access
    make_bucket: Callable[[str], object]
    put: Callable[[str, str, bytes], object]
    delete: Callable[[str, str], object]
    service: Any = None


def standin(name: str) -> ModuleType:
    """A module of ``localstack/``, which is no package: its name is that of one on PyPI."""
    full = f"standin_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, STANDINS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


class QuietServer(ThreadingHTTPServer):
    """Ignores clients that disconnect early."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores the error: it fails a test on the client's side."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serves in a thread; the URL."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _s3(server: str) -> Iterator[Cloud]:
    with served(server) as url:
        access = Access("s3", "eu-west-1", url, credentials="static", keys=Keys(KEY_ID, SECRET))
        client = credentials.client(access, "s3")
        where = {"LocationConstraint": "eu-west-1"}
        unknown = "binary/octet-stream"  # as Amazon says of what has no type; others guess one
        yield Cloud(
            server,
            access,
            lambda bucket: client.create_bucket(Bucket=bucket, CreateBucketConfiguration=where),
            lambda bucket, key, content: client.put_object(Bucket=bucket, Key=key, Body=content, ContentType=unknown),
            lambda bucket, key: client.delete_object(Bucket=bucket, Key=key),
        )


@pytest.fixture(scope="session")
def moto() -> Iterator[Cloud]:
    """S3, with SQS and STS at the same endpoint."""
    with _s3("moto") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def localstack() -> Iterator[Cloud]:
    """As moto."""
    with _s3("localstack") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[Cloud]:
    """S3, without SQS."""
    with _s3("seaweedfs") as cloud:
        yield cloud


@pytest.fixture(params=each("moto", "localstack", "seaweedfs"))
def s3(request: pytest.FixtureRequest) -> Cloud:
    """S3 by each of the servers."""
    found: Cloud = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=each("moto", "localstack"))
def sqs(request: pytest.FixtureRequest) -> Cloud:
    """S3 by each of the servers that have SQS."""
    found: Cloud = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def oss() -> Iterator[Cloud]:
    """OSS, with STS at the same endpoint."""
    module = standin("oss")
    state = module.Oss(keys={"LTAITEST": ("oss-long-lived-secret", None, None)})
    with serving(module.serve(state)) as url:
        access = Access("oss", "cn-hangzhou", url, credentials="static", keys=Keys("LTAITEST", "oss-long-lived-secret"))
        yield Cloud("oss", access, lambda bucket: state.buckets.setdefault(bucket, {}), state.put, state.delete, state)


@pytest.fixture(scope="session")
def mns(oss: Cloud) -> Iterator[Any]:
    """MNS: the running server of its stand-in, which takes the keys that OSS and its STS take."""
    server = standin("mns").MnsServer(0, oss.service.secret_of)
    with serving(server):
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Cloud]:
    """Cloud Storage, which takes all requests, so that they are not signed."""
    with served("gcs") as url:
        access = Access("gs", endpoint=url)
        client = google_client(access)
        yield Cloud(
            "gcs",
            access,
            lambda bucket: client.create_bucket(bucket, project="tests"),
            lambda bucket, key, content: client.bucket(bucket).blob(key).upload_from_string(content, "application/octet-stream"),
            lambda bucket, key: client.bucket(bucket).blob(key).delete(),
        )


@pytest.fixture(scope="session")
def azurite() -> Iterator[Cloud]:
    """Blob Storage, with queues at the next port."""
    with served("azurite") as url:
        access = Access("az", endpoint=url, credentials="static", keys=Keys(AZURE_ACCOUNT, AZURE_KEY))
        service = azure.service(access, azure.account(access, "az://any"))
        yield Cloud(
            "azurite",
            access,
            service.create_container,
            lambda bucket, key, content: service.get_blob_client(bucket, key).upload_blob(content, overwrite=True),
            lambda bucket, key: service.get_blob_client(bucket, key).delete_blob(),
            service,
        )


def azure_queue(cloud: Cloud, name: str) -> str:
    """Makes a queue beside Azurite's blobs; returns its URL."""
    place = urlsplit(str(cloud.access.endpoint))
    address = f"http://127.0.0.1:{(place.port or 0) + 1}/{AZURE_ACCOUNT}/{name}"
    with QueueClient.from_queue_url(address, {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}) as client:
        client.create_queue()
    return address


@dataclass(frozen=True)
class Topic:
    """A topic of Pub/Sub with a subscription, given by its URL."""

    subscription: str
    send: Callable[[bytes], object]


@dataclass(frozen=True)
class PubSub:
    """A server of Pub/Sub."""

    url: str

    def make(self, name: str) -> Topic:
        """Makes a topic, and a subscription of the same name."""
        channel = grpc.insecure_channel(urlsplit(self.url).netloc)
        publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        topic, subscription = f"projects/tests/topics/{name}", f"projects/tests/subscriptions/{name}"
        publisher.create_topic(name=topic)
        subscriber.create_subscription({"name": subscription, "topic": topic, "ack_deadline_seconds": 10})

        def send(body: bytes) -> object:
            """Sends what Pub/Sub would push as ``body``."""
            message = json.loads(body)["message"]
            given = {"attributes": message["attributes"], "data": base64.b64decode(message["data"])}
            return publisher.publish({"topic": topic, "messages": [given]})

        return Topic(f"{self.url}/{subscription}", send)


@pytest.fixture(scope="session")
def pubsub() -> Iterator[PubSub]:
    """Pub/Sub, by Google's own server for tests."""
    with served("pubsub") as url:
        yield PubSub(url)


@pytest.fixture(params=each("moto", "oss", "gcs", "localstack", "seaweedfs", "azurite"))
def cloud(request: pytest.FixtureRequest) -> Cloud:
    """Each of the object stores."""
    found: Cloud = request.getfixturevalue(request.param)
    return found


def unused_name() -> str:
    """A name that no other test uses, valid for queues and buckets."""
    return f"test-{uuid.uuid4().hex[:12]}"


@dataclass
class Answers:
    """A server that answers as a test specifies.

    Attributes:
        answer: status, headers and body for a request, given its method, path with query, and headers by name in lower
            case; None: closes the connection.
        log: the requests, as ``METHOD path``.
    """

    url: str = ""
    answer: Callable[[str, str, Mapping[str, str]], tuple[int, Mapping[str, str], bytes] | None] = field(
        default=lambda method, path, headers: (500, {}, b"")
    )
    log: list[str] = field(default_factory=list)


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A server whose every answer the test gives."""
    made = Answers()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            made.log.append(f"{self.command} {self.path}")
            answer = made.answer(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            if answer is None:
                self.close_connection = True
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            if int(headers.get("Content-Length", len(body))) != len(body):
                self.close_connection = True

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            """Logs nothing."""

    with serving(QuietServer(("127.0.0.1", 0), Handler)) as url:
        made.url = url
        yield made
