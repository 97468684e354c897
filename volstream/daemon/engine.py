"""The daemon's engine: started while everything else works already, and started again whenever it is lost.

Whose the JVM is, and that there is only one, is ``engine.process``'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from volstream.config import Settings
from volstream.errors import DependencyError, EngineLostError, InterruptedByUserError
from volstream.jvm.address import Address, EngineAddress, RemoteAddress
from volstream.lifecycle.backoff import Backoff
from volstream.lifecycle.stop import Stop
from volstream.log import get

_log = get("engine")

#: Between two looks whether the JVM lives.
_LOOK_SECONDS = 0.5

#: An engine that lived so long was well: the next restart is the first one again.
_WELL_SECONDS = 300.0


class DaemonEngine(Protocol):
    """What a daemon's jobs run on."""

    @property
    def is_up(self) -> bool:
        """Whether jobs can run now."""

    def attach(self) -> Address:
        """Where it is; does not wait. Raises EngineLostError while it is away, with the reason."""

    def status(self) -> Mapping[str, Any]:
        """Its state, and the reason where that is not the usual one."""

    def run(self) -> None:
        """Keeps it until the stop signal, and leaves it running for what is in hand then. To be called by the main thread."""


class Jvm(Protocol):
    """What :class:`KeptEngine` keeps; see :class:`volstream.engine.process.Engine`."""

    def start(self) -> EngineAddress:
        """Starts it, after ending the one before."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def cause(self) -> str:
        """Why it ended."""


class Watching(Protocol):
    """What finds out that a JVM lives and answers nothing; see :class:`volstream.spark.watch.Watch`."""

    def start(self) -> None:
        """Begins."""

    def stop(self) -> None:
        """Ends."""


def watch_of(settings: Settings) -> Callable[[Address, Callable[[str], None]], Watching]:
    """Makes the watch of an engine, which calls back with the reason when that is lost."""

    def made(address: Address, lost: Callable[[str], None]) -> Watching:
        from volstream.spark.watch import Watch

        return Watch(address, settings.engine_stall_seconds, list, lost)

    return made


class KeptEngine:
    """The home's own engine: a :class:`DaemonEngine`.

    Args:
        changed: called when it is up.
        watch: makes what watches a started engine.
    """

    def __init__(
        self,
        jvm: Jvm,
        stop: Stop,
        changed: Callable[[], None],
        watch: Callable[[Address, Callable[[str], None]], Watching],
        backoff: Backoff = Backoff(first_seconds=1.0, cap_seconds=60.0),  # noqa: B008  # a frozen value
    ) -> None:
        self._jvm = jvm
        self._stop = stop
        self._changed = changed
        self._watch = watch
        self._backoff = backoff
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
            state = "starting" if self._reason is None else f"being started again: {self._reason}"
            raise EngineLostError(f"The Spark engine is {state}.", "What needs it is tried again when it is up.")
        return address

    def status(self) -> Mapping[str, Any]:
        """See :class:`DaemonEngine`."""
        if self.is_up:
            return {"state": "running"}
        reason = self._reason
        return {"state": "starting"} if reason is None else {"state": "restarting", "reason": reason}

    def run(self) -> None:
        """See :class:`DaemonEngine`. Raises UserError: its settings cannot be used."""
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
                    "engine_started",
                    jvm_pid=address.jvm_pid,
                    seconds=round(time.monotonic() - began, 1),
                    restarts=failures,
                )
                up = time.monotonic()
                lost = self._until_lost(address)
                if lost is None:
                    return
                reason = lost
                if time.monotonic() - up >= _WELL_SECONDS:
                    failures = 0
            failures += 1
            delay = self._backoff.delay(failures)
            self._reason = reason.partition("\n")[0]
            _log.error("engine_lost", cause=reason, failures=failures, retry_seconds=round(delay, 1))
            self._stop.wait(delay)

    def _until_lost(self, address: EngineAddress) -> str | None:
        """Why the engine is lost; None at the stop signal."""
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
                self._stop.wait(_LOOK_SECONDS)
            return None
        finally:
            watch.stop()


class RemoteEngine:
    """A Spark elsewhere, of whose life nothing is known before it is asked: a :class:`DaemonEngine`."""

    def __init__(self, address: RemoteAddress, stop: Stop) -> None:
        self._address = address
        self._stop = stop

    @property
    def is_up(self) -> bool:
        """See :class:`DaemonEngine`."""
        return True

    def attach(self) -> Address:
        """See :class:`DaemonEngine`."""
        return self._address

    def status(self) -> Mapping[str, Any]:
        """See :class:`DaemonEngine`."""
        return {"state": "elsewhere"}

    def run(self) -> None:
        """See :class:`DaemonEngine`."""
        while not self._stop.wait(60.0):
            pass
