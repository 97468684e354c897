"""The providers' services on this machine, started by the test run: S3, SQS and STS by moto, MNS by our own stand-in."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from volstream.cloud import aws
from volstream.cloud.access import Access, Keys

#: What the servers know, or do not look at.
KEYS = Keys("test", "test")

_STAND_INS = Path(__file__).parents[1] / "localstack"


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """The URL of a server of S3, SQS, SNS and STS, with nothing in it, in a thread of this process."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextlib.contextmanager
def mns_server() -> Iterator[Any]:
    """A running ``MnsServer`` that knows :data:`KEYS`."""
    server = stand_in("mns").MnsServer(0, {KEYS.id: KEYS.secret})
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def stand_in(name: str) -> Any:
    """The module ``localstack/NAME.py``; the folder is no package, because that name is a distribution's."""
    module_name = f"stand_in_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, _STAND_INS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[module_name]


def s3_access(url: str) -> Access:
    """Who asks moto."""
    return Access("s3", region="us-east-1", endpoint=url, credentials="static", keys=KEYS)


def oss_access(url: str | None = None) -> Access:
    """Who asks the stand-ins."""
    return Access("oss", region="cn-hangzhou", endpoint=url, credentials="static", keys=KEYS)


def sqs_of(url: str) -> Any:
    """A client of moto's SQS."""
    return aws.client(s3_access(url), "sqs")


def mns_of(url: str, name: str) -> Any:
    """The SDK's queue at the stand-in, whether or not it is there yet."""
    from mns.account import Account

    queue = Account(url, KEYS.id, KEYS.secret).get_queue(name)
    queue.set_encoding(False)
    return queue


def unused_name() -> str:
    """A name that no other test has."""
    return f"q-{uuid.uuid4().hex[:12]}"
