"""Computes when a job is due. Pure: times in, times out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

from volstream.base.definitions import Trigger, TriggerKind
from volstream.base.model.text import counted
from volstream.base.model.work import CLOCK_SKEW
from volstream.errors import InvalidValueError

#: The fields of a cron line and their values.
_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31",
    "month": "1 to 12 or jan to dec",
    "day-of-week": "0 to 7 or mon to sun",
}


def check_cron(line: str, zone: ZoneInfo) -> None:
    """Raises InvalidValueError unless ``line`` is a cron line of five fields that matches at some time."""
    fields = line.split()
    if len(fields) != len(_FIELDS):
        raise InvalidValueError(
            f"{line!r} is not a cron line: it has {counted(len(fields), 'field')}.", f"Write five: {' '.join(_FIELDS)}."
        )
    for at, (field, (name, values)) in enumerate(zip(fields, _FIELDS.items(), strict=True)):
        if not croniter.is_valid(" ".join(["*"] * at + [field] + ["*"] * (len(_FIELDS) - at - 1))):
            raise InvalidValueError(
                f"{line!r} is not a cron line: the {name} cannot be {field!r}.", f"Give {values}, a range, a list, or *."
            )
    if not croniter.is_valid(line):
        raise InvalidValueError(f"{line!r} is not a cron line.", f"Write five fields: {' '.join(_FIELDS)}.")
    try:
        croniter(line, datetime(2024, 1, 1, tzinfo=zone)).get_next(datetime)
    except (ValueError, KeyError):
        raise InvalidValueError(f"No day matches the cron line {line!r}.") from None


def next_due(
    trigger: Trigger, last_started: datetime | None, created_on: datetime, zone: ZoneInfo, now: datetime
) -> datetime | None:
    """Returns when a scheduled job is next due, or None if it has no schedule. A time in the past means now.

    Missed times are due once in total: the next time is counted from the last start.

    Args:
        last_started: None if it never started. ``every`` is then due at once, and ``cron`` at its first time
            after ``created_on``.
        zone: time zone of cron lines. When summer time ends, a line with given hours is due at the first of
            the two identical times, and a line for all hours at both.
    """
    in_future = last_started is not None and last_started > now + CLOCK_SKEW
    match trigger.kind:
        case TriggerKind.EVERY:
            assert trigger.every is not None, "created with its trigger"
            if last_started is None or in_future:
                return min(created_on, now)
            return last_started + timedelta(seconds=trigger.every)
        case TriggerKind.CRON:
            assert trigger.cron is not None, "created with its trigger"
            start = now - CLOCK_SKEW if in_future else last_started or created_on
            times = croniter(trigger.cron, start.astimezone(zone))
            due: datetime = times.get_next(datetime)
            while _is_second(due, zone) and not trigger.cron.split()[1].startswith("*"):
                due = times.get_next(datetime)
            return due
        case _:
            return None


def _is_second(time: datetime, zone: ZoneInfo) -> bool:
    """Returns whether the clock showed the same time an hour before, because summer time ended."""
    return time.astimezone(UTC).astimezone(zone).fold == 1
