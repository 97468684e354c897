"""The daemon's engine: started after everything else is running, and restarted whenever it is lost.

``engine.owner`` decides who owns the JVM, and ensures that there is only one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from volstream.base.config import Settings
from volstream.base.log import get
from volstream.base.threads import Backoff, Stop
from volstream.errors import DependencyError, EngineLostError, InterruptedByUserError
from volstream.spark.jvm.address import Address, EngineAddress, RemoteAddress

_log = get("engine")

#: Interval of checks that the JVM is alive.
_CHECK_SECONDS = 0.5

#: An engine that ran this long was healthy, so the backoff starts over.
_HEALTHY_SECONDS = 300.0


class DaemonEngine(Protocol):
    """The Spark engine of a daemon's jobs.

    Attributes:
        failures: number of times that it was lost, or could not be started.
    """

    failures: int

    @property
    def is_up(self) -> bool:
        """Whether jobs can run now."""

    def attach(self) -> Address:
        """Returns its address, without waiting. Raises EngineLostError, with the reason, while it is down."""

    def status(self) -> Mapping[str, Any]:
        """Returns its state, with the reason if it is not the normal one."""

    def run(self) -> None:
        """Keeps it running until the stop signal, and leaves it up for work in progress. Called by the main
        thread."""


class Jvm(Protocol):
    """The process that :class:`EmbeddedEngine` keeps running; see
    :class:`volstream.spark.engine.owner.Engine`."""

    def start(self) -> EngineAddress:
        """Starts it, after ending its predecessor."""

    def announce(self, *, reason: str | None = None) -> None:
        """Records why it does not run, for commands."""

    def poll(self) -> int | None:
        """Returns its exit status, or None while it runs."""

    def cause(self) -> str:
        """Returns the reason for its end."""


class HangDetector(Protocol):
    """Detects a JVM that is alive but does not respond; see :class:`volstream.spark.watch.Watch`."""

    def start(self) -> None:
        """Starts watching."""

    def stop(self) -> None:
        """Stops watching."""


def watch_of(settings: Settings) -> Callable[[Address, Callable[[str], None]], HangDetector]:
    """Returns a factory of engine watches, which call back with the reason when the engine is lost."""

    def made(address: Address, lost: Callable[[str], None]) -> HangDetector:
        from volstream.spark.watch import Watch

        return Watch(address, settings.engine_stall_seconds, dict, lost)

    return made


class EmbeddedEngine:
    """The home's own engine: a :class:`DaemonEngine`.

    Args:
        changed: called when it is up.
        watch: makes the watch of a started engine.
    """

    def __init__(
        self,
        jvm: Jvm,
        stop: Stop,
        changed: Callable[[], None],
        watch: Callable[[Address, Callable[[str], None]], HangDetector],
        backoff: Backoff = Backoff(first_seconds=1.0, cap_seconds=60.0),  # noqa: B008  # a frozen value
    ) -> None:
        self._jvm = jvm
        self._stop = stop
        self._changed = changed
        self._watch = watch
        self._backoff = backoff
        self.failures = 0
        self._address: EngineAddress | None = None
        self._reason: str | None = None

    @property
    def is_up(self) -> bool:
        """See :class:`DaemonEngine`."""
        return self._address is not None and self._jvm.poll() is None

    def attach(self) -> Address:
        """See :class:`DaemonEngine`."""
        address = self._address
        if address is None or self._jvm.poll() is not None:
            state = "starting" if self._reason is None else f"being restarted: {self._reason}"
            raise EngineLostError(f"The Spark engine is {state}.", "Work that needs it is retried when it is up.")
        return address

    def status(self) -> Mapping[str, Any]:
        """See :class:`DaemonEngine`."""
        if self.is_up:
            return {"state": "running"}
        reason = self._reason
        return {"state": "starting"} if reason is None else {"state": "restarting", "reason": reason}

    def run(self) -> None:
        """See :class:`DaemonEngine`. Raises UserError if its settings are invalid."""
        failures = 0
        while not self._stop:
            began = time.monotonic()
            try:
                address = self._jvm.start()
            except InterruptedByUserError:
                return
            except (DependencyError, OSError) as error:
                reason = str(error)
            else:
                _log.info(
                    "engine_started", jvm_pid=address.jvm_pid, seconds=round(time.monotonic() - began, 1), restarts=failures
                )
                up = time.monotonic()
                lost = self._until_lost(address)
                if lost is None:
                    return
                reason = lost
                if time.monotonic() - up >= _HEALTHY_SECONDS:
                    failures = 0
            failures, self.failures = failures + 1, self.failures + 1
            delay = self._backoff.delay(failures)
            self._reason = _in_short(reason)
            with suppress(OSError):  # the daemon's own pages report a full disk
                self._jvm.announce(reason=self._reason)
            _log.error("engine_lost", cause=reason, failures=failures, retry_seconds=round(delay, 1))
            self._stop.wait(delay)

    def _until_lost(self, address: EngineAddress) -> str | None:
        """Waits until the engine is lost and returns the reason; None at the stop signal."""
        stalled: list[str] = []
        watch = self._watch(address, stalled.append)
        watch.start()
        self._address = address
        self._changed()
        try:
            while not self._stop:
                if self._jvm.poll() is not None:
                    self._address = None
                    return self._jvm.cause()
                if stalled:
                    self._address = None
                    return stalled[0]
                self._stop.wait(_CHECK_SECONDS)
            return None
        finally:
            watch.stop()


class LastingFailure:
    """The reason why an engine cannot run jobs, once it has been down for a while, until it has been up for
    as long.

    Args:
        seconds: the time that it may take to start.
        clock: the time in seconds.
    """

    def __init__(self, engine: DaemonEngine, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._seconds = seconds
        self._clock = clock
        self._reason: str | None = None
        self._since = clock()  # time of the last change

    def __call__(self) -> str | None:
        """Returns the reason, or None if the engine can run jobs."""
        now, is_up = self._clock(), self._engine.is_up
        if is_up == (self._reason is None):
            self._since = now
        elif now - self._since >= self._seconds:
            self._since = now
            self._reason = None if is_up else str(self._engine.status().get("reason") or "it does not start")
        return self._reason


def _in_short(reason: str) -> str:
    """Returns a reason on one line: its first line, and the next one if the first announces it."""
    first, *more = [line.strip() for line in reason.splitlines() if line.strip()]
    return f"{first} {more[0]}" if first.endswith(":") and more else first


def asking(settings: Settings) -> Callable[[Address], bool]:
    """Returns a function that tells whether a Spark server responds. It waits for the response."""

    def answers(address: Address) -> bool:
        from volstream.spark.connection import Heartbeat, builder_for

        heartbeat = Heartbeat(builder_for(address))
        try:
            return heartbeat.send(settings.engine_stall_seconds).answered()
        finally:
            heartbeat.close()

    return answers


class RemoteEngine:
    """An external Spark: a :class:`DaemonEngine`. It is up until it stops responding, and again once it
    responds.

    Args:
        changed: called when it is up again.
        watch: makes its watch.
        answers: sends one request, and waits for the response.
    """

    def __init__(
        self,
        address: RemoteAddress,
        stop: Stop,
        changed: Callable[[], None],
        watch: Callable[[Address, Callable[[str], None]], HangDetector],
        answers: Callable[[Address], bool],
        backoff: Backoff = Backoff(first_seconds=1.0, cap_seconds=30.0),  # noqa: B008  # a frozen value
    ) -> None:
        self._address = address
        self._stop = stop
        self._changed = changed
        self._watch = watch
        self._answers = answers
        self._backoff = backoff
        self.failures = 0
        self._reason: str | None = None

    @property
    def is_up(self) -> bool:
        """See :class:`DaemonEngine`."""
        return self._reason is None

    def attach(self) -> Address:
        """See :class:`DaemonEngine`."""
        if self._reason is not None:
            raise EngineLostError(f"The Spark server is down: {self._reason}.", "Work that needs it is retried when it is up.")
        return self._address

    def status(self) -> Mapping[str, Any]:
        """See :class:`DaemonEngine`."""
        reason = self._reason
        state = {"state": "elsewhere"} if reason is None else {"state": "lost", "reason": reason}
        return {**state, "server": self._address.server}

    def run(self) -> None:
        """See :class:`DaemonEngine`."""
        while not self._stop:
            lost: list[str] = []
            watch = self._watch(self._address, lost.append)
            watch.start()
            while not lost and not self._stop:
                self._stop.wait(_CHECK_SECONDS)
            watch.stop()
            if not lost:
                return
            self._reason, self.failures = lost[0], self.failures + 1
            _log.error("engine_lost", cause=self._reason)
            failures = 0
            while not self._stop and not self._answers(self._address):
                failures += 1
                self._stop.wait(self._backoff.delay(failures))
            if not self._stop:
                self._reason = None
                _log.info("engine_back", tries=failures + 1)
                self._changed()
