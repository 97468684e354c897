"""When a job is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from volstream.base.definitions import Trigger, TriggerKind
from volstream.errors import InvalidValueError
from volstream.jobs.runs.schedule import check_cron, next_due

BERLIN = ZoneInfo("Europe/Berlin")
CREATED = datetime(2024, 3, 1, 12, 0, tzinfo=UTC)
LATER = datetime(2030, 1, 1, tzinfo=UTC)


def every(seconds: float) -> Trigger:
    return Trigger(TriggerKind.EVERY, every=seconds)


def cron(line: str) -> Trigger:
    return Trigger(TriggerKind.CRON, cron=line)


def due(line: str, last: str) -> datetime:
    found = next_due(cron(line), datetime.fromisoformat(last), CREATED, BERLIN, LATER)
    assert found is not None
    return found.astimezone(UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_period_counts_from_the_last_start_and_is_due_at_once_at_first() -> None:
    assert next_due(every(30), None, CREATED, BERLIN, LATER) == CREATED
    started = CREATED + timedelta(hours=1)
    assert next_due(every(0.5), started, CREATED, BERLIN, LATER) == started + timedelta(seconds=0.5)


def test_missed_times_come_due_once() -> None:
    # Last started on Monday; by Friday there is one time in the past, and the one after a start on Friday is to come.
    first = due("0 6 * * *", "2024-03-04T06:00:00+01:00")
    assert first == utc("2024-03-05T05:00")
    assert due("0 6 * * *", "2024-03-08T10:00:00+01:00") == utc("2024-03-09T05:00")


def test_a_cron_line_is_first_due_after_the_job_was_created() -> None:
    assert next_due(cron("0 * * * *"), None, CREATED, BERLIN, LATER) == CREATED + timedelta(hours=1)


def test_a_cron_line_is_read_in_the_configured_time_zone() -> None:
    assert due("30 9 * * *", "2024-01-10T00:00:00+00:00") == utc("2024-01-10T08:30")
    assert due("30 9 * * *", "2024-07-10T00:00:00+00:00") == utc("2024-07-10T07:30")


def test_in_spring_a_time_that_does_not_exist_comes_at_most_an_hour_late() -> None:
    found = due("30 2 * * *", "2024-03-30T12:00:00+01:00")
    assert utc("2024-03-31T01:00") <= found <= utc("2024-03-31T01:30")


def test_in_spring_an_hourly_job_misses_no_hour_of_the_clock() -> None:
    now, found = utc("2024-03-30T23:00"), []
    for _ in range(4):
        now = due("0 * * * *", now.isoformat())
        found.append(now)
    assert found == [utc(f"2024-03-31T0{hour}:00") for hour in range(4)]


def test_in_autumn_a_repeated_local_time_is_due_once() -> None:
    now, found = utc("2024-10-26T12:00"), []
    for _ in range(2):
        now = due("30 2 * * *", now.isoformat())
        found.append(now)
    assert found == [utc("2024-10-27T00:30"), utc("2024-10-28T01:30")]


def test_in_autumn_an_hourly_job_runs_in_both_of_the_same_hours() -> None:
    now, found = utc("2024-10-26T22:00"), []
    for _ in range(5):
        now = due("0 * * * *", now.isoformat())
        found.append(now)
    assert found == [utc(f"2024-10-2{day}T{hour:02}:00") for day, hour in ((6, 23), (7, 0), (7, 1), (7, 2), (7, 3))]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("99 * * * *", "the minute cannot be '99'. Give 0 to 59"),
        ("* 24 * * *", "the hour cannot be '24'"),
        ("* * 0 * *", "the day-of-month cannot be '0'"),
        ("* * * 13 *", "the month cannot be '13'"),
        ("0 0 * * mon-fry", "the day-of-week cannot be 'mon-fry'. Give 0 to 7 or mon to sun"),
        ("* * *", "it has 3 fields. Write five: minute hour day-of-month month day-of-week."),
    ],
)
def test_what_is_wrong_in_a_cron_line_is_named(line: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_cron(line, BERLIN)
    assert said in str(caught.value)


@pytest.mark.parametrize("trigger", [Trigger(TriggerKind.ON_CHANGE), Trigger(TriggerKind.MANUAL)])
def test_unscheduled_jobs_are_never_due(trigger: Trigger) -> None:
    assert next_due(trigger, CREATED, CREATED, BERLIN, LATER) is None


@pytest.mark.parametrize("line", ["* * * * *", "*/5 8-18 * * mon-fri", "0 0 29 2 *", "15,45 * 1 jan *"])
def test_standard_five_field_lines_are_accepted(line: str) -> None:
    check_cron(line, BERLIN)


@pytest.mark.parametrize("line", ["", "* * * *", "* * * * * *", "61 * * * *", "@daily", "a b c d e", "0 0 31 2 *"])
def test_other_lines_are_rejected(line: str) -> None:
    with pytest.raises(InvalidValueError):
        check_cron(line, BERLIN)


@pytest.mark.parametrize("line", [None, "*/5 * * * *"])
def test_a_start_recorded_by_a_clock_that_was_ahead_stops_no_job(line: str | None) -> None:
    trigger = every(30) if line is None else cron(line)
    now = utc("2024-03-05T12:05:20")
    found = next_due(trigger, now + timedelta(days=400), CREATED, BERLIN, now)
    assert found is not None
    assert found <= now
    # By seconds the clocks of hosts may differ.
    found = next_due(trigger, now + timedelta(seconds=5), CREATED, BERLIN, now)
    assert found is not None
    assert found > now
