"""Folders of the warehouse that are not tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.errors import InvalidStateError
from volstream.tables.delta import places
from volstream.tables.delta.warehouse import warehouse_links


def test_staged_rows_are_gone_at_the_end_also_after_an_error(tmp_path: Path) -> None:
    def write() -> None:
        with places.staged(str(tmp_path), "upload") as location:
            Path(location).mkdir(parents=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert places.inside(f"{tmp_path}/{places.STAGING}") == []


def test_staged_rows_of_another_user_stay_and_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str, *, within: str | None) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(places, "remove", refuse)
    with places.staged(str(tmp_path), "merge") as location:
        Path(location).mkdir(parents=True)
    assert places.inside(f"{tmp_path}/{places.STAGING}") == [Path(location).name]


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    """A file in a folder that somebody else's links lead to."""
    letter = tmp_path / "home" / "documents" / "letter.txt"
    letter.parent.mkdir(parents=True)
    letter.touch()
    return letter


@pytest.mark.parametrize("kind", ["_staging", "tables/public", "tables"])
def test_a_folder_of_a_warehouse_is_not_removed_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: Path, kind: str
) -> None:
    warehouse = str(tmp_path / "warehouse")
    monkeypatch.setitem(warehouse_links, warehouse, dict)
    link = Path(warehouse, kind)
    link.parent.mkdir(parents=True)
    link.symlink_to(letter.parent.parent)
    location = f"{warehouse}/{kind}/documents"
    with pytest.raises(InvalidStateError, match="documents is not removed: a symbolic link or a file leads to it"):
        places.remove(location)
    places.discard(location)
    warehouse_links.pop(warehouse)
    places.discard(location, within=warehouse)
    assert letter.exists()


def test_links_to_the_warehouse_and_to_a_table_are_the_users_own(tmp_path: Path) -> None:
    table, warehouse = tmp_path / "disk" / "t", tmp_path / "warehouse"
    (table / "_delta_log").mkdir(parents=True)
    (tmp_path / "disk" / "_staging" / "old").mkdir(parents=True)
    warehouse.symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to(table)
    places.remove(f"{warehouse}/_staging/old", within=str(warehouse))
    places.remove(f"{tmp_path}/link/_delta_log", within=f"{tmp_path}/link")
    assert {path.name for path in (tmp_path / "disk").rglob("*")} == {"t", "_staging"}
    places.remove(f"{tmp_path}/link")
    assert table.is_dir()


def test_removing_a_folder_removes_links_in_it_and_not_what_they_lead_to(tmp_path: Path, letter: Path) -> None:
    (tmp_path / "_staging" / "old").mkdir(parents=True)
    (tmp_path / "_staging" / "old" / "link").symlink_to(letter.parent)
    places.remove(f"{tmp_path}/_staging/old", within=str(tmp_path))
    assert letter.exists()
    assert not (tmp_path / "_staging" / "old").exists()
