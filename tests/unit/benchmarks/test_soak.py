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
