"""A directory compared with its volume."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.commands import Shell
from volstream.api.session import Session
from volstream.changes.directory.snapshot import Snapshot


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLSTREAM_SETTLE_SECONDS", "0.05")


def test_what_the_directory_has_wrong_is_named_and_a_refresh_puts_it_right(shell: Shell) -> None:
    code, _, err = shell("verify", "--volume", "v")
    assert (code, "was never listed" in err, "volstream refresh v" in err) == (3, True, True)
    for name in ("c.txt", "d.txt"):
        shell.files.joinpath(name).write_text(name)
    old = time.time() - 3600
    for path in shell.files.iterdir():
        os.utime(path, (old, old))
    shell.ok("refresh", "v")
    assert shell.ok("verify", "--volume", "v") == "4 files (20 B) compared with the directory: no differences.\n"
    shell.files.joinpath("a.txt").unlink()
    shell.files.joinpath("b.txt").write_text("longer")
    os.utime(shell.files / "b.txt", (old + 60, old + 60))
    shell.files.joinpath("new.txt").touch()
    code, out, err = shell("verify", "--volume", "v")
    assert (code, "differs from the store in 3 files" in err) == (5, True)
    assert out == (
        "4 files (16 B) compared with the directory: 1 changed, 1 gone, 1 missing.\n"
        "  gone      a.txt\n  changed   b.txt\n  missing   new.txt\n"
        "Late events: 1 (files so recent that their events may still arrive).\n"
    )
    code, out, _ = shell("verify", "--volume", "v", "--format", "json")
    assert json.loads(out)["wrong"] == {"changed": 1, "gone": 1, "missing": 1}
    assert not list(Path(shell.home, "warehouse", "_staging").glob("*"))
    shell.ok("refresh", "v")
    assert "no differences" in shell.ok("verify", "--volume", "v")


def test_what_is_refreshed_during_the_listing_is_no_difference(shell: Shell) -> None:
    shell.ok("refresh", "v")
    with Session.builder.config("home", shell.home).create() as session:
        opened = Snapshot.open

        def after_a_refresh(root: str, volume_id: str) -> Snapshot | None:
            shell.files.joinpath("a.txt").write_text("changed since")
            shell.files.joinpath("b.txt").unlink()
            shell.files.joinpath("c.txt").write_text("new")
            session.volumes.refresh("v")
            return opened(root, volume_id)

        with patch("volstream.changes.directory.reconcile.Snapshot.open", after_a_refresh):
            assert session.volumes.verify("v").wrong == {}


@pytest.mark.parametrize("arguments", [[], ["j", "--volume", "v"], ["--volume", "v", "--fix"], ["--volume", "v", "--outputs"]])
def test_a_job_or_a_volume_is_named(shell: Shell, arguments: list[str]) -> None:
    code, _, err = shell("verify", *arguments)
    assert (code, "Usage:" in err) == (2, True)
