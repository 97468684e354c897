"""The soak benchmark runs and forgets its history."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select

from benchmarks import soak
from volstream.catalog import Catalog, tables


@pytest.mark.long
def test_a_small_soak_ends_with_one_step_of_history(tmp_path: Path) -> None:
    steps = list(soak.run(tmp_path, 400))
    assert [step.refreshes for step in steps] == [40 * number for number in range(1, 11)]
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    with catalog.database.reading() as transaction:
        plans = transaction.execute(select(func.count()).select_from(tables.plans)).scalar_one()
    assert plans <= 5, "of forty"
    catalog.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_disk_and_memory_stay_the_same_however_long_a_home_lives(tmp_path: Path) -> None:
    grown = soak.growth([*soak.run(tmp_path, 3_000)])
    assert grown["disk"] < 1.1
    assert grown["memory"] < 1.1


def test_growth_compares_the_last_third_with_the_second() -> None:
    steps = [soak.PlanStep(number, 1.0, 2.0, 0.0, {}, disk, 100) for number, disk in enumerate([9, 1, 1, 1, 2, 2, 4, 4, 4])]
    assert soak.growth(steps) == {
        "time of a refresh": 1.0,
        "time of a batch": 1.0,
        "disk": pytest.approx(4 / (5 / 3)),
        "memory": 1.0,
    }
