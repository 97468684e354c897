"""The tasks of statements, from Spark's progress reports: detects stalls and idle slots, and ends
statements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from volstream.base.model.units import format_duration
from volstream.base.threads import Stop
from volstream.errors import NoExecutorError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

#: Interval at which unwanted statements are interrupted until they have ended.
_INTERRUPT_SECONDS = 0.2


@contextmanager
def given_up(session: SparkSession, seconds: float) -> Iterator[None]:
    """Interrupts a session's statements in the block once none of their tasks has run for ``seconds``.

    Otherwise Spark would wait for an executor forever.

    Raises:
        NoExecutorError: the statements were interrupted.
    """
    stall: Any = _Stall(seconds)
    session.registerProgressHandler(stall)
    try:
        with watched(session, stall.check, min(1.0, seconds / 4)):
            yield
    finally:
        session.removeProgressHandler(stall)


@contextmanager
def watched(session: SparkSession, check: Callable[[], object], seconds: float) -> Iterator[None]:
    """Calls ``check`` every ``seconds`` while the block runs a session's statements.

    If it raises, interrupts the statements, and the block raises the error unless they had already ended.
    """
    ended, raised = Stop(), list[Exception]()

    def watch() -> None:
        while not ended.wait(seconds):
            try:
                check()
            except Exception as error:  # noqa: BLE001  # the block raises it
                raised.append(error)
                break
        while not ended.wait(_INTERRUPT_SECONDS):  # the next statement may not have started yet
            with suppress(Exception):  # the engine died, which also ends the statement
                session.interruptAll()

    thread = threading.Thread(target=watch, name="statements", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if not raised:
            raise
        raise raised[0] from error
    finally:
        ended.set()
        if raised:
            thread.join()  # else it could interrupt the session's next statements


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Runs this thread's statements in another thread's session, with a tag for ``session.interruptTag``."""
    # PySpark uses this thread's active session where it gets none, such as for resource profiles
    active: Any = session
    active._active_session.session = session
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


@contextmanager
def idle_slots(session: SparkSession, slots: int, found: Callable[[], None]) -> Iterator[None]:
    """Calls ``found``, in this thread, while the last tasks of this thread's statement leave some of
    ``slots`` idle."""
    idle: Any = _Idle(slots, found)
    session.registerProgressHandler(idle)
    try:
        yield
    finally:
        session.removeProgressHandler(idle)


class _Idle:
    """Calls ``found`` when statements of the creating thread leave slots idle. Called with Spark's progress
    reports."""

    def __init__(self, slots: int, found: Callable[[], None]) -> None:
        self._slots = slots
        self._found = found
        # a statement's reports arrive in the thread that waits for its result
        self._thread = threading.get_ident()

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        del operation_id
        if done or threading.get_ident() != self._thread:
            return
        remaining = sum(stage.num_tasks - stage.num_completed_tasks for stage in stages or ())
        if 0 < inflight_tasks < self._slots and remaining <= inflight_tasks:
            self._found()


class _Stall:
    """Tracks whether tasks run. Called with Spark's progress reports."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[str | None, int] = {}  # by statement: a session may run several
        self._completed: dict[str | None, int] = {}
        self._since = time.monotonic()

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        completed = sum(stage.num_completed_tasks for stage in stages or ())
        if inflight_tasks or completed != self._completed.get(operation_id, 0):
            self._since = time.monotonic()
        self._running[operation_id] = 0 if done else inflight_tasks
        self._completed[operation_id] = completed

    def check(self) -> None:
        """Raises NoExecutorError if no task has run for too long."""
        if not any(list(self._running.values())) and time.monotonic() > self._since + self._seconds:
            raise NoExecutorError(
                f"Spark has not run a task of this work for {format_duration(self._seconds)} (executor_wait_seconds).",
                "The cluster may have no executors, none large enough for the job, or none free: see the Spark master.",
            )
