"""A session that one process leaves to the next, so that a command that runs again finds Spark and Python started.

A file in the engine's scratch folder, which each start of the engine empties, has the session's id. The process that uses the
session holds a lock on the file; another one that comes meanwhile gets a new session. What a run imported must not reach the
next one, whose code may have changed: the workers end when the session is taken over, and Spark forks new ones.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import sysconfig
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import psutil
from pyspark.errors import PySparkException

from volstream.jvm.address import EngineAddress
from volstream.lifecycle.privacy import make_directory
from volstream.spark import connection

if TYPE_CHECKING:
    from volstream.spark.connection import SparkConnection

#: The variable by which Spark tells a session's Python processes apart.
_SESSION_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"

#: How long killed workers may take to end.
_ENDED_SECONDS = 2.0


def taken_over(address: EngineAddress, path: Path) -> SparkConnection:
    """Returns the session that an earlier process left at ``path``, or a new one, which is left there.

    Raises:
        PySparkException, grpc.RpcError: the engine does not answer.
    """
    make_directory(path.parent)
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _left(address, file) or _new(address, file)
    except BlockingIOError:
        file.close()
        return connection.opened(address)
    except BaseException:
        file.close()
        raise


def _left(address: EngineAddress, file: TextIO) -> SparkConnection | None:
    """Returns the session whose id is in the file; None: there is none, it has ended, or its Python has older code."""
    file.seek(0)
    try:
        session_id, *code = json.load(file)
    except ValueError:
        return None
    if code != _code():
        return None
    present = connection.opened(address, session_id, lock=file)
    try:
        present.session.version  # noqa: B018  # asks the server, which has ended a session that was unused for an hour
    except PySparkException:
        present.builder.close()
        return None
    _end_workers(address.jvm_pid, present.session.client._server_session_id)
    return present


def _new(address: EngineAddress, file: TextIO) -> SparkConnection:
    session_id = str(uuid.uuid4())
    file.truncate(0)
    json.dump([session_id, *_code()], file)
    file.flush()
    return connection.opened(address, session_id, lock=file)


def _code() -> list[object]:
    """Returns what changes when volstream or an installed package does: a started Python keeps what it has imported."""
    modules = Path(__file__).parents[1].rglob("*.py")
    packages = os.stat(sysconfig.get_path("purelib")).st_mtime_ns
    return [sys.executable, packages, max(module.stat().st_mtime_ns for module in modules)]


def _end_workers(jvm_pid: int, server_session: str | None) -> None:
    """Ends the workers of a session. The process that they are forked from is in their group, and ignores this signal."""
    for process in psutil.Process(jvm_pid).children():
        with suppress(psutil.Error, ProcessLookupError):
            if process.environ().get(_SESSION_VARIABLE) == server_session and os.getpgid(process.pid) == process.pid:
                workers = process.children()
                os.killpg(process.pid, signal.SIGHUP)
                psutil.wait_procs(workers, _ENDED_SECONDS)
