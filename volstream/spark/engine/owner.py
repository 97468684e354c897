"""The owner side of a home's engine: the lock of the home, ``engine.json``, and the process around the
JVM."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from volstream.base import processes
from volstream.base.config import Settings
from volstream.base.privacy import make_directory, write_private
from volstream.base.threads import Stop
from volstream.errors import EngineBusyError, EngineError, InterruptedByUserError
from volstream.spark.jvm.address import EngineAddress, Kind
from volstream.spark.jvm.log_file import cause_of, note
from volstream.spark.jvm.server import JvmServer, start_jvm

# Ownership of a home: an exclusive lock that the operating system releases when the process ends. The file
# has its owner's name. ``flock`` is used directly, because ``filelock`` empties the file on every attempt.


@dataclass(frozen=True)
class Owner:
    """A process that owns, or owned, a home.

    Attributes:
        started: identifies the process's start.
    """

    pid: int
    started: str
    kind: Kind

    @classmethod
    def current_process(cls, kind: Kind) -> Owner:
        """Returns this process as an owner."""
        return cls(os.getpid(), processes.name_of_start(os.getpid()), kind)

    def is_alive(self) -> bool:
        """True if the process is still running."""
        return processes.is_alive(self.pid, self.started)


class HomeLock:
    """The lock of a home. An object must be used by a single thread."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.run_directory / "engine.lock"
        self._descriptor: int | None = None

    def try_acquire(self, owner: Owner) -> bool:
        """Takes the lock for ``owner`` if it is free, without waiting. Returns True if it did."""
        make_directory(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(asdict(owner)).encode())
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock. Idempotent. The file stays, because removing it would let two processes lock two
        files."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def present_owner(settings: Settings) -> Owner | None:
    """Returns the current owner of the home, or None without one, or before it has written its name."""
    return _living(settings.run_directory / "engine.lock")


def _living(path: Path) -> Owner | None:
    try:
        owner = Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return owner if owner.is_alive() else None


# ``engine.json``: the engine's record of itself, readable by its owner only. It does not prove that the
# engine is alive.


def record_path(settings: Settings) -> Path:
    """Returns the path of a home's record."""
    return settings.run_directory / "engine.json"


def read_record(settings: Settings) -> EngineAddress | None:
    """Returns the record, or None if it is missing or another release wrote it."""
    try:
        return EngineAddress(**json.loads(record_path(settings).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_record(settings: Settings, address: EngineAddress) -> None:
    """Replaces the record atomically. Only its owner can read it."""
    write_private(record_path(settings), json.dumps(asdict(address)))


def remove_record(settings: Settings) -> None:
    """Removes the record. Idempotent."""
    record_path(settings).unlink(missing_ok=True)


# The owner side of the engine: takes the home, ends a JVM left by an earlier owner, and starts, restarts and
# ends the JVM.

_POLL_SECONDS = 0.1
#: The kernel ends a killed process immediately, unless the disk below it hangs.
_KILLED_SECONDS = 30.0


class Engine:
    """The Spark JVM of a home, owned by this process. Used by the main thread, except for :meth:`kill`.

    Args:
        kind: "daemon", or "background" for an engine that yields to a daemon.
        stop: ends waiting and starting when it is set.
        wait_seconds: maximum time to wait for the home's current owner.
        waiting: called once with the current owner, before waiting for it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kind: Kind,
        stop: Stop,
        wait_seconds: float = 0.0,
        waiting: Callable[[Owner], None] | None = None,
    ) -> None:
        self._settings = settings
        self._kind: Kind = kind
        self._stop = stop
        self._wait_seconds = wait_seconds
        self._waiting = waiting
        self._http_port = 0
        self._lock = HomeLock(settings)
        self._owns = False
        self._server: JvmServer | None = None
        self._address: EngineAddress | None = None

    @property
    def failed(self) -> bool:
        """True if the JVM ended unexpectedly."""
        return self.poll() is not None

    def poll(self) -> int | None:
        """Returns the JVM's exit status, or None while it is running and before it is started."""
        return None if self._server is None else self._server.poll()

    def cause(self) -> str:
        """Returns why the JVM ended, and records it for its clients. Only call it when :meth:`poll` returns a
        status."""
        status = self.poll()
        assert status is not None, "the JVM has ended"
        assert self._server is not None, "it has a status"
        logs = self._settings.log_directory
        cause = cause_of(status, logs)
        note(logs, self._server.pid, cause)
        return cause

    def take(self) -> None:
        """Takes the home, and ends a JVM left running by an earlier owner. Idempotent.

        Raises:
            EngineBusyError: another process still owned the home after ``wait_seconds``.
            EngineError: the earlier JVM could not be ended.
            InterruptedByUserError: the stop signal was set.
        """
        if self._owns:
            return
        self._acquire()
        try:
            self._end_orphan()
        except BaseException:
            self._lock.release()
            raise
        self._owns = True

    def start(self) -> EngineAddress:
        """Takes the home, starts the JVM (in place of an earlier one), and publishes its address.

        The home stays taken even if the JVM does not start: clients wait, and the start can be retried.

        Raises:
            JavaError: there is no Java, or the jars are missing.
            EngineError: the JVM did not start.
            InterruptedByUserError: the stop signal was set.
            EngineBusyError: see :meth:`take`.
        """
        self.take()
        if self._server is not None:
            self._server.kill()  # a lost JVM may be still running, and only one is allowed
            self._server = None
        server = start_jvm(self._settings, stop=self._stop)
        self._server = server
        self._address = server.address(self._kind, self._http_port)
        write_record(self._settings, self._address)
        return self._address

    def announce(self, *, http_port: int | None = None, ending: bool | None = None, reason: str | None = None) -> None:
        """Updates the engine's record. Before the engine is started, announces where the daemon listens.

        Args:
            http_port: the daemon's HTTP port.
            ending: True if new clients must not attach.
            reason: why there is no JVM. The next start clears it.
        """
        if self._address is None:
            self._address = _pending_record(self._kind)
        if http_port is not None:
            self._http_port = http_port
            self._address = dataclasses.replace(self._address, http_port=http_port)
        if ending is not None:
            self._address = dataclasses.replace(self._address, ending=ending)
        if reason is not None:
            self._address = dataclasses.replace(self._address, reason=reason)
        write_record(self._settings, self._address)

    def stop(self) -> None:
        """Ends the JVM, removes the record and releases the home. Takes at most ten seconds. Idempotent."""
        if self._server is not None:
            self._server.end()
            self._server = None
        if self._owns:
            remove_record(self._settings)
            self._address = None
            self._owns = False
        self._lock.release()

    def kill(self) -> None:
        """Kills the JVM. May be called from any thread, and from a signal handler that is about to end the
        process."""
        if self._server is not None:
            self._server.process.kill()

    def _acquire(self) -> None:
        me = Owner.current_process(self._kind)
        deadline = time.monotonic() + self._wait_seconds
        announced: Owner | None = None
        while not self._lock.try_acquire(me):
            owner = present_owner(self._settings)
            if owner is not None and owner != announced:
                if self._kind == "daemon" and owner.kind == "background":
                    os.kill(owner.pid, signal.SIGTERM)
                if announced is None and self._wait_seconds > 0 and self._waiting is not None:
                    self._waiting(owner)
                announced = owner
            if time.monotonic() >= deadline:
                raise _busy(self._settings, announced)
            if self._stop.wait(_POLL_SECONDS):
                raise InterruptedByUserError("Interrupted while another process owned the home's Spark engine.")

    def _end_orphan(self) -> None:
        """Ends the JVM of an earlier owner, which must never write concurrently with ours."""
        earlier = read_record(self._settings)
        if earlier is None or not processes.is_alive(earlier.jvm_pid, earlier.jvm_started):
            return
        try:
            os.kill(earlier.jvm_pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise _cannot_end(earlier) from error
        deadline = time.monotonic() + _KILLED_SECONDS
        # Not `psutil.wait`: a zombie, which a container may never reap, cannot write either.
        while processes.is_alive(earlier.jvm_pid, earlier.jvm_started):
            if time.monotonic() >= deadline:
                raise _cannot_end(earlier)
            if self._stop.wait(_POLL_SECONDS):
                raise InterruptedByUserError("Interrupted while an earlier Spark engine was being ended.")


def _pending_record(kind: Kind) -> EngineAddress:
    """Returns the record of this process while it has no JVM to attach to."""
    me = Owner.current_process(kind)
    return EngineAddress(0, "", kind, me.pid, me.started, jvm_pid=0, jvm_started="")


def _cannot_end(earlier: EngineAddress) -> EngineError:
    return EngineError(
        f"An earlier Spark engine of this home, pid {earlier.jvm_pid}, is still running and cannot be ended.",
        f"Kill it: kill -9 {earlier.jvm_pid}",
    )


def _busy(settings: Settings, owner: Owner | None) -> EngineBusyError:
    if owner is None:
        return EngineBusyError(f"Another process is starting an engine in {settings.home}.", "Try again.")
    if owner.kind == "daemon":
        return EngineBusyError(
            f"A daemon is already running in {settings.home}, pid {owner.pid}.", "Stop it first, or use another home."
        )
    return EngineBusyError(
        f"The background engine of {settings.home}, pid {owner.pid}, did not end in time.",
        "It waits for its clients; close them, or run `volstream engine stop`.",
    )
