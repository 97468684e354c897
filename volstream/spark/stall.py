"""Gives up a statement that no executor runs: Spark would wait for one for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from volstream.errors import NoExecutorError
from volstream.lifecycle.stop import Stop
from volstream.model.units import format_duration

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


@contextmanager
def given_up(session: SparkSession, seconds: float) -> Iterator[None]:
    """Interrupts a session's statement in the block once none of its tasks has run for ``seconds``.

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
            f"Spark has run no task of this for {format_duration(seconds)} (executor_wait_seconds).",
            "Its cluster may have no executors, none as large as the job needs, or others use them all: see its master.",
        ) from error
    finally:
        stall.over.set()
        session.removeProgressHandler(stall)


class _Stall:
    """Notes whether tasks run. Called with Spark's progress reports.

    Attributes:
        found: no task ran for too long.
        over: there is nothing to watch any more.
    """

    def __init__(self, session: SparkSession, seconds: float) -> None:
        self._session = session
        self._seconds = seconds
        self._running = self._completed = 0
        self._since = time.monotonic()
        self.found = False
        self.over = Stop()

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        del operation_id, done
        completed = sum(stage.num_completed_tasks for stage in stages or ())
        if inflight_tasks or completed != self._completed:
            self._since = time.monotonic()
        self._running, self._completed = inflight_tasks, completed

    def watch(self) -> None:
        """Runs in its own thread until it is over."""
        while not self.over.wait(min(1.0, self._seconds / 4)):
            if not self._running and time.monotonic() > self._since + self._seconds:
                self.found = True
                self._session.interruptAll()
                return
