"""Values as JSON, for programs: the command's ``--format json`` and the console's answers."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from volstream.base.model.text import json_document


def to_json(value: Any) -> str:
    """Returns one line of JSON: times and durations as ISO 8601, binary as base64, decimals and non-finite numbers as text."""
    return json_document(value, default=_plain)


def scalar_text(value: Any) -> str | None:
    """Returns the text of a time, a duration, bytes, a decimal or a UUID, which JSON lacks; None for another value."""
    match value:
        case date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Decimal() | UUID():
            return str(value)
    return None


def _duration(value: timedelta) -> str:
    """Returns a duration as in ISO 8601: ``P1DT2H3M4.5S``. A negative one has its sign in front of it all."""
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    # Those of pandas have nanoseconds.
    fraction = f"{size.microseconds:06}{getattr(size, 'nanoseconds', 0):03}".rstrip("0")
    sign, point = "-" if value < timedelta(0) else "", "." if fraction else ""
    return f"{sign}P{size.days}DT{minutes // 60}H{minutes % 60}M{seconds}{point}{fraction}S"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if (text := scalar_text(value)) is not None:
        return text
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
