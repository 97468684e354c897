"""The statements that SQLAlchemy makes for a home."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import LargeBinary, Numeric, String, column, table

from volstream.api import dbapi
from volstream.api.alchemy import VolstreamDialect

T = table(
    "t",
    column("id", sqlalchemy.Integer),
    column("price", Numeric(10, 2)),
    column("f", sqlalchemy.Float),
    column("s", String),
    column("bin", LargeBinary),
    column("at", sqlalchemy.TIMESTAMP(timezone=True)),
    column("day", sqlalchemy.Date),
)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (T.c.id / 2, "t.id / 2"),
        (T.c.id // 2, "CAST(floor(CAST(t.id AS DECIMAL(19, 0)) / CAST(2 AS DECIMAL(19, 0))) AS BIGINT)"),
        (T.c.id % 2, "t.id % 2"),
        (T.c.price // Decimal("0.3"), "floor(t.price / 0.3)"),
        (T.c.f // 2, "floor(t.f / 2)"),
        (T.c.s.regexp_match("^a\\d"), "t.s RLIKE '^a\\\\d'"),
        (~T.c.s.regexp_match("^a"), "t.s NOT RLIKE '^a'"),
        (T.c.s.regexp_match("^a", flags="i"), "t.s RLIKE concat('(?i)', '^a')"),
        (T.c.s.regexp_replace("a", "b"), "regexp_replace(t.s, 'a', 'b')"),
        (T.c.s.regexp_replace("a", "b", flags="i"), "regexp_replace(t.s, concat('(?i)', 'a'), 'b')"),
        (T.c.bin == b"\x00\xff", "t.bin = X'00ff'"),
        (T.c.day == date(2026, 1, 2), "t.day = DATE '2026-01-02'"),
        (T.c.at == datetime(2026, 1, 2, tzinfo=UTC), "t.at = TIMESTAMP '2026-01-02 00:00:00+00:00'"),
        (T.c.at > datetime(2026, 1, 2, 3, 4, 5, 6), "t.at > TIMESTAMP_NTZ '2026-01-02 03:04:05.000006'"),
        (T.c.s == "it's \\", r"t.s = 'it\'s \\'"),
        (T.c.day.in_([date(2026, 1, 2)]), "t.day IN (DATE '2026-01-02')"),
        (sqlalchemy.select(T.c.id).offset(5), "SELECT t.id \nFROM t\n OFFSET 5"),
        (sqlalchemy.select(T.c.id).limit(2).offset(5), "SELECT t.id \nFROM t\n LIMIT 2\n OFFSET 5"),
    ],
)
def test_an_expression_is_written_as_spark_has_it(expression: Any, text: str) -> None:
    dialect = VolstreamDialect(dbapi=dbapi)  # type: ignore[arg-type]  # a module
    assert str(expression.compile(dialect=dialect, compile_kwargs={"literal_binds": True})) == text


def test_a_parameter_is_the_value_itself() -> None:
    dialect = VolstreamDialect(dbapi=dbapi)  # type: ignore[arg-type]  # a module
    values = {"bin": b"\x00\xff", "day": date(2026, 1, 2), "at": datetime(2026, 1, 2), "s": "x", "id": 5}
    for name, value in values.items():
        compiled = (T.c[name] == value).compile(dialect=dialect)
        assert str(compiled) == f"t.{name} = ?"
        processor = compiled._bind_processors.get(f"{name}_1", lambda given: given)
        assert processor(value) == value
