"""``backup`` and ``restore`` of homes without an engine."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.commands import Shell
from volstream.catalog import Catalog
from volstream.catalog.tables import jobs


@pytest.fixture
def other(shell: Shell) -> Shell:
    return shell.beside("other")


def test_a_home_is_restored_as_it_was_at_the_backup(shell: Shell, other: Shell, tmp_path: Path) -> None:
    shell.ok("refresh", "v")
    shell.ok("create-stream", "s", "--volume", "v")
    backup = str(tmp_path / "backup")
    said = shell.ok("backup", backup)
    (shell.files / "c.txt").write_text("later")
    shell.ok("refresh", "v")

    restored = other.ok("restore", backup)

    assert "1 volume, 1 stream, 0 jobs, 2 tables" in said
    assert "1 volume" in restored
    for kind in ("volumes", "streams"):
        there = json.loads(other.ok("list", kind, "--format", "json"))
        assert [one["name"] for one in there] == [load["name"] for load in json.loads(shell.ok("list", kind, "--format", "json"))]
    assert json.loads(other.ok("refresh", "v", "--format", "json"))["inserted"] == 1
    status = json.loads(other.ok("status", "--format", "json"))
    assert [one["files"] for one in status["volumes"]] == [3]


def test_a_backup_is_made_at_and_restored_from_a_relative_path(
    shell: Shell, other: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell.ok("refresh", "v")
    shell.ok("backup", "b")
    assert "1 volume" in other.ok("restore", "b")


@pytest.mark.long
def test_a_backup_can_be_restored_repeatedly(shell: Shell, other: Shell, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    shell.ok("refresh", "v")
    shell.ok("backup", backup)
    other.ok("restore", backup)
    shutil.rmtree(other.home)
    other.ok("restore", backup)


def test_a_backup_into_a_non_empty_folder_is_refused(shell: Shell, tmp_path: Path) -> None:
    code, _, err = shell("backup", str(tmp_path))
    assert code == 3
    assert "is not empty" in err


def test_a_backup_into_the_warehouse_is_refused(shell: Shell) -> None:
    shell.ok("refresh", "v")
    code, _, err = shell("backup", str(shell.home / "warehouse" / "tables"))
    assert code == 3
    assert "warehouse" in err


def test_a_restore_over_a_non_empty_home_is_refused(shell: Shell, tmp_path: Path) -> None:
    shell.ok("refresh", "v")
    backup = str(tmp_path / "backup")
    shell.ok("backup", backup)
    code, _, err = shell("restore", backup)
    assert code == 3
    assert "in use" in err
    assert "--home" in err


def test_an_interrupted_backup_is_refused(shell: Shell, other: Shell, tmp_path: Path) -> None:
    shell.ok("refresh", "v")
    backup = tmp_path / "backup"
    shell.ok("backup", str(backup))
    (backup / "backup.json").unlink()
    code, _, err = other("restore", str(backup))
    assert code == 3
    assert "not a finished backup" in err


def test_a_failed_restore_leaves_nothing_in_the_way_of_the_next(shell: Shell, other: Shell, tmp_path: Path) -> None:
    shell.ok("refresh", "v")
    backup = tmp_path / "backup"
    shell.ok("backup", str(backup))
    catalog = (backup / "catalog.db").read_bytes()
    (backup / "catalog.db").write_bytes(catalog[: len(catalog) // 2])
    code, _, _ = other("restore", str(backup))
    assert code != 0
    (backup / "catalog.db").write_bytes(catalog)

    other.ok("restore", str(backup))

    assert json.loads(other.ok("refresh", "v", "--format", "json"))["inserted"] == 0


def test_a_restored_home_says_nothing_of_the_runs_of_the_other_and_warns_of_shared_outputs(
    shell: Shell, other: Shell, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "f.py").write_text("def f(file):\n    return {'n': 1}\n")
    shell.ok("create-volume", "out", str(tmp_path / "out"), "--queue-type", "none")
    shell.ok(
        *("create-job", "j", "--volume", "v", "--function", f"{tmp_path / 'f.py'}:f", "--into", "t"),
        *("--returns", "n INT, o FILE", "--outputs-to", "out"),
    )
    with closing(Catalog(f"sqlite:///{shell.home}/catalog.db")) as catalog, catalog.database.transaction() as rows:
        rows.execute(update(jobs).values(last_started=datetime.now(UTC)))
    shell.ok("backup", str(tmp_path / "backup"))
    assert "The job j writes its files to the volume out, as the home" in other.ok("restore", str(tmp_path / "backup"))
    [job] = json.loads(other.ok("status", "--format", "json"))["jobs"]
    assert (job["interrupted"], job["outcome"]) == (False, "running when the backup was made")
