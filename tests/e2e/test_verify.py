"""``verify`` and ``heal`` by hand, after what only a person can do to a table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.homes import Home, write

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

CODE = "def f(file):\n    return {'text': file.read_text()}\n"


def test_a_table_whose_log_was_cut_is_found_wrong_and_put_right(home: Home, files: Path) -> None:
    (home.folder / "job.py").write_text(CODE)
    write(files, {f"{name}.txt": name for name in "abc"})
    home.ok("create-volume", "v", str(files))
    home.ok("create-job", "j", "--volume", "v", "--function", "job.py:f", "--into", "t", "--returns", "text STRING")
    home.ok("run-job", "j")
    write(files, {"a.txt": "again", "d.txt": "d"})
    home.ok("refresh", "v")
    home.ok("run-job", "j")
    assert "no differences" in home.ok("verify", "j")
    home.ok("engine", "stop")
    log = sorted((home.folder / "home").rglob("tables/public/t/_delta_log/*.json"))
    log[-1].unlink()
    found = home.run("verify", "j")
    assert found.code == 5
    assert "4 files compared with a table of 3 rows: 1 missing, 1 outdated." in found.stdout
    assert "outdated  a.txt" in found.stdout
    assert "volstream verify j --fix" in found.stderr
    assert "Its table does not match the files" in home.run("status").stdout
    assert "Repaired: 2 of 2." in home.ok("verify", "j", "--fix")
    assert home.pairs("t") == [("a.txt", "again"), ("b.txt", "b"), ("c.txt", "c"), ("d.txt", "d")]
    assert "no differences" in home.ok("verify", "j")


@pytest.fixture
def empty_home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.ok("init")
    yield home
    home.end_engine()


@pytest.mark.timeout(600)
def test_all_are_verified_whatever_is_wrong_with_some(empty_home: Home, files: Path) -> None:
    home = empty_home
    assert "nothing to verify" in home.ok("verify", "--all")
    (home.folder / "job.py").write_text(CODE)
    other = home.folder / "other"
    write(files, {"a.txt": "a"})
    write(other, {"b.txt": "b"})
    home.ok("create-volume", "v", str(files))
    home.ok("create-volume", "w", str(other))
    for job, volume in {"j": "v", "k": "w"}.items():
        options = ("--function", "job.py:f", "--into", f"of_{job}", "--returns", "text STRING")
        home.ok("create-job", job, "--volume", volume, *options)
        home.ok("run-job", job)
    said = home.ok("verify", "--all")
    assert "volume w: 1 file (1 B) compared with the directory: no differences." in said
    assert said.count("no differences") == 4

    shutil.rmtree(other)
    found = home.run("verify", "--all")
    assert found.code == 4
    assert found.stdout.count("no differences") == 3
    assert "Not verified: volume w." in found.stderr

    write(files, {"a.txt": "again"})
    home.ok("refresh", "v")
    home.ok("run-job", "j")
    home.ok("engine", "stop")
    sorted((home.folder / "home").rglob("tables/public/of_j/_delta_log/*.json"))[-1].unlink()
    found = home.run("verify", "--all", "--format", "json")
    assert found.code == 5
    assert "Wrong: job j. Not verified: volume w." in found.stderr
    report = json.loads(found.stdout)
    volumes, jobs = ({one[kind]: one for one in report[f"{kind}s"]} for kind in ("volume", "job"))
    assert (volumes["v"]["wrong"], volumes["w"]["error"]["type"]) == ({}, "StorageError")
    assert {job: one["wrong"] for job, one in jobs.items()} == {"j": {"outdated": 1}, "k": {}}

    found = home.run("verify", "--all", "--fix")
    assert found.code == 4
    assert "Repaired: 1 of 1." in found.stdout
    assert home.pairs("of_j") == [("a.txt", "again")]
