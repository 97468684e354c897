"""The states of a volume's turn, driven by time: when it is listed, whether it receives, and its messages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from volstream.base.model.hints import Hint, KeyHint, SubtreeHint
from volstream.base.model.paths import Selection
from volstream.files.queues.base import Message
from volstream.server.daemon.volumes import Inbox, ListingSchedule, Reception

NEVER, AT_ONCE = float("inf"), float("-inf")


def message(path: str) -> Message:
    return Message(path, (KeyHint(path),))


def hints_of(messages: Sequence[Message]) -> list[Hint]:
    return [KeyHint(one.receipt) for one in messages]


@pytest.fixture
def schedule() -> ListingSchedule:
    return ListingSchedule(listing_seconds=100, poll_seconds=10)


def listed(schedule: ListingSchedule, now: float) -> ListingSchedule:
    schedule.begins()
    schedule.ended(now)
    return schedule


def test_a_volume_that_was_never_listed_is_listed_at_once_and_then_on_schedule(schedule: ListingSchedule) -> None:
    assert (schedule.due, schedule.is_well) == (AT_ONCE, False)
    assert listed(schedule, 5).due == 105
    assert schedule.is_well
    schedule.polls = True
    assert schedule.due == 15


def test_a_listing_covers_what_was_missed_before_it_began(schedule: ListingSchedule) -> None:
    listed(schedule, 0).missed("request")
    assert (schedule.due, schedule.is_current) == (AT_ONCE, False)
    schedule.begins()
    schedule.missed()
    schedule.ended(7)
    assert (schedule.due, schedule.request) == (AT_ONCE, "request"), "the second was missed during the listing"
    assert (listed(schedule, 9).due, schedule.request) == (109, None)


def test_a_listing_that_failed_is_made_again_and_covers_no_more_than_the_one_before(schedule: ListingSchedule) -> None:
    listed(schedule, 0).missed()
    schedule.begins()
    schedule.failed()
    assert (schedule.due, schedule.has_failed, schedule.is_well) == (AT_ONCE, True, False)
    schedule.missed()  # the next listing may go on with the first one, which did not see this
    schedule.begins()
    schedule.ended(5)
    assert (schedule.due, schedule.has_failed) == (AT_ONCE, False)
    assert listed(schedule, 6).is_current


@pytest.mark.parametrize("seed", range(50))
def test_no_change_is_forgotten_by_any_order_of_listings_and_misses(seed: int) -> None:
    chance, schedule = random.Random(seed), ListingSchedule(100, 10)
    seen, to_see, sees = 0, 1, 0  # of changes: listed, missed in all, what the listing that runs began with
    runs, again = False, False
    for now in range(60):
        step = chance.choice(["miss", "begin", "end", "fail"])
        if step == "miss":
            schedule.missed()
            to_see += 1
        elif step == "begin" and not runs:
            sees = sees if again else to_see
            schedule.begins()
            runs = True
        elif step == "end" and runs:
            schedule.ended(now)
            seen, runs, again = sees, False, False
        elif step == "fail" and runs:
            schedule.failed()
            runs, again = False, True
        if seen:
            assert schedule.is_current is (seen == to_see)


def test_a_volume_begins_to_receive_again_after_a_pause_or_when_another_leaves() -> None:
    reception = Reception()
    assert (reception.begins_at, reception.is_left) == (AT_ONCE, False)
    reception.refused(7)
    assert (reception.begins_at, reception.is_left) == (7, False)
    reception.left()
    assert (reception.begins_at, reception.is_left) == (NEVER, True)
    reception.again()
    assert (reception.begins_at, reception.is_left) == (AT_ONCE, False)
    reception.left()
    reception.begun()
    assert (reception.is_on, reception.is_left) == (True, False)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(Selection())


def test_messages_that_follow_closely_are_taken_together_but_not_after_a_second(inbox: Inbox) -> None:
    assert inbox.gathers([message("a")], 0.0, settled=False)
    assert inbox.gathers([message("b")], 0.9, settled=False)
    assert not inbox.gathers([message("c")], 1.0, settled=False), "they were gathered long enough"
    assert inbox.take(hints_of)
    assert {*inbox.hints.keys} == {"a", "b", "c"}
    assert len(inbox.unacknowledged) == 3


@pytest.mark.parametrize(("more", "settled"), [([], False), ([message("b")], True)])
def test_messages_are_taken_once_no_more_follow_or_the_queue_says_so(inbox: Inbox, more: list[Message], settled: bool) -> None:
    assert inbox.gathers([message("a")], 0.0, settled=False)
    assert not inbox.gathers(more, 0.1, settled=settled)
    assert not inbox.gathers([], 0.2, settled=False)


def test_what_cannot_be_passed_on_stays(inbox: Inbox) -> None:
    def fails(_messages: Sequence[Message]) -> Any:
        raise ConnectionError

    assert inbox.gathers([], 0.0, settled=False) is False
    assert not inbox.take(hints_of), "nothing was received"
    inbox.gathers([message("a")], 0.0, settled=True)
    with pytest.raises(ConnectionError):
        inbox.take(fails)
    assert not inbox.unacknowledged
    assert inbox.take(hints_of)
    assert not inbox.take(hints_of)


def test_hints_stay_until_they_are_applied_and_messages_until_they_are_acknowledged(inbox: Inbox) -> None:
    inbox.gathers([message("a")], 0.0, settled=True)
    inbox.take(hints_of)
    assert not inbox.refused(), "keys are tried again for ever"
    assert inbox.hints
    inbox.applied()
    assert not inbox.hints
    assert inbox.unacknowledged
    inbox.acknowledged()
    assert not inbox.unacknowledged


def test_folders_that_are_refused_again_and_again_are_given_up_for_a_listing(inbox: Inbox) -> None:
    inbox.hints.add({SubtreeHint("b/", "request"): datetime.now(UTC)})
    assert [inbox.refused() for _ in range(5)] == [False] * 4 + [True]
    assert not inbox.hints
    inbox.applied()
    inbox.hints.add({SubtreeHint("b/", "request"): datetime.now(UTC)})
    assert not inbox.refused(), "it is counted anew"
