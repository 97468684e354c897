"""What a statement's tasks do, as Spark reports it: none runs, or the last ones leave slots idle; and their end."""

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

#: How often statements that are not to go on are interrupted until they have ended.
_INTERRUPT_SECONDS = 0.2


@contextmanager
def given_up(session: SparkSession, seconds: float) -> Iterator[None]:
    """Interrupts a session's statements in the block once none of their tasks has run for ``seconds``: Spark would wait for an
    executor for ever.

    Raises:
        NoExecutorError: it was interrupted.
    """
    stall: Any = _Stall(seconds)
    session.registerProgressHandler(stall)
    try:
        with watched(session, stall.look, min(1.0, seconds / 4)):
            yield
    finally:
        session.removeProgressHandler(stall)


@contextmanager
def watched(session: SparkSession, look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Calls ``look`` every so many seconds while the block runs a session's statements. Once it raises, they are interrupted, and
    the block raises its error, unless they had ended."""
    over, raised = Stop(), list[Exception]()

    def watch() -> None:
        while not over.wait(seconds):
            try:
                look()
            except Exception as error:  # noqa: BLE001  # the block raises it
                raised.append(error)
                break
        while not over.wait(_INTERRUPT_SECONDS):  # the next statement may not have begun yet
            with suppress(Exception):  # the engine died, which ends it, too
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
        over.set()
        if raised:
            thread.join()  # or it could interrupt the next statements of the session


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
    """Notes whether tasks run. Called with Spark's progress reports."""

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

    def look(self) -> None:
        """Raises NoExecutorError if none has run for too long."""
        if not any(list(self._running.values())) and time.monotonic() > self._since + self._seconds:
            raise NoExecutorError(
                f"Spark has not run a task of this work for {format_duration(self._seconds)} (executor_wait_seconds).",
                "The cluster may have no executors, none large enough for the job, or none free: see the Spark master.",
            )
