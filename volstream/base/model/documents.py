"""Values as JSON, for programs: the command's ``--format json`` and the console's answers."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from volstream.base.model.names import Name
from volstream.base.model.text import json_document


def to_json(value: Any) -> str:
    """Returns one line of JSON: times as ISO 8601, binary as base64, decimals and non-finite numbers as text."""
    return json_document(value, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Name):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal | Name):
        return str(value)
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
