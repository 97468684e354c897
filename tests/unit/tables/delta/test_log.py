from __future__ import annotations

import json
from typing import Any

import pytest

from volstream.tables.delta.columns import Schema

_MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}


def _struct(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize(
    ("kind", "comparable"),
    [
        *(("long", True), (_struct("map", "long"), True), (_struct("variant", "long"), True)),
        *((_MAP, False), ("variant", False), (_struct("x", _MAP), False)),
        ({"type": "array", "elementType": _struct("x", "variant"), "containsNull": True}, False),
    ],
)
def test_a_map_and_a_variant_cannot_be_compared_wherever_they_are(kind: Any, comparable: bool) -> None:
    assert Schema({"c": json.dumps(kind)}, [], [], {}).comparable == (["c"] if comparable else [])
