"""What a job keeps beside its table goes with it, whatever is done to the job: each store, each act."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.integration.conftest import Place, session_on
from volstream.base import config
from volstream.jobs.batches.ledger import SCHEMA, STORES, Store
from volstream.ops.backup import make_backup, restore_backup
from volstream.server.daemon.housekeeping import clean


def _restored(place: Place, store: Store, kept: Path, tmp_path: Path) -> bool:
    """A backup has the tables, and is restored with them."""
    make_backup(place.session.home.catalog, place.session.home.settings, tmp_path / "backup")
    with session_on(place.gateway, config.load(tmp_path / "other")) as other:
        restore_backup(other.home.catalog, other.home.settings, tmp_path / "backup")
        again = Path(store.of(other.home.warehouse, kept.name))
        return kept.exists() and again.exists() is store.is_table


def _dropped(place: Place, store: Store, kept: Path, tmp_path: Path) -> bool:
    place.session.jobs.drop("j")
    return not kept.exists()


def _altered(place: Place, store: Store, kept: Path, tmp_path: Path) -> bool:
    place.session.jobs.alter("j", where="size > 0")
    return kept.exists()


def _cleaned(place: Place, store: Store, kept: Path, tmp_path: Path) -> bool:
    """The daemon removes what a job left that was dropped in the middle, and nothing of another."""
    lost = kept.with_name("dropped")
    lost.mkdir()
    warehouse = Path(place.session.home.warehouse)
    for path in (kept, *kept.rglob("*"), lost):
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    clean(place.session.home.catalog, str(warehouse))
    return kept.exists() and not lost.exists()


def _mended(place: Place, store: Store, kept: Path, tmp_path: Path) -> bool:
    """A damaged table is named, and removed by a repair; files are not looked at."""
    damaged = kept / "_delta_log" / f"{0:020d}.json"
    if store.is_table:
        damaged.write_bytes(b"\xff" * 40)
    found = place.session.jobs.verify("j")
    named = [damage for damage in found.damages if store.what in str(damage)]
    place.session.jobs.verify("j", fix=True)
    if not store.is_table:
        return kept.exists() and not named
    return len(named) == 1 and (not kept.exists() or DeltaTable(kept).version() >= 0)


@pytest.mark.parametrize("store", STORES, ids=[store.folder for store in STORES])
@pytest.mark.parametrize("act", [_restored, _dropped, _altered, _cleaned, _mended])
def test_what_a_job_keeps_goes_with_it(
    place: Place, tmp_path: Path, store: Store, act: Callable[[Place, Store, Path, Path], bool]
) -> None:
    place.put("a.txt", "a")
    place.refresh()
    code = "import volstream\n@volstream.step\ndef one(x): return x\ndef f(file):\n    print('a')\n    return {'n': one(1)}\n"
    place.job(code, write="upsert")
    place.run()
    kept = Path(store.of(place.session.home.warehouse, place.session.jobs.get("j").id))
    if store.is_table:
        write_deltalake(str(kept), pa.table([["none"], ["v"], ["b"]], schema=SCHEMA), mode="append")
    assert kept.exists()
    assert act(place, store, kept, tmp_path)
