"""Starts and ends the engine's JVM. ``volstream.spark.engine`` handles ownership, and ensures a single
JVM."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from volstream.base import config, processes
from volstream.base.config import Settings
from volstream.base.privacy import make_directory, write_private
from volstream.base.threads import Stop
from volstream.errors import InterruptedByUserError
from volstream.spark.jvm import command, install, log_file
from volstream.spark.jvm.address import EngineAddress, Kind
from volstream.spark.jvm.command import Files, properties_text
from volstream.spark.jvm.log_file import not_started

#: A free port may be taken by another process before the JVM listens on it.
_PORT_ATTEMPTS = 3
#: Number of last log lines to search for that error.
_LOGGED_LINES = 200
_POLL_SECONDS = 0.05
#: The JVM listens before it can respond. The request is repeated at this interval, to notice its end or a
#: signal.
_RESPONSE_SECONDS = 2.0

#: A JVM that does not end on SIGTERM is killed after this time.
END_SECONDS = 10.0


@dataclass(frozen=True)
class JvmServer:
    """A running JVM that serves Spark Connect on 127.0.0.1.

    Attributes:
        started: identifies the process's start.
        logs: folder of its logs.
    """

    process: subprocess.Popen[bytes]
    started: str
    port: int
    token: str
    logs: Path

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        return self.process.pid

    def address(self, kind: Kind, http_port: int = 0) -> EngineAddress:
        """Returns its address for clients, with this process as its owner."""
        return EngineAddress(
            port=self.port,
            token=self.token,
            kind=kind,
            engine_pid=os.getpid(),
            engine_started=processes.name_of_start(os.getpid()),
            jvm_pid=self.pid,
            jvm_started=self.started,
            http_port=http_port,
            logs=str(self.logs),
        )

    def poll(self) -> int | None:
        """Returns the exit status, or None while it is running."""
        return self.process.poll()

    def end(self, seconds: float = END_SECONDS) -> None:
        """Ends it: SIGTERM, then SIGKILL after ``seconds``. Idempotent."""
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills it. Idempotent."""
        self.process.kill()
        self.process.wait()


def start_jvm(
    settings: Settings, *, cores: int | None = None, stop: Stop | None = None, archive_to: Path | None = None
) -> JvmServer:
    """Starts the JVM and waits until it responds. Must be called by the main thread, which the JVM cannot
    outlive.

    Args:
        settings: the home's settings. No other JVM may be running there.
        cores: task slots. Defaults to the settings.
        stop: gives up when it is set.
        archive_to: write a class archive there at the end, instead of using one.

    Raises:
        JavaError: there is no Java, or the jars are missing.
        EngineError: it ended, or did not respond within ``engine_start_seconds``. The message has its last
            lines.
        InterruptedByUserError: ``stop`` was set.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("The JVM must be started by the main thread: Linux ends it with the thread that started it.")
    runtime = install.find_java()
    classes = command.class_path(install.cached_jars(config.cache_directory()), install.pyspark_directory())
    if archive_to is not None:
        archiving = install.options_to_create(archive_to)
    else:
        archiving = install.options_to_use(install.archive_path(config.cache_directory(), runtime, settings.jvm_options, classes))
    # At the end, so that the archive of the classes before them still matches.
    classes += [*install.warehouse_jars(settings), install.EXTENSION]
    files = Files.of(settings)
    line = command.java_command(runtime, settings, files, classes, archiving)
    stop = Stop() if stop is None else stop
    deadline = time.monotonic() + settings.engine_start_seconds
    for attempt in range(_PORT_ATTEMPTS):
        earlier = log_file.size(log_file.spark_log(files.log))
        server = _spawn(settings, files, line, cores or settings.slots)
        try:
            _await_response(server, stop, deadline)
            return server
        except BaseException as error:
            server.kill()
            logged = log_file.last_lines(log_file.spark_log(files.log), _LOGGED_LINES, earlier)
            port_taken = isinstance(error, _EndedError) and "java.net.BindException" in logged
            if port_taken and attempt + 1 < _PORT_ATTEMPTS:
                continue
            if isinstance(error, _EndedError):
                lines = log_file.last_lines(log_file.jvm_log(files.log)) or log_file.last_lines(
                    log_file.spark_log(files.log), since=earlier
                )
                raise not_started(str(error), lines, files.log) from None
            raise
    raise AssertionError("the last attempt returns or raises")


class _EndedError(Exception):
    """The JVM ended or timed out before it responded."""


def _spawn(settings: Settings, files: Files, line: list[str], cores: int) -> JvmServer:
    port, token = _free_port(), secrets.token_urlsafe(32)
    _prepare(settings, files, command.properties(settings, files, cores=cores, port=port, token=token))
    child = Path(__file__).with_name("child.py")
    with log_file.begin(files.log).open("ab") as log:  # append mode, so that it can be truncated
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(child), str(os.getpid()), *line],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=files.scratch,
            env=command.environment(os.environ, install.pyspark_directory(), files.scratch),
            # Ctrl-C in a terminal is for this process. The JVM has to serve until the current work is done.
            start_new_session=True,
        )
    return JvmServer(process, processes.name_of_start(process.pid), port, token, files.log)


def _prepare(settings: Settings, files: Files, properties: dict[str, str]) -> None:
    make_directory(settings.run_directory)
    make_directory(files.log)
    # Leftovers of a killed JVM. The caller owns the home, so they are not in use.
    shutil.rmtree(files.scratch, ignore_errors=True)
    make_directory(files.scratch)
    files.log4j.write_text(log_file.log4j_configuration(files.log), encoding="utf-8")
    files.pools.write_text(command.POOLS, encoding="utf-8")
    write_private(files.properties, properties_text(properties))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_response(server: JvmServer, stop: Stop, deadline: float) -> None:
    # Imported while the JVM starts, because it takes a third of that time.
    from volstream.spark.connection import Heartbeat, LocalChannelBuilder

    heartbeat = None
    try:
        while True:
            if server.poll() is not None:
                raise _EndedError(f"its JVM ended with status {server.poll()}")
            if time.monotonic() >= deadline:
                raise _EndedError("it did not answer in time (engine_start_seconds)")
            if heartbeat is None and processes.listens(server.pid, server.port):
                heartbeat = Heartbeat(LocalChannelBuilder(server.port, server.token))
            if heartbeat is not None and heartbeat.send(_RESPONSE_SECONDS).served():
                return
            if stop.wait(_POLL_SECONDS):
                raise InterruptedByUserError("Interrupted while the Spark engine started.")
    finally:
        if heartbeat is not None:
            heartbeat.close()
