"""Work under a lease: one at a time, taken over when it is released or lost, with its condition in the catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config, log
from volstream.base.threads import Stop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import of_source
from volstream.errors import FencedError, StorageError
from volstream.home import Home
from volstream.server.daemon.leased import LeasedWorker


class Counting(LeasedWorker):
    """Counts its turns, each of which first raises what it finds in ``errors``."""

    def __init__(self, home: Home) -> None:
        name, condition = of_source("1"), (ConditionKind.TABLE, "1")
        super().__init__("counting", name, home.catalog, home.settings, log.get("test"), condition)
        self.turns = 0
        self.errors: list[Exception] = []
        self.wanted = True

    def is_wanted(self) -> bool:
        return self.wanted

    def work(self, turn: Stop) -> None:
        self.turns += 1
        if self.errors:
            raise self.errors.pop(0)
        self.trouble.recovered()
        turn.wait(60)


class Dropping(Counting):
    """Its object is dropped while it works."""

    def work(self, turn: Stop) -> None:
        self.wanted = False
        raise StorageError("There is no such folder.")


@contextmanager
def running(*workers: LeasedWorker) -> Iterator[None]:
    with ExitStack() as ends:
        for worker in workers:
            thread = threading.Thread(target=worker.run, daemon=True)
            ends.callback(thread.join, 30)
            ends.callback(worker.end)
            thread.start()
        yield


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with Session(config.load(tmp_path / "home")) as session:
        yield session.home


def test_one_works_at_a_time_and_another_takes_over_what_is_handed_over(home: Home) -> None:
    first, second = Counting(home), Counting(home)
    with running(first):
        eventually(lambda: first.holds)
        with running(second):
            first.wanted = False  # as a daemon that has its share: either may be the next to try
            first.hand_over()
            eventually(lambda: second.holds and second.turns)  # a turn begins a moment after the lease
            assert not first.holds
            assert (first.turns, second.turns) == (1, 1)
    assert home.catalog.leases.held() == []


def test_an_error_is_the_condition_until_work_succeeds(home: Home) -> None:
    worker = Counting(home)
    worker.errors = [StorageError("The bucket is away.")]
    with running(worker):
        eventually(lambda: home.catalog.conditions.cause(ConditionKind.TABLE, "1") == "The bucket is away.")
        eventually(lambda: worker.holds and home.catalog.conditions.cause(ConditionKind.TABLE, "1") is None)


def test_what_an_ended_worker_left_wrong_is_cleared_by_its_successor(home: Home) -> None:
    home.catalog.conditions.note(ConditionKind.TABLE, "1", "The bucket is away.")
    worker = Counting(home)
    with running(worker):
        eventually(lambda: home.catalog.conditions.cause(ConditionKind.TABLE, "1") is None)


def test_who_waits_for_the_lease_leaves_the_condition_alone(home: Home) -> None:
    home.catalog.leases.acquire(of_source("1"), "elsewhere/1/1.00/x", "test", 60)
    home.catalog.conditions.note(ConditionKind.TABLE, "1", "The bucket is away.")
    worker = Counting(home)
    with running(worker):
        worker.trouble.recovered()
        worker.record()
    assert home.catalog.conditions.cause(ConditionKind.TABLE, "1") == "The bucket is away."


def test_a_takeover_is_no_trouble_and_neither_is_what_fails_because_its_object_was_dropped(home: Home) -> None:
    worker = Counting(home)
    worker.errors = [FencedError("taken over")]
    with running(worker):
        eventually(lambda: worker.turns == 2)
        assert worker.reason is None
    dropped = Dropping(home)
    with running(dropped):
        eventually(lambda: not dropped.wanted)
    assert dropped.reason is None
    assert home.catalog.conditions.of(ConditionKind.TABLE) == {}
