"""Which types can follow others in a table's versions, and how older values become newer ones."""

from __future__ import annotations

from typing import Any

import pytest

from volstream.tables.delta.schema import converted, holds, numbered, reads


def array(kind: Any) -> Any:
    return {"type": "array", "elementType": kind, "containsNull": True}


def map_(key: Any, value: Any) -> Any:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct(**fields: Any) -> Any:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()],
    }


def ids(kind: Any, *numbers: int) -> Any:
    fields = [
        {**one, "metadata": {"delta.columnMapping.id": number}} for one, number in zip(kind["fields"], numbers, strict=True)
    ]
    return {**kind, "fields": fields}


@pytest.mark.parametrize(
    ("old", "new", "held", "read"),
    [
        ("integer", "integer", True, True),
        ("byte", "short", True, False),
        ("integer", "long", True, False),
        ("integer", "double", True, False),
        ("long", "integer", False, False),
        ("long", "double", False, False),
        ("float", "double", True, False),
        ("date", "timestamp_ntz", True, False),
        ("date", "timestamp", False, False),
        ("decimal(5,2)", "decimal(6,2)", True, False),
        ("decimal(5,2)", "decimal(7,4)", True, False),
        ("decimal(5,2)", "decimal(6,4)", False, False),
        ("decimal(5,2)", "decimal(6,1)", False, False),
        ("integer", "decimal(10,0)", True, False),
        ("integer", "decimal(9,0)", False, False),
        ("integer", "decimal(11,1)", True, False),
        ("long", "decimal(19,0)", False, False),
        ("long", "decimal(20,0)", True, False),
        ("string", "decimal(20,0)", False, False),
        ("decimal(5,0)", "long", False, False),
        ("string", struct(a="string"), False, False),
        (array("integer"), array("long"), True, False),
        (array("integer"), map_("integer", "integer"), False, False),
        (map_("integer", "integer"), map_("long", "integer"), True, False),
        (map_("string", "integer"), map_("string", "string"), False, False),
        (struct(a="integer"), struct(a="integer", b="string"), True, True),
        (struct(a="integer", b="string"), struct(a="integer"), False, False),
        (struct(a="integer"), struct(a="long"), True, False),
        (ids(struct(a="integer"), 1), ids(struct(b="integer"), 1), True, False),
        (ids(struct(a="integer"), 1), ids(struct(a="integer"), 2), False, False),
        (ids(struct(a="integer", b="string"), 1, 2), ids(struct(b="integer", a="string"), 1, 2), True, False),
        (array(struct(a="integer")), array(struct(a="integer", b="string")), True, True),
    ],
)
def test_a_type_follows_another_if_it_has_a_value_for_each(old: Any, new: Any, held: bool, read: bool) -> None:
    assert (holds(new, old), reads(new, old)) == (held, read)


@pytest.mark.parametrize(
    ("old", "new", "sql"),
    [
        ("integer", "integer", "v"),
        ("integer", "long", "CAST(v AS BIGINT)"),
        (array("integer"), array("long"), "transform(v, e -> CAST(e AS BIGINT))"),
        (
            map_("string", "integer"),
            map_("string", "long"),
            "map_from_entries(transform(map_entries(v), e -> struct(e.key AS key, CAST(e.value AS BIGINT) AS value)))",
        ),
        (
            ids(struct(a="integer", b="string"), 1, 2),
            ids(struct(b="integer", a="string", c="date"), 1, 2, 3),
            "CASE WHEN v IS NOT NULL THEN struct(v.a AS b, v.b AS a, CAST(NULL AS DATE) AS c) END",
        ),
    ],
)
def test_an_older_value_becomes_a_newer_one(old: Any, new: Any, sql: str) -> None:
    assert converted("v", new, old) == sql


def test_only_fields_without_numbers_get_those_of_their_names() -> None:
    mapped = ids(struct(a="integer", b="string"), 7, 8)
    assert numbered(struct(b="string", c="date"), mapped)["fields"][0]["metadata"] == {"delta.columnMapping.id": 8}
    assert numbered(struct(b="string", c="date"), mapped)["fields"][1]["metadata"] == {}
    assert numbered(ids(struct(a="integer"), 3), mapped) == ids(struct(a="integer"), 3)
    assert numbered(array(struct(a="integer")), "string") == array(struct(a="integer"))
    for outer in (array, lambda kind: map_("string", kind), lambda kind: map_(kind, "string")):
        assert numbered(outer(struct(a="integer", b="string")), outer(mapped)) == outer(mapped)
