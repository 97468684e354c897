"""Runs the steps of many objects in a few threads: an object takes a thread only while it has something to do."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

#: Does what is due, and returns after how many seconds to be called again at the latest; None: never again.
Step = Callable[[], float | None]


class Stepped:
    """One object's place among :class:`Steps`."""

    def __init__(self, steps: Steps, step: Step) -> None:
        self._steps = steps
        self.step = step
        self.due = float("-inf")
        self.is_running = False
        self.next = float("inf")  # asked for during a step

    def wake(self, at: float = float("-inf")) -> None:
        """Makes the next step due, at once or at a time (monotonic), unless it is due earlier. From any thread."""
        self._steps.wake(self, at)


class Steps:
    """Calls the steps of objects when they are due: one step of an object at a time, in up to ``threads`` threads.

    A step handles its errors: one that raises ends :meth:`run` with its error.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Stepped]] = []  # entries whose time is not the object's are outdated
        self._count = 0
        self._ends = False
        self._error: BaseException | None = None

    def add(self, step: Step) -> Stepped:
        """Calls a step from now on. Returns its place."""
        added = Stepped(self, step)
        with self._changed:
            self._count += 1
            self._push(added, time.monotonic())
        return added

    def wake(self, one: Stepped, at: float) -> None:
        """See :meth:`Stepped.wake`."""
        with self._changed:
            if one.is_running:
                one.next = min(one.next, at)
            elif at < one.due:
                self._push(one, at)

    def run(self) -> None:
        """Calls steps until :meth:`end`, and then until each object has made its last. Raises what a step raised."""
        try:
            while (due := self._next()) is not None:
                self._pool.submit(self._call, due)
        finally:
            self._pool.shutdown(wait=False)

    def end(self) -> None:
        """Makes :meth:`run` return when no object is left."""
        with self._changed:
            self._ends = True
            self._changed.notify()

    def _next(self) -> Stepped | None:
        with self._changed:
            while not (self._ends and self._count == 0):
                if self._error is not None:
                    raise self._error
                now = time.monotonic()
                while self._queue and self._queue[0][0] <= now:
                    at, _, one = heapq.heappop(self._queue)
                    if at == one.due and not one.is_running:
                        one.is_running, one.next = True, float("inf")
                        return one
                self._changed.wait(min(self._queue[0][0] - now, threading.TIMEOUT_MAX) if self._queue else None)
        return None

    def _call(self, one: Stepped) -> None:
        try:
            pause = one.step()
        except BaseException as error:  # noqa: BLE001  # the thread that runs the steps raises it
            with self._changed:
                self._error = error
                self._changed.notify()
            return
        with self._changed:
            one.is_running = False
            if pause is None:
                self._count -= 1
                one.due = float("-inf")  # nothing wakes it
                self._changed.notify()
            else:
                self._push(one, min(one.next, time.monotonic() + pause))

    def _push(self, one: Stepped, at: float) -> None:
        one.due = at
        if at < float("inf"):
            heapq.heappush(self._queue, (at, next(self._order), one))
            self._changed.notify()
