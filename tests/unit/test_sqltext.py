from __future__ import annotations

import pytest

from volstream.sql.text import type_of


@pytest.mark.parametrize(
    ("of_log", "in_sql"),
    [
        ("long", "BIGINT"),
        ("decimal(10,2)", "DECIMAL(10,2)"),
        ({"type": "array", "elementType": "integer", "containsNull": True}, "ARRAY<INT>"),
        (
            {
                "type": "map",
                "keyType": "string",
                "valueType": {"type": "struct", "fields": [{"name": "a b", "type": "short"}, {"name": "c", "type": "byte"}]},
            },
            "MAP<STRING, STRUCT<`a b`: SMALLINT, c: TINYINT>>",
        ),
    ],
)
def test_types_are_shown_as_they_are_written_in_sql(of_log: object, in_sql: str) -> None:
    assert type_of(of_log) == in_sql
