"""The ingestion server: real-time streams and statements over Arrow Flight, for clients without Java or on
other hosts."""

from __future__ import annotations

import os
import resource
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pyarrow import flight

from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.model.units import format_size
from volstream.base.privacy import certificate_of, check_token, resolve_references, secret_in
from volstream.base.processes import raise_descriptor_limit
from volstream.base.threads import Stop
from volstream.errors import DependencyError, InvalidValueError, PortInUseError, TailFullError, VolstreamError
from volstream.ingest.local import LocalTable, LocalTables
from volstream.ingest.remote import COLUMNS, decoded, encoded, to_flight
from volstream.server.console.app import probes
from volstream.server.console.server import HttpServer
from volstream.server.daemon.arrivals import Committer
from volstream.server.daemon.families import counter, gauge
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import batches
from volstream.sql.adapt import in_schema
from volstream.tables.tails.tail import OPERATION
from volstream.tables.tails.writer import Flush

# Closes connections without a valid token. Each takes a descriptor of the daemon, which its volumes need, and
# gRPC reads what they send into memory before it checks the token.
#
# Flight's server keeps connections forever, and gRPC's limits cannot be set from Python. So they are found
# among the process's own descriptors and shut down, whereupon gRPC closes them.

_log = get("ingest")

#: Time between connecting and the first call with the token.
_GRACE_SECONDS = 10.0

#: Maximum number of connections without such a call.
_MAX_UNAUTHENTICATED = 64

#: Maximum bytes that an unauthenticated client may send: a first call with its token, and rows behind it.
_MAX_BYTES = 16 << 20

#: Interval of checks, without and with unauthenticated connections.
_LOOK_SECONDS, _SHORT_SECONDS = 0.5, 0.02

#: Position of the number of received bytes in Linux's ``struct tcp_info``.
_RECEIVED = slice(128, 136)

#: The folder of the process's own descriptors.
_OPEN = "/proc/self/fd"

#: Address and port of a client.
Peer = tuple[str, int]


class UnauthenticatedConnections:
    """The connections to a port of this process whose clients have not shown a token. Thread-safe.

    Args:
        patience_seconds: a connection is closed after this time without a call.
        maximum: maximum number of connections without a call. The oldest ones beyond it are closed at once.
        look_seconds: interval of checks while there are none.
    """

    def __init__(
        self,
        port: int,
        patience_seconds: float = _GRACE_SECONDS,
        *,
        maximum: int = _MAX_UNAUTHENTICATED,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._port = port
        self._patience_seconds = patience_seconds
        self._maximum = maximum
        self._look_seconds = look_seconds
        self._since: dict[Peer, float] = {}
        self._known: set[Peer] = set()
        self._stop = Stop()

    def start(self) -> None:
        """Starts the checks, in a separate thread."""
        raise_descriptor_limit()
        # A spare descriptor, kept for times without free ones, to inspect gRPC's sockets without taking them
        # from it.
        spare, nothing = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
        threading.Thread(target=self._run, args=(spare, nothing), name="unauthenticated", daemon=True).start()

    def stop(self) -> None:
        """Stops the checks. Idempotent."""
        self._stop.set()

    def authenticated(self, peer: str) -> None:
        """Records a client that has shown the token, in gRPC's notation: ``ipv4:127.0.0.1:40000``."""
        host, _, port = unquote(peer).partition(":")[2].rpartition(":")
        self._known.add((host.strip("[]"), int(port)))

    def _run(self, spare: int, nothing: int) -> None:
        try:
            while not self._stop.wait(_SHORT_SECONDS if self._since else self._look_seconds):
                self._check(spare)
                os.dup2(nothing, spare)
        finally:
            os.close(spare)
            os.close(nothing)

    def _check(self, spare: int) -> None:
        """Closes connections that have been unauthenticated for too long, and the oldest beyond the
        maximum."""
        now, before = time.monotonic(), set(self._known)
        sent: dict[Peer, int] = {}
        descriptors: dict[Peer, int] = {}
        for descriptor, peer, size in self._connections(spare):
            descriptors[peer], sent[peer] = descriptor, size
        self._known -= before - descriptors.keys()
        self._since = {peer: self._since.get(peer, now) for peer in descriptors.keys() - self._known}
        waiting = sorted(self._since, key=self._since.__getitem__)
        excess = len(waiting) - self._maximum
        closed = [
            peer
            for place, peer in enumerate(waiting)
            if place < excess or now - self._since[peer] >= self._patience_seconds or sent[peer] > _MAX_BYTES
        ]
        for peer in closed:
            with self._socket(descriptors[peer], spare) as connection:
                if connection is not None and _peer(connection) == peer and peer not in self._known:
                    connection.shutdown(socket.SHUT_RDWR)
        if closed:
            _log.warning("strangers_closed", connections=len(closed), waiting=len(waiting) - len(closed))

    def _connections(self, spare: int) -> Iterator[tuple[int, Peer, int]]:
        """Yields the port's connections, each with its descriptor and the number of bytes it has received."""
        try:
            descriptors: Iterable[int] = map(int, os.listdir(_OPEN))
        except OSError:  # no descriptor is free
            descriptors = range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for descriptor in descriptors:
            with self._socket(descriptor, spare) as connection:
                peer = None if connection is None else _peer(connection)
                size = 0 if connection is None else _received(connection)
            if peer is not None:
                yield descriptor, peer, size

    @contextmanager
    def _socket(self, descriptor: int, spare: int) -> Iterator[socket.socket | None]:
        """Opens a connection of the port with a second descriptor. Yields None if the descriptor is no longer
        a connection."""
        connection: socket.socket | None = None
        try:
            if descriptor != spare and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(descriptor, spare)
                connection = socket.socket(fileno=spare)
                if connection.getsockname()[1] != self._port:
                    connection.detach()
                    connection = None
        except (OSError, IndexError, TypeError):  # closed meanwhile, not connected, or a Unix socket
            pass
        try:
            yield connection
        finally:
            if connection is not None:
                connection.detach()


def _received(connection: socket.socket) -> int:
    """Returns the number of bytes received on a connection."""
    try:
        return int.from_bytes(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[_RECEIVED], sys.byteorder)
    except OSError:  # not connected
        return 0


def _peer(connection: socket.socket) -> Peer | None:
    """Returns the client of a connection, or None for a listening socket or a closed connection."""
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return None
    return host.removeprefix("::ffff:"), port  # gRPC uses IPv6 sockets also for IPv4 clients


#: Time that clients have to finish their requests when the server stops.
_END_SECONDS = 2.0

#: Maximum bytes of rows in a request, and maximum characters of a stream's identity.
_MAX_REQUEST, _MAX_STREAM = 256 << 20, 100

#: The file of the home with the token, unless a setting has it.
TOKEN = "ingest.token"


class IngestServer(Collector):
    """Serves a home's tables. Waiting rows of all clients for one table are appended together.

    Its metrics are counts since its creation. It commits nothing; ``daemon.arrivals`` does.

    Args:
        max_request: maximum bytes of rows in a request.

    Raises:
        InvalidValueError: the address or the certificate in the settings is invalid.
    """

    def __init__(self, session: Session, max_request: int = _MAX_REQUEST) -> None:
        settings = session.home.settings
        self._max_request = max_request
        host, _, port = settings.ingest_address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidValueError(
                f"ingest_address cannot be {settings.ingest_address!r}.", "Write host:port, for example 127.0.0.1:8643."
            )
        self._address = (host, int(port))
        self._certificates = _certificates(settings, host)
        self._session = session
        self._tables = LocalTables(session.home, commits=False)
        self._token = token_of(settings)
        self._server: _Server | None = None
        self._counts = _Counts()

    @property
    def location(self) -> str:
        """The address for clients while the server listens."""
        port = self._address[1] if self._server is None else self._server.port
        return f"{'grpc+tls' if self._certificates else 'grpc'}://{self._address[0]}:{port}"

    def start(self) -> None:
        """Starts listening. Requests are served in threads. Raises PortInUseError."""
        try:
            self._server = _Server(
                self.location, self._session, self._tables, self._token, self._counts, self._certificates, self._max_request
            )
        except (pa.ArrowException, OSError) as error:
            host, port = self._address
            raise PortInUseError(
                f"Cannot listen on port {port} of {host}: {error}.", "Choose another in the setting ingest_address."
            ) from error
        self._server.unauthenticated.start()
        _log.info("ingest_server_started", address=self.location)

    def stop(self) -> None:
        """Stops listening. Acknowledged rows are durable. Idempotent."""
        if self._server is not None:
            # It waits for clients that are still sending, which may never end. Their rows are acknowledged or
            # sent again.
            ending = threading.Thread(target=self._server.shutdown, name="ingest-end", daemon=True)
            ending.start()
            ending.join(_END_SECONDS)
            self._server.unauthenticated.stop()
            self._server = None
            self._tables.close()

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        return self._counts.collect()


def serve(settings: Settings, http_port: int, stop: Stop) -> None:
    """Serves until the stop signal, and commits rows that arrive.

    Raises:
        InvalidValueError, PortInUseError: see :class:`IngestServer`.
    """
    with Session(settings) as session:
        server = IngestServer(session)
        committer = Committer(session.home, settings, stop)
        committing = threading.Thread(target=committer.run, name="commits")

        def well() -> tuple[bool, Mapping[str, Any]]:
            return True, {"status": "ok", "address": server.location}

        def ready() -> tuple[bool, Mapping[str, Any]]:
            failing = committer.failing
            details = {"status": "not ready", "failing_tables": failing} if failing else {"status": "ready"}
            return not failing, {**details, "address": server.location}

        http = HttpServer(probes(well, ready, server), http_port)
        http.start()
        try:
            server.start()
            committing.start()
            _log.info("metrics", http_port=http.port)
            while not stop.wait(60.0):
                pass
        finally:
            stop.set()
            server.stop()
            http.stop()
            if committing.ident is not None:
                committing.join()


class _Counts:
    """The counters of a server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clients = 0
        self._arrived: dict[str, list[int]] = {}

    def arrived(self, table: str, rows: int, size: int, *, refused: bool = False) -> None:
        """Counts a request."""
        with self._lock:
            counts = self._arrived.setdefault(table, [0, 0, 0, 0])
            counts[3 if refused else 0] += 1
            if not refused:
                counts[1] += rows
                counts[2] += size

    def connected(self, change: int) -> None:
        """Counts a client that starts (1) or stops (-1) sending rows."""
        with self._lock:
            self.clients += change

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        requests = counter("ingest_requests", "Acknowledged requests.", "table")
        rows = counter("ingest_rows", "Rows that have arrived.", "table")
        size = counter("ingest_bytes", "Bytes of rows that have arrived.", "table")
        refused = counter("ingest_refused", "Requests that were refused.", "table")
        with self._lock:
            for table, counts in self._arrived.items():
                for family, count in zip((requests, rows, size, refused), counts, strict=True):
                    family.add_metric([table], count)
            clients = gauge("ingest_clients", "Clients that are sending rows.")
            clients.add_metric([], self.clients)
        yield from (requests, rows, size, refused, clients)


def token_of(settings: Settings) -> str:
    """Returns the token that clients need: from the setting, or from a file of the home, which is created if
    missing."""
    if settings.ingest_token is not None:
        token = resolve_references(settings.ingest_token.get_secret_value())
        check_token(token, "The setting ingest_token")
        return token
    return secret_in(settings.home / TOKEN)


def _certificates(settings: Settings, host: str) -> list[tuple[bytes, bytes]]:
    files = certificate_of(settings, "ingest", host)
    try:
        return [] if files is None else [(files[0].read_bytes(), files[1].read_bytes())]
    except OSError as error:
        raise InvalidValueError(f"{error.filename} cannot be read: {error.strerror}.") from None


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow publishes no types
    """Flight's methods. Each call runs in a separate thread."""

    def __init__(
        self,
        location: str,
        session: Session,
        tables: LocalTables,
        token: str,
        counts: _Counts,
        certificates: list[tuple[bytes, bytes]],
        max_request: int,
    ) -> None:
        super().__init__(location, tls_certificates=certificates, middleware={"token": _TokenFactory(token)})
        self._session = session
        self._tables = tables
        self._counts = counts
        self._max_request = max_request
        self._opening = threading.Lock()
        self._open: dict[Name, LocalTable] = {}
        self.unauthenticated = UnauthenticatedConnections(self.port)

    def do_action(self, context: Any, action: Any) -> Iterator[flight.Result]:
        """Serves :data:`COLUMNS`."""
        self.unauthenticated.authenticated(context.peer())
        with _errors_to_client():
            if action.type != COLUMNS:
                raise InvalidValueError(f"There is no action {action.type!r}.")
            request = _request(action.body, "schema", "table")
            columns = self._table(_name(request["schema"], request["table"]), refresh=True).columns
        return iter([flight.Result(columns.serialize())])

    def do_get(self, context: Any, ticket: Any) -> flight.RecordBatchStream:
        """Runs a statement."""
        from pyspark.sql.pandas.types import to_arrow_schema

        self.unauthenticated.authenticated(context.peer())
        with _errors_to_client(), as_sql_errors():
            request = _request(ticket.ticket, "sql", "schema")
            if not isinstance(request["sql"], str) or not isinstance(request["schema"], str):
                raise InvalidValueError("The request's sql is not text.", "Use a client of the same version.")
            frame = self._session.sql(in_schema(request["sql"], request["schema"]))
            columns = to_arrow_schema(frame.schema, timezone="UTC")

        def rows() -> Iterator[pa.RecordBatch]:
            with _errors_to_client(), as_sql_errors():
                for table in batches(frame):
                    yield from table.cast(columns).to_batches()

        return flight.GeneratorStream(columns, rows())

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Appends rows, and acknowledges each request once its rows are durable."""
        self.unauthenticated.authenticated(context.peer())
        with _errors_to_client():
            if len(descriptor.path or ()) != 2:
                raise InvalidValueError("Rows are sent to a path of schema and table.")
            name = _name(*descriptor.path)
            try:
                table = self._table(name)
                if _mismatch(reader.schema, table.columns) is not None:
                    table = self._table(name, refresh=True)
                    _check_columns(reader.schema, table.columns)
            except DependencyError:
                self._counts.arrived(str(name), 0, 0, refused=True)
                raise
        self._counts.connected(1)
        waiting: list[Flush] = []
        size = 0
        try:
            for chunk in reader:
                with _errors_to_client():
                    flush, more = _flush(chunk)
                    waiting.append(flush)
                    size += flush.rows.nbytes
                    self._check_size(size)
                    if more:
                        continue
                    self._append(name, table, waiting, size)
                writer.write(encoded(sequence=waiting[-1].sequence))
                waiting, size = [], 0
        finally:
            self._counts.connected(-1)

    def _check_size(self, size: int) -> None:
        """Raises InvalidValueError if a request is too large."""
        if size > self._max_request:
            raise InvalidValueError(
                f"A request has more than {format_size(self._max_request)} of rows.", "Send fewer rows with one flush."
            )

    def _append(self, name: Name, table: LocalTable, waiting: list[Flush], size: int) -> None:
        rows = sum(flush.rows.num_rows for flush in waiting)
        try:
            table.append(waiting)
        except Exception as error:
            if not isinstance(error, TailFullError):  # the table may have been dropped and created again
                self._forget(name, table)
            self._counts.arrived(str(name), rows, size, refused=True)
            raise
        self._counts.arrived(str(name), rows, size)

    def _table(self, name: Name, *, refresh: bool = False) -> LocalTable:
        """Returns a table that all clients share, with its current columns if ``refresh``."""
        with self._opening:
            if refresh or name not in self._open:
                current = self._tables.table(name)
                opened = self._open.get(name)
                if opened is None or opened.columns != current.columns:
                    self._open[name] = current
            return self._open[name]

    def _forget(self, name: Name, table: LocalTable) -> None:
        """Makes the next request reopen the table."""
        with self._opening:
            if self._open.get(name) is table:
                del self._open[name]


class _TokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        """Raises FlightUnauthenticatedError."""
        del info
        token = next(iter(headers.get("authorization") or ()), "")
        if not secrets.compare_digest(str(token).encode(), self._expected):
            raise flight.FlightUnauthenticatedError("The token is missing or wrong.")


def _request(content: Any, *needed: str) -> dict[str, Any]:
    """Returns the values of a request. Raises InvalidValueError."""
    try:
        request = decoded(content)
    except (TypeError, ValueError):
        raise InvalidValueError("The request is malformed.", "Use a client of the same version.") from None
    missing = [name for name in needed if name not in request]
    if missing:
        raise InvalidValueError(f"The request lacks {missing[0]}.", "Use a client of the same version.")
    return request


def _name(schema: Any, table: Any) -> Name:
    """Returns the name of a table in a request. Raises InvalidValueError."""
    try:
        return Name.of(*(part.decode() if isinstance(part, bytes) else part for part in (schema, table)))
    except (AttributeError, UnicodeError):
        raise InvalidValueError("The request does not name a table.", "Use a client of the same version.") from None


def _mismatch(sent: pa.Schema, columns: pa.Schema) -> pa.Field | None:
    """Returns the first column that the table lacks or has with another type, if there is one."""
    types = {OPERATION: pa.string(), **{field.name: field.type for field in columns}}
    return next((field for field in sent if types.get(field.name) != field.type), None)


def _check_columns(sent: pa.Schema, columns: pa.Schema) -> None:
    """Raises InvalidValueError unless columns and types are the table's. Others could expand without
    limit."""
    mismatch = _mismatch(sent, columns)
    if mismatch is not None:
        raise InvalidValueError(
            f"The table has no column {mismatch.name} of type {mismatch.type}.",
            "Open the stream again: the table has changed, or the client is of another version.",
        )


def _flush(chunk: Any) -> tuple[Flush, bool]:
    """Returns the rows of a client's message, and whether more belong to the same request. Raises
    InvalidValueError."""
    request = _request(chunk.app_metadata, "stream", "sequence", "more")
    stream, sequence = request["stream"], request["sequence"]
    if not isinstance(stream, str) or len(stream) > _MAX_STREAM or type(sequence) is not int or not 0 < sequence < 1 << 63:
        raise InvalidValueError("The request is malformed.", "Use a client of the same version.")
    try:
        # Otherwise offsets could point out of the message, into the server's memory.
        chunk.data.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidValueError(f"The rows are damaged: {error}.", "Send them again.") from None
    rows = pa.Table.from_batches([chunk.data])
    if rows.num_rows > rows.nbytes:  # columns without values would be filled with NULL
        raise InvalidValueError("The rows are damaged: there are more than their bytes can hold.", "Send them again.")
    return Flush(stream, sequence, rows), bool(request["more"])


class _errors_to_client:  # noqa: N801  # a context manager, faster than a generator: it runs for each batch
    """Sends errors to the client. Unexpected errors are logged, because they are bugs in the server."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, flight.FlightError) or not isinstance(error, Exception):
            return
        if not isinstance(error, VolstreamError):
            _log.error("request_failed", exc_info=error)
        raise to_flight(error) from error
