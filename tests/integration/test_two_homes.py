"""Homes that share a warehouse: with one catalog they are hosts of one home, with two they would write each other's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.base.model.names import Name
from volstream.errors import InvalidStateError
from volstream.tables.delta.places import table_location


def _session(tmp_path: Path, home: str, catalog: str = "") -> Session:
    given = {"catalog_url": catalog} if catalog else {}
    return Session(config.load(tmp_path / home, warehouse=str(tmp_path / "warehouse"), **given))


def _make(session: Session, folder: Path, job: str) -> None:
    """Makes a volume and a job into a table."""
    folder = folder / "files"
    folder.mkdir(exist_ok=True)
    (folder / "f.py").write_text("def f(file):\n    return {'n': 1}\n")
    session.volumes.create(f"v_{job}", str(folder), queue_type=QueueType.NONE)
    session.jobs.create(job, f"{folder / 'f.py'}:f", f"t_{job}", returns="n INT", volume=f"v_{job}")


def test_a_warehouse_of_another_catalog_is_refused_until_it_is_given_up(tmp_path: Path) -> None:
    with _session(tmp_path, "a") as session:
        _make(session, tmp_path, "one")
    with _session(tmp_path, "b") as session:
        with pytest.raises(InvalidStateError, match=rf"belongs to the home {tmp_path / 'a'}") as refused:
            _make(session, tmp_path, "two")
        Path(refused.value.remedy.rpartition("rm ")[2]).unlink()
        session.jobs.create("three", f"{tmp_path / 'files/f.py'}:f", "t", returns="n INT", volume="v_two")
    with _session(tmp_path, "a") as session, pytest.raises(InvalidStateError, match=f"{tmp_path / 'b'}"):
        _make(session, tmp_path, "four")


def test_homes_with_one_catalog_share_a_warehouse(tmp_path: Path) -> None:
    with _session(tmp_path, "a") as session:
        _make(session, tmp_path, "one")
        catalog = session.home.settings.database_url
    with _session(tmp_path, "b", catalog) as session:
        _make(session, tmp_path, "two")
        assert [str(job.name) for job in session.jobs.list()] == ["one", "two"]


def test_a_table_elsewhere_is_found_by_the_catalog_and_not_by_a_file_of_the_warehouse(tmp_path: Path) -> None:
    elsewhere = Name.parse("t")
    with _session(tmp_path, "a") as session:
        warehouse = session.home.warehouse
        _make(session, tmp_path, "one")
        Path(warehouse, "_links.json").write_text('{"public.t": "/elsewhere", "t": "/elsewhere"}')
        assert table_location(warehouse, elsewhere) == f"{warehouse}/tables/public/t"
        session.home.catalog.links.put(elsewhere, "/chosen")
        session.home.catalog.links.put(elsewhere, "/chosen again")
        assert table_location(warehouse, elsewhere) == "/chosen again"
    with _session(tmp_path, "a") as session:
        assert table_location(session.home.warehouse, elsewhere) == "/chosen again"
        session.home.catalog.links.remove(elsewhere)
        assert table_location(session.home.warehouse, elsewhere) == f"{warehouse}/tables/public/t"
