"""The client side of Spark: sessions on the home's engine or on a server elsewhere, given out and taken back.

A session is one remote session with its own settings, temporary views and modules. How a connection is made is
``channel``'s; how errors are read is ``errors``'s.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from volstream.spark.address import Address, EngineAddress, RemoteAddress
from volstream.spark.channel import ClientChannelBuilder, builder_for, policy_for
from volstream.spark.compiled import compile_in
from volstream.spark.errors import engine_lost
from volstream.spark.watch import Watch

#: What a call may raise when the engine goes away meanwhile. ValueError is gRPC's word for a closed channel.
_BROKEN = (PySparkException, grpc.RpcError, ValueError)

#: Usually milliseconds.
_RELEASE_SECONDS = 2.0

#: A session of the pool is used so often: what its statements leave on the server ends with it.
_MOST_USES = 100


#: Of each session on a server that was started by others; the home's engine has them from its start. With variables Spark
#: would put something else in the place of a file that is named ``${x}``.
_ON_OTHER_SERVERS = {"spark.sql.variable.substitute": "false"}


def connect(address: Address | str) -> SparkSession:
    """A new remote session, never a present one. No I/O: the first statement finds out whether anybody answers.

    Args:
        address: of an engine, or the ``sc://`` URL of a server.
    """
    return _open(RemoteAddress(address) if isinstance(address, str) else address).session


class SparkGateway:
    """The sessions of this process on one engine. Safe to share between threads.

    From the first session on a thread watches the engine. When it is lost, all connections are closed, so that blocked
    calls return with an error at once, and the gateway gives out nothing more: whoever wants to go on attaches again,
    with a new gateway.

    Args:
        address: the engine. Constructing does no I/O.
        stall_seconds: an engine that answers nothing for so long is lost.
    """

    def __init__(self, address: Address, *, stall_seconds: float) -> None:
        self._address = address
        self._stall_seconds = stall_seconds
        self._lock = threading.Lock()
        self._open: dict[str, _Connection] = {}
        self._by_thread: dict[threading.Thread, _Connection] = {}
        # The pools of sessions that do not compile and that do, and how often each was used.
        self._idle: dict[bool, list[tuple[_Connection, int]]] = {False: [], True: []}
        self._watch: Watch | None = None
        self._ended: str | None = None

    @property
    def address(self) -> Address:
        """The engine."""
        return self._address

    @property
    def lost(self) -> str | None:
        """Why nothing can be asked of the engine any more; None while all is well."""
        return self._ended

    @contextmanager
    def fresh(self) -> Iterator[SparkSession]:
        """A new session for the block, with settings and views of its own; what still runs in it at the end is ended.

        Raises:
            EngineLostError: the engine is or was lost, whatever the block made of it.
        """
        with self._until_released(self._new()) as session:
            yield session

    @contextmanager
    def copied(self, session: Any) -> Iterator[SparkSession]:
        """A new session for the block with the settings, views and functions that another one has now.

        Raises:
            EngineLostError: as :meth:`fresh`.
        """
        with self._broken_is_lost():
            connection = self._keep(_copy(session, self._address))
        with self._until_released(connection) as copied:
            yield copied

    @contextmanager
    def pooled(self, *, compiled: bool = False) -> Iterator[SparkSession]:
        """A session for the block that was used before, with the settings and views that earlier blocks left.

        Spark compiles for each new session anew what it compiled for another. One whose block raised is used no more: a
        statement may still be running in it.

        Args:
            compiled: one in which Spark compiles; see :mod:`volstream.spark.compiled`.

        Raises:
            EngineLostError: as :meth:`fresh`.
        """
        with self._lock:
            idle = self._idle[compiled] if self._ended is None else []
            connection, uses = idle.pop() if idle else (None, 0)
        if connection is None:
            connection = self._new()
        try:
            with self._broken_is_lost():
                if compiled and not uses:
                    compile_in(connection.session)
                yield connection.session
        except BaseException:
            self._release(connection)
            raise
        with self._lock:
            keep = uses + 1 < _MOST_USES and self._ended is None
            if keep:
                self._idle[compiled].append((connection, uses + 1))
        if not keep:
            self._release(connection)

    def session(self) -> SparkSession:
        """This thread's session: made at its first call, released by :meth:`close` or after the thread's end.

        Raises:
            EngineLostError: the engine was lost, or the gateway is closed.
        """
        thread = threading.current_thread()
        with self._lock:
            present = self._by_thread.get(thread)
        if present is not None and self._ended is None:
            return present.session
        connection = self._new()
        with self._lock:
            ended = [other for other in self._by_thread if not other.is_alive()]
            abandoned = [self._by_thread.pop(other) for other in ended]
            self._by_thread[thread] = connection
        for other in abandoned:
            self._release(other)
        return connection.session

    def close(self) -> None:
        """Releases all sessions and stops watching. Idempotent."""
        with self._lock:
            self._ended = self._ended or "its gateway was closed"
            connections = list(self._open.values())
            self._by_thread.clear()
            for idle in self._idle.values():
                idle.clear()
        for connection in connections:
            self._release(connection)
        if self._watch is not None:
            self._watch.stop()

    @contextmanager
    def _until_released(self, connection: _Connection) -> Iterator[SparkSession]:
        try:
            with self._broken_is_lost():
                yield connection.session
        finally:
            self._release(connection)

    @contextmanager
    def _broken_is_lost(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as error:
            if self._ended is None:
                raise
            raise engine_lost(self._ended) from error

    def _new(self) -> _Connection:
        connection = self._keep(_open(self._address))
        if isinstance(self._address, EngineAddress):
            return connection
        try:
            with self._broken_is_lost():
                for key, value in _ON_OTHER_SERVERS.items():
                    connection.session.conf.set(key, value)
        except BaseException:
            self._release(connection)
            raise
        return connection

    def _keep(self, connection: _Connection) -> _Connection:
        """Watches a connection from now on, unless the engine was lost."""
        with self._lock:
            if self._ended is not None:
                connection.drop()
                raise engine_lost(self._ended)
            self._open[connection.session.session_id] = connection
            if self._watch is None:
                self._watch = Watch(self._address, self._stall_seconds, self._session_ids, self._lose)
                self._watch.start()
        return connection

    def _session_ids(self) -> list[str]:
        with self._lock:
            return list(self._open)

    def _release(self, connection: _Connection) -> None:
        with self._lock:
            if connection.session.session_id not in self._open:
                return  # lost, and closed already
        # It stays among the open ones meanwhile, so that a release which nobody answers ends when the engine is lost.
        connection.release()
        with self._lock:
            self._open.pop(connection.session.session_id, None)

    def _lose(self, reason: str) -> None:
        with self._lock:
            self._ended = self._ended or reason
            connections = list(self._open.values())
            self._open.clear()
        for connection in connections:
            connection.drop()


@dataclass(frozen=True)
class _Connection:
    """A session and the channel below it."""

    session: SparkSession
    builder: ClientChannelBuilder

    def release(self) -> None:
        """Ends the session on the server and closes the channel. Quiet where the engine is gone: so is the session."""
        client = self.session.client
        # PySpark lets go of finished statements in the background. One that comes after the session's end is an error
        # with a long stack in the engine's log.
        concurrent.futures.wait(list(client._release_futures), timeout=_RELEASE_SECONDS)
        with suppress(*_BROKEN):
            client.release_session()
        client.close()
        self.drop()

    def drop(self) -> None:
        """Closes the channel without a word to the server; safe while another thread waits on it."""
        self.builder.close()
        self.session.client._closed = True  # what `close` sets, which would wait for calls that get no answer


def _open(address: Address) -> _Connection:
    # Without it the functions of pyspark.sql look for a JVM in this process.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    # PySpark's ways to say, on standard error, what the exception says.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    _forget_stopped()
    builder = builder_for(address)
    return _connected(SparkSession.builder.channelBuilder(builder).create(), builder, address)


def _copy(session: Any, address: Address) -> _Connection:
    copied = session.cloneSession()
    return _connected(copied, cast(ClientChannelBuilder, copied.client._builder), address)


def _connected(session: SparkSession, builder: ClientChannelBuilder, address: Address) -> _Connection:
    session.client.set_retry_policies([policy_for(address)])
    # It would keep every client until the process ends, and then ask each of their engines, even one that is gone.
    atexit.unregister(session.client._on_exit)
    return _Connection(session, builder)


def _forget_stopped() -> None:
    """Takes a stopped session out of PySpark's default and this thread's active one, where the next is to stand."""
    with SparkSession._lock:
        default = SparkSession._default_session
        if default is not None and default.is_stopped:
            SparkSession._default_session = None
        active = getattr(SparkSession._active_session, "session", None)
        if active is not None and active.is_stopped:
            SparkSession._active_session.session = None
