"""Whether and when a failed file is retried."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.work import FailureKind
from volstream.base.threads import Backoff
from volstream.jobs.batches.attempt import RetryPolicy

NOW = datetime(2024, 1, 1, tzinfo=UTC)
POLICY = RetryPolicy(3, Backoff(10, 60), 3600)


def delay(policy: RetryPolicy, attempts: int, seed: int = 0) -> float:
    due = policy.next_try(FailureKind.RAISED, attempts, NOW, random.Random(seed))
    assert due is not None
    return (due - NOW).total_seconds()


@given(st.integers(1, 3), st.integers())
def test_a_delay_doubles_and_lies_between_its_half_and_its_whole(attempts: int, seed: int) -> None:
    nominal = 10 * 2 ** (attempts - 1)
    assert nominal / 2 <= delay(POLICY, attempts, seed) <= nominal


@given(st.integers(1, 10_000), st.integers())
def test_a_delay_has_an_upper_bound_however_often_a_file_failed(attempts: int, seed: int) -> None:
    assert delay(RetryPolicy(10_000, Backoff(10, 60), 3600), attempts, seed) <= 60


def test_files_that_failed_together_are_not_retried_together() -> None:
    assert len({delay(POLICY, 1, seed) for seed in range(20)}) > 10


def test_there_is_no_retry_after_the_last_one() -> None:
    tries = [POLICY.next_try(FailureKind.RAISED, attempts, NOW, random.Random(0)) is not None for attempts in range(1, 6)]
    assert tries == [True, True, True, False, False]
    assert RetryPolicy(0, Backoff(10, 60), 3600).next_try(FailureKind.RAISED, 1, NOW, random.Random(0)) is None


@pytest.mark.parametrize("kind", FailureKind)
def test_permanent_failures_are_not_retried(kind: FailureKind) -> None:
    due = POLICY.next_try(kind, 1, NOW, random.Random(0))
    permanent = (
        FailureKind.WRONG_RESULT,
        FailureKind.TOO_LARGE,
        FailureKind.CODE,
        FailureKind.MALFORMED,
        FailureKind.NEW_COLUMNS,
    )
    assert (due is None) == (kind in permanent)


@pytest.mark.parametrize("kind", [FailureKind.VANISHED, FailureKind.CHANGED])
def test_vanished_and_changed_files_are_always_checked_again(kind: FailureKind) -> None:
    assert POLICY.next_try(kind, 1000, NOW, random.Random(0)) is not None
