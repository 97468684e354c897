"""Locations that cannot have tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream.delta import folders
from volstream.delta.places import filesystem_of, make_folder
from volstream.errors import DependencyError, InvalidValueError


@pytest.mark.parametrize("location", ["foo://bucket/prefix", "file://host/folder", "http://host/folder", "no/path"])
def test_what_is_no_place_for_tables_is_refused_in_a_sentence(location: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a place for tables"):
        filesystem_of(location)


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DependencyError, match=r"cannot be created: .* Correct the setting `warehouse`"):
        make_folder(str(tmp_path / "file" / "warehouse"))


def test_a_file_below_a_file_does_not_exist() -> None:
    assert folders.content("/dev/null/warehouse/links.json") == b""
