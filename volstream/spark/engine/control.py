"""Reports on a home's engine, and ends it: for ``volstream engine status`` and ``stop``."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import psutil

from volstream.base import processes
from volstream.base.config import Settings
from volstream.errors import EngineBusyError, InvalidStateError
from volstream.spark.engine import record
from volstream.spark.engine.lock import Owner, present_owner
from volstream.spark.jvm.address import EngineAddress, Kind

_POLL_SECONDS = 0.1
#: How long an engine takes to end, besides ``shutdown_seconds`` for its clients: its JVM gets ten.
_END_SECONDS = 15.0


@dataclass(frozen=True)
class EngineStatus:
    """The engine of a home.

    Attributes:
        state: "starting" until it can be used, "restarting" after it was lost, "ending" when it no longer accepts clients.
        jvm_pid, port, http_port: 0 if unknown.
        up_seconds: time since its process started.
        reason: why the daemon has no engine at present; None: it has, or starts its first.
    """

    state: str
    kind: Kind
    pid: int
    jvm_pid: int
    port: int
    http_port: int
    up_seconds: float
    reason: str | None = None


def engine_status(settings: Settings) -> EngineStatus | None:
    """Returns the status of the home's engine, or None if none is running. Asks only the operating system, not Spark."""
    owner = present_owner(settings)
    if owner is None:
        return None
    up_seconds = processes.seconds_up(owner.pid)
    address = record.read(settings)
    if address is None or address.engine_pid != owner.pid:
        return EngineStatus("starting", owner.kind, owner.pid, 0, 0, 0, up_seconds)
    if address.missing() is not None:  # a daemon starts its JVM after itself, and restarts a lost one
        state = "restarting" if address.reason else "starting"
        return EngineStatus(state, owner.kind, owner.pid, 0, 0, address.http_port, up_seconds, address.reason or None)
    state = "ending" if address.ending else "running"
    return EngineStatus(state, owner.kind, owner.pid, address.jvm_pid, address.port, address.http_port, up_seconds)


def stop_engine(settings: Settings, *, at_once: bool = False) -> bool:
    """Ends the background engine and waits until it has exited; returns True if there was one.

    Args:
        at_once: do not let its clients finish.

    Raises:
        InvalidStateError: the engine belongs to a daemon.
        EngineBusyError: it did not end in time.
    """
    owner = present_owner(settings)
    if owner is None:
        return _end_orphan(record.read(settings))
    if owner.kind == "daemon":
        raise InvalidStateError(
            f"The engine of {settings.home} belongs to the daemon, pid {owner.pid}.", "Stop the daemon instead."
        )
    _signal(owner)
    deadline = time.monotonic() + settings.shutdown_seconds + _END_SECONDS
    while owner.is_alive():
        if at_once:
            _signal(owner)
        if time.monotonic() >= deadline:
            raise EngineBusyError(f"The engine, pid {owner.pid}, did not end in time.", f"Kill it: kill -9 {owner.pid}")
        time.sleep(_POLL_SECONDS)
    _end_orphan(record.read(settings))
    return True


def _signal(owner: Owner) -> None:
    try:
        os.kill(owner.pid, signal.SIGTERM)
    except ProcessLookupError:
        return


def _end_orphan(address: EngineAddress | None) -> bool:
    """Ends a JVM whose owner died."""
    if address is None or not processes.is_alive(address.jvm_pid, address.jvm_started):
        return False
    try:
        psutil.Process(address.jvm_pid).kill()
    except psutil.NoSuchProcess:
        return False
    return True
