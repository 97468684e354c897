"""The worker of a volume waits, takes over, is fenced, and hands over."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.disks import mounted
from tests.keeping import keeping
from tests.memory import MemoryQueue
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType, Volume
from volstream.catalog import tables
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import of_volume
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.errors import CatalogError, InvalidValueError, QueueError, WatchLimitError
from volstream.files.queues.base import EventQueue, Message, QueueSpec
from volstream.files.volumes.access import access_of
from volstream.files.volumes.routing import Routing
from volstream.ops.inspection.status import disabled
from volstream.server.daemon.sharing import Receivers, Share
from volstream.server.daemon.volumes import VolumeWorker
from volstream.testing.queues import SETTINGS


class World:
    """A home with one volume on a folder."""

    def __init__(self, folder: Path, queue_type: QueueType = QueueType.LOCAL) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        settings = config.load(folder / "home", settle_seconds=0.01, debounce_seconds=0.01, lease_seconds=1.0)
        self.session = Session(settings)
        self.volume = self.session.volumes.create("v", str(self.files), queue_type=queue_type)

    @contextmanager
    def worker(self, queue: EventQueue | None = None) -> Iterator[VolumeWorker]:
        """The worker of the volume in a daemon of its own."""
        with keeping(self.session.home.catalog, self.session.home.settings, queue) as made:
            [worker] = made.workers
            yield worker

    def recorded(self) -> str | None:
        """What everybody who looks at the catalog sees to be wrong."""
        return self.session.home.catalog.conditions.cause(ConditionKind.VOLUME, self.volume.id)

    def has(self, *names: str) -> bool:
        volume: Volume = self.session.volumes.get("v")
        return self.session.home.catalog.refreshes.file_count(volume.id) == len(names) and all(
            (self.files / name).exists() for name in names
        )

    def take_lease(self, owner: str, seconds: float) -> None:
        """Takes the lease as another host does after it has lapsed."""
        leases = self.session.home.catalog.leases
        with self.session.home.catalog.database.transaction() as transaction:
            transaction.execute(update(tables.leases).values(owner=owner))
        assert leases.acquire(of_volume(self.volume.id), owner, "test", seconds) is None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.session.close()


def test_a_worker_that_lost_its_lease_waits_and_then_maintains_the_volume_again(world: World) -> None:
    with world.worker() as worker:
        (world.files / "a").write_text("a")
        eventually(lambda: world.has("a"))
        world.take_lease("elsewhere/1/1.00/x", 600)
        eventually(lambda: not worker.holds)
        (world.files / "b").write_text("b")  # nobody watches
        world.session.home.catalog.leases.release(of_volume(world.volume.id), "elsewhere/1/1.00/x")
        eventually(lambda: world.has("a", "b"))
        assert worker.holds


def test_a_fenced_worker_gives_up_its_turn_and_takes_the_next_one(tmp_path: Path) -> None:
    world = World(tmp_path, QueueType.NONE)
    with world.worker() as worker:
        (world.files / "a").write_text("a")
        world.session.volumes.refresh("v")
        eventually(lambda: world.has("a"))
        # Another writer without a lease, as a process is that was away for long.
        (world.files / "b").write_text("b")
        zombie = DirectoryKeeper(world.volume, world.session.home.catalog, world.session.home.settings)
        assert zombie.reconcile().commit is not None
        (world.files / "c").write_text("c")
        world.session.volumes.refresh("v")
        eventually(lambda: world.has("a", "b", "c"))
        eventually(lambda: worker.holds)
    world.session.close()


def test_a_new_daemon_is_handed_half_of_the_volumes_and_those_of_a_daemon_that_ends(world: World) -> None:
    catalog, settings = world.session.home.catalog, world.session.home.settings
    others = world.files.with_name("others")
    others.mkdir()
    world.session.volumes.create("w", str(others))
    with keeping(catalog, settings) as first:
        eventually(lambda: len(first.kept) == 2)
        with keeping(catalog, settings) as second:
            eventually(lambda: (len(first.kept), len(second.kept)) == (1, 1))
            (world.files / "a").write_text("a")
            eventually(lambda: world.has("a"))
        eventually(lambda: len(first.kept) == 2)
        (world.files / "b").write_text("b")
        eventually(lambda: world.has("a", "b"))


def test_a_stop_before_the_lease_is_acquired_is_not_lost(world: World) -> None:
    world.session.home.catalog.leases.acquire(of_volume(world.volume.id), "elsewhere/1/1.00/x", "test", 600)
    with world.worker() as worker:
        assert not worker.holds


@pytest.mark.parametrize("replaced", [False, True])
def test_dropping_or_replacing_a_maintained_volume_ends_nothing_but_its_turn(world: World, replaced: bool) -> None:
    with world.worker() as worker:
        eventually(lambda: worker.holds)
        if replaced:
            world.session.volumes.create("v", str(world.files), or_replace=True)
        else:
            world.session.volumes.drop("v")
        (world.files / "a").write_text("a")
        eventually(lambda: not worker.holds)


def test_a_running_daemon_uses_a_connection_that_was_altered(tmp_path: Path) -> None:
    with Session(config.load(tmp_path / "home", lease_seconds=1.0)) as session:
        home, endpoints = session.home, list[str | None]()
        session.connections.create("c", "s3", region="us-east-1", endpoint="http://127.0.0.1:1")
        session.volumes.create("v", "s3://bucket/", connection="c", queue_type=QueueType.NONE, check=False)

        def queue_of(volume: Volume) -> EventQueue:
            access = access_of(volume, home.catalog, home.settings)
            endpoints.append(access.endpoint if access else None)
            return MemoryQueue(QueueSpec("memory://"))

        with keeping(home.catalog, home.settings, queue_of):
            eventually(lambda: endpoints)
            session.connections.alter("c", endpoint="http://127.0.0.1:2")
            eventually(lambda: endpoints == ["http://127.0.0.1:1", "http://127.0.0.1:2"])


def test_a_volume_whose_root_is_gone_reports_it_until_it_is_back(world: World) -> None:
    with world.worker() as worker:
        (world.files / "a").write_text("a")
        eventually(lambda: world.has("a"))
        world.files.rename(world.files.with_name("unmounted"))
        eventually(lambda: worker.reason is not None and worker.holds)
        eventually(lambda: world.recorded() is not None)
        world.files.with_name("unmounted").rename(world.files)
        eventually(lambda: worker.reason is None and world.recorded() is None)
        (world.files / "b").write_text("b")
        eventually(lambda: world.has("a", "b"))


def test_a_brief_catalog_outage_ends_nothing(world: World) -> None:
    def rename(before: str, after: str) -> None:
        with closing(sqlite3.connect(world.session.home.settings.home / "catalog.db", timeout=10)) as connection:
            connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
            connection.commit()

    with keeping(world.session.home.catalog, world.session.home.settings) as kept:
        eventually(lambda: kept.kept)
        rename("leases", "away")
        eventually(lambda: kept.failing and not kept.kept)
        rename("away", "leases")
        (world.files / "a").write_text("a")
        eventually(lambda: world.has("a") and not kept.failing, 60)


def test_a_worker_survives_a_catalog_too_full_to_record_what_is_wrong(tmp_path: Path) -> None:
    with mounted(tmp_path, "8m") as disk:
        if disk.why_not:
            pytest.skip(f"no tmpfs can be mounted: {disk.why_not}")
        world = World(tmp_path)
        home = world.session.home
        receivers = Receivers(lambda _: None, Routing(home.catalog))
        worker = VolumeWorker(world.volume, home.catalog, home.settings, lambda _: None, Share(1), Executor(), receivers)
        disk.fill()
        worker.trouble.failed(QueueError("gone"))
        with pytest.raises(CatalogError, match="Free space"):
            world.session.home.catalog.conditions.note(ConditionKind.VOLUME, world.volume.id, "gone")
        disk.empty()
        assert worker.reason == "gone"
        world.session.close()


def test_a_failure_that_an_earlier_keeper_left_lasts_until_a_listing_succeeds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.files / "a").write_text("a")
    with world.worker():
        eventually(lambda: world.has("a"))
    world.session.home.catalog.conditions.note(ConditionKind.VOLUME, world.volume.id, "The store is away.")
    begin, answered = DirectoryKeeper.begin_listing, threading.Event()

    def begin_listing(keeper: DirectoryKeeper, request: str | None) -> Callable[[], Any]:
        listing = begin(keeper, request)
        return lambda: answered.wait(60) and listing()

    monkeypatch.setattr(DirectoryKeeper, "begin_listing", begin_listing)
    names = map(str, itertools.count())

    def takes_events() -> bool:
        (world.files / next(names)).touch()  # the first ones may come before it watches
        return world.session.home.catalog.refreshes.file_count(world.volume.id) > 1

    with world.worker():
        eventually(takes_events, 60)
        assert world.recorded() == "The store is away."
        answered.set()
        eventually(lambda: world.recorded() is None)


def test_a_daemon_without_an_engine_hands_its_volumes_over(world: World) -> None:
    home, other = world.session.home, Session(world.session.home.settings)
    with other, keeping(home.catalog, home.settings) as first, keeping(other.home.catalog, home.settings) as second:
        eventually(lambda: first.kept or second.kept)
        broken, healthy = (first, second) if first.kept else (second, first)
        broken.disabled = lambda: "there is no Java"
        eventually(lambda: healthy.kept and not broken.kept)
        assert disabled(other.home) == [], "both are of this process, which knows of its own engine"
        (world.files / "a").write_text("a")
        eventually(lambda: world.has("a"))
        healthy.disabled = broken.disabled
        time.sleep(1.5)  # a lease
        assert healthy.kept, "no other one can run jobs either"


class Deaf(MemoryQueue):
    """A queue that was deleted."""

    def start(self) -> None:
        raise QueueError("The queue does not exist.")


def test_requests_are_served_while_the_queue_does_not_answer(world: World) -> None:
    with world.worker(queue=Deaf(QueueSpec(""))) as worker:
        (world.files / "a").write_text("a")
        eventually(lambda: worker.holds and worker.reason == "The queue does not exist.")
        world.session.volumes.refresh("v")
        assert world.has("a")
        eventually(lambda: world.recorded() == "The queue does not exist.")


def test_a_request_to_refresh_a_folder_outside_the_volume_is_answered(world: World) -> None:
    with world.worker() as worker:
        eventually(lambda: worker.holds)
        asked = world.session.home.catalog.refreshes
        asked.ask_check(world.volume.id, [".ignored/", "x.tmp"])
        eventually(lambda: not asked.asked_checks(world.volume.id, 10))


def test_held_removals_are_reported_and_accepted_by_a_refresh_that_the_daemon_runs(world: World) -> None:
    names = [str(number) for number in range(12)]
    for name in names:
        (world.files / name).write_text("x")
    world.session.volumes.refresh("v")
    moved = world.files.with_name("unmounted")
    world.files.rename(moved)
    world.files.mkdir()
    with world.worker() as worker:
        eventually(lambda: worker.held_removals == 12)
        assert world.session.volumes.refresh("v").held == 12
        assert world.session.home.catalog.refreshes.file_count(world.volume.id) == 12
        done = world.session.volumes.refresh("v", accept_removals=True)
        assert (done.listing, done.deleted, done.held) == (None, 12, 0)
        eventually(lambda: worker.held_removals == 0)


def test_a_folder_that_is_ignored_cannot_be_refreshed(world: World) -> None:
    with pytest.raises(InvalidValueError, match="ignored"):
        world.session.volumes.refresh("v", ".git")
    with pytest.raises(InvalidValueError, match="whole volume"):
        world.session.volumes.refresh("v", "a", accept_removals=True)


def test_only_the_worker_that_maintains_a_volume_reports_what_is_wrong_with_it(world: World) -> None:
    catalog = world.session.home.catalog
    catalog.leases.acquire(of_volume(world.volume.id), "elsewhere/1/1.00/x", "test", 600)
    catalog.conditions.note(ConditionKind.VOLUME, world.volume.id, "The queue does not exist.")
    world.volume = world.session.volumes.get("v")
    with world.worker() as worker:
        assert worker.reason is None
    assert world.recorded() == "The queue does not exist."
    catalog.leases.release(of_volume(world.volume.id), "elsewhere/1/1.00/x")
    with world.worker() as worker:
        eventually(lambda: worker.holds)
        eventually(lambda: world.recorded() is None)


def test_what_goes_wrong_with_an_object_that_was_dropped_is_not_kept(world: World) -> None:
    conditions = world.session.home.catalog.conditions
    world.session.volumes.drop("v")
    for kind in (ConditionKind.VOLUME, ConditionKind.JOB, ConditionKind.PROOF, ConditionKind.SOURCE):
        conditions.note(kind, world.volume.id, "It cannot be listed.")
        assert conditions.of(kind) == {}


class Unwatched(MemoryQueue):
    """A queue for which the kernel has no watches: at its start, or later."""

    def __init__(self, starts: bool) -> None:
        super().__init__(QueueSpec("memory://", settings=SETTINGS))
        self.is_deaf, self._starts = True, starts

    def start(self) -> None:
        if not self._starts and self.is_deaf:
            raise WatchLimitError("No watches are left.")
        super().start()

    def ready_at(self) -> float:
        return float("-inf") if self.is_deaf else super().ready_at()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        if self.is_deaf:
            raise WatchLimitError("No watches are left.")
        return super().receive(limit, wait_seconds)


@pytest.mark.parametrize("starts", [False, True])
def test_a_volume_that_cannot_be_watched_is_listed_often_until_it_can(world: World, starts: bool) -> None:
    queue = Unwatched(starts)
    settings = world.session.home.settings.model_copy(update={"poll_seconds": 0.2})
    with keeping(world.session.home.catalog, settings, queue) as made:
        [worker] = made.workers
        eventually(lambda: worker.reason is not None)
        for names in ("a", "ab", "abc"):
            (world.files / names[-1]).touch()
            eventually(partial(world.has, *names))
        eventually(lambda: worker.repairs["added"] >= 2 <= worker.repairs["late"])  # the first may be in the first listing
        assert "No watches are left" in str(world.recorded())
        queue.is_deaf = False
        eventually(lambda: worker.reason is None)
