"""Volumes in buckets, maintained by the daemon's workers: stand-ins for OSS and MNS, and a real engine."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clouds import Cloud, mns, oss, unused_name
from tests.integration.conftest import session_on
from tests.keeping import keeping
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import HintSet
from volstream.base.model.work import CheckState
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.listing import Listing
from volstream.changes.directory.reconcile import ReconcileResult
from volstream.errors import QueueError, StorageError
from volstream.files.providers.alibaba.queue import MnsService
from volstream.files.queues.base import Message
from volstream.files.queues.remote import RemoteQueue
from volstream.ops.inspection.doctor import examine
from volstream.server.daemon.keeping import VolumeKeeping
from volstream.spark.session import SparkGateway

__all__ = ["mns", "oss"]

pytestmark = pytest.mark.timeout(400)


@dataclass
class Bucket:
    """A bucket whose messages go through the test before they reach the queue."""

    session: Session
    cloud: Cloud
    queue: Any
    queue_url: str
    name: str
    pass_on: Callable[[bytes], object] | None = None
    told: list[bytes] = field(default_factory=list)

    def put(self, key: str, content: bytes = b"x") -> None:
        self.cloud.put(self.name, key, content)

    def delete(self, key: str) -> None:
        self.cloud.delete(self.name, key)

    def send(self, body: bytes) -> None:
        self.queue.send(body.decode())

    def volume(self, name: str, prefix: str = "", **options: Any) -> Volume:
        return self.session.volumes.create(
            name, f"oss://{self.name}/{prefix}", connection="c", queue_type=QueueType("mns"), queue_name=self.queue_url, **options
        )

    def kept(self) -> AbstractContextManager[VolumeKeeping]:
        """What keeps the volumes of a daemon."""
        return keeping(self.session.home.catalog, self.session.home.settings)

    def directory(self, volume: str) -> dict[str, int]:
        rows = self.session.sql(f"SELECT relative_path, size FROM DIRECTORY(VOLUME {volume})").toArrow().to_pylist()
        assert len({row["relative_path"] for row in rows}) == len(rows)
        return {row["relative_path"]: row["size"] for row in rows}

    def has(self, volume: str, count: int) -> bool:
        return self.session.home.catalog.refreshes.file_count(self.session.volumes.get(volume).id) == count

    def is_listed(self, *volumes: str) -> bool:
        return all(self.session.volumes.get(name).last_listing is not None for name in volumes)

    @property
    def content(self) -> dict[str, int]:
        return {key: len(one.content) for key, one in self.cloud.service.buckets[self.name].items()}

    def is_drained(self) -> bool:
        return bool(self.queue.counts() == (0, 0))


@pytest.fixture
def bucket(oss: Cloud, mns: Any, tmp_path: Path, gateway: SparkGateway) -> Iterator[Bucket]:
    keys = oss.access.keys
    assert keys is not None
    settings = config.load(
        tmp_path / "home", credentials={"c": {"access_key_id": keys.id, "access_key_secret": keys.secret}}, lease_seconds=5.0
    )
    name = unused_name()
    oss.make_bucket(name)
    queue = mns.make(name, VisibilityTimeout=60)
    with session_on(gateway, settings) as session:
        session.connections.create("c", "oss", region="cn-hangzhou", endpoint=oss.access.endpoint, credentials="static")
        made = Bucket(session, oss, queue, f"{mns.url}/queues/{name}", name)
        oss.service.tell = lambda body: (made.pass_on or made.send)(body)
        yield made
        oss.service.tell = None


def test_one_of_the_volumes_that_share_a_queue_receives_and_another_one_when_it_is_dropped(bucket: Bucket) -> None:
    volumes = {name: bucket.volume(name, name) for name in "abc"}
    with bucket.kept() as made:

        def receivers() -> list[str]:
            turns = {worker.volume.name.name: worker._keeping for worker in made.workers}
            return [name for name, turn in turns.items() if turn is not None and turn._reception.is_on]

        def check(count: int) -> None:
            for name in volumes:
                bucket.put(f"{name}/{count}")
            eventually(lambda: all(bucket.has(name, count) for name in volumes), 30)

        eventually(lambda: bucket.is_listed(*volumes), 60)
        for count in (1, 2):
            check(count)
            [receiver] = receivers()
            bucket.session.volumes.drop(receiver)
            del volumes[receiver]
            eventually(lambda: receivers() and receivers()[0] in volumes, 30)
        check(3)
    assert bucket.queue.counts() == (0, 0)


def test_each_of_the_volumes_that_share_a_queue_reports_that_it_is_missing_and_is_listed_when_it_is_there(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = MnsService.open

    def fail(_: MnsService) -> float:
        raise QueueError("no queue")

    monkeypatch.setattr(MnsService, "open", fail)
    for name in "abc":
        bucket.volume(name, name)
    with bucket.kept() as made:
        eventually(lambda: all("no queue" in str(worker.queue_failure.reason) for worker in made.workers), 30)
        eventually(lambda: bucket.is_listed(*"abc"), 30)
        bucket.pass_on = lambda _: None  # there is no queue to tell
        for name in "abc":
            bucket.put(f"{name}/1")
        monkeypatch.setattr(MnsService, "open", opened)
        eventually(lambda: all(bucket.has(name, 1) for name in "abc"), 30)
        eventually(lambda: not any(worker.queue_failure.reason for worker in made.workers), 30)


def test_an_error_that_no_provider_should_raise_costs_the_receiver_its_turn_and_no_message(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, receive = [TypeError("odd")], RemoteQueue.receive

    def fail_once(queue: RemoteQueue, limit: int, wait_seconds: float) -> Sequence[Message]:
        if fails and errors:
            raise errors.pop()
        return receive(queue, limit, wait_seconds)

    fails = False
    monkeypatch.setattr(RemoteQueue, "receive", fail_once)
    for name in "ab":
        bucket.volume(name, name)
    with bucket.kept():
        eventually(lambda: bucket.is_listed(*"ab"), 60)
        fails = True
        for name in "ab":
            bucket.put(f"{name}/1")
        eventually(lambda: all(bucket.has(name, 1) for name in "ab") and bucket.queue.counts() == (0, 0), 60)
    assert not errors


def test_what_a_queue_missed_that_was_there_only_during_a_listing_is_listed(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, listed, goes_on = MnsService.open, threading.Event(), threading.Event()
    names, lister = {"b"}, DirectoryKeeper._list_or_read

    def fail(_: MnsService) -> float:
        raise QueueError("no queue")

    def list_for_long(keeper: DirectoryKeeper) -> Listing | None:
        found = lister(keeper)
        if keeper.volume.name.name in names:
            names.clear()
            listed.set()
            assert goes_on.wait(100)
        return found

    monkeypatch.setattr(MnsService, "open", fail)
    monkeypatch.setattr(DirectoryKeeper, "_list_or_read", list_for_long)
    for name in "ab":
        bucket.volume(name, name)
    with bucket.kept() as made:
        assert listed.wait(30)
        bucket.pass_on = lambda _: None  # there is no queue to tell
        bucket.put("b/1")
        monkeypatch.setattr(MnsService, "open", opened)
        turns = [worker._keeping for worker in made.workers]
        eventually(lambda: any(turn is not None and turn._reception.is_on for turn in turns), 60)
        goes_on.set()
        eventually(lambda: bucket.has("b", 1), 30)


def test_a_volume_that_is_filled_is_busy_or_fails_does_not_keep_those_waiting_for_which_it_receives(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, apply, bootstrap = threading.Event(), DirectoryKeeper.apply, DirectoryKeeper.bootstrap
    begin_listing = DirectoryKeeper.begin_listing
    a, fails, is_busy = bucket.volume("a", "a"), True, list[DirectoryKeeper]()

    def fill_later(keeper: DirectoryKeeper) -> ReconcileResult:
        is_busy.append(keeper)
        assert keeper.volume.id != a.id or goes_on.wait(100)
        return bootstrap(keeper)

    def fail(keeper: DirectoryKeeper, hints: HintSet) -> ReconcileResult:
        if keeper.volume.id == a.id and fails:
            raise StorageError("down")
        return apply(keeper, hints)

    def list_later(keeper: DirectoryKeeper, request: str | None = None) -> Callable[[], Listing | None]:
        task = begin_listing(keeper, request)
        is_busy.append(keeper)
        return lambda: task() if goes_on.wait(100) else None

    monkeypatch.setattr(DirectoryKeeper, "bootstrap", fill_later)
    monkeypatch.setattr(DirectoryKeeper, "apply", fail)
    with bucket.kept() as made:
        [receiver] = made.workers
        eventually(lambda: receiver.holds, 30)
        bucket.put("a/1")
        eventually(lambda: bucket.queue.counts() == (0, 1), 30)
        bucket.volume("b", "b")
        eventually(lambda: bucket.is_listed("b"), 30)
        bucket.put("b/1")
        eventually(lambda: bucket.has("b", 1) and bucket.queue.counts() == (0, 0), 30)
        assert bucket.session.volumes.get("a").last_listing is None

        goes_on.set()
        eventually(lambda: "down" in str(receiver.reason), 30)
        bucket.put("a/2")
        bucket.put("b/2")
        eventually(lambda: bucket.has("b", 2) and bucket.queue.counts() == (0, 0), 30)

        fails = False
        eventually(lambda: bucket.has("a", 2), 60)

        goes_on.clear()
        is_busy.clear()
        monkeypatch.setattr(DirectoryKeeper, "begin_listing", list_later)
        bucket.session.home.catalog.refreshes.ask_check(a.id, [""])
        eventually(lambda: is_busy, 30)
        bucket.put("b/3")
        eventually(lambda: bucket.has("b", 3) and bucket.queue.counts() == (0, 0), 30)
        goes_on.set()


@pytest.mark.long
def test_ten_thousand_objects_converge_despite_lost_repeated_late_and_reordered_messages(bucket: Bucket) -> None:
    """What was dropped is missing until a listing; nothing else is, and no message is left."""
    dice = random.Random(11)
    volume = bucket.volume("v")
    messages: list[tuple[str, bytes]] = []
    bucket.pass_on = lambda body: messages.append((_key(body), body))
    with bucket.kept():
        eventually(lambda: bucket.session.volumes.get("v").last_listing is not None, 60)
        keys = [f"{number % 7}/{number % 50}/file {number}+%.txt" for number in range(10_000)]
        for _ in range(12_000):
            key = dice.choice(keys)
            if dice.random() < 0.2:
                bucket.delete(key)
            else:
                bucket.put(key, b"x" * dice.randint(1, 9))
        for key in keys[:1000]:
            bucket.put(key, b"0123456789")
        dropped = {key for key, _ in messages if dice.random() < 0.05}
        sent = [body for key, body in messages if key not in dropped for _ in range(1 + (dice.random() < 0.1))]
        dice.shuffle(sent)
        for body in sent:
            bucket.send(body)
        eventually(bucket.is_drained, 240)
        eventually(lambda: not bucket.session.home.catalog.refreshes.asked_checks(volume.id, 1), 30)
        shown, truth = bucket.directory("v"), bucket.content
        wrong = {key for key in shown.keys() | truth.keys() if shown.get(key) != truth.get(key)}
        assert wrong <= dropped
        assert {key for key in dropped if key in truth} <= wrong | shown.keys()

        bucket.session.volumes.refresh("v")

        assert bucket.directory("v") == bucket.content
        found = bucket.session.home.catalog.refreshes.reconciles(volume.id)[0]
        assert (found.listed, found.added_by_listing + found.changed_by_listing + found.removed_by_listing) == (
            len(truth),
            len(wrong),
        )
    assert bucket.queue.counts() == (0, 0)


def _key(body: bytes) -> str:
    event = json.loads(base64.b64decode(body))["events"][0]
    return str(event["oss"]["object"]["key"])


@pytest.mark.long
def test_volumes_that_share_a_queue_each_receive_their_own_messages(bucket: Bucket) -> None:
    bucket.cloud.make_bucket("another-bucket")
    bucket.volume("pictures", "a", patterns=("*.jpg",))
    bucket.volume("texts", "a/b")
    with bucket.kept():
        for volume in ("pictures", "texts"):
            eventually(lambda volume=volume: bucket.session.volumes.get(volume).last_listing is not None, 60)  # type: ignore[misc]
        for key in ("a/1.jpg", "a/b/2.jpg", "a/b/3.txt", "a/4.txt", "elsewhere/5.jpg"):
            bucket.put(key)
        eventually(lambda: bucket.directory("pictures") == {"1.jpg": 1, "b/2.jpg": 1}, 60)
        eventually(lambda: bucket.directory("texts") == {"2.jpg": 1, "3.txt": 1}, 60)
        eventually(bucket.is_drained, 30)
    rejected = {one.subject for one in bucket.session.home.catalog.refreshes.rejected()}
    assert rejected == {f"oss://{bucket.name}/elsewhere/"}


def test_messages_that_are_not_events_are_recorded_as_rejected_and_acknowledged(bucket: Bucket) -> None:
    bucket.volume("v")
    with bucket.kept() as kept:
        bucket.send(b"no event at all")
        bucket.put("good")
        eventually(lambda: bucket.directory("v") == {"good": 1}, 60)
        eventually(bucket.is_drained, 30)
        assert kept.workers[0].last_event is not None
    [one] = bucket.session.home.catalog.refreshes.rejected()
    assert one.subject == "no event at all"


@pytest.mark.long
def test_a_worker_that_takes_over_receives_what_its_predecessor_held(bucket: Bucket) -> None:
    bucket.volume("v")
    with bucket.kept():
        bucket.put("one")
        eventually(lambda: bucket.directory("v") == {"one": 1}, 60)
    bucket.put("two")
    with bucket.kept():
        eventually(lambda: bucket.directory("v") == {"one": 1, "two": 1}, 60)
        eventually(bucket.is_drained, 30)


@pytest.mark.long
def test_the_doctor_finds_a_maintained_volume_healthy_and_times_a_canary(bucket: Bucket) -> None:
    bucket.volume("v")
    bucket.put("first.txt")
    with bucket.kept():
        eventually(lambda: bucket.directory("v") == {"first.txt": 1}, 60)
        checks = {check.what: check for check in examine(bucket.session.home, "v", canary=True)}
        eventually(lambda: bucket.directory("v") == {"first.txt": 1}, 60)
    assert {what: check.state for what, check in checks.items() if check.state is CheckState.FAILED} == {}
    for what in ("credentials", "listing", "reading", "queue", "writer", "completeness", "canary"):
        assert checks[what].state is CheckState.OK, checks[what]
    assert "in the directory after" in checks["canary"].said


def test_the_doctor_names_what_is_wrong_and_what_to_do(bucket: Bucket, mns: Any) -> None:
    bucket.volume("v")
    service = bucket.cloud.service
    del service.buckets[bucket.name], mns.queues[bucket.name]
    checks = {check.what: check for check in examine(bucket.session.home, "v")}
    assert {what: checks[what].state for what in ("listing", "queue", "writer", "completeness")} == {
        "listing": CheckState.FAILED,
        "queue": CheckState.FAILED,
        "writer": CheckState.WARNING,
        "completeness": CheckState.WARNING,
    }
    assert "NoSuchBucket" in checks["listing"].said
    assert "queue name" in checks["queue"].fix
    assert "volstream daemon" in checks["writer"].fix
