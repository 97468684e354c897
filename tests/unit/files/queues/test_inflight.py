"""Deliveries that wait for their acknowledgement."""

from __future__ import annotations

from volstream.base.model.hints import KeyHint
from volstream.files.queues.in_process import CAPACITY, InFlight


def test_a_delivery_is_repeated_each_time_its_deadline_passes() -> None:
    in_flight = InFlight(60)
    message = in_flight.deliver(KeyHint("x"), now=0)
    assert in_flight.redeliver(59, 10) == []
    assert in_flight.redeliver(60, 10) == [message]
    assert in_flight.redeliver(61, 10) == []
    assert in_flight.next_due == 120


def test_no_more_is_redelivered_than_asked_for_oldest_first() -> None:
    in_flight = InFlight(60)
    first, second = in_flight.deliver(KeyHint("1"), 0), in_flight.deliver(KeyHint("2"), 1)
    assert in_flight.redeliver(100, 1) == [first]
    assert in_flight.redeliver(100, 1) == [second]


def test_a_consumer_that_never_acknowledges_leaves_no_room() -> None:
    in_flight = InFlight(60)
    for _ in range(CAPACITY):
        in_flight.deliver(KeyHint(""), 0)
    assert in_flight.room == 0
