"""How large batches are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import objects
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.model.work import Batch, WaitingBatches
from volstream.functions.rows import Bounds
from volstream.jobs.plans import sizing
from volstream.jobs.plans.sizing import Limits, Rate

MOST = Limits(10_000, 1 << 30)
MIB = 1 << 20


def batch(files: int, size: int, seconds: float | None, **changes: Any) -> Batch:
    made = objects.plan(objects.job(objects.stream()))
    return objects.batch(made, files=files, bytes=size, seconds=seconds, **changes)


def waiting(count: int, files: int, size: int, most_files: int, most_bytes: int) -> WaitingBatches:
    return WaitingBatches(batch(1, 1, None), count, files, size, most_files, most_bytes)


def test_an_unmeasured_job_begins_with_a_batch_that_measures() -> None:
    assert sizing.latest_rate([], 30) is None
    assert sizing.typical_rate([]) is None
    assert MOST.first(2) == Limits(1000, 1 << 30)
    assert Limits(7, 100).first(200) == Limits(7, 100)


def test_the_speed_of_a_job_is_measured_over_enough_of_its_newest_batches() -> None:
    slow_now = [batch(600, 600, 60.0), batch(9000, 9000, 90.0)]
    assert sizing.latest_rate(slow_now, 30) == Rate(10, 10)
    short = [batch(10, 100, 2.0), batch(20, 100, 2.0), batch(70, 200, 46.0)]
    assert sizing.latest_rate(short, 30) == Rate(2, 8)


def test_removals_count_as_files_and_unmeasured_batches_do_not_count() -> None:
    done = [batch(0, 0, 1.0, removals=30), batch(5, 50, None), batch(10, 100, 1.0)]
    assert sizing.latest_rate(done, 30) == Rate(20, 50)
    assert sizing.latest_rate([batch(5, 50, None)], 30) is None


def test_a_new_plan_starts_from_the_largest_batch_because_small_ones_measure_commits() -> None:
    assert sizing.typical_rate([batch(1, 10, 2.0)] * 10 + [batch(3000, 3000, 30.0)]) == Rate(100, 100)


def test_limits_follow_the_target_within_what_the_job_allows() -> None:
    assert Rate(100, MIB).limits(60, MOST) == Limits(6000, 60 * MIB)
    assert Rate(1e6, 1e12).limits(60, MOST) == MOST
    assert Rate(0.001, 0.001).limits(60, MOST) == Limits(1, 1)
    assert Rate(50, 0).limits(60, MOST) == Limits(3000, 1 << 30), "empty files say nothing of bytes"


@pytest.mark.parametrize(
    ("ahead", "anew"),
    [
        (waiting(1, 10_000, 0, 10_000, 0), False),  # 100 s: less than twice the target
        (waiting(1, 13_000, 0, 13_000, 0), True),  # 130 s
        (waiting(1, 5, 300 * MIB, 5, 300 * MIB), True),  # few files, but large
        (waiting(1, 1, 300 * MIB, 1, 0), False),  # one file cannot be cut
        (waiting(10, 10_000, 0, 1000, 0), True),  # two batches do instead of ten
        (waiting(3, 12_000, 0, 4000, 0), False),  # two instead of three
        (waiting(9, 9, 9 * 70 * MIB, 1, 0), False),  # each alone anyway
    ],
)
def test_batches_are_recut_if_they_miss_the_target_by_more_than_a_factor_of_two(ahead: WaitingBatches, anew: bool) -> None:
    rate = Rate(100, MIB)
    assert sizing.misses_target(ahead, rate, rate.limits(60, MOST), 60) is anew


@given(st.floats(0.01, 1e5), st.floats(0, 1e9), st.integers(1, 10_000), st.integers(1, 1 << 30))
def test_a_batch_within_the_limits_is_expected_to_take_the_target(
    files: float, size: float, most_files: int, most_bytes: int
) -> None:
    rate = Rate(files, size)
    limits = rate.limits(60, Limits(most_files, most_bytes))
    assert 1 <= limits.files <= most_files
    assert 1 <= limits.bytes <= most_bytes
    if limits.files > 1 and limits.bytes > 1:
        assert rate.seconds(limits.files, limits.bytes if size else 0) <= 60.001


def test_limits_differ_only_if_they_would_give_other_batches() -> None:
    assert not sizing.limits_differ(Limits(100, 100), Limits(200, 51))
    assert sizing.limits_differ(Limits(100, 100), Limits(201, 100))
    assert sizing.limits_differ(Limits(100, 100), Limits(100, 49))


def test_a_row_is_no_larger_than_the_engine_has_room_for(tmp_path: Path) -> None:
    def told(**settings: Any) -> Bounds:
        return sizing.result_bounds(config.load(tmp_path, driver_memory="2GiB", **settings))

    assert told(cores=2).row_bytes == told(cores=4).row_bytes == 64 << 20
    assert told(cores=8).row_bytes == 32 << 20
    assert "driver_memory" in told(cores=8).row_rule
    assert told(cores=8, result_row_bytes="1MiB") == Bounds(row_bytes=1 << 20)
    # How much memory others have is not known here.
    assert told(cores=8, spark_remote="sc://there").row_bytes == 64 << 20
    assert told(cores=8, spark_conf={"spark.master": "local[1]"}).row_bytes == 64 << 20


@pytest.mark.parametrize(("calls", "files_per_call", "files"), [(0.5, 1, 5), (0.5, 64, 320), (1 / 300, 1, 1), (1e6, 1, 10_000)])
def test_batches_of_a_job_with_a_rate_take_ten_seconds_at_most(calls: float, files_per_call: int, files: int) -> None:
    assert Limits(10_000, 99).paced(calls, files_per_call) == Limits(files, 99)


def test_batches_grow_with_the_slots_of_a_cluster_unless_the_job_says_how_large_they_are(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, batch_max_files=100, batch_max_bytes=1000)
    assert [sizing.maximum_limits(settings, slots, None, None) for slots in (1, 8, 9, 200)] == [
        Limits(100, 1000),
        Limits(100, 1000),
        Limits(200, 2000),
        Limits(2500, 25_000),
    ]
    assert sizing.maximum_limits(settings, 200, 70, None) == Limits(70, 25_000)
    assert sizing.maximum_limits(settings, 200, None, 70) == Limits(2500, 70)
    assert sizing.maximum_limits(Settings(home=tmp_path), 200, None, None).first(200) == Limits(25_000, 25 << 30)
