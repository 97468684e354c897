"""Durations (``30s``, ``5m``, ``1h``) and sizes (``64MiB``), parsed and printed; moments printed."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from volstream.base.model.text import shortened
from volstream.errors import InvalidValueError

#: Maximum duration, which can be added to any present time; maximum size that a database can store.
MAX_SECONDS, MAX_BYTES = 10 * 365 * 86400.0, 2**60

#: Limits of a rate.
_LEAST_PER_SECOND, _MOST_PER_SECOND = 1 / 86400, 1e6

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _BYTES[f"{_letter}IB"] = 1024**_power
    _BYTES[f"{_letter}B"] = 1000**_power
    _BYTES[_letter] = 1024**_power

#: The largest number that a table can store.
MAX_INTEGER = (1 << 63) - 1


def parse_duration(text: str) -> float:
    """Parses ``500ms``, ``30s``, ``5m``, ``1h``, ``2d`` to seconds; a bare number is in seconds.

    Raises:
        InvalidValueError: not a duration, not positive, or longer than ten years.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", text, re.IGNORECASE)
    seconds = float(match[1]) * _SECONDS[(match[2] or "s").lower()] if match else 0.0
    if seconds <= 0:
        raise InvalidValueError(f"{text!r} is not a duration.", "Write for example 500ms, 30s, 5m or 1h.")
    if seconds > MAX_SECONDS:
        raise InvalidValueError(f"{text!r} is longer than ten years.", "Give a shorter duration.")
    return seconds


def format_duration(seconds: float) -> str:
    """Returns the shortest exact form that :func:`parse_duration` accepts, for example ``90s``, ``5m``."""
    for unit in ("d", "h", "m"):
        whole = seconds / _SECONDS[unit]
        if whole >= 1 and whole == int(whole):
            return f"{int(whole)}{unit}"
    # 15 digits, because plain g has 6 and turns a million seconds into 1e+06.
    return f"{seconds:.15g}s" if seconds >= 1 else f"{seconds * 1000:.15g}ms"


def format_age(seconds: float) -> str:
    """Returns a duration to look at, rounded down to a whole unit of which there are two or more, such as
    ``90s``, ``14m``."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _SECONDS[unit]:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    return f"{max(1, int(seconds))}s"


def parse_rate(text: str) -> float:
    """Parses ``300/min``, ``5/s``, ``1000/h``, ``10000/day`` to a number per second.

    Raises:
        InvalidValueError: not a rate, or not between one a day and a million per second.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|sec|second|m|min|minute|h|hour|d|day)\s*", text, re.IGNORECASE)
    if match is None:
        raise InvalidValueError(f"{shortened(text)} is not a rate.", "Write for example 300/min, 5/s or 1000/h.")
    rate = float(match[1]) / _SECONDS[match[2][0].lower()]
    if not rate:
        raise InvalidValueError(
            f"With the rate {text!r} the function would never be called.", "To stop a job: volstream pause JOB."
        )
    if rate < _LEAST_PER_SECOND:
        raise InvalidValueError(f"{shortened(text)} is less than one a day.", "Give a higher rate.")
    if rate > _MOST_PER_SECOND:
        raise InvalidValueError(f"{shortened(text)} is more than a million per second.", "Give a lower rate.")
    return rate


def about(seconds: float) -> str:
    """Returns an approximate duration for people, for example ``12 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h" if seconds < 36 * 3600 else f"{round(seconds / 86400)} days"


def parse_size(text: str) -> int:
    """Parses ``64MiB``, ``1GB``, ``512`` to bytes.

    Raises:
        InvalidValueError: not a size, not positive, or more than 1 EiB.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _BYTES.get(match[2].upper()) if match else None
    amount = float(match[1]) * factor if match and factor else 0.0
    if amount > MAX_BYTES:
        raise InvalidValueError(f"{text!r} is more than 1 EiB.", "Give a smaller size.")
    size = int(amount)
    if size <= 0:
        raise InvalidValueError(f"{text!r} is not a size.", "Write for example 512KiB, 64MiB or 1GiB.")
    return size


def exact_size(count: int) -> str:
    """Returns the shortest exact form of a number of bytes that :func:`parse_size` accepts."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def format_size(size: int) -> str:
    """Returns an approximate size for people, for example ``1.5 MiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def in_utc(moment: datetime) -> datetime:
    """Converts a time to UTC; a time without a zone is local.

    Raises:
        InvalidValueError: the time in UTC is outside the years 1 to 9999.
    """
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidValueError(f"{moment.isoformat()} is not within the years 1 to 9999 in UTC.") from None


def local(moment: datetime) -> str:
    """Returns a moment for a message, in local time, to the second."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def local_zone() -> str:
    """Returns the local time zone as Spark names it: ``Europe/Berlin``, or as an offset such as ``+01:00`` if
    it has no name."""
    from tzlocal import get_localzone

    now = datetime.now().astimezone()
    with suppress(LookupError, ValueError, OSError):  # TZ may be a rule, and /etc/localtime a copy
        zone = ZoneInfo(str(get_localzone()))
        if now.astimezone(zone).utcoffset() == now.utcoffset():
            return zone.key
    return now.isoformat(timespec="minutes")[len("2026-01-01T00:00") :]
