"""Removing what crashes left in a warehouse, but nothing that may be in use."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest

from tests import objects
from tests.waiting import eventually
from volstream.base import config
from volstream.base.model.work import PlanState
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.errors import VolstreamError
from volstream.functions.file import COPIES
from volstream.functions.printing import CapturedOutput, Line
from volstream.jobs.batches import logs
from volstream.jobs.batches.ledger import LOGS
from volstream.ops.backup import SCRATCH
from volstream.server.daemon import housekeeping
from volstream.server.daemon.housekeeping import Housekeeper, clean
from volstream.spark.jvm import log_file


def aged(folder: Path) -> str:
    """Makes everything in the folder of a warehouse two days old; returns the warehouse."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 2 * 86400,) * 2, follow_symlinks=False)
    return str(folder / "warehouse")


def test_only_old_leftovers_are_removed(tmp_path: Path, catalog: Catalog) -> None:
    warehouse = tmp_path / "warehouse"
    for name in ("_plans/new", "_plans/old", "_staging/new", "_staging/old", "_listings/old", "_logs/old"):
        part = warehouse / name / "part.parquet"
        part.parent.mkdir(parents=True)
        part.touch()
        if name.endswith("old"):
            for path in (part, part.parent):
                os.utime(path, (time.time() - 2 * 86400,) * 2)

    clean(catalog, str(warehouse))

    assert sorted(path.name for path in warehouse.glob("*/*")) == ["new", "new"]


@pytest.mark.parametrize("link", ["_staging", "_staging/batch"])
def test_a_link_in_the_warehouse_leads_to_nothing_that_is_removed(tmp_path: Path, catalog: Catalog, link: str) -> None:
    document = tmp_path / "documents" / "letters" / "letter.txt"
    document.parent.mkdir(parents=True)
    document.touch()
    linked = tmp_path / "warehouse" / link
    linked.parent.mkdir(parents=True)
    linked.symlink_to(tmp_path / "documents")
    clean(catalog, aged(tmp_path))
    assert document.exists()
    assert linked.is_symlink() is (link == "_staging")


def test_a_link_made_during_a_sweep_leads_to_nothing_that_is_removed(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, document = tmp_path / "warehouse" / "_staging", tmp_path / "documents" / "letters" / "letter.txt"

    class Meanwhile(timedelta):
        """An age with which a folder is compared just before it is removed."""

        def __lt__(self, age: timedelta) -> bool:
            staging.rename(tmp_path / "moved")
            staging.symlink_to(tmp_path / "documents")
            return True

    monkeypatch.setattr(housekeeping, "_LEFTOVER_AGE", Meanwhile())
    document.parent.mkdir(parents=True)
    document.touch()
    (staging / "letters").mkdir(parents=True)
    clean(catalog, str(tmp_path / "warehouse"))
    assert staging.is_symlink()
    assert document.exists()


def test_an_interrupted_listing_of_an_existing_volume_is_kept_for_resumption(tmp_path: Path, catalog: Catalog) -> None:
    volume = objects.volume()
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, volume)
    for name in (volume.id, f"{volume.id}-beside", "dropped"):
        (tmp_path / "warehouse" / "_listings" / name).mkdir(parents=True)
    clean(catalog, aged(tmp_path))
    left = {path.name for path in (tmp_path / "warehouse" / "_listings").iterdir()}
    assert left == {volume.id, f"{volume.id}-beside"}


def test_the_logs_of_a_job_are_kept_as_long_as_the_job(tmp_path: Path, catalog: Catalog) -> None:
    _, _, job = objects.store_job(catalog)
    for name in (job.id, "dropped"):
        (tmp_path / "warehouse" / "_logs" / name).mkdir(parents=True)
    clean(catalog, aged(tmp_path))
    assert [path.name for path in (tmp_path / "warehouse" / "_logs").iterdir()] == [job.id]


def test_logs_are_forgotten_with_the_history(tmp_path: Path, catalog: Catalog) -> None:
    settings = config.load(tmp_path)
    _, _, job = objects.store_job(catalog)
    place = LOGS.of(settings.warehouse_path, job.id)
    for name, age in (("old", 91), ("new", 89)):
        logs.write(place, name, [CapturedOutput(["a"], [Line(1.0, "stdout", "x")]).encoded(failed=False)], 1000)
        os.utime(f"{place}/{name}.jsonl", (time.time() - age * 86400,) * 2)
    Housekeeper(catalog, settings, Stop()).sweep()
    assert [path.stem for path in Path(place).iterdir()] == ["new"]


def test_work_that_ended_three_months_ago_is_forgotten(tmp_path: Path, catalog: Catalog) -> None:
    _, _, job = objects.store_job(catalog)
    plans = {
        age: objects.store_plan(catalog, job, state=PlanState.DONE, created_on=datetime.now(UTC) - timedelta(days=age))[0]
        for age in (91, 89)
    }
    Housekeeper(catalog, config.load(tmp_path), Stop()).sweep()
    assert [age for age, plan in plans.items() if catalog.reports.plan(plan.id)] == [89]


def test_what_is_away_does_not_keep_the_rest_from_being_forgotten(tmp_path: Path, catalog: Catalog) -> None:
    settings = config.load(tmp_path)
    _, _, job = objects.store_job(catalog)
    plan, _ = objects.store_plan(catalog, job, state=PlanState.DONE, created_on=datetime.now(UTC) - timedelta(days=91))
    Path(settings.warehouse_path).mkdir(parents=True)
    (Path(settings.warehouse_path) / "_plans").write_text("no folder")
    with pytest.raises((VolstreamError, OSError)):
        Housekeeper(catalog, settings, Stop()).sweep()
    assert catalog.reports.plan(plan.id) is None


def test_copies_that_killed_workers_and_restores_left_are_removed(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "tmp"
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    (tmp_path / "elsewhere").mkdir()
    for name in (f"{COPIES}left", f"{SCRATCH}left", f"{COPIES}in-use", "of-another-program"):
        (shared / name).mkdir(parents=True)
        (shared / name / "copy").touch()
    (shared / f"{COPIES}link").symlink_to(tmp_path / "elsewhere")
    for folder in (shared / f"{COPIES}left", shared / f"{SCRATCH}left", shared / "of-another-program", tmp_path / "elsewhere"):
        os.utime(folder, (time.time() - 2 * 86400,) * 2)
    Housekeeper(catalog, config.load(tmp_path), Stop()).sweep()
    left = {path.name for path in shared.iterdir() if path.name.startswith((COPIES, SCRATCH, "of"))}
    assert left == {f"{COPIES}in-use", f"{COPIES}link", "of-another-program"}


def test_the_log_of_the_jvm_is_rolled_while_the_daemon_runs(tmp_path: Path, catalog: Catalog) -> None:
    settings, stop = config.load(tmp_path), Stop()
    settings.log_directory.mkdir(parents=True)
    log = log_file.begin(settings.log_directory)
    log.touch()
    os.truncate(log, 10_000_001)
    thread = Thread(target=Housekeeper(catalog, settings, stop).run)
    thread.start()
    try:
        eventually(lambda: log.stat().st_size == 0)
    finally:
        stop.set()
        thread.join(30)
