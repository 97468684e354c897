"""Messages of the clouds' queues, from receipt to deletion, compared with the bare SDKs on the same emulators; and objects,
from their upload to their rows in the directory.

Emulator, sender and consumer are on this machine; moto gets slower the more messages wait. So only the ratio is meaningful
for volstream: the cost of pollers, parsing, routing and folding on top of receiving and deleting.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.report import BASE, Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session
from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import Hint, HintSet, ObjectHint
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.changes.directory.reconcile import HEADS_AT_ONCE
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.aws import credentials
from volstream.files.queues import open_queue
from volstream.files.queues.base import QueueSettings, QueueSpec, SelfDescribing
from volstream.files.volumes.access import queue_of
from volstream.files.volumes.routing import Router
from volstream.server.daemon.keeping import VolumeKeeping

_UP = Path(__file__).parents[1] / "localstack" / "up.py"
#: Created by ``up.py``: a bucket, and a queue that is notified of its changes.
BUCKET, _HEARD = "demo", "demo-events"

_PATIENCE_SECONDS = 300.0
_KEYS = Keys("test", "test")

#: Credentials of the connections, which are named like their volumes' queue types.
CREDENTIALS = {str(kind): {"access_key_id": _KEYS.id, "access_key_secret": _KEYS.secret} for kind in ("sqs", "mns")}

#: Numbers of the daemon's queue threads to measure.
_POLLERS = (1, 4)


@dataclass(frozen=True)
class Place:
    """A provider's emulator.

    Attributes:
        make: creates a queue; returns its name for volstream.
        send: sends bodies to a queue.
        drain: receives and deletes this many messages with only the SDK.
        put: puts an object into the bucket that notifies the queue :data:`_HEARD`.
        head: requests an object's metadata.
    """

    kind: QueueType
    access: Access
    make: Callable[[str], str]
    body: Callable[[str], str]
    send: Callable[[str, Sequence[str]], None]
    drain: Callable[[str, int], None]
    put: Callable[[str], object]
    head: Callable[[str], object]
    heard: str


def measure(session: Session, kinds: Sequence[str], counts: Sequence[int], rounds: int, figures: Figures) -> None:
    """Drains queues of the given numbers of messages, each way in turn; then uploads as many objects, and waits for their rows.

    Args:
        kinds: names of the queues; some of :data:`KINDS`.

    Raises:
        WrongRowsError: not every key was folded.
    """
    for kind in kinds:
        with KINDS[kind]() as place:
            for number in range(rounds):
                for count in counts:
                    keys = [f"in/{number}/file {key:06}.txt" for key in range(count)]
                    bodies = [place.body(key) for key in keys]
                    name = place.make(f"raw-{number}-{count}")
                    place.send(name, bodies)
                    started = time.perf_counter()
                    place.drain(name, count)
                    figures.note(place.kind, count, BASE, time.perf_counter() - started)
                    for pollers in _POLLERS:
                        name = place.make(f"own-{number}-{count}-{pollers}")
                        place.send(name, bodies)
                        seconds = _through(place, name, keys, pollers)
                        figures.note(place.kind, count, f"volstream, pollers: {pollers}", seconds)
            for number in range(rounds):
                for count in counts:
                    scenario = f"upload to {place.kind}"
                    figures.note(scenario, count, BASE, _uploaded(place, f"raw {number}", count))
                    figures.note(scenario, count, "volstream, to rows", _committed(session, place, number, count))


def table(figures: Figures) -> Table:
    """Returns the messages per second."""
    made = Table(title="Messages a second, of the medians")
    for heading in ("queue", "messages", "contender", "a second", f"to {BASE}"):
        made.add_column(heading)
    for one in figures.all():
        rate = f"{one.files / one.median:,.0f}"
        made.add_row(one.scenario, f"{one.files:,}", one.contender, rate, f"{1 / (figures.ratio(one) or 1):.2f}")
    return made


def _through(place: Place, name: str, keys: Sequence[str], pollers: int) -> float:
    """Returns the seconds from the start of a queue to the deletion of its last message."""
    location = f"{place.access.provider}://{BUCKET}/in"
    settings = QueueSettings(pollers=pollers, wait_seconds=1)
    queue = open_queue(place.kind, QueueSpec(location, settings=settings, name=name, access=place.access))
    volume = _volume(location, place.kind)
    fold, left = HintSet(volume.selection), len(keys)
    started = time.perf_counter()
    queue.start()
    while left:
        messages = queue.receive(1000, 1)
        hints: list[Hint | ObjectHint] = []
        for message in messages:
            if message.rejection is not None:
                raise WrongRowsError(f"{place.kind}: {message.rejection.reason}")
            hints += message.hints
        fold.add(Router([volume]).route(volume, hints).own)
        queue.acknowledge(messages)
        left -= len(messages)
    seconds = time.perf_counter() - started
    queue.stop()
    if {f"in/{key}" for key in fold.single_keys()} != set(keys):
        raise WrongRowsError(f"{place.kind}: {len(fold.keys)} of {len(keys)} keys were folded.")
    return seconds


def _uploaded(place: Place, folder: str, count: int) -> float:
    """Returns the seconds from the first upload until only the SDK has deleted the last message and requested each object."""
    keys = [f"{folder} {count}/file {number:06}.txt" for number in range(count)]
    started = time.perf_counter()
    for key in keys:
        place.put(key)
    place.drain(place.heard, count)
    with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
        list(pool.map(place.head, keys))
    return time.perf_counter() - started


def _committed(session: Session, place: Place, round_: int, count: int) -> float:
    """Returns the seconds from the first upload until every object has its row and every message is deleted."""
    access, name = place.access, f"v_{place.kind}_{round_}_{count}"
    session.connections.create(
        str(place.kind), access.provider, region=access.region, endpoint=access.endpoint, credentials="static", if_not_exists=True
    )
    location = f"{access.provider}://{BUCKET}/{name}"
    volume = session.volumes.create(
        name, location, connection=str(place.kind), queue_type=place.kind, queue_name=place.heard, virtual_cluster=name
    )
    stop = Stop()
    keeping = VolumeKeeping(session.home.catalog, session.home.settings, name, stop)
    threads = [threading.Thread(target=part) for part in (keeping.run, keeping.follow)]
    for thread in threads:
        thread.start()
    try:
        _await(lambda: session.volumes.get(name).last_listing is not None)
        started = time.perf_counter()
        for number in range(count):
            place.put(f"{name}/file {number:06}.txt")
        queue = queue_of(volume, session.home.catalog, session.home.settings)
        assert isinstance(queue, SelfDescribing), "a provider's"
        _await(lambda: session.home.catalog.refreshes.file_count(volume.id) == count)
        _await(lambda: (queue.describe().waiting, queue.describe().in_flight) == (0, 0))
        return time.perf_counter() - started
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _await(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not check():
        if time.monotonic() > deadline:
            raise WrongRowsError("Not every object has its row.")
        time.sleep(0.02)


@contextmanager
def _sqs() -> Iterator[Place]:
    with _up("s3") as said:
        access = Access("s3", "us-east-1", _endpoint(said), credentials="static", keys=_KEYS)
        client = credentials.client(access, "sqs")
        urls: dict[str, str] = {}

        def make(name: str) -> str:
            urls[name] = client.create_queue(QueueName=name)["QueueUrl"]
            return name

        def body(key: str) -> str:
            return json.dumps({"Records": [{"s3": {"bucket": {"name": BUCKET}, "object": {"key": key.replace(" ", "+")}}}]})

        def send(name: str, bodies: Sequence[str]) -> None:
            for some in _batches(bodies, 10):
                entries = [{"Id": str(place), "MessageBody": text} for place, text in enumerate(some)]
                client.send_message_batch(QueueUrl=urls[name], Entries=entries)

        def drain(name: str, count: int) -> None:
            while count:
                given = client.receive_message(QueueUrl=urls[name], MaxNumberOfMessages=10, WaitTimeSeconds=1)["Messages"]
                entries = [{"Id": one["MessageId"], "ReceiptHandle": one["ReceiptHandle"]} for one in given]
                client.delete_message_batch(QueueUrl=urls[name], Entries=entries)
                count -= len(given)

        urls[_HEARD] = client.get_queue_url(QueueName=_HEARD)["QueueUrl"]
        s3 = credentials.client(access, "s3")
        yield Place(
            QueueType("sqs"),
            access,
            make,
            body,
            send,
            drain,
            lambda key: s3.put_object(Bucket=BUCKET, Key=key, Body=b"x"),
            lambda key: s3.head_object(Bucket=BUCKET, Key=key),
            _HEARD,
        )


@contextmanager
def _mns() -> Iterator[Place]:
    import oss2
    from mns.account import Account
    from mns.queue import Message, QueueMeta

    with _up("oss") as said:
        (url,) = re.findall(r"MNS at (http://[\d.:]+\d)", said)
        access = Access("oss", "cn-hangzhou", _endpoint(said), credentials="static", keys=_KEYS)
        account = Account(url, _KEYS.id, _KEYS.secret)

        def at(name: str) -> Any:
            queue = account.get_queue(name.rpartition("/")[2])
            queue.set_encoding(False)
            return queue

        def make(name: str) -> str:
            at(name).create(QueueMeta())
            return f"{url}/queues/{name}"

        def body(key: str) -> str:
            changed = {"bucket": {"name": BUCKET}, "object": {"key": key}}
            return json.dumps({"events": [{"eventName": "ObjectCreated:PutObject", "oss": changed}]})

        def send(name: str, bodies: Sequence[str]) -> None:
            for some in _batches(bodies, 16):
                at(name).batch_send_message([Message(text) for text in some])

        def drain(name: str, count: int) -> None:
            while count:
                given = at(name).batch_receive_message(16, 1)
                at(name).batch_delete_message([one.receipt_handle for one in given])
                count -= len(given)

        signed = oss2.AuthV4(_KEYS.id, _KEYS.secret)
        bucket = oss2.Bucket(signed, access.endpoint, BUCKET, region=access.region)
        yield Place(
            QueueType("mns"),
            access,
            make,
            body,
            send,
            drain,
            lambda key: bucket.put_object(key, b"x"),
            bucket.head_object,
            f"{url}/queues/{_HEARD}",
        )


@contextmanager
def _up(cloud: str) -> Iterator[str]:
    """Runs the emulator of a cloud in its own process; yields its output."""
    ports = ["--s3-port", "0", "--oss-port", "0", "--mns-port", "0"]
    command = [sys.executable, str(_UP), cloud, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            said = ""
            for line in process.stdout or ():
                said += line
                if "Ready" in line:
                    break
            yield said
        finally:
            process.kill()


#: Providers that can be measured, by queue type.
KINDS: Mapping[str, Callable[[], AbstractContextManager[Place]]] = {"sqs": _sqs, "mns": _mns}


def _endpoint(said: str) -> str:
    (found,) = re.findall(r"--endpoint (\S+)", said)
    return str(found)


def _batches(bodies: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (bodies[start : start + size] for start in range(0, len(bodies), size))


def _volume(location: str, kind: QueueType) -> Volume:
    return Volume(
        id="v",
        name=Name("public", "v"),
        location=location,
        connection_id=None,
        queue_type=kind,
        queue_name=None,
        virtual_cluster="DEFAULT",
        recursive=True,
        patterns=(),
        ignores=(),
        comment=None,
        created_on=datetime.now(UTC),
    )
