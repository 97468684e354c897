"""Threads that live and die together, and the loop that most of them run.

If one part dies the whole stops: half a daemon that looks alive is worse than none. What does not belong here: what
the parts do, and signals (``stop``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from volstream import log as logs
from volstream.errors import VolstreamError, reason_of
from volstream.lifecycle.backoff import Backoff
from volstream.lifecycle.stop import Stop

#: A failure that lasts is said this often: often enough to be seen, too rarely to fill a disk.
REPEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The first end of a part that nobody asked for.

    Attributes:
        name: the part.
        error: what it raised; None where it just returned.
    """

    name: str
    error: BaseException | None


class Supervisor:
    """Runs named parts in daemon threads, and sets the stop signal when one of them ends unasked.

    Args:
        stop: the one stop signal; every part watches it too.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failure: Failure | None = None

    @property
    def failure(self) -> Failure | None:
        """The first part that ended although nobody had asked it to; None while all is well."""
        return self._failure

    def run(self, name: str, part: Callable[[], None]) -> None:
        """Starts ``part`` in a thread of its own. It is expected to return only when the stop signal is set."""
        thread = threading.Thread(target=self._watch, args=(name, part), name=name, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def join(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds in all for the parts to end; whether all have."""
        deadline = time.monotonic() + timeout
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def alive(self) -> list[str]:
        """The names of the parts that still run."""
        with self._lock:
            return [thread.name for thread in self._threads if thread.is_alive()]

    def _watch(self, name: str, part: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            part()
        except BaseException as exc:  # noqa: BLE001 - a thread's exception is lost unless it is kept here
            error = exc
        with self._lock:
            if self._stop:
                # What breaks while everything is being torn down is no reason to fail, but must not vanish.
                if error is not None:
                    logs.get("supervisor").warning("failed_while_stopping", part=name, error=str(error))
                return
            self._failure = Failure(name, error)
            self._stop.set()


class Trouble:
    """What is wrong with one part, from its first failure to its recovery: logged at a limited rate, and shown.

    Args:
        name: the part.
        told: called with the reason whenever it is logged, and with None at the recovery.

    Attributes:
        reason: of the newest failure; None while all is well. May be set to what an earlier process told.
    """

    def __init__(
        self,
        name: str,
        log: structlog.typing.FilteringBoundLogger,
        backoff: Backoff,
        told: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self.reason: str | None = None
        self._name = name
        self._log = log
        self._backoff = backoff
        self._told = told
        self._failures = 0
        self._logged = float("-inf")

    def failed(self, error: Exception) -> float:
        """Takes note of a failure; the seconds to wait before the next attempt."""
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
                exc_info=not isinstance(error, VolstreamError),
            )
            self._told(self.reason)
        return delay

    def recovered(self) -> None:
        """Takes note of a success. Idempotent."""
        if self._failures:
            self._log.info("loop_recovered", loop=self._name, failures=self._failures)
        before, self._failures, self.reason = self.reason, 0, None
        if before is not None:
            self._told(None)


def is_transient(error: Exception) -> bool:
    """Whether trying again can help, by the error's own word."""
    return isinstance(error, VolstreamError) and error.transient


def run_loop(
    name: str,
    tick: Callable[[], None],
    stop: Stop,
    log: structlog.typing.FilteringBoundLogger,
    backoff: Backoff,
    *,
    survives: Callable[[Exception], bool] = is_transient,
    trouble: Trouble | None = None,
) -> None:
    """Calls ``tick`` again and again until ``stop`` is set.

    ``tick`` waits by itself where it has nothing to do (``receive``, ``stop.wait``). An error that the loop survives is
    logged, at most every :data:`REPEAT_SECONDS` with the count, and followed by a pause; the first success after it is
    logged too.

    Args:
        survives: which errors are followed by another tick.
        trouble: takes note of failures and successes; None: one of this loop's own.

    Raises:
        BaseException: whatever else ``tick`` raises.
    """
    trouble = trouble or Trouble(name, log, backoff)
    while not stop:
        try:
            tick()
        except Exception as exc:
            if not survives(exc):
                raise
            stop.wait(trouble.failed(exc))
        else:
            trouble.recovered()
