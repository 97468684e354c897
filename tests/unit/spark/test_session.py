"""When a gateway attaches, and what it asks of a server, using one that records its requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

from volstream.errors import EngineError, EngineLostError
from volstream.spark.jvm.address import Address, RemoteAddress
from volstream.spark.session import SparkGateway


class Server(base_pb2_grpc.SparkConnectServiceServicer):
    """Accepts settings and artifacts, and answers nothing else of use."""

    def __init__(self) -> None:
        self.settings: dict[str, dict[str, str]] = {}
        self.defaults = {"spark.sql.variable.substitute": "true", "spark.sql.parser.quotedRegexColumnNames": "true"}
        self.artifacts: dict[str, dict[str, bytes]] = {}
        self._server = grpc.server(ThreadPoolExecutor(4))
        base_pb2_grpc.add_SparkConnectServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.url = f"sc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Config(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        if request.operation.HasField("is_modifiable"):
            keys = request.operation.is_modifiable.keys
            answers = [base_pb2.KeyValue(key=key, value=str(".executor." not in key).lower()) for key in keys]
            return base_pb2.ConfigResponse(session_id=request.session_id, pairs=answers)
        pairs = {pair.key: pair.value for pair in request.operation.set.pairs}
        self.settings.setdefault(request.session_id, {}).update(pairs)
        asked = [(pair.key, self.defaults.get(pair.key, pair.value)) for pair in request.operation.get_with_default.pairs]
        answers = [base_pb2.KeyValue(key=key, value=value) for key, value in asked]
        return base_pb2.ConfigResponse(session_id=request.session_id, pairs=answers)

    def AnalyzePlan(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        plan = base_pb2.AnalyzePlanResponse.Explain(explain_string="*(1) Range (0, 1048576, step=1, splits=7)")
        return base_pb2.AnalyzePlanResponse(session_id=request.session_id, explain=plan)

    def ArtifactStatus(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return base_pb2.ArtifactStatusesResponse(session_id=request.session_id)

    def AddArtifacts(self, requests: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        name, content, added = "", b"", dict[str, bytes]()
        for request in requests:
            if request.HasField("batch"):
                added |= {one.name: one.data.data for one in request.batch.artifacts}
            elif request.HasField("begin_chunk"):
                name, content = request.begin_chunk.name, request.begin_chunk.initial_chunk.data
            else:
                content += request.chunk.data
        if name:
            added[name] = content
        self.artifacts.setdefault(request.session_id, {}).update(added)
        summaries = [base_pb2.AddArtifactsResponse.ArtifactSummary(name=name, is_crc_successful=True) for name in added]
        return base_pb2.AddArtifactsResponse(session_id=request.session_id, artifacts=summaries)

    def ReleaseSession(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        return base_pb2.ReleaseSessionResponse(session_id=request.session_id)

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def test_sessions_on_a_remote_server_have_the_settings_of_our_engine_and_of_the_home(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    misread = {"spark.sql.variable.substitute": "true", "spark.sql.ansi.doubleQuotedIdentifiers": "true"}
    conf = {"spark.sql.ansi.enabled": "false", "spark.executor.memory": "3g", **misread}
    gateway = SparkGateway(lambda: RemoteAddress(server.url, conf), stall_seconds=60)
    with gateway.fresh() as fresh, gateway.pooled() as pooled:
        opened = {one.session_id for one in (fresh, pooled, gateway.session())}
    gateway.close()
    assert len(opened) == 3
    wanted = {
        "spark.sql.variable.substitute": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.datetime.java8API.enabled": "true",
        "spark.sql.readSideCharPadding": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.ansi.enabled": "false",
    }
    assert server.settings == dict.fromkeys(opened, wanted)
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("spark_conf.spark.executor.memory") == 1


def test_sessions_on_a_remote_server_bring_our_code(server: Server, tmp_path: Path) -> None:
    gateway = SparkGateway(lambda: RemoteAddress(server.url), stall_seconds=60)
    sessions = [gateway.session().session_id]
    with gateway.fresh() as fresh:
        sessions.append(fresh.session_id)
    gateway.close()
    first, second = (server.artifacts[session] for session in sessions)
    assert first == second, "workers of both can take it for the same"
    [(name, content)] = first.items()
    assert name.startswith("pyfiles/volstream-")
    (tmp_path / "code.zip").write_bytes(content)
    code = "import volstream.jobs.batches.staging as it; print(it.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": f"{tmp_path}/code.zip"}, capture_output=True, text=True
    )
    assert done.stdout.startswith(f"{tmp_path}/code.zip/"), done.stderr


class Engines:
    """Engines to attach to, some of which cannot be started."""

    def __init__(self, address: Address, *failures: Exception) -> None:
        self.address = address
        self.failures = list(failures)
        self.asked = 0

    def attach(self) -> Address:
        self.asked += 1
        if self.failures:
            raise self.failures.pop()
        return self.address


def test_a_gateway_attaches_once_at_its_first_session(server: Server) -> None:
    engines = Engines(RemoteAddress(server.url))
    gateway = SparkGateway(engines.attach, stall_seconds=60)
    assert (gateway.attached, engines.asked) == (False, 0)
    first = gateway.session()
    assert gateway.session() is first
    assert (gateway.attached, engines.asked) == (True, 1)
    gateway._on_lost("the test is over")


def test_a_failed_attach_is_retried_at_the_next_session(server: Server) -> None:
    engines = Engines(RemoteAddress(server.url), EngineError("no"))
    gateway = SparkGateway(engines.attach, stall_seconds=60)
    with pytest.raises(EngineError, match="no"), gateway.fresh():
        pass
    assert gateway.lost is None
    gateway.session()
    gateway._on_lost("the test is over")


def test_a_closed_gateway_attaches_to_nothing() -> None:
    engines = Engines(RemoteAddress("sc://127.0.0.1:1"))
    gateway = SparkGateway(engines.attach, stall_seconds=60)
    gateway.close()
    with pytest.raises(EngineLostError, match="closed"), gateway.pooled():
        pass
    assert engines.asked == 0
