"""Threads that stop together, and the loop that most of them run.

If one part dies, the whole process stops: half a daemon that looks alive is worse than none. What does not belong here:
the work of the parts, and signals (``stop``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from volstream.base import log as logs
from volstream.base.lifecycle.backoff import Backoff
from volstream.base.lifecycle.stop import Stop
from volstream.errors import VolstreamError, reason_of, unexpected

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
        reason: of the newest failure; None if there is none. May be set to the reason that an earlier process reported.
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
    logged, at most every :data:`REPEAT_SECONDS` with the count, and followed by a pause; the first success after it is
    logged too.

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
