"""Finds the engine of a home for a client, and starts one in the background where none runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from volstream.config import Settings
from volstream.engine import record
from volstream.engine.lock import present_owner
from volstream.errors import EngineError, InvalidValueError
from volstream.jvm import connectors, java, log_file
from volstream.jvm.address import Address, EngineAddress, RemoteAddress
from volstream.lifecycle import identity
from volstream.lifecycle.privacy import make_directory

_POLL_SECONDS = 0.05

#: Engines that this process started. Kept so that Python does not warn of a child that it no longer watches: they are
#: meant to outlive us.
_started: list[subprocess.Popen[bytes]] = []


def attach(settings: Settings) -> Address:
    """Where to connect: ``spark_remote``, or the home's engine, which is started where none runs.

    Any number of processes may attach at the same time; they start one engine. A daemon's is waited for, also while the
    daemon starts it again. An address may be lost at once, when the
    engine ends as idle in that moment: the first use then raises EngineLostError, and attaching again helps.

    Raises:
        JavaError: an engine has to be started, and there is no Java, or the jars were not fetched.
        EngineError: it did not start within ``engine_start_seconds``; the message has its last lines.
    """
    if settings.spark_remote:
        return remote_address(settings)
    deadline = time.monotonic() + settings.engine_start_seconds
    child: subprocess.Popen[bytes] | None = None
    log = settings.log_directory / "engine.log"
    since = 0
    while True:
        address = record.read(settings)
        if address is not None and _serves(address):
            return address
        if child is not None and child.poll():
            raise _failed(f"it ended with status {child.returncode}", log, since)
        # One that ended with 0 saw another owner, which by now may be gone.
        if (child is None or child.poll() is not None) and present_owner(settings) is None:
            java.find()
            connectors.installed(settings)
            since = log.stat().st_size if log.exists() else 0
            child = start(settings, log)
        if time.monotonic() >= deadline:
            owner = present_owner(settings)
            if owner is not None and owner.kind == "daemon":
                raise EngineError(
                    f"The Spark engine of the daemon, pid {owner.pid}, is not up in time (engine_start_seconds).",
                    "The daemon goes on trying; its log and /readyz say why it is not up.",
                )
            raise _failed("it is not up in time (engine_start_seconds)", log, since)
        # Nothing is to be stopped here: a signal ends the client, and the engine goes on.
        time.sleep(_POLL_SECONDS)


def remote_address(settings: Settings) -> RemoteAddress:
    """Where the Spark elsewhere is that ``spark_remote`` names.

    Raises:
        InvalidValueError: the address cannot be read; the warehouse is a folder of this host, and Spark is on another.
    """
    host = _host(settings.spark_remote)
    if host is None:
        # It may have a token in it, and so is not repeated.
        raise InvalidValueError("spark_remote is not the address of a Spark Connect server.", "Write sc://host:15002.")
    here = host in ("localhost", "127.0.0.1", "::1")
    if not here and not settings.warehouse:
        raise InvalidValueError(
            f"Spark is on {host}, and the warehouse is a folder of this host's home.",
            "Set warehouse to a place that both reach: a mount of the same path, or a URI of a shared file system.",
        )
    return RemoteAddress(settings.spark_remote)


def _host(url: str) -> str | None:
    """The host of the URL of a Spark Connect server; None where it is not one."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.scheme == "sc" and parts.port != 0 else None
    except ValueError:  # an address or port that cannot be
        return None


def _serves(address: EngineAddress) -> bool:
    """Whether the engine takes clients. That it has the port is looked at: who has it is told the token, and believed."""
    return not address.ending and address.missing() is None and identity.listens(address.jvm_pid, address.port)


def start(settings: Settings, log: Path) -> subprocess.Popen[bytes]:
    """Starts a background engine with these settings, which may hold secrets: they go through its standard input."""
    make_directory(log.parent)
    with log.open("ab") as output:
        child = subprocess.Popen(
            # -P: a file in the current folder that is called like a module is not one.
            [sys.executable, "-P", "-m", "volstream.engine", "--home", str(settings.home)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ.copy(),
            # It outlives the terminal, and its Ctrl-C.
            start_new_session=True,
        )
    _started[:] = [earlier for earlier in _started if earlier.poll() is None] + [child]
    assert child.stdin is not None  # a pipe was asked for
    with child.stdin as pipe:
        pipe.write(settings.model_dump_json(exclude={"home", "credentials"}, exclude_unset=True).encode())
    return child


def _failed(cause: str, log: Path, since: int) -> EngineError:
    lines = log_file.last_lines(log, since=since)
    said = f" Its last lines:\n{lines}\n" if lines else ""
    return EngineError(f"The Spark engine could not be started: {cause}.{said}", f"Look at the logs in {log.parent}.")
