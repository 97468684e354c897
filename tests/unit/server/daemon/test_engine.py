"""A daemon's engine that dies, stalls, or cannot be started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.waiting import eventually
from volstream.base.threads import Backoff, Stop
from volstream.errors import EngineError, EngineLostError, InterruptedByUserError, InvalidValueError, JavaError, VolstreamError
from volstream.server.daemon.engine import EmbeddedEngine, LastingFailure, RemoteEngine, _in_short
from volstream.spark.jvm.address import Address, EngineAddress, RemoteAddress


class FakeJvm:
    """JVMs that start, or fail to, and die when the test says so."""

    def __init__(self, *failures: VolstreamError | OSError) -> None:
        self.failures = list(failures)
        self.starts = 0
        self.announced: list[str | None] = []
        self.status: int | None = None

    def start(self) -> EngineAddress:
        self.starts += 1
        if self.failures:
            raise self.failures.pop(0)
        self.status = None
        return EngineAddress(1, "t", "daemon", 1, "", jvm_pid=1000 + self.starts, jvm_started="")

    def announce(self, *, reason: str | None = None) -> None:
        self.announced.append(reason)

    def poll(self) -> int | None:
        return self.status

    def cause(self) -> str:
        return f"killed by {self.status}"


class FakeWatch:
    def __init__(self, lost: Callable[[str], None]) -> None:
        self.lost = lost
        self.stopped = False

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True


class World:
    def __init__(self, *failures: VolstreamError | OSError) -> None:
        self.stop = Stop()
        self.jvm = FakeJvm(*failures)
        self.watches: list[FakeWatch] = []
        self.ups = 0
        self.engine = EmbeddedEngine(self.jvm, self.stop, self.up, self.watch, Backoff(0.001, 0.01))

    def up(self) -> None:
        self.ups += 1

    def watch(self, address: Address, lost: Callable[[str], None]) -> FakeWatch:
        del address
        self.watches.append(FakeWatch(lost))
        return self.watches[-1]

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.engine.run)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join(5)
            assert not thread.is_alive()


def jvm_of(world: World) -> int:
    address = world.engine.attach()
    assert isinstance(address, EngineAddress)
    return address.jvm_pid


def test_a_dead_engine_is_restarted_and_reported_as_down_meanwhile() -> None:
    world = World()
    assert world.engine.status() == {"state": "starting"}
    with pytest.raises(EngineLostError, match="is starting"):
        world.engine.attach()
    with world.running():
        eventually(lambda: world.engine.is_up)
        assert (jvm_of(world), world.engine.status()) == (1001, {"state": "running"})
        world.jvm.failures.append(EngineError("the port is taken\nand much more"))
        world.jvm.status = -9
        assert not world.engine.is_up  # at once, before anybody looked
        with pytest.raises(EngineLostError) as caught:
            world.engine.attach()
        assert caught.value.transient
        eventually(lambda: world.ups == 2)
        assert (jvm_of(world), world.jvm.starts) == (1003, 3)
        assert world.watches[0].stopped


def test_an_unresponsive_engine_is_restarted() -> None:
    world = World()
    with world.running():
        eventually(lambda: world.ups == 1)
        world.watches[0].lost("it has not answered for 60 s")
        eventually(lambda: world.ups == 2)
        assert jvm_of(world) == 1002


@pytest.mark.parametrize("error", [JavaError("There is no Java."), EngineError("no"), OSError("no memory")])
def test_an_engine_that_cannot_start_is_retried_for_ever_and_says_why(error: VolstreamError | OSError) -> None:
    world = World(*[error] * 1000)
    with world.running():
        eventually(lambda: world.jvm.starts > 3)
        assert not world.engine.is_up
        assert world.engine.failures > 1
        assert world.engine.status() == {"state": "restarting", "reason": str(error)}
        assert world.jvm.announced[0] == str(error), "commands see it, too"


def test_a_stop_ends_waiting_and_starting() -> None:
    world = World(InterruptedByUserError("told to end"))
    world.engine.run()
    assert world.jvm.starts == 1
    other = World()
    other.engine = EmbeddedEngine(FakeJvm(EngineError("no")), other.stop, other.up, other.watch, Backoff(1000, 1000))
    with other.running():
        eventually(lambda: "reason" in other.engine.status())


def test_invalid_settings_end_it() -> None:
    with pytest.raises(InvalidValueError):
        World(InvalidValueError("jvm_options cannot be read")).engine.run()


def test_a_server_elsewhere_is_down_until_it_answers_again() -> None:
    stop, watches, ups = Stop(), list[FakeWatch](), list[bool]()
    silent = threading.Event()
    silent.set()

    def watch(address: Address, lost: Callable[[str], None]) -> FakeWatch:
        del address
        watches.append(FakeWatch(lost))
        return watches[-1]

    engine = RemoteEngine(
        RemoteAddress("sc://there"), stop, lambda: ups.append(True), watch, lambda _: not silent.is_set(), Backoff(0.001, 0.01)
    )
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        eventually(lambda: watches)
        assert (engine.is_up, engine.status()) == (True, {"state": "elsewhere", "server": "sc://there"})
        watches[0].lost("it has not answered for 30 s")
        eventually(lambda: not engine.is_up)
        assert engine.failures == 1
        assert engine.status() == {"state": "lost", "reason": "it has not answered for 30 s", "server": "sc://there"}
        with pytest.raises(EngineLostError, match="The Spark server is down: it has not answered for 30 s"):
            engine.attach()
        silent.clear()
        eventually(lambda: ups)
        assert engine.is_up
        assert engine.attach() == RemoteAddress("sc://there")
        eventually(lambda: len(watches) == 2)
    finally:
        stop.set()
        thread.join(10)
    assert [watch.stopped for watch in watches] == [True, True]


def test_an_engine_counts_as_down_once_it_has_been_down_for_long_and_until_it_has_been_up_as_long() -> None:
    now, engine = [0.0], SimpleNamespace(is_up=False, failures=0, status=lambda: {"reason": "no Java"})
    reason = LastingFailure(engine, 60, lambda: now[0])

    def at(time: float, *, up: bool) -> str | None:
        now[0], engine.is_up = time, up
        return reason()

    assert [at(0, up=False), at(59, up=False), at(60, up=False)] == [None, None, "no Java"]
    assert [at(70, up=True), at(100, up=False), at(120, up=True)] == ["no Java"] * 3, "it died again"
    assert [at(159, up=True), at(160, up=True), at(200, up=False), at(219, up=False)] == ["no Java", None, None, None]


def test_a_reason_that_announces_the_next_line_is_told_with_it() -> None:
    assert (
        _in_short("Its JVM ended. Its last lines:\n\n  No such option\nmore") == "Its JVM ended. Its last lines: No such option"
    )
    assert _in_short("It was killed.\nmore") == "It was killed."
    assert _in_short("Its last lines:") == "Its last lines:"
