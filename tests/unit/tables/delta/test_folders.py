"""Folders of the warehouse that are not tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.tables.delta import folders


def test_staged_rows_are_gone_at_the_end_also_after_an_error(tmp_path: Path) -> None:
    def write() -> None:
        with folders.staged(str(tmp_path), "upload") as location:
            Path(location).mkdir(parents=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert folders.inside(f"{tmp_path}/{folders.STAGING}") == []


def test_staged_rows_of_another_user_stay_and_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folders, "remove", refuse)
    with folders.staged(str(tmp_path), "merge") as location:
        Path(location).mkdir(parents=True)
    assert folders.inside(f"{tmp_path}/{folders.STAGING}") == [Path(location).name]
