"""Durations and sizes."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.units import format_duration, format_size, in_utc, parse_duration, parse_rate, parse_size
from volstream.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), ("2d", 172800), ("7", 7), (" 1.5 H ", 5400)]
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-1s", "1y", "s", "1 2", "nan", "inf", "1e3"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "rate"), [("5/s", 5), ("300/min", 5), ("1/minute", 1 / 60), ("9 / H", 1 / 400), ("1/day", 1 / 86400)]
)
def test_rates_are_parsed(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/s", "would never be called"),
        ("5", "is not a rate"),
        ("-5/s", "is not a rate"),
        ("5/month", "is not a rate"),
        ("nan/s", "is not a rate"),
        ("0.9/day", "less than one a day"),
        ("9" * 400 + "/s", "more than a million"),
    ],
)
def test_invalid_rates_are_rejected(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_rate(text)


@given(st.integers(1, 10**7))
def test_whole_seconds_survive_the_round_trip(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(1, 999))
def test_milliseconds_survive_the_round_trip(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512", 512), ("64MiB", 64 * 1024**2), ("1GB", 10**9), ("1k", 1024), ("1.5 KiB", 1536), ("2TB", 2 * 10**12)],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1XB", "MiB", "1 2", "9999999TiB", "9" * 400])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (5 * 1024**4, "5.0 TiB")])
def test_sizes_are_printed_readably(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_outside_the_range_of_utc_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError, match="years 1 to 9999"):
        in_utc(datetime.fromisoformat(text))


@pytest.mark.parametrize("text", ["99999999999d", "3651d", f"{'9' * 400}s"])
def test_a_duration_too_long_for_date_arithmetic_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError, match="ten years"):
        parse_duration(text)
    assert parse_duration("3650d") == 3650 * 86400


@pytest.mark.parametrize("text", ["99999999999TiB", f"{'9' * 400}"])
def test_a_size_too_large_for_a_database_is_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError, match="1 EiB"):
        parse_size(text)
