"""What Spark's progress reports say of statements that run beside each other in one session."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from volstream.errors import NoExecutorError
from volstream.spark.tasks import given_up, idle_slots


@dataclass
class Stage:
    num_tasks: int
    num_completed_tasks: int


class Reported:
    """A session whose progress reports the test makes."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []
        self.interrupted = threading.Event()
        self.registerProgressHandler = self.handlers.append
        self.removeProgressHandler = self.handlers.remove
        self.interruptAll = self.interrupted.set

    def report(self, operation: str, completed: int, running: int, tasks: int = 8, *, done: bool = False) -> None:
        for handler in self.handlers:
            handler(stages=[Stage(tasks, completed)], inflight_tasks=running, operation_id=operation, done=done)


@pytest.fixture
def session() -> Any:
    return Reported()


def test_two_statements_that_wait_for_executors_are_given_up(session: Any) -> None:
    def wait() -> None:
        while not session.interrupted.wait(0.01):
            session.report("a", 5, 0)
            session.report("b", 0, 0)
        raise InterruptedError

    with pytest.raises(NoExecutorError), given_up(session, 0.2):
        wait()


def test_a_statement_that_runs_keeps_the_session_from_being_given_up_until_it_ends(session: Any) -> None:
    with given_up(session, 0.1):
        session.report("a", 5, 1)
        session.report("b", 0, 0)
        assert not session.interrupted.wait(0.3)
        session.report("a", 8, 1, done=True)  # its last report still counts the task
        assert session.interrupted.wait(10)


@pytest.mark.parametrize(
    ("report", "idle"),
    [
        (("a", 4, 4), False),
        (("a", 5, 2), False),  # one has not begun
        (("a", 6, 2), True),
        (("a", 0, 1, 1), True),
        (("a", 8, 0), False),
    ],
)
def test_slots_are_idle_while_the_last_tasks_are_fewer(session: Any, report: tuple[Any, ...], idle: bool) -> None:
    found: list[bool] = []
    with idle_slots(session, 4, lambda: found.append(True)):
        other = threading.Thread(target=session.report, args=("b", 7, 1))
        other.start()
        other.join()
        assert not found
        session.report(*report)
    assert bool(found) is idle
    assert not session.handlers
