"""Values as JSON text."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from volstream.base.model.paths import is_utf8
from volstream.base.model.text import finite, scalar_text, to_json
from volstream.functions.types.convert import python_values
from volstream.functions.types.kinds import is_sequence


def _writer(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Returns what writes JSON on one line, with halves of characters escaped, and raises ValueError for NaN and infinity."""
    readable, escaped = (
        json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), default=default).encode
        for ascii_only in (False, True)
    )

    def write(value: Any) -> str:
        text = readable(value)
        return text if is_utf8(text) else escaped(value)

    return write


def _known(value: Any) -> str:
    text = scalar_text(value)
    if text is None:
        raise TypeError(f"{type(value).__name__} {value!r:.60}")
    return text


#: Marks decimals in JSON on its way: the standard library writes none. Drawn by chance, so that no file has it.
_NUMBER = uuid.uuid4().hex
_DIGITS = re.compile(f'"{_NUMBER}([^"]*)"')


def _any(value: Any) -> str:
    if isinstance(value, Decimal) and value.is_finite():
        return f"{_NUMBER}{value}"
    text = scalar_text(value)
    return str(value) if text is None else text


_written, _written_strictly = _writer(_any), _writer(_known)


def as_json(value: Any) -> str:
    """Returns any value as JSON.

    Bytes are in Base64, times and durations as in ISO 8601, decimals numbers with all their digits, halves of characters
    escaped. What is not finite, which JSON lacks, is text, as Spark's ``to_json`` has it.
    """
    try:
        text = _written(value)
    except (TypeError, ValueError):
        text = _written(finite(value))
    return _DIGITS.sub(r"\1", text) if _NUMBER in text else text


def as_text(value: Any) -> str | None:
    """Returns a value as text: text as it is, bytes if they are UTF-8, anything else as JSON has it; else, and of None, None."""
    if value is None or type(value) is str:
        return value if value is None or is_utf8(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    text = None if isinstance(value, Decimal) else scalar_text(value)
    return as_json(value) if text is None else text


def strict_json(value: Any) -> str:
    """Returns a value as JSON, with decimals as text.

    Raises:
        TypeError, ValueError, RecursionError: JSON lacks it.
    """
    return _written_strictly(value)


def document_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Converts values to Python's, for JSON: maps become dicts with text keys; keys of other types are written as in JSON."""
    items = python_values(values)
    return [_document(item, values.type) for item in items] if "map<" in str(values.type) else items


def _document(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = ((_document(key, kind.key_type), _document(item, kind.item_type)) for key, item in value)
        return {key if isinstance(key, str) else to_json(key).strip('"'): item for key, item in pairs}
    if is_sequence(kind):
        return [_document(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _document(value[field.name], field.type) for field in kind}
    return value
