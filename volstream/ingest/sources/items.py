"""Items as rows: their key and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from volstream.base.model.paths import is_utf8
from volstream.errors import InvalidValueError
from volstream.ingest.sources.events import json_text

#: The column of an item's JSON.
ITEM = "item"


def columns_of(primary_key: str) -> pa.Schema:
    """Returns the columns of a table of items. Raises InvalidValueError if the key cannot have the name."""
    if primary_key.lower() == ITEM or not primary_key or primary_key.startswith("__"):
        raise InvalidValueError(f"A primary key cannot be called {primary_key!r}.", "Choose another name.")
    return pa.schema([pa.field(primary_key, pa.string(), nullable=False), pa.field(ITEM, pa.string(), nullable=False)])


def stored(item: Mapping[str, Any], primary_key: str) -> tuple[str, str]:
    """Returns key and JSON of an item. Raises InvalidValueError."""
    if not isinstance(item, Mapping):
        raise InvalidValueError(f"An item is a dict, not {type(item).__name__}.")
    if primary_key not in item:
        raise InvalidValueError(f"The item has no {primary_key!r}, which is the table's primary key.")
    return key_text(item[primary_key], primary_key), json_text(dict(item))


def key_text(key: Any, primary_key: str) -> str:
    """Returns a key as it is stored. Raises InvalidValueError."""
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidValueError(f"{primary_key} cannot be {key!r:.60}.", "Keys are texts or integers.")
    try:
        text = str(key)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        raise InvalidValueError(f"{primary_key} cannot be an integer of thousands of digits.") from None
    if not is_utf8(text):
        raise InvalidValueError(
            f"{primary_key} cannot be {text!r:.60}.", "It contains a lone surrogate, which UTF-8 cannot encode."
        )
    return text
