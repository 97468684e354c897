"""What ingestion server and client say to each other over Arrow Flight: JSON in tickets, actions and metadata, rows as Arrow."""

from __future__ import annotations

import json
from typing import Any

from pyarrow import flight

from volstream import errors
from volstream.errors import DependencyError, VolstreamError

#: Action that returns the columns of a table, as an Arrow schema.
COLUMNS = "columns"

#: Errors that cross the wire, by name: all that can be built from message and remedy.
_KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, VolstreamError)}

#: Longest message of an error, in characters: it travels in a header.
_LONGEST = 2000


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
    """Returns the error that carries one of ours to a client; of others, only the name."""
    if not isinstance(error, VolstreamError):
        return flight.FlightInternalError(f"The server failed: {type(error).__name__}. Its log has the details.")
    info = encoded(kind=type(error).__name__, message=error.message[:_LONGEST], remedy=error.remedy[:_LONGEST])
    return flight.FlightServerError(error.brief, extra_info=info)


def from_flight(error: flight.FlightError) -> VolstreamError:
    """Returns the error that a server raised, or a :class:`ServerError`."""
    try:
        info = decoded(error.extra_info)
        return _KINDS[info["kind"]](info["message"], info["remedy"])
    except (AttributeError, ValueError, KeyError, TypeError):
        pass
    if isinstance(error, flight.FlightUnauthenticatedError):
        return errors.InvalidValueError("The ingestion server does not accept the token.", "Pass token=... to connect().")
    reason = str(error).partition(". gRPC client debug context")[0].partition(". Detail:")[0]
    return ServerError(f"The ingestion server does not answer: {reason}.", "Try again later.")
