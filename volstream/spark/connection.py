"""A remote Spark session and its channel: opened, copied, released, dropped.

Assigning sessions is in ``session``; this module is the one that imports PySpark.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from volstream.spark.jvm.address import Address
from volstream.spark.jvm.channel import ClientChannelBuilder, builder_for, policy_for

if TYPE_CHECKING:
    from volstream.spark.reusable import ReusableSession

#: Errors that a call may raise when the engine disappears. gRPC raises ValueError for a closed channel.
BROKEN = (PySparkException, grpc.RpcError, ValueError)

#: Usually milliseconds.
_RELEASE_SECONDS = 2.0


@dataclass(frozen=True)
class SparkConnection:
    """A session with its channel.

    Attributes:
        left: of a session that the next process takes over; None: none does.
    """

    session: SparkSession
    builder: ClientChannelBuilder
    left: ReusableSession | None = None

    def release(self) -> None:
        """Ends the session on the server, or only its statements if another process takes it over, and closes the channel.
        Does not fail if the engine died, and the session with it.
        """
        client = self.session.client
        # PySpark releases finished statements in the background. A release after the session's end is an error with a long
        # stack trace in the engine's log.
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
        """Closes the channel without notifying the server; safe while another thread waits on it."""
        self.builder.close()
        self.session.client._closed = True  # as `close` does, which would wait for calls that are never answered
        if self.left is not None:
            self.left.close()


def opened(address: Address, session_id: str | None = None) -> SparkConnection:
    """Returns a remote session, a new one unless an id is given. No I/O: the first statement shows whether the server answers.

    Args:
        session_id: id of a session, which the server creates if it has none of this id.
    """
    # Without it, the functions of pyspark.sql look for a JVM in this process.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    # PySpark would repeat on standard error what its exception says.
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
    # The hook would keep every client until exit, and then contact each of their engines, even those that are gone.
    atexit.unregister(session.client._on_exit)
    return SparkConnection(session, builder)


def _forget_stopped() -> None:
    """Removes a stopped session as PySpark's default and as this thread's active one, to make room for the next."""
    with SparkSession._lock:
        default = SparkSession._default_session
        if default is not None and default.is_stopped:
            SparkSession._default_session = None
        active = getattr(SparkSession._active_session, "session", None)
        if active is not None and active.is_stopped:
            SparkSession._active_session.session = None
