"""Columns of versions of a table are the same if their numbers are, whatever they are called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from volstream.tables.delta.schema import PRIMARY_KEY, Schema


def column(name: str, number: int | None = None, kind: Any = "integer") -> dict[str, Any]:
    ids = {} if number is None else {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    return {"name": name, "type": kind, "nullable": True, "metadata": ids}


def schema(*columns: dict[str, Any], key: list[str] | None = None) -> Schema:
    properties = {} if key is None else {PRIMARY_KEY: json.dumps(key)}
    return Schema({one["name"]: json.dumps(one["type"]) for one in columns}, list(columns), [], properties)


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


@pytest.mark.parametrize(
    ("now", "redefined"),
    [
        ([column("a", 1), column("b", 2)], False),
        ([column("a", 1), column("b", 2), column("c", 3)], False),
        ([column("b", 2), column("a", 1)], False),
        ([column("A", 1), column("b", 2)], False),
        ([column("c", 1), column("b", 2)], True),
        ([column("b", 1), column("a", 2)], True),
        ([column("a_old", 1), column("b", 2), column("A", 3)], True),
        ([column("a", 1, "long"), column("b", 2)], True),
        ([column("a", 1)], True),
    ],
)
def test_a_name_that_now_means_another_column_is_redefined(now: list[dict[str, Any]], redefined: bool) -> None:
    assert schema(*now).redefines(schema(column("a", 1), column("b", 2))) is redefined


def test_a_field_of_a_struct_is_redefined_as_columns_are() -> None:
    before = schema(column("s", 1, struct(column("x", 2))))
    assert schema(column("s", 1, struct(column("y", 2), column("x", 3)))).redefines(before)
    assert not schema(column("s", 1, struct(column("x", 2)))).redefines(before)


def test_columns_get_their_numbers_when_mapping_is_switched_on() -> None:
    """Before that a name is what identifies a column."""
    kind = {"type": "array", "elementType": struct(column("x"))}
    mapped = schema(column("a", 1), column("l", 2, {"type": "array", "elementType": struct(column("x", 3))}))
    before = schema(column("a"), column("l", kind=kind)).numbered_as(mapped)
    renamed = schema(column("b", 1), column("l", 2, {"type": "array", "elementType": struct(column("y", 3))}), column("a", 4))
    assert renamed.values_of(before)["b"] == "a"
    assert renamed.values_of(before)["a"] == "CAST(NULL AS INT)"
    assert renamed.values_of(before)["l"] == "transform(l, e -> CASE WHEN e IS NOT NULL THEN struct(e.x AS y) END)"
    assert renamed.redefines(before)
    assert mapped.numbered_as(renamed) == mapped


def test_a_key_follows_its_column() -> None:
    mapped = schema(column("id", 1), column("v", 2))
    key = list(mapped.ids_of(["id"]))
    assert schema(column("k", 1), column("v", 2), column("id", 3), key=key).primary_key == ["k"]
    assert schema(column("id", 1), column("v", 2), key=["id"]).primary_key == ["id"]  # as tables of 0.2 have it
    assert schema(column("id"), key=["id"]).primary_key == ["id"]
