"""What the gateway asks of a server, by one that notes what it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from volstream.spark.address import RemoteAddress
from volstream.spark.session import SparkGateway


class Server(base_pb2_grpc.SparkConnectServiceServicer):
    """Takes settings, and answers nothing else of use."""

    def __init__(self) -> None:
        self.settings: dict[str, dict[str, str]] = {}
        self._server = grpc.server(ThreadPoolExecutor(4))
        base_pb2_grpc.add_SparkConnectServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.url = f"sc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Config(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        pairs = {pair.key: pair.value for pair in request.operation.set.pairs}
        self.settings.setdefault(request.session_id, {}).update(pairs)
        return base_pb2.ConfigResponse(session_id=request.session_id)

    def ReleaseSession(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return base_pb2.ReleaseSessionResponse(session_id=request.session_id)

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def test_sessions_on_a_server_of_others_substitute_no_variables(server: Server) -> None:
    gateway = SparkGateway(RemoteAddress(server.url), stall_seconds=60)
    with gateway.fresh() as fresh, gateway.pooled() as pooled:
        opened = {one.session_id for one in (fresh, pooled, gateway.session())}
    gateway.close()
    assert len(opened) == 3
    assert server.settings == {one: {"spark.sql.variable.substitute": "false"} for one in opened}
