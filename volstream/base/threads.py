"""Threads that stop together, and what they share: a stop signal, delays after failures,
steps of many objects in few threads."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from volstream.base import log as logs
from volstream.errors import VolstreamError, reason_of, unexpected

if TYPE_CHECKING:
    import stamina

# Calls a function on several items at once.

T = TypeVar("T")
Item = TypeVar("Item")


def map_at_once(act: Callable[[Item], T], items: Iterable[Item], at_once: int) -> list[T]:
    """Calls a function on each item, in up to ``at_once`` threads; returns the results in order. One item
    needs no thread."""
    todo = list(items)
    if len(todo) < 2:
        return list(map(act, todo))
    with ThreadPoolExecutor(at_once, thread_name_prefix="at-once") as pool:
        return list(pool.map(act, todo))


# Delays after failures: capped, jittered, exponential. A value; nothing here waits.

#: Enough doublings to pass any sensible cap from any sensible first delay; beyond it floats overflow.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from ``first_seconds`` up to ``cap_seconds``.

    Attributes:
        first_seconds: the delay after the first failure, before jitter.
        cap_seconds: no delay is longer.
    """

    first_seconds: float = 0.5
    cap_seconds: float = 60.0

    def delay(self, failures: int, uniform: Callable[[], float] = random.random) -> float:
        """Returns the seconds to wait after ``failures`` consecutive failures (1 or more).

        Between half and all of the doubled delay, so that processes that failed together do not retry
        together.

        Args:
            failures: consecutive failures, including the last.
            uniform: returns a number in [0, 1).
        """
        doubled = self.first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        return min(self.cap_seconds, doubled) * (0.5 + 0.5 * uniform())


def attempts_at(on: Callable[[Exception], bool], **options: Any) -> Iterable[stamina.Attempt]:
    """Returns stamina's attempts, without its log lines: the caller reports the failure.

    The setting is one per process; a program that imported stamina before keeps its own.
    """
    ours = "stamina" not in sys.modules
    import stamina

    if ours:
        stamina.instrumentation.set_on_retry_hooks([])
    return stamina.retry_context(on, **options)


# Resources that are open for the duration of a block.


class Closeable(ABC):
    """A context manager that is closed at the end of the block, however it ends."""

    @abstractmethod
    def close(self) -> None:
        """Closes the resource."""

    def __enter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()


# Runs the steps of many objects in a few threads: an object takes a thread only while it has something to do.

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
        """Makes the next step due, at once or at a time (monotonic), unless it is due earlier. From any
        thread."""
        self._steps.wake(self, at)


class Steps:
    """Calls the steps of objects when they are due: one step of an object at a time, in up to ``threads``
    threads.

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
        """Calls steps until :meth:`end`, and then until each object has made its last. Raises what a step
        raised."""
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


# A stop signal that is only ever set, and the signal handling that sets it.


class Stop(threading.Event):
    """A flag that is only ever set. Every wait of a long-running part is ``stop.wait(seconds)``."""

    def __bool__(self) -> bool:
        return self.is_set()


@contextmanager
def stop_on_signals(
    stop: Stop, *, first: Callable[[], None] = lambda: None, second: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While the block runs, the first SIGTERM or SIGINT calls ``first`` and sets ``stop``; the second calls
    ``second`` and ends the process.

    Must be entered in the main thread. The exit status after the second signal is 130, as for an interrupted
    command.

    A thread handles the signals, because Python runs handlers only in the main thread: a signal that arrives
    just as that thread starts to wait would be handled after the wait, and ``stop.set()`` in a handler could
    wait for a lock that the interrupted thread holds.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    heard, wake = os.pipe()
    os.set_blocking(wake, False)

    def serve() -> None:
        while received := os.read(heard, 1):
            if received[0] not in numbers:
                continue
            if stop:
                second()
                os._exit(130)
            first()
            stop.set()

    thread = threading.Thread(target=serve, name="signals", daemon=True)
    thread.start()
    earlier = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, _nothing) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier)
        os.close(wake)
        thread.join()
        os.close(heard)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Does nothing; without a handler the signal would not be written to the pipe."""


# Threads that stop together, and the loop that most of them run.
#
# If one part dies, the whole process stops: half a daemon that looks alive is worse than none. What does not
# belong here: the work of the parts, and signals (``stop``).

#: How often a persistent failure is logged: often enough to be seen, too rarely to fill a disk.
REPEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ThreadFailure:
    """The first unexpected end of a part.

    Attributes:
        name: name of the part.
        error: the exception; None if the part simply returned.
    """

    name: str
    error: BaseException | None


class Supervisor:
    """Runs named parts in daemon threads, and sets the stop signal when one of them ends unexpectedly.

    Args:
        stop: the stop signal, which every part also watches.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failure: ThreadFailure | None = None

    @property
    def failure(self) -> ThreadFailure | None:
        """The first part that ended unexpectedly, or None."""
        return self._failure

    def run(self, name: str, part: Callable[[], None], *, may_end: bool = False) -> None:
        """Starts ``part`` in its own thread.

        Args:
            may_end: the part may return before the stop signal is set.
        """
        thread = threading.Thread(target=self._watch, args=(name, part, may_end), name=name, daemon=True)
        with self._lock:
            self._threads = [running for running in self._threads if running.is_alive()]
            self._threads.append(thread)
            thread.start()

    def join(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds in total for the parts to end; returns True if all have."""
        with self._lock:
            threads = list(self._threads)
        return join_all(threads, timeout)

    def alive(self) -> list[str]:
        """Returns the names of the parts still running."""
        with self._lock:
            return [thread.name for thread in self._threads if thread.is_alive()]

    def _watch(self, name: str, part: Callable[[], None], may_end: bool) -> None:
        error: BaseException | None = None
        try:
            part()
        except BaseException as exc:  # noqa: BLE001 - a thread's exception would be lost otherwise
            error = exc
        with self._lock:
            if self._stop:
                # Errors during shutdown are not failures, but must not be swallowed.
                if error is not None:
                    logs.get("supervisor").warning("failed_while_stopping", part=name, error=str(error))
                return
            if error is not None or not may_end:
                self._failure = ThreadFailure(name, error)
                self._stop.set()


def join_all(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Waits up to ``timeout`` seconds in total for threads to end; returns True if all have."""
    those, deadline = list(threads), time.monotonic() + timeout
    for thread in those:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in those)


class FailureTracker:
    """A part's failures, from the first to recovery: logged at a limited rate, and shown to users.

    Args:
        name: name of the part.
        report: called with the reason whenever the failure is logged, and with None on recovery.

    Attributes:
        reason: of the newest failure; None if there is none. May be set to the reason that an earlier process
            reported.
    """

    def __init__(
        self, name: str, log: logs.Logger, backoff: Backoff, report: Callable[[str | None], None] = lambda _: None
    ) -> None:
        self.reason: str | None = None
        self._name = name
        self._log = log
        self._backoff = backoff
        self._report = report
        self._failures = 0
        self._logged = float("-inf")

    def failed(self, error: Exception) -> float:
        """Records a failure; returns the seconds to wait before the next attempt."""
        self._failures += 1
        self.reason = reason_of(error)
        delay = self._backoff.delay(self._failures)
        if self._failures == 1 or time.monotonic() - self._logged >= REPEAT_SECONDS:
            self._logged = time.monotonic()
            self._log.warning(
                "loop_failing",
                loop=self._name,
                error=self.reason,
                failures=self._failures,
                retry_seconds=round(delay, 1),
                exc_info=unexpected(error),
            )
            self._report(self.reason)
        return delay

    def recovered(self) -> None:
        """Records a success. Idempotent."""
        if self._failures:
            self._log.info("loop_recovered", loop=self._name, failures=self._failures)
        before, self._failures, self.reason = self.reason, 0, None
        if before is not None:
            self._report(None)


def is_transient(error: Exception) -> bool:
    """True if a retry can help, according to the error."""
    return isinstance(error, VolstreamError) and error.transient


def run_loop(
    tick: Callable[[], None], stop: Stop, trouble: FailureTracker, *, survives: Callable[[Exception], bool] = lambda _: True
) -> None:
    """Calls ``tick`` repeatedly until ``stop`` is set.

    ``tick`` waits when it has nothing to do (``receive``, ``stop.wait``). An error that the loop survives is
    logged, at most every :data:`REPEAT_SECONDS` with the count, and followed by a pause; the first success
    after it is logged too.

    Args:
        trouble: records failures and successes, and says how long to pause.
        survives: returns True for errors after which the loop continues; by default it does after any.

    Raises:
        BaseException: any other error that ``tick`` raises.
    """
    while not stop:
        try:
            tick()
        except Exception as exc:
            if not survives(exc):
                raise
            stop.wait(trouble.failed(exc))
        else:
            trouble.recovered()
