"""What a statement's tasks do, as Spark reports it: none runs, or the last ones leave slots idle; and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from volstream.base.lifecycle.stop import Stop
from volstream.base.model.units import format_duration
from volstream.errors import NoExecutorError

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


@contextmanager
def given_up(session: SparkSession, seconds: float) -> Iterator[None]:
    """Interrupts a session's statements in the block once none of their tasks has run for ``seconds``: Spark would wait for an
    executor for ever.

    Raises:
        NoExecutorError: it was interrupted.
    """
    stall: Any = _Stall(session, seconds)
    session.registerProgressHandler(stall)
    thread = threading.Thread(target=stall.watch, name="executors", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if not stall.found:
            raise
        raise NoExecutorError(
            f"Spark has not run a task of this work for {format_duration(seconds)} (executor_wait_seconds).",
            "The cluster may have no executors, none large enough for the job, or none free: see the Spark master.",
        ) from error
    finally:
        stall.over.set()
        session.removeProgressHandler(stall)


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """Runs this thread's statements in another thread's session, with a tag by which ``session.interruptTag`` ends them."""
    active: Any = session  # PySpark uses this thread's active session where it is given none, such as for resource profiles
    active._active_session.session = session
    session.addTag(tag)
    try:
        yield
    finally:
        session.removeTag(tag)


@contextmanager
def idle_slots(session: SparkSession, slots: int, found: Callable[[], None]) -> Iterator[None]:
    """Calls ``found``, in this thread, while the last tasks of this thread's statement leave some of ``slots`` idle."""
    idle: Any = _Idle(slots, found)
    session.registerProgressHandler(idle)
    try:
        yield
    finally:
        session.removeProgressHandler(idle)


class _Idle:
    """Calls ``found`` when the statements of the thread that made this leave slots idle. Called with Spark's progress reports."""

    def __init__(self, slots: int, found: Callable[[], None]) -> None:
        self._slots = slots
        self._found = found
        self._thread = threading.get_ident()  # a statement's reports come to the thread that waits for its result

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        del operation_id
        if done or threading.get_ident() != self._thread:
            return
        left = sum(stage.num_tasks - stage.num_completed_tasks for stage in stages or ())
        if 0 < inflight_tasks < self._slots and left <= inflight_tasks:
            self._found()


class _Stall:
    """Notes whether tasks run. Called with Spark's progress reports.

    Attributes:
        found: no task ran for too long.
        over: there is nothing to watch any more.
    """

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._running: dict[str | None, int] = {}  # by statement: a session may run several
        self._completed: dict[str | None, int] = {}
        self._since = time.monotonic()
        self.found = False
        self.over = Stop()

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        completed = sum(stage.num_completed_tasks for stage in stages or ())
        if inflight_tasks or completed != self._completed.get(operation_id, 0):
            self._since = time.monotonic()
        self._running[operation_id] = 0 if done else inflight_tasks
        self._completed[operation_id] = completed

    def watch(self) -> None:
        """Runs in its own thread until it is over."""
        while not self.over.wait(min(1.0, self._seconds / 4)):
            if not any(list(self._running.values())) and time.monotonic() > self._since + self._seconds:
                self.found = True
                self._session.interruptAll()
                return
