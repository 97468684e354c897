"""Steps of many objects in few threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.waiting import eventually
from volstream.base.threads import Steps


@pytest.fixture
def steps() -> Iterator[Steps]:
    made = Steps(2, "step")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(made.run)
        yield made
        made.end()
        running.result(10)


def test_a_step_is_called_when_it_is_due_and_when_it_is_woken(steps: Steps) -> None:
    called: list[float] = []
    ends = threading.Event()

    def step() -> float | None:
        called.append(time.monotonic())
        return None if ends.is_set() else 0.05 if len(called) < 3 else float("inf")

    place = steps.add(step)
    eventually(lambda: len(called) == 3)
    assert called[1] - called[0] >= 0.05
    place.wake(time.monotonic() + 0.05)
    place.wake(time.monotonic() + 60)  # later than it is due
    eventually(lambda: len(called) == 4)
    ends.set()
    place.wake()
    eventually(lambda: len(called) == 5)
    place.wake()
    place.wake()


def test_an_object_that_is_woken_during_its_step_makes_another_one_afterwards(steps: Steps) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    at_once: list[int] = []
    calls = 0

    def step() -> float | None:
        nonlocal calls
        calls += 1
        at_once.append(1)
        begun.set()
        assert may_go_on.wait(10)
        assert len(at_once) == 1
        at_once.clear()
        return float("inf") if calls < 2 else None

    place = steps.add(step)
    assert begun.wait(10)
    for _ in range(5):
        place.wake()
    may_go_on.set()
    eventually(lambda: calls == 2)


def test_ten_thousand_objects_wait_without_a_thread_each(steps: Steps) -> None:
    before = threading.active_count()
    done: list[int] = []
    places = [steps.add(lambda: float("inf") if len(done) < 10_000 else None) for _ in range(10_000)]
    assert threading.active_count() <= before + 2
    done.extend(range(10_000))
    for place in places:
        place.wake()


def test_a_step_that_raises_ends_all_with_its_error() -> None:
    made = Steps(2, "step")

    def fail() -> float:
        raise ZeroDivisionError("wrong")

    with ThreadPoolExecutor(1) as pool:
        running: Future[None] = pool.submit(made.run)
        made.add(fail)
        with pytest.raises(ZeroDivisionError):
            running.result(10)
