"""Event streams: tables of events, each with the time at which it was received."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from volstream.base.definitions import Source
from volstream.base.model.arguments import checked
from volstream.base.model.paths import is_utf8
from volstream.base.model.work import groups
from volstream.errors import InvalidValueError
from volstream.functions.loading import avro_files
from volstream.functions.types.values import strict_json
from volstream.ingest.sources.tables import EVENT_COLUMNS, Appender
from volstream.tables.tails.tail import INSERT, OPERATION

FORMATS = ("json", "bytes", "avro")

#: Maximum events in a flush, so that uploading any number takes little memory.
_MAX_EVENTS = 10_000

_SCHEMA = pa.schema([pa.field(OPERATION, pa.string()), *EVENT_COLUMNS])


@checked
class EventStream:
    """A table of events. Thread-safe.

    Columns: ``arrived_at`` TIMESTAMP, ``format`` STRING, ``event`` STRING (JSON), ``payload`` BINARY.

    Attributes:
        source: its definition.
    """

    def __init__(self, source: Source, appender: Appender) -> None:
        self.source = source
        self._appender = appender

    @property
    def name(self) -> str:
        """The table's name, for SQL."""
        return str(self.source.name)

    def upload(self, event: Any, format: str = "json") -> None:  # the document's name
        """Adds an event. When this returns, the event is durable and queries see it.

        Args:
            format: ``json``: any JSON value, stored as text in ``event``. ``bytes``: stored in ``payload``.
                ``avro``: the bytes of an Avro file (with its schema). Each record is an event, stored as JSON
                in ``event``, with bytes as base64, times and durations as ISO 8601 and decimals as text.

        Raises:
            InvalidValueError: the event does not have the format.
            VolstreamError: it cannot be written.
        """
        self.upload_all([event], format)

    def upload_all(self, events: Iterable[Any], format: str = "json") -> int:
        """Adds events in order and in bulk, and returns their number. See :meth:`upload`.

        They are added in groups of 10,000, each all or nothing: an invalid event rejects its group.
        """
        if format not in FORMATS:
            raise InvalidValueError(f"{format!r} is not a format of events.", f"Use one of: {', '.join(FORMATS)}.")
        rows = (row for event in events for row in _stored(event, format))
        return sum(self._send(some, format) for some in groups(rows, _MAX_EVENTS))

    def __repr__(self) -> str:
        return f"EventStream({self.name!r})"

    def _send(self, events: list[tuple[str | None, bytes | None]], format_: str) -> int:
        now, count = datetime.now(UTC), len(events)
        texts, payloads = zip(*events, strict=True)
        columns = [[INSERT] * count, [now] * count, [format_] * count, texts, payloads]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
        self._appender.append(pa.table(arrays, schema=_SCHEMA))
        return count


def _stored(event: Any, format_: str) -> list[tuple[str | None, bytes | None]]:
    """Returns the JSON text and the bytes of each row of an event. Raises InvalidValueError."""
    if format_ == "json":
        return [(json_text(event), None)]
    if not isinstance(event, bytes | bytearray | memoryview):
        raise InvalidValueError(
            f"An event of format {format_!r} is bytes, not {type(event).__name__}.",
            "Encode it, or upload it as JSON: format='json'.",
        )
    if format_ == "bytes":
        return [(None, bytes(event))]
    parts = avro_files.parts(io.BytesIO(bytes(event)), "event", _MAX_EVENTS)
    return [(json_text(record), None) for record in itertools.chain.from_iterable(parts)]


def json_text(value: Any) -> str:
    """Returns a JSON value as text, with lone surrogates escaped. Raises InvalidValueError for others."""
    try:
        return strict_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"This cannot be stored as JSON: {error}.", "Convert such values first.") from None


# Items as rows of a key and JSON.

#: The column of an item's JSON.
ITEM = "item"


def columns_of(primary_key: str) -> pa.Schema:
    """Returns the columns of a table of items. Raises InvalidValueError if the key cannot have the name."""
    if primary_key.lower() == ITEM or not primary_key or primary_key.startswith("__"):
        raise InvalidValueError(f"A primary key cannot be called {primary_key!r}.", "Choose another name.")
    return pa.schema([pa.field(primary_key, pa.string(), nullable=False), pa.field(ITEM, pa.string(), nullable=False)])


def stored(item: Mapping[str, Any], primary_key: str) -> tuple[str, str]:
    """Returns the key and the JSON of an item. Raises InvalidValueError."""
    if not isinstance(item, Mapping):
        raise InvalidValueError(f"An item is a dict, not {type(item).__name__}.")
    if primary_key not in item:
        raise InvalidValueError(f"The item has no {primary_key!r}, which is the table's primary key.")
    return key_text(item[primary_key], primary_key), json_text(dict(item))


def key_text(key: Any, primary_key: str) -> str:
    """Returns the stored text of a key. Raises InvalidValueError."""
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidValueError(f"{primary_key} cannot be {key!r:.60}.", "Keys are texts or integers.")
    try:
        text = str(key)
    except ValueError:  # Python formats no integer of more than 4,300 digits
        raise InvalidValueError(f"{primary_key} cannot be an integer of thousands of digits.") from None
    if not is_utf8(text):
        raise InvalidValueError(
            f"{primary_key} cannot be {text!r:.60}.", "It contains a lone surrogate, which UTF-8 cannot encode."
        )
    return text
