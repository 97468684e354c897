"""Expressions in a table's metadata, which Spark evaluates when rows are written. A writer of the warehouse can add them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deltalake import DeltaTable

#: Keys in a column's metadata, and what they are called.
_OF_COLUMNS = {
    "delta.generationExpression": "a generation expression",
    "delta.invariants": "an invariant",
    "CURRENT_DEFAULT": "a default",
    "EXISTS_DEFAULT": "a default",
}

_CONSTRAINT = "delta.constraints."


def expressions_of(table: DeltaTable) -> Iterator[str]:
    """Yields what Spark would evaluate in a table's metadata, in words such as ``a generation expression of column a``."""
    for field in json.loads(table.schema().to_json())["fields"]:
        kinds = {called for metadata in _metadata(field) for key, called in _OF_COLUMNS.items() if key in metadata}
        yield from (f"{called} of column {field['name']}" for called in sorted(kinds))
    for key in sorted(table.metadata().configuration):
        if key.lower().startswith(_CONSTRAINT):
            yield f"the constraint {key[len(_CONSTRAINT) :]}"


def _metadata(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the metadata of a column and of the fields inside its type."""
    if isinstance(part, list):
        for item in part:
            yield from _metadata(item)
    elif isinstance(part, dict):
        yield part.get("metadata") or {}
        for key in ("type", "fields", "elementType", "keyType", "valueType"):
            yield from _metadata(part.get(key))
