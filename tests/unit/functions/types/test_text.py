"""Values as text, and as JSON."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas as pd
import pytest

from volstream.base.model.text import to_json
from volstream.functions.types.values import as_json, as_text, strict_json

VALUES: list[tuple[Any, str, str]] = [
    (timedelta(0), "P0DT0H0M0S", '"P0DT0H0M0S"'),
    (timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500), "P1DT2H3M4.5S", '"P1DT2H3M4.5S"'),
    (timedelta(microseconds=-1), "-P0DT0H0M0.000001S", '"-P0DT0H0M0.000001S"'),
    (pd.Timedelta(1, "ns"), "P0DT0H0M0.000000001S", '"P0DT0H0M0.000000001S"'),
    (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00", '"2026-01-02T00:00:00+00:00"'),
    (date(2026, 1, 2), "2026-01-02", '"2026-01-02"'),
    (time(1, 2), "01:02:00", '"01:02:00"'),
    (UUID(int=7), str(UUID(int=7)), f'"{UUID(int=7)}"'),
    (b"a", "a", '"YQ=="'),
    (5, "5", "5"),
    ("é", "é", '"é"'),
    ({"a": [None, True]}, '{"a":[null,true]}', '{"a":[null,true]}'),
]


@pytest.mark.parametrize(("value", "text", "json"), VALUES, ids=str)
def test_every_value_has_a_text_and_json(value: object, text: str, json: str) -> None:
    assert as_text(value) == text
    assert as_json(value) == strict_json(value) == to_json(value).replace(", ", ",").replace(": ", ":") == json


def test_what_json_lacks_is_written_as_it_was_or_refused() -> None:
    assert as_json({"d": Decimal("1.50"), "n": float("nan"), "h": "\ud800"}) == '{"d":1.50,"n":"NaN","h":"\\ud800"}'
    assert strict_json({"d": Decimal("1.50"), "h": "\ud800"}) == '{"d":"1.50","h":"\\ud800"}'
    assert (as_text(b"\xff"), as_text("\ud800")) == (None, None)
    for refused in (float("nan"), object(), {1, 2}):
        with pytest.raises((TypeError, ValueError)):
            strict_json(refused)
