"""Readers that are killed at any point, alone or two at once: each message is there once."""

from __future__ import annotations

import random
import signal
import time
from functools import partial

import pytest

from tests.broker import POINTS
from tests.integration.files.kafka.conftest import Kept
from tests.integration.files.kafka.reader import Reader
from tests.waiting import eventually


def reader(kept: Kept, fault: str = "") -> Reader:
    return Reader(kept.session.home.settings.home, fault)


def send(kept: Kept, topic: str, numbers: range) -> None:
    producer = kept.broker.producer(**{"linger.ms": "5"})
    for number in numbers:
        producer.produce(topic, str(number), partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0


def numbers(kept: Kept) -> list[int]:
    return sorted(int(text or -1) for _, _, text in kept.read())


@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "point", [*POINTS, *(pytest.param(one, marks=pytest.mark.long) for one in ("tail.written", "tail.appended"))]
)
def test_a_kill_at_any_named_point_loses_and_doubles_nothing(kept: Kept, point: str, passes: int) -> None:
    topic = kept.broker.topic(2)
    send(kept, topic, range(30_000))  # more than one batch
    kept.create("t", topic)
    killed = reader(kept, f"{point}#{passes}")
    assert killed.end() == -signal.SIGKILL
    before = numbers(kept)
    assert len(before) == len(set(before))
    assert point == "kafka.polled" or (len(before) > 0) == (point == "tail.appended" or passes > 1)
    kept.poll()
    assert numbers(kept) == [*range(30_000)]


@pytest.mark.long
@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_kills_at_random_of_two_that_read_at_once_lose_and_double_nothing(kept: Kept, kills: int) -> None:
    chosen = random.Random(kills)
    topic = kept.broker.topic(2)
    kept.create("t", topic)
    running = [reader(kept), reader(kept)]
    sent = 0

    def has_more_than(count: int) -> bool:
        assert all(one.is_alive for one in running), "nobody but this test ends a reader"
        return len(kept.read()) > count

    try:
        for _ in range(kills):
            before = len(kept.read())
            send(kept, topic, range(sent, sent + 500))
            sent += 500
            eventually(partial(has_more_than, before), 60)
            send(kept, topic, range(sent, sent + 500))
            sent += 500
            time.sleep(chosen.uniform(0, 0.5))
            running.pop(chosen.randrange(2)).kill()
            running.append(reader(kept))
        eventually(partial(has_more_than, sent - 1), 60)
    finally:
        for one in running:
            one.kill()
    assert numbers(kept) == [*range(sent)]
