"""The keys of each kind of object: how a file's value becomes canonical, its default, and whether it can be altered. Pure.

Canonical values are what files may say, in one spelling of each. The rules for them are those of the home's objects, which
apply them; here is only what comparing two definitions needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from volstream.errors import InvalidValueError
from volstream.loading.options import FileFormat, NewColumns
from volstream.model.names import Name
from volstream.model.objects import Mode, OnMove, QueueType, Write
from volstream.model.selection import DEFAULT_IGNORES
from volstream.model.units import format_duration, in_utc, parse_duration, parse_size
from volstream.pipelines.model import Kind
from volstream.pipelines.references import as_text

Read = Callable[[Any], Any]


@dataclass(frozen=True)
class Key:
    """A key of a kind.

    Attributes:
        read: returns the canonical form of a file's value, or raises InvalidValueError.
        alterable: an existing object can get another value.
        at_start: matters only when the object is created, and cannot be told from an existing one.
        required: every object of the kind has it.
    """

    read: Read
    default: Any = None
    alterable: bool = True
    at_start: bool = False
    required: bool = False


def text(value: Any) -> str:
    """Reads text."""
    if not isinstance(value, str):
        raise _not(value, "text")
    return value


def name(value: Any) -> str:
    """Reads the name of an object."""
    return str(Name.parse(text(value)))


def flag(value: Any) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise _not(value, "true or false")
    return value


def number(value: Any) -> int:
    """Reads a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _not(value, "a whole number")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Reads a list of text; a text stands for a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise _not(value, "a list of text")
    return tuple(value)


def mapping(value: Any) -> Mapping[str, str]:
    """Reads a table of text; other plain values become text."""
    if not isinstance(value, Mapping) or any(not isinstance(one, str | int | float) for one in value.values()):
        raise _not(value, "a table of text")
    return {key: as_text(one) for key, one in value.items()}


#: Prefixes of table properties that record a table's own history. Another table with them could not be read at its times.
BOOKKEEPING = ("volstream.", "delta.rowTracking.", "delta.columnMapping.max", "delta.inCommitTimestampEnablement")


def properties(value: Any) -> Mapping[str, str]:
    """Reads the properties of a table."""
    found = mapping(value)
    for key in found:
        if key.startswith(BOOKKEEPING):
            raise InvalidValueError(f"{key} is kept by Delta or volstream itself.", "Remove it.")
    return found


def duration(value: Any) -> str:
    """Reads a duration: text such as ``30s``, or seconds."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _not(value, "a duration")
    return format_duration(parse_duration(str(value)))


def size(value: Any) -> str:
    """Reads a size: text such as ``64MiB``, or bytes."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _not(value, "a size")
    return exact_size(parse_size(str(value)))


def exact_size(count: int) -> str:
    """Returns the shortest exact form of a number of bytes."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def moment(value: Any) -> str:
    """Reads a time."""
    try:
        read = value if isinstance(value, datetime) else datetime.fromisoformat(text(value))
    except ValueError:
        raise InvalidValueError(f"{value!r} is not a time.", "Write for example 2026-03-01T12:00:00+01:00.") from None
    return in_utc(read).isoformat()


def retention(value: Any) -> str | None:
    """Reads the age at which events are deleted."""
    from volstream.objects.sources import parse_retention

    read = parse_retention(text(value))
    return None if read is None else format_duration(read.total_seconds())


def columns(value: Any) -> str:
    """Reads the columns of a result."""
    from volstream.functions.schema import from_ddl, to_ddl

    return to_ddl(from_ddl(text(value)))


def one_of(values: type[StrEnum]) -> Read:
    """Returns a reader of an enumeration's values."""

    def read(value: Any) -> str:
        try:
            return values(text(value).lower()).value
        except ValueError:
            known = ", ".join(one.value for one in values)
            raise InvalidValueError(f"{value!r} is not one of its values.", f"Choose one of {known}.") from None

    return read


class SourceType(StrEnum):
    """The kinds of sources that a file can define: others come with their data."""

    EVENTS = "events"
    ITEMS = "items"
    KAFKA = "kafka"


#: Keys of ``load``, which are options of SQL's LOAD.
LOAD: Mapping[str, Key] = {
    "format": Key(one_of(FileFormat)),
    "header": Key(flag, True),
    "delimiter": Key(text),
    "encoding": Key(text, "utf-8"),
    "schema": Key(columns),
    "new_columns": Key(one_of(NewColumns), NewColumns.ADD.value),
}


def load(value: Any) -> Mapping[str, Any]:
    """Reads how files are loaded. Raises InvalidValueError for unknown options."""
    from volstream.loading.options import LoadOptions

    if not isinstance(value, Mapping):
        raise _not(value, 'a table, such as { format = "csv" }')
    unknown = sorted(value.keys() - LOAD.keys())
    if unknown:
        raise InvalidValueError(f"There is no load option {unknown[0]!r}.", f"There are: {', '.join(LOAD)}.")
    read = {key: one.read(value[key]) if key in value else one.default for key, one in LOAD.items()}
    found = LoadOptions.of(
        {key: as_text(one) for key, one in read.items() if key == "header" or (one and key != "schema")}
    )
    return {**read, "delimiter": found.delimiter, "encoding": found.encoding}


_COMMENT = {"comment": Key(text)}

_TRIGGER = {"on_change": Key(flag, False), "every": Key(duration), "cron": Key(text)}

#: The keys of each kind: the names of the command line's options, with underscores.
KEYS: Mapping[Kind, Mapping[str, Key]] = {
    Kind.CONNECTION: {
        "type": Key(text, alterable=False, required=True),
        "region": Key(text),
        "endpoint": Key(text),
        "role_arn": Key(text),
        "credentials": Key(text, "env"),
        **_COMMENT,
    },
    Kind.VOLUME: {
        "location": Key(text, alterable=False, required=True),
        "connection": Key(name),
        "queue_type": Key(one_of(QueueType)),
        "queue_name": Key(text),
        "virtual_cluster": Key(text, "DEFAULT"),
        "recursive": Key(flag, True),
        "pattern": Key(texts, ()),
        "ignore": Key(texts, DEFAULT_IGNORES),
        "max_removals": Key(text),
        **_COMMENT,
    },
    Kind.FUNCTION: {
        "function": Key(text, required=True),
        "returns": Key(text, required=True),
        "of_items": Key(flag, False),
        **_COMMENT,
    },
    Kind.SOURCE: {
        "kind": Key(one_of(SourceType), alterable=False, required=True),
        "retention_policy": Key(retention),
        "primary_key": Key(text, alterable=False),
        "brokers": Key(texts, (), alterable=False),
        "topic": Key(text, alterable=False),
        "format": Key(text, alterable=False),
        "properties": Key(mapping, {}, alterable=False),
        **_COMMENT,
    },
    Kind.TABLE: {
        "columns": Key(text, required=True),
        "primary_key": Key(texts, (), alterable=False),
        "partitioned_by": Key(texts, (), alterable=False),
        "properties": Key(properties, {}),
    },
    Kind.STREAM: {
        "on_volume": Key(name, alterable=False),
        "on_table": Key(name, alterable=False),
        "mode": Key(one_of(Mode), Mode.STANDARD.value, alterable=False),
        "identity": Key(texts, (), alterable=False),
        "show_initial_rows": Key(flag, False, at_start=True),
        "at_version": Key(number, at_start=True),
        "at_timestamp": Key(moment, at_start=True),
        **_COMMENT,
    },
    Kind.JOB: {
        "stream": Key(name, alterable=False),
        "on_volume": Key(name, alterable=False),
        "function": Key(text),
        "load": Key(load),
        "statement": Key(text),
        "into": Key(name, alterable=False),
        "returns": Key(columns),
        **_TRIGGER,
        "where": Key(text),
        "write": Key(one_of(Write), Write.UPSERT.value, alterable=False),
        "on_move": Key(one_of(OnMove), OnMove.RERUN.value),
        "retries": Key(number, 3),
        "pause_after": Key(number, 3),
        "timeout": Key(duration),
        "isolate": Key(flag, False),
        "max_files": Key(number),
        "max_bytes": Key(size),
        "arg": Key(mapping, {}),
        "alert": Key(texts),
        **_COMMENT,
    },
    Kind.DYNAMIC_TABLE: {"query": Key(text, alterable=False, required=True), **_TRIGGER, **_COMMENT},
}


def defaults(kind: Kind) -> dict[str, Any]:
    """Returns the value of each key that a file leaves out."""
    return {key: one.default for key, one in KEYS[kind].items()}


def unique(values: Sequence[str]) -> tuple[str, ...]:
    """Returns column names as they are compared: in lower case."""
    return tuple(one.lower() for one in values)


def _not(value: Any, what: str) -> InvalidValueError:
    return InvalidValueError(f"{value!r} is not {what}.", f"Write {what}.")
