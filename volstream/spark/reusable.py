"""A session that one process leaves to the next, so that a command that runs again finds Spark and Python started.

A file in the engine's scratch folder, which each start of the engine empties, has the session's id. The process that uses the
session holds a lock on the file; another one that comes meanwhile gets a new session. What a run imported must not reach the
next one, whose code may have changed: the workers end when the session is taken over, and Spark forks new ones. The session of a
process that was killed is ended, with its statements.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import site
import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import psutil
from pyspark.errors import PySparkException

from volstream.base.privacy import make_directory
from volstream.errors import InvalidValueError
from volstream.spark import connection
from volstream.spark.jvm.address import EngineAddress

if TYPE_CHECKING:
    from volstream.spark.connection import SparkConnection

#: The variable by which Spark tells a session's Python processes apart.
_SESSION_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"

#: How long killed workers may take to end.
_ENDED_SECONDS = 2.0


class ReusableSession:
    """The file of a session, locked by the process that uses it; its content is complete while no process does."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._code = _code()  # as the session's processes find it, also if it changes until they end
        self.session_id = str(uuid.uuid4())

    def read(self) -> tuple[str | None, bool]:
        """Returns the id of the session that was used last, if any, and whether it can be used again."""
        self._file.seek(0)
        try:
            session_id, *code = json.load(self._file)
        except ValueError:
            return None, False
        return session_id, code == self._code

    def use(self) -> None:
        """Notes which session this process uses."""
        self._write(self.session_id)

    def leave(self) -> None:
        """Notes that the next process may use it. Does nothing on a disk that is full: the next one then uses a new session."""
        with suppress(OSError):
            self._write(self.session_id, *self._code)

    def close(self) -> None:
        """Lets go of the file. Idempotent."""
        with suppress(OSError):  # what a full disk did not take
            self._file.close()

    def _write(self, *content: object) -> None:
        self._file.truncate(0)
        json.dump(content, self._file)
        self._file.flush()


def reattach(address: EngineAddress, path: Path) -> SparkConnection:
    """Returns the session that an earlier process left at ``path``, or a new one, which is left there.

    Raises:
        PySparkException, grpc.RpcError: the engine does not answer.
    """
    try:
        make_directory(path.parent)
        file = path.open("a+", encoding="utf-8")
    except (OSError, InvalidValueError):  # a session that cannot be left is as good
        return connection.opened(address)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _reattach(address, ReusableSession(file))
    except OSError:  # another process has it, or the disk is full
        file.close()
        return connection.opened(address)
    except BaseException:
        file.close()
        raise


def _reattach(address: EngineAddress, left: ReusableSession) -> SparkConnection:
    session_id, is_usable = left.read()
    if session_id is not None and not is_usable:
        connection.opened(address, session_id).release()
    elif session_id is not None:
        present = connection.opened(address, session_id)
        try:
            present.session.version  # noqa: B018  # asks the server, which has ended a session that was unused for an hour
            is_usable = _end_workers(address.jvm_pid, present.session.client._server_session_id)
        except (PySparkException, psutil.Error):
            is_usable = False
        if is_usable:
            left.session_id = session_id
            left.use()
            return replace(present, left=left)
        present.release()
    left.use()
    return replace(connection.opened(address, left.session_id), left=left)


def _code() -> list[object]:
    """Returns what changes when volstream or an installed package does: a started Python keeps what it has imported."""
    modules = Path(__file__).parents[1].rglob("*.py")
    folders = [folder for folder in (*site.getsitepackages(), site.getusersitepackages()) if os.path.isdir(folder)]
    packages = max((os.stat(folder).st_mtime_ns for folder in folders), default=0)
    return [sys.executable, packages, max(module.stat().st_mtime_ns for module in modules)]


def _end_workers(jvm_pid: int, server_session: str | None) -> bool:
    """Ends the workers of a session. False: the process that they are forked from has ended, perhaps with workers that Spark
    would still ask.

    That process is in their group, and ignores this signal.
    """
    for process in psutil.Process(jvm_pid).children():
        with suppress(psutil.Error, ProcessLookupError):
            if process.environ().get(_SESSION_VARIABLE) == server_session and os.getpgid(process.pid) == process.pid:
                workers = process.children()
                os.killpg(process.pid, signal.SIGHUP)
                psutil.wait_procs(workers, _ENDED_SECONDS)
                return True
    return False
