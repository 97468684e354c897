"""Backups of busy homes, restored: the result has the row of each file exactly once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.homes import Home, write

pytestmark = pytest.mark.timeout(300)


@contextmanager
def _restored(home: Home, backup: Path, folder: Path) -> Iterator[Home]:
    """A home restored from a backup, with the same functions; its engine is stopped at the end."""
    folder.mkdir()
    made = Home(folder)
    shutil.copy(home.folder / "functions.py", folder)
    made.ok("restore", str(backup))
    try:
        yield made
    finally:
        made.end_engine()


@pytest.mark.long
def test_a_backup_taken_while_a_daemon_writes_restores_to_a_home_whose_table_follows_the_files(
    home: Home, files: Path, name: str, tmp_path: Path
) -> None:
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read", "--max-files", "20", "--on-change")
    enough = threading.Event()
    now: dict[str, str] = {}

    def churn() -> None:
        number = 0
        while not enough.wait(0.3):
            changed = {f"{number % 40}.txt": f"text {number}", f"new-{number}.txt": f"text {number}"}
            write(files, changed)
            now.update(changed)
            number += 1

    with home.daemon() as daemon:
        daemon.await_engine()
        writer = threading.Thread(target=churn)
        writer.start()
        try:
            for number in range(3):
                home.ok("backup", str(tmp_path / f"backup-{number}"))
        finally:
            enough.set()
            writer.join()
        daemon.follows(name, now)
    with _restored(home, tmp_path / "backup-2", tmp_path / "restored") as restored:
        restored.ok("refresh", name)
        restored.ok("run-job", name)
        assert restored.pairs(name) == sorted(now.items())


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["plan.written", "plan.opened", "batch.intent", "batch.staged", "batch.written", "batch.committed"]
)
def test_a_backup_of_a_killed_run_recovers_like_the_run_itself(
    home: Home, files: Path, name: str, tmp_path: Path, point: str
) -> None:
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read", "--write", "append", "--max-files", "2")
    written = {f"{number}.txt": f"text {number}" for number in range(5)}
    write(files, written)
    home.ok("refresh", name)
    home.crash("run-job", name, at=point)

    home.ok("backup", str(tmp_path / "backup"))

    home.ok("run-job", name)
    with _restored(home, tmp_path / "backup", tmp_path / "restored") as restored:
        restored.ok("run-job", name)
        for each in (home, restored):
            assert each.pairs(name) == sorted(written.items())
