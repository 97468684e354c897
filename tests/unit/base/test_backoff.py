"""Delays after failures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from volstream.base.threads import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(first_seconds=1, cap_seconds=5)
    assert [backoff.delay(failures, lambda: 1.0) for failures in range(1, 6)] == [1, 2, 4, 5, 5]


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_any_delay_is_between_half_the_first_and_the_cap(failures: int, uniform: float) -> None:
    assert 0.25 <= Backoff().delay(failures, lambda: uniform) <= 60
