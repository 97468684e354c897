"""Which jobs the scheduler looks at, driven by time."""

from __future__ import annotations

import random

import pytest

from volstream.server.daemon.jobs import Looks


def test_a_job_that_changes_keeps_its_turn_until_it_begins() -> None:
    looks = Looks()
    looks.changed(["a", "b"], 1)
    looks.changed(["a"], 5)
    assert looks.waiting(9, rested=True) == {"a": 1, "b": 1}
    looks.begins("a")
    assert looks.waiting(9, rested=True) == {"b": 1}
    looks.changed(["a"], 6)
    assert looks.waiting(9, rested=True) == {"a": 6, "b": 1}, "a change during the run counts"


def test_a_job_that_is_not_due_rests_until_its_time_or_a_change() -> None:
    looks = Looks()
    looks.changed(["a"], 1)
    looks.seen("a")
    looks.rests("a", 10)
    assert looks.waiting(9, rested=True) == {}
    assert looks.waiting(10, rested=False) == {}, "times are not looked at"
    assert looks.waiting(10, rested=True) == {"a": 10}
    looks.changed(["a"], 11)
    assert looks.waiting(12, rested=False) == {"a": 11}


def test_a_job_that_changed_while_it_was_looked_at_is_looked_at_again() -> None:
    looks = Looks()
    looks.changed(["a"], 1)
    looks.rests("a", 100)
    assert looks.waiting(2, rested=True) == {"a": 1}
    looks.seen("a")
    assert looks.waiting(2, rested=True) == {}


def test_a_job_that_was_dropped_is_forgotten() -> None:
    looks = Looks()
    looks.changed(["a", "b"], 1)
    looks.rests("a", 5)
    looks.forget({"b"})
    assert looks.waiting(9, rested=True) == {"b": 1}


@pytest.mark.parametrize("seed", range(30))
def test_no_job_that_changed_is_left_out_in_any_history(seed: int) -> None:
    chance, looks = random.Random(seed), Looks()
    changed, rests = dict[str, float](), dict[str, float]()
    for now in range(100):
        job = chance.choice("abcd")
        match chance.choice(["changed", "begins", "rests"]):
            case "changed":
                looks.changed([job], now)
                changed[job] = changed.get(job, now)
            case "begins":
                looks.begins(job)
                changed.pop(job, None)
                rests[job] = float("inf")
            case _:
                until = now + chance.randrange(20)
                looks.seen(job)
                looks.rests(job, until)
                changed.pop(job, None)
                rests[job] = until
        over = {one: at for one, at in rests.items() if at <= now}
        assert looks.waiting(now, rested=True) == {**over, **changed}
