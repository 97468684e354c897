"""Jobs whose packages clash run in one daemon, each in its own environment."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.homes import Home, patiently, write
from tests.environments import wheel

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

CODE = """
import clasher
def f(file):
    return {"text": f"{file.read_text()} by {clasher.VERSION}"}
"""


def filled(home: Home, number: str, wanted: list[tuple[str, str]]) -> bool:
    return home.pairs(f"by_{number}") == wanted


def test_two_jobs_with_clashing_packages_run_in_one_daemon(home: Home, files: Path) -> None:
    (home.folder / "job.py").write_text(CODE)
    write(files, {"a.txt": "a"})
    home.ok("create-volume", "v", str(files))
    creating = ("--volume", "v", "--function", "job.py:f", "--on-change")
    refused = home.run("create-job", "none", *creating, "--into", "none")
    assert refused.code == 3
    assert "give the function an environment of its own" in refused.stderr
    for number in "12":
        built = wheel(home.folder, f"{number}.0")
        (home.folder / f"{number}.txt").write_text(f"./{built.name}\n")
        home.ok("create-job", f"by_{number}", *creating, "--into", f"by_{number}", "--environment", f"{number}.txt")
    with home.daemon():
        write(files, {"b.txt": "b"})
        for number in "12":
            wanted = [(f"{name}.txt", f"{name} by {number}.0") for name in "ab"]
            patiently(partial(filled, home, number, wanted))
        environments = home.json("env", "list")
        assert sorted(made["jobs"] for made in environments) == [["by_1"], ["by_2"]]
        used = next(made["id"] for made in environments if made["jobs"] == ["by_1"])
        assert "is used by by_1" in home.run("env", "rm", used).stderr
        home.ok("env", "rm", used, "--force")
        write(files, {"c.txt": "c"})
        patiently(lambda: ("c.txt", "c by 1.0") in home.pairs("by_1"))
    home.ok("drop", "job", "by_2")
    assert len(home.json("env", "rm", "--unused")["removed"]) == 1
