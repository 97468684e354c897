"""JobServices that start and stop together, and their loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from volstream.base.threads import Backoff, FailureTracker, Stop, Supervisor, ThreadFailure, is_transient, run_loop
from volstream.errors import QueueError, UserError

FAST = Backoff(first_seconds=0.001, cap_seconds=0.002)


def waiting_for(stop: Stop) -> Callable[[], None]:
    """A part that runs until it is stopped."""

    def part() -> None:
        stop.wait(60)

    return part


def test_a_part_that_raises_stops_the_others_and_is_named() -> None:
    stop = Stop()
    supervisor = Supervisor(stop)
    error = ValueError("broken")

    def fail() -> None:
        raise error

    supervisor.run("steady", waiting_for(stop))
    supervisor.run("fragile", fail)
    assert supervisor.join(5)
    assert stop
    assert supervisor.failure == ThreadFailure("fragile", error)


def test_a_part_that_just_returns_stops_the_others_too() -> None:
    stop = Stop()
    supervisor = Supervisor(stop)
    supervisor.run("short", lambda: None)
    assert supervisor.join(5)
    assert stop
    assert supervisor.failure == ThreadFailure("short", None)


def test_parts_that_may_end_stop_nothing_and_are_not_kept() -> None:
    stop = Stop()
    supervisor = Supervisor(stop)
    supervisor.run("steady", waiting_for(stop))
    for _ in range(3):
        supervisor.run("short", lambda: None, may_end=True)
        supervisor.join(0.1)
    assert supervisor.alive() == ["steady"]
    assert len(supervisor._threads) == 2
    assert not stop
    stop.set()
    assert supervisor.join(5)


def test_a_part_that_may_end_but_raises_stops_the_others() -> None:
    stop = Stop()
    supervisor = Supervisor(stop)
    supervisor.run("fragile", lambda: [][0], may_end=True)
    assert supervisor.join(5)
    assert stop
    assert isinstance(supervisor.failure and supervisor.failure.error, IndexError)


def test_a_requested_stop_is_not_a_failure() -> None:
    stop = Stop()
    supervisor = Supervisor(stop)
    supervisor.run("steady", waiting_for(stop))
    assert supervisor.failure is None
    stop.set()
    assert supervisor.join(5)
    assert supervisor.failure is None


def test_an_error_during_the_stop_is_logged_but_not_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    stop = Stop()
    supervisor = Supervisor(stop)

    def fail_late() -> None:
        stop.wait(60)
        raise ValueError("late")

    supervisor.run("late", fail_late)
    stop.set()
    assert supervisor.join(5)
    assert supervisor.failure is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "failed_while_stopping" in line
    assert "error=late part=late" in line


def test_a_join_names_the_parts_that_did_not_end_in_time() -> None:
    supervisor = Supervisor(Stop())
    release = Stop()
    supervisor.run("stuck", waiting_for(release))
    assert not supervisor.join(0.01)
    assert supervisor.alive() == ["stuck"]
    release.set()
    assert supervisor.join(5)


def looped(ticks: list[Exception | None], stop: Stop) -> list[dict[str, Any]]:
    """Runs the loop over these outcomes, then stops; the log lines."""
    outcomes = iter(ticks)

    def tick() -> None:
        outcome = next(outcomes, StopIteration())
        if isinstance(outcome, StopIteration):
            stop.set()
        elif outcome is not None:
            raise outcome

    with structlog.testing.capture_logs() as lines:
        run_loop(tick, stop, FailureTracker("reading", structlog.get_logger(), FAST), survives=is_transient)
    return [dict(line) for line in lines]


def test_transient_errors_are_logged_once_with_the_recovery() -> None:
    error = QueueError("the queue is away")
    lines = looped([None, error, error, error, None, None], Stop())
    assert [line["event"] for line in lines] == ["loop_failing", "loop_recovered"]
    assert lines[0]["loop"] == "reading"
    assert lines[0]["error"] == "the queue is away"
    assert lines[1]["failures"] == 3


def test_any_other_error_ends_the_loop() -> None:
    with pytest.raises(UserError):
        looped([UserError("wrong")], Stop())
    with pytest.raises(ValueError, match="bug"):
        looped([ValueError("bug")], Stop())


def test_a_stop_before_the_loop_starts_is_not_lost() -> None:
    stop = Stop()
    stop.set()
    assert looped([ValueError("must not run")], stop) == []


def test_a_stop_ends_the_pause_after_an_error() -> None:
    stop = Stop()

    def tick() -> None:
        threading.Timer(0.02, stop.set).start()
        raise QueueError("away")

    thread = threading.Thread(
        target=run_loop, args=(tick, stop, FailureTracker("x", structlog.get_logger(), Backoff(first_seconds=60))), daemon=True
    )
    with structlog.testing.capture_logs():
        thread.start()
        thread.join(5)
    assert not thread.is_alive()
