"""A connection to Spark Connect: address, retries, and whether the server answers.

Sessions (``session``) and monitoring (``watch``) do not belong here.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any, Self

import grpc
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from volstream.spark.jvm.address import Address, EngineAddress

#: A session belongs to a user id and a session id. This user id is fixed so that heartbeats can use it as well.
_USER = "volstream"

#: Statuses that do not come from a working Spark.
_SILENCE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ClientChannelBuilder(DefaultChannelBuilder):
    """PySpark's builder, with access to its channel, so that it can be closed while another thread is in a blocked call."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.set(self.PARAM_USER_ID, self.userId or _USER)
        self._channel: Any = None

    def toChannel(self) -> Any:  # noqa: N802  # PySpark's name
        """Returns the channel, which is created once."""
        if self._channel is None:
            self._channel = self._made()
        return self._channel

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Called by PySpark to connect the copy of a session, with its own channel."""
        copied = copy.copy(self)
        copied._params = copy.deepcopy(self._params, memo)
        copied._channel = None
        return copied

    def close(self) -> None:
        """Closes the channel; calls that wait on it return immediately. Idempotent."""
        if self._channel is not None:
            self._channel.close()

    def _made(self) -> Any:
        return super().toChannel()


class LocalChannelBuilder(ClientChannelBuilder):
    """Connects to a JVM on this host by IP address, so that no process can pose as ``localhost``, and without a proxy."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(f"sc://localhost:{port}")
        self._target = f"127.0.0.1:{port}"
        self.setChannelOption("grpc.enable_http_proxy", 0)
        # As a header of each call. gRPC's own call credentials run Python code on a gRPC thread, and closing a channel at
        # the same time, while holding the GIL, deadlocks.
        self.set("authorization", f"Bearer {token}")

    def _made(self) -> Any:
        return self._insecure_channel(self._target)


class LocalPolicy(DefaultPolicy):
    """Retries for the home's engine: only calls that it asks to repeat. A dead engine does not return."""

    def __init__(self) -> None:
        super().__init__(max_retries=5, max_backoff=1000, max_server_retry_delay=1000)

    def can_retry(self, e: BaseException) -> bool:
        """Returns whether the call that raised ``e`` may be retried."""
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
    """Requests Spark's version over its own connection."""

    def __init__(self, builder: ClientChannelBuilder) -> None:
        self._builder = builder
        # The generated code has no types.
        self._stub = base_pb2_grpc.SparkConnectServiceStub(builder.toChannel())  # type: ignore[no-untyped-call]
        self._own_session = str(uuid.uuid4())

    def send(self, seconds: float, session_id: str | None = None, server_side: str | None = None) -> HeartbeatRequest:
        """Sends a request that expires after ``seconds``, without waiting for the answer.

        Args:
            session_id: send it as this session, so that the server does not end the session as idle.
            server_side: the session's id on the server; without that session the server refuses, instead of creating one.
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
        """Returns whether it was answered or has expired. Does not wait."""
        return bool(self._call.done())

    def answered(self) -> bool:
        """Returns whether anything answered, including a refusal. Waits for the answer or the expiry."""
        return self._call.code() not in _SILENCE

    def refusal(self) -> str:
        """Returns the message of an error; empty if Spark answered. Waits for the answer or the expiry."""
        return self._call.details() or ""

    def served(self) -> bool:
        """Returns whether a Spark that accepts our token answered. Waits for the answer or the expiry."""
        return bool(self._call.code() == grpc.StatusCode.OK)
