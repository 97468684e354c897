"""Messages of a Kafka topic as rows of its table. Pure."""

from __future__ import annotations

import ctypes
import json
import operator
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from volstream.ingest.sources.kafka.topic import COLUMNS
from volstream.tables.tails.tail import INSERT, OPERATION

#: Stands for the name of a header that is not UTF-8.
UNREADABLE = "\ufffd"

#: The last millisecond of the year 9999: Kafka accepts any number, Spark shows no later time.
_LAST_MILLISECOND = 253_402_300_799_999


class KafkaMessage(Protocol):
    """A message, as confluent-kafka has them."""

    def key(self) -> bytes | None:
        """Returns the key."""

    def value(self) -> bytes | None:
        """Returns the value; None: a tombstone."""

    def offset(self) -> int | None:
        """Returns the number in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """Returns the kind of time, 0 for none, and milliseconds since 1970."""

    def headers(self) -> Any:
        """Returns pairs of a name and bytes or None; or None."""


M = TypeVar("M", bound=KafkaMessage)


def new_messages(messages: Sequence[M], first: int) -> list[M]:
    """Returns the messages of a partition from the offset ``first`` on, each once.

    After a new assignment, nothing but the client's care keeps it from delivering what it had fetched before.
    """
    new: list[M] = []
    for message in messages:
        offset = message.offset()
        if offset is not None and offset >= first:
            new.append(message)
            first = offset + 1
    return new


def rows(messages: Sequence[KafkaMessage], source_format: str, topic: str, partition: int, arrived_at: datetime) -> pa.Table:
    """Returns a row for each message: the operation, and :data:`~volstream.ingest.sources.kafka.topic.COLUMNS`."""
    count = len(messages)
    values = [message.value() for message in messages]
    texts: Sequence[str | None] = [None] * count
    if source_format == "json":
        texts = [None if value is None else json_text(value) for value in values]
        values = [value if text is None else None for value, text in zip(values, texts, strict=True)]
    columns = [
        pa.repeat(pa.scalar(arrived_at, COLUMNS.field("arrived_at").type), count),
        pa.repeat(source_format, count),
        pa.array(texts, pa.string()),
        pa.array(values, pa.binary()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.repeat(topic, count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([_microseconds(message) for message in messages], COLUMNS.field("timestamp").type),
        pa.array([_headers(message) for message in messages], COLUMNS.field("headers").type),
    ]
    return pa.table([pa.repeat(INSERT, count), *columns], schema=COLUMNS.insert(0, pa.field(OPERATION, pa.string())))


def json_text(value: bytes) -> str | None:
    """Returns a message's value as text if it is JSON in UTF-8, else None.

    More than JSON's grammar is not asked: numbers may be too large for any type. What is nested deeper than Python's
    recursion limit is taken for no JSON.
    """
    try:
        text = value.decode()
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return text


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON.")


#: ``float`` for integers, too: Python refuses to read integers of more than 4,300 digits.
_DECODER = json.JSONDecoder(parse_constant=_refused, parse_int=float)


def _microseconds(message: KafkaMessage) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds * 1000 if kind and 0 <= milliseconds <= _LAST_MILLISECOND else None


def _headers(message: KafkaMessage) -> list[dict[str, object]]:
    try:
        pairs = _asked(message) or ()
    except (SystemError, UnicodeDecodeError):
        # confluent-kafka decodes names as UTF-8. If one is not, its list has nothing in the place of the name, and is returned
        # from the second call on. To take that nothing from the list would end the process.
        pairs = _asked(message) or ()
    return [{"name": pair[0] if _first(pair, 0) else UNREADABLE, "value": pair[1]} for pair in pairs]


#: Asks a message for its headers. Unlike a call in Python that has run often, it always looks whether there was an error.
_asked = operator.methodcaller("headers")

#: Returns the address of an item of a tuple; None if there is none, as only C can make it.
_first = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_ssize_t)(("PyTuple_GetItem", ctypes.pythonapi))
