"""A remote Spark session and its channel: opened, copied, released, dropped.

Sessions are assigned in ``session``. This module is the one that imports PySpark.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import copy
import fcntl
import json
import logging
import os
import signal
import site
import sys
import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TextIO, cast

import grpc
import psutil
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc
from pyspark.sql.connect.session import SparkSession

from volstream.base.privacy import make_directory
from volstream.errors import InvalidValueError
from volstream.spark.jvm.address import Address, EngineAddress

# A connection to Spark Connect: address, retries, and whether the server responds. Not here: sessions
# (``session``) and monitoring (``watch``).

#: A session belongs to a user id and a session id. This user id is fixed so that heartbeats can use it as
#: well.
_USER = "volstream"

#: Statuses that do not come from a working Spark.
_NO_RESPONSE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ClientChannelBuilder(DefaultChannelBuilder):
    """PySpark's builder with access to its channel, so that it can be closed while another thread is blocked
    in a call."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.set(self.PARAM_USER_ID, self.userId or _USER)
        self._channel: Any = None

    def toChannel(self) -> Any:  # noqa: N802  # PySpark's name
        """Returns the channel. Creates it on the first call."""
        if self._channel is None:
            self._channel = self._new_channel()
        return self._channel

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Called by PySpark to connect the copy of a session through a separate channel."""
        copied = copy.copy(self)
        copied._params = copy.deepcopy(self._params, memo)
        copied._channel = None
        return copied

    def close(self) -> None:
        """Closes the channel. Calls that wait on it return immediately. Idempotent."""
        if self._channel is not None:
            self._channel.close()

    def _new_channel(self) -> Any:
        return super().toChannel()


class LocalChannelBuilder(ClientChannelBuilder):
    """Connects to a JVM on this host without a proxy, by IP address, so that no process can pose as
    ``localhost``."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(f"sc://localhost:{port}")
        self._target = f"127.0.0.1:{port}"
        self.setChannelOption("grpc.enable_http_proxy", 0)
        # A header of each call. gRPC's own call credentials run Python code on a gRPC thread, and
        # concurrently closing a channel while holding the GIL deadlocks.
        self.set("authorization", f"Bearer {token}")

    def _new_channel(self) -> Any:
        return self._insecure_channel(self._target)


class LocalPolicy(DefaultPolicy):
    """Retries for the home's engine: only calls that it asks to repeat. A dead engine does not come back."""

    def __init__(self) -> None:
        super().__init__(max_retries=5, max_backoff=1000, max_server_retry_delay=1000)

    def can_retry(self, e: BaseException) -> bool:
        """True if the call that raised ``e`` may be retried."""
        unavailable = isinstance(e, grpc.RpcError) and e.code() == grpc.StatusCode.UNAVAILABLE
        return not unavailable and super().can_retry(e)


class RemotePolicy(DefaultPolicy):
    """Retries over a network: some twenty seconds in total, where PySpark's own policy takes ten minutes."""

    def __init__(self) -> None:
        super().__init__(max_retries=8, initial_backoff=100, backoff_multiplier=2.0, max_backoff=5000)


def builder_for(address: Address) -> ClientChannelBuilder:
    """Returns the builder of a new connection to ``address``. No I/O."""
    if isinstance(address, EngineAddress):
        return LocalChannelBuilder(address.port, address.token)
    return ClientChannelBuilder(address.url)


def policy_for(address: Address) -> DefaultPolicy:
    """Returns the retry policy for ``address``."""
    return LocalPolicy() if isinstance(address, EngineAddress) else RemotePolicy()


class Heartbeat:
    """Requests Spark's version over a separate connection."""

    def __init__(self, builder: ClientChannelBuilder) -> None:
        self._builder = builder
        # The generated code has no types.
        self._stub = base_pb2_grpc.SparkConnectServiceStub(builder.toChannel())  # type: ignore[no-untyped-call]
        self._own_session = str(uuid.uuid4())

    def send(self, seconds: float, session_id: str | None = None, server_side: str | None = None) -> HeartbeatRequest:
        """Sends a request that expires after ``seconds``, without waiting for the response.

        Args:
            session_id: send it as this session, so that the server does not end the session as idle.
            server_side: the session's id on the server. If it is missing, the server refuses instead of
                creating a session.
        """
        request = base_pb2.AnalyzePlanRequest(
            session_id=session_id or self._own_session,
            client_observed_server_side_session_id=server_side,
            user_context=base_pb2.UserContext(user_id=self._builder.userId or ""),
            client_type=self._builder.userAgent,
            spark_version=base_pb2.AnalyzePlanRequest.SparkVersion(),
        )
        return HeartbeatRequest(self._stub.AnalyzePlan.future(request, timeout=seconds, metadata=list(self._builder.metadata())))

    def close(self) -> None:
        """Closes its connection. Idempotent."""
        self._builder.close()


class HeartbeatRequest:
    """A heartbeat request."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def over(self) -> bool:
        """True if there was a response or the request has expired. Does not wait."""
        return bool(self._call.done())

    def answered(self) -> bool:
        """True if anything responded, including a refusal. Waits for the response or the expiry."""
        return self._call.code() not in _NO_RESPONSE

    def refusal(self) -> str:
        """Returns the message of an error, or an empty string if Spark responded. Waits for the response or
        the expiry."""
        return self._call.details() or ""

    def served(self) -> bool:
        """True if a Spark that accepts our token responded. Waits for the response or the expiry."""
        return bool(self._call.code() == grpc.StatusCode.OK)


#: Errors that a call may raise when the engine disappears. gRPC raises ValueError for a closed channel.
BROKEN = (PySparkException, grpc.RpcError, ValueError)

#: Timeout of releases, which usually take milliseconds.
_RELEASE_SECONDS = 2.0


@dataclass(frozen=True)
class SparkConnection:
    """A session with its channel.

    Attributes:
        left: the file through which the next process takes over the session, if any.
    """

    session: SparkSession
    builder: ClientChannelBuilder
    left: ReusableSession | None = None

    def release(self) -> None:
        """Ends the session on the server, or only its statements if another process takes it over. Closes the
        channel.

        Does not fail if the engine died.
        """
        client = self.session.client
        # PySpark releases finished statements in the background. A release after the session's end would put
        # an error with a long stack trace into the engine's log.
        concurrent.futures.wait(list(client._release_futures), timeout=_RELEASE_SECONDS)
        with suppress(*BROKEN):
            if self.left is None:
                client.release_session()
            else:
                client.interrupt_all()
                self.left.leave()
        client.close()
        self.drop()

    def drop(self) -> None:
        """Closes the channel without notifying the server. Safe while another thread waits on it."""
        self.builder.close()
        self.session.client._closed = True  # like `close`, which would wait for calls without response
        if self.left is not None:
            self.left.close()


def opened(address: Address, session_id: str | None = None) -> SparkConnection:
    """Returns a remote session, a new one unless an id is given. No I/O: the first statement shows whether
    the server responds.

    Args:
        session_id: id of a session. The server creates a missing session.
    """
    # Otherwise the functions of pyspark.sql look for a JVM in this process.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    # PySpark would repeat its exceptions on standard error.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    _forget_stopped()
    builder = builder_for(address)
    if session_id is not None:
        builder.set(builder.PARAM_SESSION_ID, session_id)
    return _connected(SparkSession.builder.channelBuilder(builder).create(), builder, address)


def copied(session: Any, address: Address) -> SparkConnection:
    """Returns a new remote session with the current settings, views and functions of another one."""
    copied = session.cloneSession()
    return _connected(copied, cast(ClientChannelBuilder, copied.client._builder), address)


def _connected(session: SparkSession, builder: ClientChannelBuilder, address: Address) -> SparkConnection:
    session.client.set_retry_policies([policy_for(address)])
    # The hook would keep every client until exit, and then contact each of their engines, even dead ones.
    atexit.unregister(session.client._on_exit)
    return SparkConnection(session, builder)


def _forget_stopped() -> None:
    """Removes a stopped session as PySpark's default and as this thread's active session, to make room for
    the next."""
    with SparkSession._lock:
        default = SparkSession._default_session
        if default is not None and default.is_stopped:
            SparkSession._default_session = None
        active = getattr(SparkSession._active_session, "session", None)
        if active is not None and active.is_stopped:
            SparkSession._active_session.session = None


# A session that one process leaves to the next, so that a repeated command finds Spark and Python started.
#
# A file with the session's id is in the engine's scratch folder, which each start of the engine empties. The
# process that uses the session locks the file; other processes get new sessions meanwhile. Modules imported
# by a run must not reach the next run, whose code may have changed: the workers end when the session is taken
# over, and Spark forks new ones. The session of a killed process is ended, with its statements.

#: The environment variable with which Spark marks a session's Python processes.
_SESSION_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"

#: How long killed workers may take to end.
_WORKER_END_SECONDS = 2.0


class ReusableSession:
    """The file of a session, locked by the process that uses it. Its content is complete while no process
    does."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._code = _code()  # as of the start of the session's processes, even if it changes later
        self.session_id = str(uuid.uuid4())

    def read(self) -> tuple[str | None, bool]:
        """Returns the id of the last session, if any, and whether it can be used again."""
        self._file.seek(0)
        try:
            session_id, *code = json.load(self._file)
        except ValueError:
            return None, False
        return session_id, code == self._code

    def use(self) -> None:
        """Records that this process uses the session."""
        self._write(self.session_id)

    def leave(self) -> None:
        """Records that the next process may use it. Does nothing on a full disk: the next process then uses a
        new session."""
        with suppress(OSError):
            self._write(self.session_id, *self._code)

    def close(self) -> None:
        """Closes the file, which releases its lock. Idempotent."""
        with suppress(OSError):  # a full disk
            self._file.close()

    def _write(self, *content: object) -> None:
        self._file.truncate(0)
        json.dump(content, self._file)
        self._file.flush()


def reattach(address: EngineAddress, path: Path) -> SparkConnection:
    """Returns the session that an earlier process left at ``path``, or a new session, to be left there.

    Raises:
        PySparkException, grpc.RpcError: the engine does not respond.
    """
    try:
        make_directory(path.parent)
        file = path.open("a+", encoding="utf-8")
    except (OSError, InvalidValueError):  # a session that cannot be left will do
        return opened(address)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _reattach(address, ReusableSession(file))
    except OSError:  # another process has it, or the disk is full
        file.close()
        return opened(address)
    except BaseException:
        file.close()
        raise


def _reattach(address: EngineAddress, left: ReusableSession) -> SparkConnection:
    session_id, is_usable = left.read()
    if session_id is not None and not is_usable:
        opened(address, session_id).release()
    elif session_id is not None:
        existing = opened(address, session_id)
        try:
            existing.session.version  # noqa: B018  # asks the server, which ends sessions after an hour without use
            is_usable = _end_workers(address.jvm_pid, existing.session.client._server_session_id)
        except (PySparkException, psutil.Error):
            is_usable = False
        if is_usable:
            left.session_id = session_id
            left.use()
            return replace(existing, left=left)
        existing.release()
    left.use()
    return replace(opened(address, left.session_id), left=left)


def _code() -> list[object]:
    """Returns a value that changes with volstream and installed packages: a running Python keeps its imported
    modules."""
    modules = Path(__file__).parents[1].rglob("*.py")
    folders = [folder for folder in (*site.getsitepackages(), site.getusersitepackages()) if os.path.isdir(folder)]
    packages = max((os.stat(folder).st_mtime_ns for folder in folders), default=0)
    return [sys.executable, packages, max(module.stat().st_mtime_ns for module in modules)]


def _end_workers(jvm_pid: int, server_session: str | None) -> bool:
    """Ends the workers of a session. Returns False if the process that forks them has ended, so that Spark
    may still use workers.

    That process is in their group, and ignores this signal.
    """
    for process in psutil.Process(jvm_pid).children():
        with suppress(psutil.Error, ProcessLookupError):
            if process.environ().get(_SESSION_VARIABLE) == server_session and os.getpgid(process.pid) == process.pid:
                workers = process.children()
                os.killpg(process.pid, signal.SIGHUP)
                psutil.wait_procs(workers, _WORKER_END_SECONDS)
                return True
    return False
