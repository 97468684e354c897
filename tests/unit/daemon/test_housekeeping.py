"""Removing what crashes left in a warehouse, but nothing that may be in use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests import objects
from volstream import config
from volstream.catalog import Catalog
from volstream.daemon.housekeeping import Housekeeper, clean
from volstream.functions.printing import Line, Printed
from volstream.jobs import logs
from volstream.lifecycle.stop import Stop


@pytest.mark.parametrize("alone", [True, False])
def test_in_a_shared_warehouse_only_old_leftovers_are_removed(tmp_path: Path, catalog: Catalog, alone: bool) -> None:
    warehouse = tmp_path / "warehouse"
    for name in ("_plans/new", "_plans/old", "_staging/new", "_staging/old", "_listings/old", "_logs/old"):
        part = warehouse / name / "part.parquet"
        part.parent.mkdir(parents=True)
        part.touch()
        if name.endswith("old"):
            for path in (part, part.parent):
                os.utime(path, (time.time() - 2 * 86400,) * 2)

    clean(catalog, str(warehouse), alone=alone)

    left = sorted(path.name for path in warehouse.glob("*/*"))
    assert left == ([] if alone else ["new", "new"])


def test_an_interrupted_listing_of_an_existing_volume_is_kept_for_resumption(tmp_path: Path, catalog: Catalog) -> None:
    volume = objects.volume()
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, volume)
    for name in (volume.id, f"{volume.id}-beside", "dropped"):
        (tmp_path / "warehouse" / "_listings" / name).mkdir(parents=True)
    clean(catalog, f"{tmp_path}/warehouse", alone=True)
    left = {path.name for path in (tmp_path / "warehouse" / "_listings").iterdir()}
    assert left == {volume.id, f"{volume.id}-beside"}


def test_the_logs_of_a_job_are_kept_as_long_as_the_job(tmp_path: Path, catalog: Catalog) -> None:
    _, _, job = objects.store_job(catalog)
    for name in (job.id, "dropped"):
        (tmp_path / "warehouse" / "_logs" / name).mkdir(parents=True)
    clean(catalog, f"{tmp_path}/warehouse", alone=True)
    assert [path.name for path in (tmp_path / "warehouse" / "_logs").iterdir()] == [job.id]


def test_logs_are_forgotten_with_the_history(tmp_path: Path, catalog: Catalog) -> None:
    settings = config.load(tmp_path)
    _, _, job = objects.store_job(catalog)
    place = logs.location_of(settings.warehouse_path, job.id)
    for name, age in (("old", 91), ("new", 89)):
        logs.write(place, name, [Printed(["a"], [Line(1.0, "stdout", "x")]).encoded(failed=False)], 1000)
        os.utime(f"{place}/{name}.jsonl", (time.time() - age * 86400,) * 2)
    Housekeeper(catalog, settings, Stop()).sweep()
    assert [path.stem for path in Path(place).iterdir()] == ["new"]
