"""Which offset is safe to commit."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from volstream.files.queues.kafka import PartitionOffsets


def delivered(*numbers: int) -> PartitionOffsets:
    offsets = PartitionOffsets(numbers[0])
    for number in numbers:
        assert offsets.deliver(number)
    return offsets


def test_the_first_unacknowledged_message_is_where_a_reader_would_have_to_begin() -> None:
    offsets = delivered(3, 4, 7)
    assert offsets.safe == 3
    offsets.acknowledge(4)
    assert offsets.safe == 3
    offsets.acknowledge(3)
    offsets.acknowledge(3)
    assert offsets.safe == 7
    offsets.acknowledge(7)
    assert offsets.safe == 8


def test_offsets_without_messages_are_passed_once_nothing_before_them_waits() -> None:
    offsets = delivered(3)
    offsets.reach(10)
    assert (offsets.safe, offsets.next) == (3, 10)
    offsets.acknowledge(3)
    assert offsets.safe == 10


def test_what_was_delivered_before_is_not_delivered_again() -> None:
    offsets = delivered(3, 4)
    assert not offsets.deliver(3)
    offsets.acknowledge(99)
    assert (offsets.safe, offsets.next) == (3, 5)


@given(st.sets(st.integers(0, 30), min_size=1), st.randoms())
def test_nothing_unacknowledged_is_before_the_safe_offset(numbers: set[int], chance: Random) -> None:
    offsets = delivered(*sorted(numbers))
    left = set(numbers)
    for number in chance.sample(sorted(numbers), len(numbers)):
        offsets.acknowledge(number)
        left.discard(number)
        assert offsets.safe == min(left, default=max(numbers) + 1)
