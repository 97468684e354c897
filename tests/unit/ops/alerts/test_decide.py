"""When something is told: values only."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests import objects
from volstream.base.model.work import FailureState
from volstream.catalog.alerts import AlertCause
from volstream.catalog.failures import BriefFailure
from volstream.ops.alerts import FAILED, AlertEvent, Condition, Decision, Pace, Subject, failed_files, judge

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PACE = Pace(after=timedelta(seconds=30), repeat=timedelta(hours=1))
JOB = Subject("job", "sizes")
SIZES = objects.job(objects.stream(), name="sizes")
GONE = Condition("problem:volume:v", AlertEvent.PROBLEM, Subject("volume", "v"), True, "It is gone.", "Mount it.", passing=True)
PAUSED = Condition("pause:1", AlertEvent.PAUSE, JOB, False, "It was paused manually.", "volstream resume sizes", lasting=False)


class Teller:
    """Decides again and again, and remembers as the catalog does."""

    def __init__(self) -> None:
        self.known: dict[str, AlertCause] = {}
        self.due: datetime | None = None
        self.resolved: list[str] = []
        self.failed: list[BriefFailure] = []

    def remember(self, decision: Decision) -> list[Any]:
        self.known = {key: one for key, one in (self.known | decision.changed).items() if key not in decision.gone}
        self.due = decision.due
        self.resolved = [alert.why for alert in decision.alerts if alert.resolved]
        return [alert.why for alert in decision.alerts if not alert.resolved]

    def at(self, seconds: float, *present: Condition, unclear: tuple[str, ...] = ()) -> list[Any]:
        decision = Decision()
        judge(decision, present, self.known, unclear, NOW + timedelta(seconds=seconds), PACE)
        return self.remember(decision)

    def failing(self, seconds: float, *more: BriefFailure) -> list[Any]:
        self.failed = [*reversed(more), *self.failed]
        return self.at(seconds, *failed_files([SIZES], self.failed))


def failure(path: str, message: str, state: str = FailureState.QUARANTINED) -> BriefFailure:
    return BriefFailure(1, path, state, "raised", message, NOW, SIZES.id)


def test_what_passes_by_itself_is_not_told() -> None:
    teller = Teller()
    assert teller.at(0, GONE) == []
    assert teller.due == NOW + timedelta(seconds=30)
    assert teller.at(20) == []
    assert teller.at(40, GONE) == []
    assert teller.at(71, GONE) == ["It is gone."]


def test_what_began_by_a_clock_that_was_ahead_is_told_as_if_it_began_now() -> None:
    teller = Teller()
    assert teller.at(90_000, GONE) == []
    assert [len(teller.at(second, GONE)) for second in (0, 20, 31)] == [0, 0, 1]
    teller.at(90_000, GONE)
    assert [len(teller.at(second, GONE)) for second in (100, 3000, 3700)] == [0, 0, 1]


def test_what_lasts_is_told_again_only_after_a_while() -> None:
    teller = Teller()
    assert [len(teller.at(second, GONE)) for second in (0, 31, 60, 3000, 3632, 3700)] == [0, 1, 0, 0, 1, 0]
    assert teller.due == NOW + timedelta(seconds=3632) + PACE.repeat
    assert len(teller.at(8000, GONE)) == 1
    assert teller.due == NOW + timedelta(seconds=8000) + PACE.repeat


def test_a_pause_by_hand_is_told_at_once_and_once() -> None:
    teller = Teller()
    assert [len(teller.at(second, PAUSED)) for second in (0, 10, 90_000)] == [1, 0, 0]
    assert teller.at(90_001) == []
    assert len(teller.at(90_002, PAUSED)) == 1


def test_what_was_told_is_resolved_once_it_is_over() -> None:
    teller = Teller()
    resolved = []
    for second, present in [(0, [GONE]), (31, [GONE]), (60, [GONE]), (61, []), (62, []), (63, [GONE]), (70, [])]:
        teller.at(second, *present)
        resolved.append(teller.resolved)
    assert resolved == [[], [], [], ["Resolved: It is gone."], [], [], []]
    assert teller.known == {}


def test_an_object_is_well_only_when_nothing_of_the_event_is_left() -> None:
    teller, other = Teller(), replace(GONE, key="problem:volume:v:waits", why="Its removals are held.")
    teller.at(0, GONE)
    assert teller.at(31, GONE) == ["It is gone."]
    assert teller.at(40, other) == teller.resolved == []
    assert teller.at(71, other) == ["Its removals are held."]
    assert teller.at(80, unclear=("problem:",)) == teller.resolved == []
    teller.at(90)
    assert teller.resolved == ["Resolved: Its removals are held."]


def test_what_cannot_be_looked_at_is_neither_over_nor_told_again() -> None:
    teller = Teller()
    teller.at(0, GONE)
    assert len(teller.at(31, GONE)) == 1
    assert teller.at(40, unclear=("problem:",)) == []
    assert teller.at(50, GONE) == teller.at(90, GONE) == []


def test_files_that_fail_for_one_cause_are_one_alert_with_their_number() -> None:
    teller = Teller()
    assert teller.failing(0, *(failure(f"{n}.jpg", f"no EXIF in {n}.jpg") for n in range(100, 140))) == []
    assert teller.failing(20, failure("late.jpg", "no EXIF in late.jpg")) == []
    assert teller.failing(31) == ["41 files quarantined, such as late.jpg: no EXIF in late.jpg"]
    assert teller.failing(40, failure("more.jpg", "no EXIF in more.jpg")) == []
    assert teller.failing(3632) == ["1 more file quarantined, 42 in all, such as more.jpg: no EXIF in more.jpg"]


def test_failures_that_have_doubled_are_told_before_the_alert_would_be_repeated() -> None:
    teller = Teller()
    failed = [failure(f"f{number}", "no good") for number in range(53)]
    teller.failing(0, *failed[:8])
    assert teller.failing(31) == ["8 files quarantined, such as f7: no good"]
    assert teller.failing(40, *failed[8:15]) == []
    assert teller.failing(75) == [], "7 more are not as many again"
    assert teller.failing(80, *failed[15:53]) == ["45 more files quarantined, 53 in all, such as f52: no good"]
    assert teller.failing(200, failure("last", "no good")) == []
    assert teller.failing(300, *(failure(f"g{number}", "no good") for number in range(50))) == [], "not as many as were reported"
    teller.failed = teller.failed[50:]
    assert teller.failing(80 + 3601) == ["1 more file quarantined, 54 in all, such as last: no good"]


def test_a_file_that_is_tried_again_is_not_told() -> None:
    teller = Teller()
    teller.failing(0, failure("a.jpg", "no EXIF", FailureState.RETRYING))
    assert teller.failing(31) == []
    assert teller.known == {}


def test_several_causes_are_one_alert_the_most_frequent_first() -> None:
    teller = Teller()
    teller.failing(0, failure("a", "disk is full"))
    teller.failing(5, failure("b", "no EXIF"), failure("c", "no EXIF"))
    assert teller.failing(31) == ["3 files quarantined, for 2 causes: 2 x no EXIF; 1 x disk is full"]
    assert teller.failing(36) == []


def test_files_that_each_fail_in_their_own_way_make_few_alerts_and_few_causes() -> None:
    teller, told = Teller(), 0
    letters = "abcdefghijklmnopqrstuvwxyz"
    for second in range(150):
        told += len(
            teller.failing(
                second, *(failure("x", f"{letter} {letters[second % 26]} {second // 26 * letter}") for letter in letters)
            )
        )
    assert told <= 150 / 30
    assert sum(key.startswith(FAILED) for key in teller.known) <= 51


def test_files_of_a_cause_that_is_over_are_resolved_and_alerted_again_when_they_fail_again() -> None:
    teller = Teller()
    teller.failing(0, failure("a", "no EXIF"), failure("b", "disk is full"))
    teller.failing(31)
    teller.failed = teller.failed[:1]
    assert teller.failing(40) == teller.resolved == [], "the other cause lasts"
    teller.failed = []
    assert teller.at(50, unclear=(f"{FAILED}{SIZES.id}:",)) == teller.resolved == [], "its files are tried again"
    teller.failing(60)
    assert teller.resolved == ["Resolved: 2 files quarantined, for 2 causes: 1 x no EXIF; 1 x disk is full"]
    assert teller.known == {}
    assert teller.failing(70, failure("a", "no EXIF")) == []
    assert teller.failing(101) == ["1 file quarantined, such as a: no EXIF"]


def test_files_that_no_longer_fail_do_not_hide_new_ones() -> None:
    teller = Teller()
    teller.failing(0, *(failure(f"f{number}", "no good") for number in range(40)))
    teller.failing(31)
    teller.failed = teller.failed[:10]
    assert teller.failing(40) == []
    assert teller.failing(50, *(failure(f"g{number}", "no good") for number in range(10))) == [
        "10 more files quarantined, 20 in all, such as g9: no good"
    ]


def test_what_an_earlier_release_has_reported_is_known() -> None:
    teller = Teller()
    (condition,) = failed_files([SIZES], [failure("a", "no EXIF")] * 8)
    teller.known = {condition.key: AlertCause(condition.key, NOW, NOW, 0, '{"kind": "raised", "sent": 8}')}
    assert teller.failing(100, *[failure("a", "no EXIF")] * 8) == []
    assert teller.failing(101, *[failure("b", "no EXIF")] * 8) == ["8 more files quarantined, 16 in all, such as b: no EXIF"]
