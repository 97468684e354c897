"""The engine as its owner holds it: takes the home, ends what an earlier owner left running, starts the JVM, again where
that was lost, and ends it."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable

from volstream.config import Settings
from volstream.engine import record
from volstream.engine.lock import HomeLock, Owner, present_owner
from volstream.errors import EngineBusyError, EngineError, InterruptedByUserError
from volstream.jvm.address import EngineAddress, Kind
from volstream.jvm.death import cause_of, note
from volstream.jvm.server import JvmServer, start_jvm
from volstream.lifecycle import identity
from volstream.lifecycle.stop import Stop

_POLL_SECONDS = 0.1
#: The kernel ends a killed process at once, unless the disk below it hangs.
_KILLED_SECONDS = 30.0


class Engine:
    """The one Spark JVM of a home, owned by this process. To be used by the main thread, except :meth:`kill`.

    Args:
        kind: "daemon", or "background" for one that yields to a daemon.
        stop: gives up waiting and starting when it is set.
        wait_seconds: how long to wait for the present owner of the home.
        waiting: called once with the present owner, before waiting for it.
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
        """Whether the JVM ended unasked."""
        return self.poll() is not None

    def poll(self) -> int | None:
        """The JVM's exit status; None while it runs, and before it is started."""
        return None if self._server is None else self._server.poll()

    def cause(self) -> str:
        """Why the JVM ended, which its clients are told too. To be asked when :meth:`poll` has a status."""
        status = self.poll()
        assert status is not None, "asked after the end"
        assert self._server is not None, "it has a status"
        logs = self._settings.log_directory
        cause = cause_of(status, logs)
        note(logs, self._server.pid, cause)
        return cause

    def take(self) -> None:
        """Takes the home, and ends what an earlier owner left running in it. Idempotent.

        Raises:
            EngineBusyError: another process owns the home, and still did after ``wait_seconds``.
            EngineError: what was left running cannot be ended.
            InterruptedByUserError: the stop signal was set meanwhile.
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
        """Takes the home, starts the JVM and publishes its address; where one was started before, in its place.

        The home stays taken where the JVM does not start: clients wait, and it can be tried again.

        Raises:
            JavaError: there is no Java, or the jars were not fetched.
            EngineError: the JVM did not start.
            InterruptedByUserError: the stop signal was set meanwhile.
            EngineBusyError: as :meth:`take`.
        """
        self.take()
        if self._server is not None:
            self._server.kill()  # lost is not yet ended, and there may be one only
            self._server = None
        server = start_jvm(self._settings, stop=self._stop)
        self._server = server
        self._address = server.address(self._kind, self._http_port)
        record.write(self._settings, self._address)
        return self._address

    def announce(self, *, http_port: int | None = None, ending: bool | None = None) -> None:
        """Changes what the record says of the engine; of one that is yet to be started, where the daemon listens.

        Args:
            http_port: where the daemon listens.
            ending: whether nobody new is to attach.
        """
        if self._address is None:
            self._address = _to_come(self._kind)
        if http_port is not None:
            self._http_port = http_port
            self._address = dataclasses.replace(self._address, http_port=http_port)
        if ending is not None:
            self._address = dataclasses.replace(self._address, ending=ending)
        record.write(self._settings, self._address)

    def stop(self) -> None:
        """Ends the JVM, withdraws the record and gives the home back. Idempotent; takes ten seconds at most."""
        if self._server is not None:
            self._server.end()
            self._server = None
        if self._owns:
            record.remove(self._settings)
            self._address = None
            self._owns = False
        self._lock.release()

    def kill(self) -> None:
        """Ends the JVM at once, from any thread or a signal handler that ends the process next."""
        if self._server is not None:
            self._server.process.kill()

    def _acquire(self) -> None:
        me = Owner.me(self._kind)
        deadline = time.monotonic() + self._wait_seconds
        told: Owner | None = None
        while not self._lock.try_acquire(me):
            owner = present_owner(self._settings)
            if owner is not None and owner != told:
                if self._kind == "daemon" and owner.kind == "background":
                    os.kill(owner.pid, signal.SIGTERM)
                if told is None and self._wait_seconds > 0 and self._waiting is not None:
                    self._waiting(owner)
                told = owner
            if time.monotonic() >= deadline:
                raise _busy(self._settings, told)
            if self._stop.wait(_POLL_SECONDS):
                raise InterruptedByUserError("Interrupted while another process owned the home's Spark engine.")

    def _end_orphan(self) -> None:
        """Ends the JVM of an earlier owner: it must never write beside ours."""
        earlier = record.read(self._settings)
        if earlier is None or not identity.is_alive(earlier.jvm_pid, earlier.jvm_started):
            return
        try:
            os.kill(earlier.jvm_pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise _undying(earlier) from error
        deadline = time.monotonic() + _KILLED_SECONDS
        # Not `psutil.wait`: a dead process whose parent does not collect it, as in a container, writes nothing either.
        while identity.is_alive(earlier.jvm_pid, earlier.jvm_started):
            if time.monotonic() >= deadline:
                raise _undying(earlier)
            if self._stop.wait(_POLL_SECONDS):
                raise InterruptedByUserError("Interrupted while an earlier Spark engine was being ended.")


def _to_come(kind: Kind) -> EngineAddress:
    """Of this process, with a JVM that is none and cannot be attached to."""
    me = Owner.me(kind)
    return EngineAddress(0, "", kind, me.pid, me.started, jvm_pid=0, jvm_started=0.0)


def _undying(earlier: EngineAddress) -> EngineError:
    return EngineError(
        f"An earlier Spark engine of this home, pid {earlier.jvm_pid}, still runs and cannot be ended.",
        f"End it: kill -9 {earlier.jvm_pid}",
    )


def _busy(settings: Settings, owner: Owner | None) -> EngineBusyError:
    if owner is None:
        return EngineBusyError(f"Another process is about to take {settings.home}.", "Try again.")
    if owner.kind == "daemon":
        return EngineBusyError(
            f"A daemon runs in {settings.home} already, pid {owner.pid}.", "End it first, or use another home."
        )
    return EngineBusyError(
        f"The background engine of {settings.home}, pid {owner.pid}, did not end in time.",
        "It waits for those who use it; close them, or run `volstream engine stop`.",
    )
