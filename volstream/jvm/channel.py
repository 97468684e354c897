"""One connection to Spark Connect: how it is addressed, what is tried again, and whether the other side answers.

Sessions and their life do not belong here (``session``), nor does watching (``watch``).
"""

from __future__ import annotations

import copy
import uuid
from typing import Any, Self

import grpc
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from volstream.jvm.address import Address, EngineAddress

#: A session belongs to a user id and a session id; the id of this one is fixed so that a heartbeat can name it too.
_USER = "volstream"

#: Answers that come from something other than a Spark that serves.
_SILENCE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class ClientChannelBuilder(DefaultChannelBuilder):
    """PySpark's builder that remembers the channel it made, so that it can be closed from outside a blocked call."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.set(self.PARAM_USER_ID, self.userId or _USER)
        self._channel: Any = None

    def toChannel(self) -> Any:  # noqa: N802  # PySpark's name
        """The channel; made once."""
        if self._channel is None:
            self._channel = self._made()
        return self._channel

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """How PySpark connects to the copy of a session: with a channel of its own."""
        made = copy.copy(self)
        made._params = copy.deepcopy(self._params, memo)
        made._channel = None
        return made

    def close(self) -> None:
        """Closes the channel: calls that wait on it return at once. Idempotent."""
        if self._channel is not None:
            self._channel.close()

    def _made(self) -> Any:
        return super().toChannel()


class LocalChannelBuilder(ClientChannelBuilder):
    """To a JVM on this host: by number, so that nobody can listen on another ``localhost``, and past any proxy."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(f"sc://localhost:{port}")
        self._target = f"127.0.0.1:{port}"
        self.setChannelOption("grpc.enable_http_proxy", 0)
        # As a header of each call. gRPC's own call credentials run Python code on a thread of theirs, and closing a
        # channel meanwhile, with the interpreter's lock held, never returns.
        self.set("authorization", f"Bearer {token}")

    def _made(self) -> Any:
        return self._insecure_channel(self._target)


class LocalPolicy(DefaultPolicy):
    """What is tried again with the home's engine: calls that it asks to repeat. An engine that is gone stays gone."""

    def __init__(self) -> None:
        super().__init__(max_retries=5, max_backoff=1000, max_server_retry_delay=1000)

    def can_retry(self, e: BaseException) -> bool:
        """Whether ``e`` may pass."""
        unavailable = isinstance(e, grpc.RpcError) and e.code() == grpc.StatusCode.UNAVAILABLE
        return not unavailable and super().can_retry(e)


class RemotePolicy(DefaultPolicy):
    """What is tried again over a network: some twenty seconds in all, where PySpark's own policy takes ten minutes."""

    def __init__(self) -> None:
        super().__init__(max_retries=8, initial_backoff=100, backoff_multiplier=2.0, max_backoff=5000)


def builder_for(address: Address) -> ClientChannelBuilder:
    """A builder of a new connection to ``address``. No I/O."""
    if isinstance(address, EngineAddress):
        return LocalChannelBuilder(address.port, address.token)
    return ClientChannelBuilder(address.url)


def policy_for(address: Address) -> DefaultPolicy:
    """What is tried again when talking to ``address``."""
    return LocalPolicy() if isinstance(address, EngineAddress) else RemotePolicy()


class Heartbeat:
    """Asks Spark for its version over a connection of its own."""

    def __init__(self, builder: ClientChannelBuilder) -> None:
        self._builder = builder
        # Generated code has no types.
        self._stub = base_pb2_grpc.SparkConnectServiceStub(builder.toChannel())  # type: ignore[no-untyped-call]
        self._own_session = str(uuid.uuid4())

    def send(self, seconds: float, session_id: str | None = None) -> Beat:
        """Asks, without waiting, for an answer within ``seconds``.

        Args:
            session_id: asks in the name of this session, which keeps the server from ending it for idleness.
        """
        request = base_pb2.AnalyzePlanRequest(
            session_id=session_id or self._own_session,
            user_context=base_pb2.UserContext(user_id=self._builder.userId or ""),
            client_type=self._builder.userAgent,
            spark_version=base_pb2.AnalyzePlanRequest.SparkVersion(),
        )
        return Beat(self._stub.AnalyzePlan.future(request, timeout=seconds, metadata=list(self._builder.metadata())))

    def close(self) -> None:
        """Closes its connection. Idempotent."""
        self._builder.close()


class Beat:
    """One question that was asked."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def over(self) -> bool:
        """Whether there is an answer, or the time for it has passed. Does not wait."""
        return bool(self._call.done())

    def answered(self) -> bool:
        """Whether something answered; a refusal is an answer too. Waits until the question is over."""
        return self._call.code() not in _SILENCE

    def served(self) -> bool:
        """Whether a Spark answered that takes our token. Waits until the question is over."""
        return bool(self._call.code() == grpc.StatusCode.OK)
