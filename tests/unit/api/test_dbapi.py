"""What PEP 249 has at the module's level."""

from __future__ import annotations

from datetime import date, datetime, time

import pytest

from volstream.api import dbapi
from volstream.sql.adapt import literal_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dbapi.Binary(b"\x00\xff"), "X'00ff'"),
        (dbapi.Binary(bytearray(b"a")), "X'61'"),
        (dbapi.Date(2026, 1, 2), "DATE '2026-01-02'"),
        (dbapi.Timestamp(2026, 1, 2, 3, 4, 5), "TIMESTAMP_NTZ '2026-01-02 03:04:05'"),
    ],
)
def test_the_constructors_make_parameters(value: object, text: str) -> None:
    assert literal_of(value) == text


def test_ticks_are_local_times() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5)
    ticks = moment.timestamp()
    assert dbapi.TimestampFromTicks(ticks) == moment
    assert dbapi.DateFromTicks(ticks) == date(2026, 1, 2)
    assert dbapi.TimeFromTicks(ticks) == dbapi.Time(3, 4, 5) == time(3, 4, 5)


def test_types_of_columns_are_of_one_kind() -> None:
    kinds = {
        "string": dbapi.STRING,
        "varchar(3)": dbapi.STRING,
        "binary": dbapi.BINARY,
        "bigint": dbapi.NUMBER,
        "decimal(10,2)": dbapi.NUMBER,
        "double": dbapi.NUMBER,
        "date": dbapi.DATETIME,
        "timestamp": dbapi.DATETIME,
        "timestamp_ntz": dbapi.DATETIME,
        "boolean": None,
        "array<string>": None,
    }
    every = (dbapi.STRING, dbapi.BINARY, dbapi.NUMBER, dbapi.DATETIME, dbapi.ROWID)
    for name, kind in kinds.items():
        assert [one for one in every if name == one] == ([] if kind is None else [kind])
    assert len({*every}) == len(every)
