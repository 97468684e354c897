"""The client side of a home's engine: finds it, starts it in the background, reports on it, and stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from volstream.base import processes
from volstream.base.config import Settings
from volstream.base.model.paths import LOOPBACK
from volstream.base.privacy import make_directory
from volstream.errors import EngineBusyError, EngineError, InvalidStateError, InvalidValueError
from volstream.spark.engine.owner import Owner, present_owner, read_record
from volstream.spark.jvm import install, log_file
from volstream.spark.jvm.address import Address, EngineAddress, Kind, RemoteAddress
from volstream.spark.jvm.log_file import not_started

# Finds a home's engine for a client, and starts one in the background if necessary.

_POLL_SECONDS = 0.05

#: Engines started by this process. They are meant to outlive it, and referenced here so that Python does not
#: warn about abandoned children.
_started: list[subprocess.Popen[bytes]] = []


def attach(settings: Settings) -> Address:
    """Returns the address to connect to: ``spark_remote``, or the home's engine. Starts the engine if
    necessary.

    Any number of processes may attach concurrently; they start one engine. Waits for a daemon's engine, even
    while the daemon restarts it. If an idle engine ends at this moment, its address is already lost: the
    first use then raises EngineLostError, and attaching again helps.

    Raises:
        JavaError: the engine cannot be started without Java, or because jars are missing and cannot be
            fetched.
        EngineError: the engine did not start within ``engine_start_seconds``. The message has its last lines.
    """
    if settings.spark_remote:
        return remote_address(settings)
    deadline = time.monotonic() + settings.engine_start_seconds
    child: subprocess.Popen[bytes] | None = None
    log = log_file.engine_log(settings.log_directory)
    since = 0
    while True:
        address = read_record(settings)
        if address is not None and _serves(address):
            return address
        if child is not None and child.poll():
            raise not_started(f"it ended with status {child.returncode}", log_file.last_lines(log, since=since), log.parent)
        # A child that ended with 0 found another owner, which may have ended by now.
        if (child is None or child.poll() is not None) and present_owner(settings) is None:
            install.find_java()
            began = time.monotonic()
            install.fetch_missing(settings, _say)
            deadline += time.monotonic() - began  # a slow download does not count
            log_file.roll(log.parent)  # an engine that does not start cannot do so itself
            since = log_file.size(log)
            child = start(settings, log)
            if sys.stderr.isatty() or "ipykernel" in sys.modules:
                _say("Starting Spark, which takes a few seconds; the next commands find it running ...")
        if time.monotonic() >= deadline:
            owner = present_owner(settings)
            if owner is not None and owner.kind == "daemon":
                raise EngineError(
                    f"The Spark engine of the daemon, pid {owner.pid}, did not start in time (engine_start_seconds).",
                    "The daemon keeps trying; see its log and /readyz for the reason.",
                )
            lines = log_file.last_lines(log, since=since)
            raise not_started("it did not start in time (engine_start_seconds)", lines, log.parent)
        # Nothing to stop here: a signal ends the client, while the engine continues.
        time.sleep(_POLL_SECONDS)


def remote_address(settings: Settings) -> RemoteAddress:
    """Returns the address in ``spark_remote``.

    Raises:
        InvalidValueError: the address is malformed, or Spark is on another host and the warehouse a folder of
            this one.
    """
    host = _host(settings.spark_remote)
    if host is None:
        # The message does not repeat the address: it may contain a token.
        raise InvalidValueError("spark_remote is not the address of a Spark Connect server.", "Write sc://host:15002.")
    is_local = host in LOOPBACK
    if not is_local and not settings.warehouse:
        raise InvalidValueError(
            f"Spark runs on {host}, but the warehouse is a folder in this host's home.",
            "Set warehouse to a location that both can reach: a mount at the same path, or a URI of a shared file system.",
        )
    return RemoteAddress(settings.spark_remote, settings.spark_conf)


def _host(url: str) -> str | None:
    """Returns the host in the URL of a Spark Connect server, or None for any other text."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.scheme == "sc" and parts.port != 0 else None
    except ValueError:  # an invalid address or port
        return None


def _serves(address: EngineAddress) -> bool:
    """True if the engine accepts clients. Checks that its JVM has the port: clients send it the token and
    trust it."""
    return not address.ending and address.missing() is None and processes.listens(address.jvm_pid, address.port)


def start(settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    """Starts a background engine. Passes the settings through its standard input: they may contain
    secrets."""
    make_directory(log.parent)
    with log.open("ab") as output:
        child = subprocess.Popen(
            # -P: a file in the current folder must not shadow a module.
            [sys.executable, "-P", "-m", "volstream.spark.engine", "--home", str(settings.home)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # The engine outlives the terminal, and must not receive its Ctrl-C.
            start_new_session=True,
        )
    _started[:] = [earlier for earlier in _started if earlier.poll() is None] + [child]
    assert child.stdin is not None  # it is a pipe
    with child.stdin as pipe:
        pipe.write(settings.model_dump_json(exclude={"home", "credentials"}, exclude_unset=True).encode())
    return child


def _say(line: str) -> None:
    """Tells the waiting user what takes long."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# Reports on a home's engine and ends it, for ``volstream engine status`` and ``stop``.

_STOP_POLL_SECONDS = 0.1
#: How long an engine may take to end, besides ``shutdown_seconds`` for its clients. Its JVM gets ten.
_END_SECONDS = 15.0


@dataclass(frozen=True)
class EngineStatus:
    """The engine of a home.

    Attributes:
        state: "starting" until it can be used, "restarting" after a loss, "ending" once it accepts no new
            clients.
        jvm_pid, port, http_port: 0 if unknown.
        up_seconds: time since its process started.
        reason: why the daemon currently has no engine. None if it has one, or is starting its first.
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
    """Returns the status of the home's engine, or None without one. Asks only the operating system, not
    Spark."""
    owner = present_owner(settings)
    if owner is None:
        return None
    up_seconds = processes.seconds_up(owner.pid)
    address = read_record(settings)
    if address is None or address.engine_pid != owner.pid:
        return EngineStatus("starting", owner.kind, owner.pid, 0, 0, 0, up_seconds)
    if address.missing() is not None:  # a daemon starts its JVM late, and restarts a lost one
        state = "restarting" if address.reason else "starting"
        return EngineStatus(state, owner.kind, owner.pid, 0, 0, address.http_port, up_seconds, address.reason or None)
    state = "ending" if address.ending else "running"
    return EngineStatus(state, owner.kind, owner.pid, address.jvm_pid, address.port, address.http_port, up_seconds)


def stop_engine(settings: Settings, *, at_once: bool = False) -> bool:
    """Ends the background engine and waits until it has exited. Returns True if there was one.

    Args:
        at_once: end it without letting its clients finish.

    Raises:
        InvalidStateError: the engine belongs to a daemon.
        EngineBusyError: it did not end in time.
    """
    owner = present_owner(settings)
    if owner is None:
        return _end_orphan(read_record(settings))
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
        time.sleep(_STOP_POLL_SECONDS)
    _end_orphan(read_record(settings))
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
