"""``verify`` and ``heal`` by hand, after what only a person can do to a table."""

from __future__ import annotations

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
    assert "all is right" in home.ok("verify", "j")
    home.ok("engine", "stop")
    log = sorted((home.folder / "home").rglob("tables/public/t/_delta_log/*.json"))
    log[-1].unlink()
    found = home.run("verify", "j")
    assert found.code == 5
    assert "4 files compared with a table of 3 rows: 1 missing, 1 outdated." in found.stdout
    assert "outdated  a.txt" in found.stdout
    assert "volstream verify j --fix" in found.stderr
    assert "Its table is not as the files say" in home.run("status").stdout
    assert "Put right: 2 of 2." in home.ok("verify", "j", "--fix")
    assert home.pairs("t") == [("a.txt", "again"), ("b.txt", "b"), ("c.txt", "c"), ("d.txt", "d")]
    assert "all is right" in home.ok("verify", "j")
