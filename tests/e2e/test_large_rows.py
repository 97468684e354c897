"""Functions that return large rows: a row that is too large fails only its file, and many large rows need no more memory than few."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.homes import Home, write

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

_FUNCTION = """
import os

def text(file, size):
    return {"s": "x" * int(size)}

def binary(file, size):
    return {"s": os.urandom(int(size))}
"""


def job(home: Home, name: str, files: Path, function: str, size: int, count: int, *options: str, **settings: str) -> None:
    """A job on a number of files, each of which gives a row of a given size."""
    (home.folder / "large.py").write_text(_FUNCTION)
    write(files, {f"{number:03}.txt": str(number) for number in range(count)})
    home.ok("create-volume", name, str(files), **settings)
    kind = "STRING" if function == "text" else "BINARY"
    home.create_job(name, f"large.py:{function}", "--returns", f"s {kind}", "--arg", f"size={size}", *options, **settings)


@pytest.mark.parametrize(("heap", "size", "count"), [("512MiB", 24 << 20, 14), ("2GiB", 60 << 20, 20)])
def test_a_batch_larger_than_the_heap_lands_whichever_side_commits_it(
    home: Home, name: str, files: Path, heap: str, size: int, count: int
) -> None:
    home.end_engine()
    home.seconds = 400.0  # there is more than a gigabyte to write
    job(home, name, files, "binary", size, count, DRIVER_MEMORY=heap)
    given = {"DRIVER_MEMORY": heap}
    home.ok("run-job", name, **given)
    # Of a table whose changes are tracked, Spark makes the commits.
    home.ok("sql", f"ALTER TABLE {name} SET PROPERTIES ('change_tracking' = 'true')", **given)
    write(files, {f"{number:03}.txt": f"again {number}" for number in range(0, count, 2)})
    home.ok("refresh", name, **given)
    done = home.run("run-job", name, **given)
    assert (done.code, f"{count // 2} files processed, 0 failed" in done.stdout) == (0, True), done
    query = f"SELECT count(*) AS n, count(DISTINCT _file_path) AS files FROM {name}"
    assert home.json("sql", query, **given) == [{"n": count, "files": count}]
    home.end_engine()


def test_files_with_far_too_large_results_fail_with_their_size_and_the_job_continues(home: Home, name: str, files: Path) -> None:
    home.end_engine()
    given = {"DRIVER_MEMORY": "2GiB"}
    job(home, name, files, "text", 100 << 20, 5, **given)
    done = home.run("run-job", name, **given)
    assert (done.code, "0 files processed, 5 failed" in done.stdout) == (5, True), done
    failures = home.json("list", "failures", "--job", name)
    assert {(failure["kind"], failure["state"]) for failure in failures} == {("too-large", "quarantined")}
    assert all("Row 0 has 100.0 MiB of values, but a row may have at most 64.0 MiB" in failure["message"] for failure in failures)
    home.ok("alter-job", name, "--returns", "s STRING", "--arg", "size=5", **given)
    assert "5 files processed, 0 failed" in home.ok("run-job", name, **given)
    home.ok("drop", "job", name)
    home.end_engine()
