"""When a job is due. Pure: times in, times out."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from croniter import croniter

from volstream.errors import InvalidValueError
from volstream.model.objects import Trigger, TriggerKind


def check_cron(line: str, zone: ZoneInfo) -> None:
    """Raises InvalidValueError where ``line`` is not a cron line of five fields that some time matches."""
    if len(line.split()) != 5 or not croniter.is_valid(line):
        raise InvalidValueError(
            f"{line!r} is not a cron line.", "Write five fields: minute hour day-of-month month day-of-week."
        )
    try:
        croniter(line, datetime(2024, 1, 1, tzinfo=zone)).get_next(datetime)
    except (ValueError, KeyError):
        raise InvalidValueError(f"No day matches the cron line {line!r}.") from None


def next_due(trigger: Trigger, last_started: datetime | None, created_on: datetime, zone: ZoneInfo) -> datetime | None:
    """When a job that runs by the clock is due next; a time in the past: now. None: it does not run by the clock.

    Missed times come due once, not once each: the next time counts from the last start.

    Args:
        last_started: None: never; ``every`` is due at once, ``cron`` at its first time after ``created_on``.
        zone: in which cron lines are read.
    """
    match trigger.kind:
        case TriggerKind.EVERY:
            assert trigger.every is not None, "made with its trigger"
            return created_on if last_started is None else last_started + timedelta(seconds=trigger.every)
        case TriggerKind.CRON:
            assert trigger.cron is not None, "made with its trigger"
            start = (last_started or created_on).astimezone(zone)
            due: datetime = croniter(trigger.cron, start).get_next(datetime)
            return due
        case _:
            return None
