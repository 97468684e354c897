"""The ingestion server and its clients: rows, statements, tokens, TLS, metrics, and servers that are killed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError

import pyarrow as pa
import pytest
from pyarrow import flight
from pydantic import SecretStr

import volstream
from tests import tails
from tests.certificates import certificate
from tests.integration.conftest import session_on
from tests.tails import committed, everything
from tests.waiting import eventually
from volstream.api import dbapi
from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.model.names import Name
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError
from volstream.ingest import RealtimeOperation, RealtimeOptions, RowsNotSentError
from volstream.ingest.remote import Client, encoded, from_flight
from volstream.server.daemon.ingest import TOKEN, IngestServer
from volstream.spark.session import SparkGateway


@dataclass
class Served:
    """A home behind a server of this process."""

    server: IngestServer
    session: Session
    schema: str

    def connect(self, token: str | None = "secret-of-the-server") -> dbapi.Connection:
        return volstream.connect(self.server.location, token=token, schema=self.schema)


@pytest.fixture
def served(settings: Settings, gateway: SparkGateway) -> Iterator[Served]:
    given = settings.model_copy(update={"ingest_address": "127.0.0.1:0", "ingest_token": SecretStr("secret-of-the-server")})
    with session_on(gateway, given) as session:
        server = IngestServer(session)
        server.start()
        try:
            yield Served(server, session, f"s{uuid.uuid4().hex[:8]}")
        finally:
            server.stop()


def test_rows_and_statements_go_to_the_home_behind_a_server(served: Served) -> None:
    with served.connect() as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE SCHEMA {served.schema}")
        cursor.execute("CREATE TABLE t (id STRING NOT NULL PRIMARY KEY, d DECIMAL(5,2), at TIMESTAMP, a ARRAY<INT>)")
        moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
        with connection.get_realtime_stream(table="t", operate=RealtimeOperation.CDC) as stream:
            for name in "ab":
                row = stream.create_row()
                row.set_values({"id": name, "d": Decimal("1.5"), "at": moment, "a": [1, None]})
                stream.apply(row)
            stream.flush()
            cursor.execute("SELECT id, d, a FROM t WHERE id > ? ORDER BY id", [""])
            assert cursor.fetchall() == [("a", Decimal("1.50"), [1, None]), ("b", Decimal("1.50"), [1, None])]
            assert cursor.description is not None
            assert [kind for _, kind, *_ in cursor.description] == ["string", "decimal(5,2)", "array<int>"]
        cursor.execute("DELETE FROM t WHERE id = 'a'")
        assert cursor.rowcount == 1
        assert cursor.execute("SELECT at FROM t").fetch_arrow_table()["at"].to_pylist() == [moment]
        with pytest.raises(dbapi.ProgrammingError, match="There is no table, stream or view"):
            cursor.execute("SELECT * FROM missing")
        with pytest.raises(dbapi.ProgrammingError, match="DIVIDE_BY_ZERO"):
            cursor.execute("SELECT 1 / (id - id) FROM range(3)").fetchall()
        with pytest.raises(dbapi.InterfaceError, match="has no session"):
            _ = connection.session


@pytest.mark.long
def test_idle_connections_leave_the_server_to_its_clients(served: Served) -> None:
    host, port = served.server.location.removeprefix("grpc://").split(":")
    with ExitStack() as held, served.connect() as connection:
        connection.cursor().execute("SELECT 1")
        idle = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(100)]
        eventually(lambda: sum(map(_is_closed, idle)) >= 36, 30)
        eventually(lambda: all(map(_is_closed, idle)), 30)
        connection.cursor().execute("SELECT 1")


def _is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return not client.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_errors_of_tables_cross_the_wire(served: Served) -> None:
    location = Path(served.session.home.warehouse, "tables", "public")
    location.mkdir(parents=True)
    tails.create(location)
    with volstream.connect(served.server.location, token="secret-of-the-server") as connection:
        with pytest.raises(NotFoundError, match=r"There is no table missing\. First: CREATE TABLE"):
            connection.get_realtime_stream(table="missing")
        with pytest.raises(InvalidStateError, match="has no primary key"):
            connection.get_realtime_stream(table="t", operate=RealtimeOperation.CDC)
    with pytest.raises(InvalidValueError, match="commit_seconds is a setting of the server's home"):
        volstream.connect("grpc://127.0.0.1:1", commit_seconds=1)


def test_a_text_that_cannot_be_a_partition_value_is_refused_by_clients_and_by_the_server(served: Served) -> None:
    location = Path(served.session.home.warehouse, "tables", "public")
    location.mkdir(parents=True)
    table = tails.create_partitioned(location)
    with (
        volstream.connect(served.server.location, token="secret-of-the-server") as connection,
        connection.get_realtime_stream(table="t") as stream,
    ):
        with pytest.raises(InvalidValueError, match="Column day cannot be ''"):
            stream.apply({"id": 1, "day": ""})
        stream.apply({"id": 2, "day": "a"})
    client = Client(served.server.location, "secret-of-the-server")  # one that does not check
    rows = pa.table({"__operation": ["insert"], "id": [3], "day": ["x" * 300]})
    writer, reader = client.put(Name("public", "t"), rows.schema)
    writer.write_with_metadata(rows.to_batches()[0], encoded(stream="s", sequence=1, more=False))
    with pytest.raises(flight.FlightError) as error:
        _ = reader.read() or writer.close()  # one of the two raises what the server raised
    assert re.search("Column day: it cannot be 'x.*would have 304 bytes", str(from_flight(error.value)))
    client.close()
    assert everything(table) == [{"id": 2, "day": "a"}]


@pytest.mark.parametrize("token", [None, "wrong"])
def test_only_clients_with_the_token_are_served(served: Served, token: str | None) -> None:
    with served.connect(token) as connection:
        with pytest.raises(InvalidValueError, match=r"does not accept the token"):
            connection.get_realtime_stream(table="t")
        with pytest.raises(dbapi.DataError, match="does not accept the token"):
            connection.cursor().execute("SELECT 1")


def test_rows_of_many_clients_are_appended_together_and_counted(served: Served) -> None:
    location = Path(served.session.home.warehouse, "tables", "public")
    location.mkdir(parents=True)
    table = tails.create(location)

    def write(name: str) -> None:
        with (
            volstream.connect(served.server.location, token="secret-of-the-server") as connection,
            connection.get_realtime_stream(table="t", options=RealtimeOptions(mutation_buffer_lines_num=2)) as stream,
        ):
            for number in range(20):
                row = stream.create_row()
                row.set_values({"id": f"{name}{number:02}", "n": number})
                stream.apply(row)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdef"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [row["id"] for row in everything(table)] == [f"{name}{number:02}" for name in "abcdef" for number in range(20)]
    counts = {sample.name: sample.value for metric in served.server.collect() for sample in metric.samples}
    assert counts["volstream_ingest_rows_total"] == 120
    assert counts["volstream_ingest_bytes_total"] > 0
    assert 6 <= counts["volstream_ingest_requests_total"] <= 60
    assert counts["volstream_ingest_clients"] == 0


def test_a_table_that_was_dropped_and_created_again_takes_rows(served: Served) -> None:
    location = Path(served.session.home.warehouse, "tables", "public")
    location.mkdir(parents=True)
    for number in range(2):
        table = tails.create(location)
        options = RealtimeOptions(request_failed_retry_internal_ms=10)
        with (
            volstream.connect(served.server.location, token="secret-of-the-server") as connection,
            connection.get_realtime_stream(table="t", options=options) as stream,
        ):
            row = stream.create_row()
            row.set_value("id", str(number))
            stream.apply(row)
        assert [row["id"] for row in everything(table)] == [str(number)]
        shutil.rmtree(table)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream": 5}, "malformed"),
        ({"stream": "s" * 101}, "malformed"),
        ({"sequence": "1"}, "malformed"),
        ({"sequence": 1 << 63}, "malformed"),
        ({"more": True}, r"more than 8 B of rows\. Send fewer rows"),
        ({"more": False}, r"more than 8 B of rows\. Send fewer rows"),
    ],
)
def test_malformed_requests_are_refused(served: Served, fields: dict[str, object], message: str) -> None:
    strict = IngestServer(served.session, max_request=8)
    strict.start()
    location = Path(served.session.home.warehouse, "tables", "public")
    location.mkdir(parents=True)
    tails.create(location)
    client = Client(strict.location, "secret-of-the-server")
    rows = pa.table({"__operation": ["insert"], "id": ["a"], "n": [1]})
    writer, reader = client.put(Name("public", "t"), rows.schema)
    writer.write_with_metadata(rows.to_batches()[0], encoded(**{"stream": "s", "sequence": 1, "more": False, **fields}))
    with pytest.raises(flight.FlightError) as error:
        _ = reader.read() or writer.close()  # one of the two raises what the server raised
    assert re.search(message, str(from_flight(error.value)))
    client.close()
    strict.stop()


def test_a_query_that_is_not_text_is_refused(served: Served) -> None:
    connection = flight.connect(served.server.location)
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret-of-the-server")])
    for request in (b'{"sql":5,"schema":null}', b'{"sql":"SELECT 1","schema":[]}'):
        with pytest.raises(flight.FlightError) as error:
            connection.do_get(flight.Ticket(request), options).read_all()
        assert "The request's sql is not text." in str(from_flight(error.value))
    connection.close()


def _leading_out() -> pa.Array:
    """Two texts of which the first ends far behind the sixteen bytes that are sent."""
    offsets = struct.pack("<3i", 0, 1 << 20, 16)
    return pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(b"x" * 16))


def _batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _damaged(case: str) -> pa.RecordBatch:
    """Made in the test, because pytest looks at the values of parameters."""
    match case:
        case "text":
            return _batch(__operation=pa.array(["insert"] * 2), id=_leading_out(), n=pa.array([1, 2]))
        case "operation":
            return _batch(__operation=_leading_out(), id=pa.array(["a", "b"]), n=pa.array([1, 2]))
        case "dictionary":
            index = pa.array([1 << 20], pa.int32())
            return _batch(id=pa.DictionaryArray.from_arrays(index, pa.array(["a"]), safe=False))
        case _:
            return _batch(id=pa.nulls(1 << 20))


@pytest.mark.parametrize("case", ["text", "operation", "dictionary", "nulls"])
def test_rows_that_lead_out_of_their_message_are_refused(served: Served, case: str) -> None:
    location = Path(served.session.home.warehouse, "tables", "public")
    location.mkdir(parents=True)
    table = tails.create(location)
    client = Client(served.server.location, "secret-of-the-server")
    rows = _damaged(case)
    writer, reader = client.put(Name("public", "t"), rows.schema)
    writer.write_with_metadata(rows, encoded(stream="s", sequence=1, more=False))
    reason = "The rows are damaged" if case in ("text", "operation") else "The table has no column id of type"
    with pytest.raises(flight.FlightError, match=reason):
        _ = reader.read() or writer.close()
    assert everything(table) == []
    client.close()


@pytest.mark.parametrize("path", [("public", "../../../outside"), ("..", "t"), ("public", "a/b"), ("public", "a:b"), ("public",)])
def test_a_path_is_the_name_of_a_table(served: Served, path: tuple[str, ...]) -> None:
    outside = Path(served.session.home.warehouse).parent / "outside"
    outside.mkdir(parents=True)
    tails.create(outside)
    rows = pa.table({"__operation": ["insert"], "id": ["a"], "n": [1]})
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret-of-the-server")])
    with flight.connect(served.server.location) as connection:
        descriptor = flight.FlightDescriptor.for_path(*path)
        writer, reader = connection.do_put(descriptor, rows.schema, options)

        def send() -> None:
            writer.write_with_metadata(rows.to_batches()[0], encoded(stream="s", sequence=1, more=False))
            _ = reader.read() or writer.close()

        with pytest.raises(flight.FlightError, match=r"is not a name|does not name a table|a path of schema and table"):
            send()
    assert sorted(one.name for one in (outside / "t").iterdir()) == ["_delta_log"]


def test_a_client_without_the_token_cannot_fill_the_memory(served: Served) -> None:
    with (
        flight.connect(served.server.location, generic_options=[("grpc.max_send_message_length", -1)]) as stranger,
        pytest.raises(flight.FlightError) as error,
    ):
        list(stranger.do_action(flight.Action("columns", bytes(1 << 28))))
    assert not isinstance(error.value, flight.FlightUnauthenticatedError), "it was cut off before it was read"
    with served.connect() as connection:
        connection.cursor().execute("SELECT 1")


@pytest.mark.parametrize("ticket", [b"[" * 100_000, b'{"sql":' * 100_000, b"\xff", b"1", b"{}"])
def test_a_ticket_that_is_not_understood_is_not_a_fault_of_the_server(served: Served, ticket: bytes) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret-of-the-server")])
    with flight.connect(served.server.location) as client, pytest.raises(flight.FlightError, match=r"malformed|lacks"):
        client.do_get(flight.Ticket(ticket), options)


def test_a_server_with_a_certificate_speaks_tls(settings: Settings, gateway: SparkGateway, tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    given = settings.model_copy(update={"ingest_address": "localhost:0", "ingest_certificate": public, "ingest_key": private})
    location = Path(given.warehouse_path, "tables", "public")
    location.mkdir(parents=True)
    table = tails.create(location)
    with session_on(gateway, given) as session:
        server = IngestServer(session)
        server.start()
        try:
            assert server.location.startswith("grpc+tls://localhost:")
            token = Path(given.home, TOKEN).read_text().strip()
            with (
                volstream.connect(server.location, token=token, certificate=str(public)) as connection,
                connection.get_realtime_stream(table="t") as stream,
            ):
                row = stream.create_row()
                row.set_value("id", "a")
                stream.apply(row)
            assert [row["id"] for row in everything(table)] == ["a"]
        finally:
            server.stop()
    assert Path(given.home, TOKEN).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ingest_address": "0.0.0.0:0"}, "can be reached from the network, but there is no certificate"),
        ({"ingest_address": "8643"}, "Write host:port"),
        ({"ingest_token": SecretStr("${env:SHORT_TOKEN}")}, "ingest_token has a token of fewer than 16 characters"),
        ({"ingest_token": SecretStr("${env:NO_SUCH_TOKEN}")}, "NO_SUCH_TOKEN is not set"),
        ({"ingest_certificate": Path("/none.pem")}, "belong together"),
        ({"ingest_certificate": Path("/none.pem"), "ingest_key": Path("/none.pem")}, "/none.pem cannot be read"),
    ],
)
def test_a_server_that_would_not_be_safe_does_not_start(
    settings: Settings, gateway: SparkGateway, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], reason: str
) -> None:
    monkeypatch.setenv("SHORT_TOKEN", "x")
    given = settings.model_copy(update={"ingest_address": "127.0.0.1:0", **change})
    with session_on(gateway, given) as session, pytest.raises(InvalidValueError, match=reason):
        IngestServer(session)


class Process:
    """``volstream ingest-server`` as a process."""

    def __init__(self, home: Path, fault: str = "") -> None:
        self.environment = {**os.environ, "VOLSTREAM_FAULT": fault, "VOLSTREAM_COMMIT_SECONDS": "0.2"}
        command = [sys.executable, "-m", "volstream", "ingest-server", "--home", str(home), "--listen", "127.0.0.1:0"]
        log = home / f"{uuid.uuid4().hex}.log"
        with log.open("w") as target:
            self.process = subprocess.Popen([*command, "--format", "json"], stderr=target, env=self.environment)
        told: dict[str, Any] = {}

        def started() -> bool:
            for line in log.read_text().splitlines():
                told.update(json.loads(line))
            return "address" in told and "http_port" in told

        eventually(started, 30)
        self.address, self.http_port = told["address"], told["http_port"]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "warehouse" / "tables" / "public").mkdir(parents=True)
    tails.create(tmp_path / "home" / "warehouse" / "tables" / "public")
    return tmp_path / "home"


class Serve(Protocol):
    def __call__(self, home: Path, fault: str = "") -> Process: ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, and kills those that a failed test leaves behind."""
    servers: list[Process] = []

    def start(home: Path, fault: str = "") -> Process:
        servers.append(Process(home, fault))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


def test_the_command_serves_commits_and_ends_when_it_is_asked_to(home: Path, serve: Serve) -> None:
    server = serve(home)
    table = str(home / "warehouse" / "tables" / "public" / "t")
    token = (home / TOKEN).read_text().strip()
    with volstream.connect(server.address, token=token) as connection:
        with connection.get_realtime_stream(table="t") as stream:
            row = stream.create_row()
            row.set_value("id", "a")
            stream.apply(row)
        eventually(lambda: committed(table), 20)
        assert [row["id"] for row in committed(table)] == ["a"]
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer:
        assert b'volstream_ingest_rows_total{table="t"} 1.0' in answer.read()
    assert server.stop() == 0


def test_each_request_for_a_table_that_cannot_be_written_counts_as_refused(served: Served) -> None:
    with served.connect() as connection:
        connection.cursor().execute(f"CREATE SCHEMA {served.schema}")
        connection.cursor().execute("CREATE TABLE t (id STRING)")
        options = RealtimeOptions(request_failed_retry_internal_ms=10, request_failed_retry_times=2)
        stream = connection.get_realtime_stream(table="t", options=options)
        tail = Path(served.session.home.warehouse, "tables", served.schema, "t", "_tail")
        tail.touch()  # it cannot be a folder then
        row = stream.create_row()
        row.set_value("id", "a")
        stream.apply(row)
        with pytest.raises(RowsNotSentError):
            stream.flush()
    samples = [sample for metric in served.server.collect() for sample in metric.samples]
    assert [one.value for one in samples if one.name == "volstream_ingest_refused_total"] == [3]


def test_a_server_is_not_ready_while_commits_of_a_table_fail_and_says_which(home: Path, serve: Serve) -> None:
    server = serve(home)
    table = home / "warehouse" / "tables" / "public" / "t"

    def ready() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/readyz") as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    assert ready() == (200, {"status": "ready", "address": server.address})
    with (
        volstream.connect(server.address, token=(home / TOKEN).read_text().strip()) as connection,
        connection.get_realtime_stream(table="t") as stream,
    ):
        entries = {entry: entry.read_text() for entry in (table / "_delta_log").glob("*.json")}
        for entry in entries:
            entry.write_text("not a log")
        row = stream.create_row()
        row.set_value("id", "a")
        stream.apply(row)
        stream.flush()
        eventually(lambda: ready()[0] == 503, 20)
        status, said = ready()
        assert (status, said["status"], [*said["failing_tables"]]) == (503, "not ready", ["t"])
        assert "cannot be read" in said["failing_tables"]["t"]
        for entry, text in entries.items():
            entry.write_text(text)
        eventually(lambda: ready()[0] == 200, 20)
    assert [row["id"] for row in committed(str(table))] == ["a"]


@pytest.mark.parametrize(
    "point",
    ["tail.appended", *(pytest.param(point, marks=pytest.mark.long) for point in ("tail.written", "tail.planned", "tail.moved"))],
)
def test_a_server_that_is_killed_loses_and_doubles_nothing(home: Path, serve: Serve, point: str) -> None:
    """The client goes on with the next server, where it was."""
    server = serve(home, f"{point}#2")
    table = str(home / "warehouse" / "tables" / "public" / "t")
    token = (home / TOKEN).read_text().strip()
    names = (f"{number:05}" for number in itertools.count())

    acknowledged, uncertain = send(server.address, token, names)

    assert server.process.wait(30) == -signal.SIGKILL
    assert len(uncertain) == 3  # they may have arrived
    server = serve(home)
    later, failed = send(server.address, token, itertools.islice(names, 30))
    assert (len(later), failed) == (30, [])
    assert server.stop() == 0
    found = [row["id"] for row in everything(table)]
    assert len(found) == len(set(found))
    assert {*acknowledged, *later} <= set(found) <= {*acknowledged, *later, *uncertain}


def send(address: str, token: str, names: Iterator[str]) -> tuple[list[str], list[str]]:
    """Sends rows by threes until one flush fails. Names of those that arrived, and of those that the error has."""
    sent: list[str] = []
    with volstream.connect(address, token=token) as connection:
        stream = connection.get_realtime_stream(table="t", options=RealtimeOptions(request_failed_retry_enable=False))
        while three := list(itertools.islice(names, 3)):
            for name in three:
                row = stream.create_row()
                row.set_value("id", name)
                stream.apply(row)
            try:
                stream.flush()
            except RowsNotSentError as error:
                return sent, [row.as_dict()["id"] for row in error.rows]
            sent += three
        stream.close()
    return sent, []
