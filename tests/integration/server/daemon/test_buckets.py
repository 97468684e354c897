"""Volumes of buckets in a daemon: queues that they share, and listings that take long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.keeping import keeping
from tests.ordered import Bucket
from tests.waiting import eventually
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.definitions import QueueType, Volume, VolumeSpec
from volstream.base.model.hints import ObjectHint
from volstream.base.model.names import Name
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.catalog import Catalog
from volstream.catalog.leases import of_volume
from volstream.changes.directory import keeper
from volstream.errors import QueueError, StorageDeniedError
from volstream.files.queues.base import QueueSettings, QueueState
from volstream.files.queues.remote import Delivery, RemoteQueue
from volstream.files.volumes.definitions import create_volume, drop_volume


class Messages:
    """A queue of a provider with the given keys of the bucket."""

    batch = 10

    def __init__(self, *keys: str) -> None:
        self.waiting = [Delivery(key, key, key.encode()) for key in keys]
        self.deleted: list[str] = []
        self.opens: Callable[[], object] = lambda: None

    def open(self) -> float:
        self.opens()
        return 60.0

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        taken, self.waiting = self.waiting, []
        if not taken:
            threading.Event().wait(0.05)
        return taken

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        self.deleted += handles
        return ()

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        return {handle: handle for handle in handles}

    def describe(self) -> QueueState:
        raise QueueError("It does not count.")

    def queue(self, _: Volume) -> RemoteQueue:
        return RemoteQueue(self, QueueSettings(), lambda body: (ObjectHint("photos", body.decode()),), "q")


class Slow(Bucket):
    """A bucket whose listings end when they may."""

    def __init__(self) -> None:
        super().__init__(["a"])
        self.may_end = threading.Event()

    def list_after(self, prefix: str, selection: Selection, after: str, *, deep: bool = True) -> Iterator[FileInfo | Finding]:
        self.may_end.wait(60)
        yield from super().list_after(prefix, selection, after, deep=deep)


class World:
    """A home whose volumes are prefixes of one bucket."""

    def __init__(self, folder: Path) -> None:
        self.settings: Settings = config.load(folder / "home", lease_seconds=1.0)
        self.catalog = Catalog(self.settings.database_url)

    def volume(self, name: str, **options: Any) -> Volume:
        spec = VolumeSpec(name=Name.parse(name), location=f"s3://photos/{name}", queue_type=QueueType.NONE, **options)
        return create_volume(self.catalog, self.settings, spec, check=False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.catalog.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    monkeypatch.setattr(keeper, "store_of", lambda *_: made)
    yield made
    made.may_end.set()


def test_a_queue_whose_credentials_appear_later_is_received_from_then(world: World, slow: Slow) -> None:
    slow.may_end.set()
    world.volume("v")
    messages = Messages("v/a")
    there = threading.Event()

    def opens() -> None:
        if not there.is_set():
            raise StorageDeniedError("There are no credentials in /run/key.json.")

    messages.opens = opens
    with keeping(world.catalog, world.settings, messages.queue) as made:
        eventually(lambda: "There are no credentials" in str(made.failing))
        there.set()
        eventually(lambda: messages.deleted == ["v/a"] and not made.failing)


def test_messages_for_volumes_of_other_daemons_do_not_wait_for_a_first_listing(world: World, slow: Slow) -> None:
    one, other = world.volume("v"), world.volume("w", virtual_cluster="ELSEWHERE")
    messages = Messages("w/new", "v/new")
    with keeping(world.catalog, world.settings, messages.queue):
        eventually(lambda: sorted(messages.deleted) == ["v/new", "w/new"])
        assert world.catalog.refreshes.last(one.id) is None, "it is still being listed"
        assert world.catalog.refreshes.is_asked(other.id, "new")
        slow.may_end.set()
        eventually(lambda: not world.catalog.refreshes.is_asked(one.id, "new"))


def test_volumes_that_wait_to_be_listed_are_left_at_once(world: World, slow: Slow) -> None:
    volumes = [world.volume(f"v{number}") for number in range(30)]
    with keeping(world.catalog, world.settings, Messages().queue) as made:
        eventually(lambda: len(made.kept) == 30)
        for volume in volumes[10:]:
            drop_volume(world.catalog, volume.name)
        free = world.catalog.leases.is_free
        eventually(lambda: sum(free(of_volume(volume.id), 1.0) for volume in volumes) >= 12)
        slow.may_end.set()


def test_a_listing_that_is_asked_for_holds_up_no_events(world: World, slow: Slow) -> None:
    slow.may_end.set()
    volume = world.volume("v")
    messages = Messages()
    with keeping(world.catalog, world.settings, messages.queue) as made:
        eventually(lambda: world.catalog.refreshes.last(volume.id) is not None)
        eventually(lambda: not made.failing)
        slow.may_end.clear()
        world.catalog.refreshes.ask_check(volume.id, [""])
        slow.keys.append("b")
        messages.waiting = [Delivery("v/b", "v/b", b"v/b")]
        eventually(lambda: world.catalog.refreshes.file_count(volume.id) == 2)
        assert world.catalog.refreshes.is_asked(volume.id, "")
        slow.may_end.set()
        eventually(lambda: not world.catalog.refreshes.is_asked(volume.id, ""))
