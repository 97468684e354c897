"""Delays after failures."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.threads import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(first_seconds=1, cap_seconds=5)
    assert [backoff.delay(failures, lambda: 1.0) for failures in range(1, 6)] == [1, 2, 4, 5, 5]


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_any_delay_is_between_half_the_first_and_the_cap(failures: int, uniform: float) -> None:
    assert 0.25 <= Backoff().delay(failures, lambda: uniform) <= 60


_RETRIES = """
from volstream.base.threads import attempts_at
tried = []
for attempt in attempts_at(lambda error: True, attempts=3, wait_initial=0.001):
    with attempt:
        tried.append(1)
        if len(tried) < 3:
            raise ValueError("once more")
assert len(tried) == 3
"""


@pytest.mark.parametrize(("before", "lines"), [("", 0), ("import stamina", 2)], ids=["ours", "a program's"])
def test_retries_are_silent_unless_the_program_uses_stamina_itself(before: str, lines: int) -> None:
    run = subprocess.run([sys.executable, "-c", before + _RETRIES], capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout + run.stderr).count("stamina.retry_scheduled") == lines
    assert lines or not run.stdout + run.stderr
