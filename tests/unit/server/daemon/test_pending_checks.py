"""Which jobs the scheduler checks, driven by time."""

from __future__ import annotations

import random

import pytest

from volstream.server.daemon.jobs import PendingChecks


def test_a_job_that_changes_keeps_its_turn_until_it_begins() -> None:
    pending = PendingChecks()
    pending.changed(["a", "b"], 1)
    pending.changed(["a"], 5)
    assert pending.waiting(9, rested=True) == {"a": 1, "b": 1}
    pending.begins("a")
    assert pending.waiting(9, rested=True) == {"b": 1}
    pending.changed(["a"], 6)
    assert pending.waiting(9, rested=True) == {"a": 6, "b": 1}, "a change during the run counts"


def test_a_job_that_is_not_due_rests_until_its_time_or_a_change() -> None:
    pending = PendingChecks()
    pending.changed(["a"], 1)
    pending.seen("a")
    pending.rests("a", 10)
    assert pending.waiting(9, rested=True) == {}
    assert pending.waiting(10, rested=False) == {}, "times are not looked at"
    assert pending.waiting(10, rested=True) == {"a": 10}
    pending.changed(["a"], 11)
    assert pending.waiting(12, rested=False) == {"a": 11}


def test_a_job_that_changed_while_it_was_looked_at_is_looked_at_again() -> None:
    pending = PendingChecks()
    pending.changed(["a"], 1)
    pending.rests("a", 100)
    assert pending.waiting(2, rested=True) == {"a": 1}
    pending.seen("a")
    assert pending.waiting(2, rested=True) == {}


def test_a_job_that_was_dropped_is_forgotten() -> None:
    pending = PendingChecks()
    pending.changed(["a", "b"], 1)
    pending.rests("a", 5)
    pending.forget({"b"})
    assert pending.waiting(9, rested=True) == {"b": 1}


@pytest.mark.parametrize("seed", range(30))
def test_no_job_that_changed_is_left_out_in_any_history(seed: int) -> None:
    chance, pending = random.Random(seed), PendingChecks()
    changed, rests = dict[str, float](), dict[str, float]()
    for now in range(100):
        job = chance.choice("abcd")
        match chance.choice(["changed", "begins", "rests"]):
            case "changed":
                pending.changed([job], now)
                changed[job] = changed.get(job, now)
            case "begins":
                pending.begins(job)
                changed.pop(job, None)
                rests[job] = float("inf")
            case _:
                until = now + chance.randrange(20)
                pending.seen(job)
                pending.rests(job, until)
                changed.pop(job, None)
                rests[job] = until
        over = {one: at for one, at in rests.items() if at <= now}
        assert pending.waiting(now, rested=True) == {**over, **changed}
