"""One remote session of Spark and the channel below it: opened, copied, released, dropped.

Who is given which session is ``session``'s; this module is what imports PySpark.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from volstream.jvm.address import Address
from volstream.jvm.channel import ClientChannelBuilder, builder_for, policy_for

#: What a call may raise when the engine goes away meanwhile. ValueError is gRPC's word for a closed channel.
BROKEN = (PySparkException, grpc.RpcError, ValueError)

#: Usually milliseconds.
_RELEASE_SECONDS = 2.0


@dataclass(frozen=True)
class Connection:
    """A session and the channel below it."""

    session: SparkSession
    builder: ClientChannelBuilder

    def release(self) -> None:
        """Ends the session on the server and closes the channel. Quiet where the engine is gone: so is the session."""
        client = self.session.client
        # PySpark lets go of finished statements in the background. One that comes after the session's end is an error
        # with a long stack in the engine's log.
        concurrent.futures.wait(list(client._release_futures), timeout=_RELEASE_SECONDS)
        with suppress(*BROKEN):
            client.release_session()
        client.close()
        self.drop()

    def drop(self) -> None:
        """Closes the channel without a word to the server; safe while another thread waits on it."""
        self.builder.close()
        self.session.client._closed = True  # what `close` sets, which would wait for calls that get no answer


def opened(address: Address) -> Connection:
    """A new remote session, never a present one. No I/O: the first statement finds out whether anybody answers."""
    # Without it the functions of pyspark.sql look for a JVM in this process.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    # PySpark's ways to say, on standard error, what the exception says.
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True
    _forget_stopped()
    builder = builder_for(address)
    return _connected(SparkSession.builder.channelBuilder(builder).create(), builder, address)


def copied(session: Any, address: Address) -> Connection:
    """A new remote session with the settings, views and functions that another one has now."""
    copied = session.cloneSession()
    return _connected(copied, cast(ClientChannelBuilder, copied.client._builder), address)


def _connected(session: SparkSession, builder: ClientChannelBuilder, address: Address) -> Connection:
    session.client.set_retry_policies([policy_for(address)])
    # It would keep every client until the process ends, and then ask each of their engines, even one that is gone.
    atexit.unregister(session.client._on_exit)
    return Connection(session, builder)


def _forget_stopped() -> None:
    """Takes a stopped session out of PySpark's default and this thread's active one, where the next is to stand."""
    with SparkSession._lock:
        default = SparkSession._default_session
        if default is not None and default.is_stopped:
            SparkSession._default_session = None
        active = getattr(SparkSession._active_session, "session", None)
        if active is not None and active.is_stopped:
            SparkSession._active_session.session = None
