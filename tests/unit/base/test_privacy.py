"""Who may read what is written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from volstream.base import config
from volstream.base.model.work import CheckState
from volstream.base.privacy import keep_private, make_directory
from volstream.catalog import Catalog
from volstream.cli.main import run
from volstream.ops.inspection.doctor import home_check


@pytest.fixture(autouse=True)
def loose() -> Iterator[None]:
    """The umask of most systems."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_folders_are_private_to_the_user_and_existing_ones_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_directory(tmp_path / "home" / "run")
    make_directory(tmp_path / "home" / "run")
    assert [mode(path) for path in (tmp_path, tmp_path / "home", tmp_path / "home" / "run")] == [0o755, 0o700, 0o700]


def test_a_new_catalog_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    settings = config.load(tmp_path / "home")
    catalog = Catalog(settings.database_url)
    catalog.volumes.list()
    assert {mode(path) for path in settings.home.iterdir()} == {0o600}
    assert mode(settings.home) == 0o700
    catalog.close()


def test_a_home_that_others_can_enter_causes_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = home_check(tmp_path)
    assert (check.state, check.fix) == (CheckState.WARNING, f"Run: chmod 700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert home_check(tmp_path).state is CheckState.OK


@pytest.mark.parametrize(("warehouse", "umask"), [("", 0o077), ("s3://bucket/prefix", 0o077), ("/data/warehouse", 0o022)])
def test_tables_are_private_to_the_user_unless_their_folder_is_shared(tmp_path: Path, warehouse: str, umask: int) -> None:
    keep_private(config.load(tmp_path, warehouse=warehouse))
    found = os.umask(0)
    assert found == umask


def test_what_a_command_writes_is_private_whatever_the_shell_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(["init", "--home", str(home)]) == 0
    assert os.umask(0o022) == 0o077
    assert {mode(path) & 0o077 for path in (home, *home.rglob("*"))} == {0}
