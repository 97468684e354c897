"""A home behind an ingestion server, reached over Arrow Flight. Needs no Java."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import pyarrow as pa
from pyarrow import flight

from volstream import errors
from volstream.base.model.names import Name
from volstream.errors import DependencyError, InvalidValueError, VolstreamError
from volstream.tables.tails.writer import Flush

# The protocol of ingestion server and client over Arrow Flight: JSON in tickets, actions and metadata, rows
# as Arrow.

#: Action that returns the columns of a table, as an Arrow schema.
COLUMNS = "columns"

#: Errors that cross the wire, by name. Each can be built from a message and a remedy.
_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, VolstreamError)}

#: Maximum characters of an error's message, which travels in a header.
_MAX_MESSAGE = 2000


class ServerError(DependencyError):
    """The ingestion server cannot be reached, or failed."""

    transient = True


def encoded(**values: Any) -> bytes:
    """Returns values as JSON."""
    return json.dumps(values, ensure_ascii=False).encode()


def decoded(content: Any) -> dict[str, Any]:
    """Returns the values of :func:`encoded`. Raises ValueError."""
    try:
        value = json.loads(bytes(content))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def to_flight(error: Exception) -> flight.FlightError:
    """Returns the Flight error that carries a VolstreamError, or only the name of any other error."""
    if not isinstance(error, VolstreamError):
        return flight.FlightInternalError(f"The server failed: {type(error).__name__}. Its log has the details.")
    info = encoded(kind=type(error).__name__, message=error.message[:_MAX_MESSAGE], remedy=error.remedy[:_MAX_MESSAGE])
    return flight.FlightServerError(error.brief, extra_info=info)


def from_flight(error: flight.FlightError) -> VolstreamError:
    """Returns the error that the server raised, or else a :class:`ServerError`."""
    try:
        info = decoded(error.extra_info)
        return _KINDS[info["kind"]](info["message"], info["remedy"])
    except (AttributeError, ValueError, KeyError, TypeError):
        pass
    if isinstance(error, flight.FlightUnauthenticatedError):
        return errors.InvalidValueError("The ingestion server does not accept the token.", "Pass token=... to connect().")
    reason = str(error).partition(". gRPC client debug context")[0].partition(". Detail:")[0]
    return ServerError(f"The ingestion server does not answer: {reason}.", "Try again later.")


T = TypeVar("T")

#: Seconds after which a request times out.
_REQUEST_SECONDS = 120.0


class Client:
    """A connection to an ingestion server. Thread-safe.

    Args:
        location: ``grpc://host:port``, or ``grpc+tls://host:port``.
        token: the server's token, if it has one.
        certificate: PEM file of the server's certificate authority. The system's authorities by default.

    Raises:
        InvalidValueError: the location or the token is invalid.
    """

    def __init__(self, location: str, token: str | None, certificate: str | None = None) -> None:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InvalidValueError("The token contains invalid characters.", "Copy it again.")
        roots = {} if certificate is None else {"tls_root_certs": Path(certificate).read_bytes()}
        try:
            self._client = flight.FlightClient(location, **roots)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidValueError(f"{location} is not the address of a server: {error}.", "grpc://host:port") from None
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]

    def query(self, statement: str, schema: str) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """Runs a statement. Returns its columns and an iterator that reads its rows.

        Args:
            schema: for unqualified table names.

        Raises:
            VolstreamError: the server raised it, possibly while rows are read.
            ServerError: the server cannot be reached, or failed.
        """
        with _mapped():
            # Without a deadline: a query may take long.
            reader = self._client.do_get(flight.Ticket(encoded(sql=statement, schema=schema)), self._options())
            columns = reader.schema

        def rows() -> Iterator[pa.Table]:
            with _mapped():
                for chunk in reader:
                    yield pa.Table.from_batches([chunk.data])

        return columns, rows()

    def columns(self, name: Name) -> pa.Schema:
        """Returns the columns of a table; see :func:`volstream.tables.tails.tail.tail_columns`. Raises
        VolstreamError."""
        with _mapped():
            action = flight.Action(COLUMNS, encoded(schema=name.schema, table=name.name))
            [result] = self._client.do_action(action, self._options(_REQUEST_SECONDS))
            return pa.ipc.read_schema(pa.py_buffer(result.body))

    def put(self, name: Name, schema: pa.Schema) -> tuple[Any, Any]:
        """Opens a call that sends rows of a table. Returns Flight's writer and reader."""
        descriptor = flight.FlightDescriptor.for_path(name.schema, name.name)
        # Without a deadline: the call lasts as long as its stream.
        return self._client.do_put(descriptor, schema, self._options())  # type: ignore[no-any-return]

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _options(self, seconds: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)


class RemoteTable:
    """The receiver of streams behind a server; see :class:`volstream.ingest.stream.FlushReceiver`."""

    def __init__(self, client: Client, name: Name) -> None:
        self.columns = client.columns(name)
        self._client = client
        self._name = name
        self._lock = threading.Lock()
        self._call: tuple[Any, Any] | None = None

    def append(self, batches: Sequence[Flush]) -> None:
        """Sends batches and waits for their acknowledgement. Opens a new call after a failure.

        Raises:
            VolstreamError: the server raised it.
            ServerError: the server cannot be reached, or failed.
        """
        with self._lock:
            try:
                with _mapped():
                    if self._call is None:
                        self._call = self._client.put(self._name, batches[0].rows.schema)
                    writer, reader = self._call
                    for batch in batches:
                        metadata = encoded(stream=batch.stream_id, sequence=batch.sequence, more=batch is not batches[-1])
                        writer.write_with_metadata(batch.rows.combine_chunks().to_batches()[0], metadata)
                    response = _with_timeout(_REQUEST_SECONDS, reader.read)
                    if response is None:
                        writer.close()  # raises what the server raised
                        raise flight.FlightUnavailableError("the connection was closed")
                    assert decoded(response)["sequence"] == batches[-1].sequence, "acknowledgements come in order"
            except BaseException:
                self._end_call()
                raise

    def close(self) -> None:
        """Ends the call. Everything sent has been acknowledged."""
        with self._lock:
            self._end_call()

    def _end_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            with suppress(pa.ArrowException):
                _with_timeout(_REQUEST_SECONDS, call[0].close)


def _with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """Returns what a call returns. Raises FlightTimedOutError if it takes too long.

    A vanished host never responds, and a call that lasts as long as a stream has no deadline.
    """
    done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:  # noqa: BLE001  # raised below
            done.put((None, error))

    threading.Thread(target=run, name="answer", daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except Empty:
        raise flight.FlightTimedOutError(f"There was no answer for {seconds:g} seconds.") from None
    if error is not None:
        raise error
    return cast(T, result)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except flight.FlightError as error:
        raise from_flight(error) from error
    except (pa.ArrowException, OSError) as error:
        raise from_flight(flight.FlightUnavailableError(str(error))) from error
