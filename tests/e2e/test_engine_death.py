"""What a user sees when the engine dies: one line with the cause, one with the remedy, and exit code 4."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.e2e.homes import Home, finished, write
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(200)


@pytest.mark.long
def test_a_job_whose_engine_is_killed_names_the_signal(home: Home, name: str, files: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    write(files, {"one.txt": "1"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:slow", "--arg", f"started={started}", "--arg", "seconds=60")
    run = home.start("run-job", name)
    eventually(started.exists, timeout=100)
    psutil.Process(home.engine()["jvm_pid"]).kill()
    done = finished(run)
    assert done.code == 4
    assert done.stderr.splitlines() == [
        "Error: The Spark engine was lost: it was killed by signal 9 (SIGKILL).",
        "  Unless someone killed it, memory ran out: lower driver_memory. The next command restarts the engine.",
    ]
    [job] = home.json("status")["jobs"]
    assert job["outcome"] == "failed: The Spark engine was lost: it was killed by signal 9 (SIGKILL)."


@pytest.mark.long
def test_a_statement_that_needs_more_than_the_heap_says_so(home: Home) -> None:
    home.end_engine()
    rows = "SELECT size(collect_list(repeat(CAST(id AS STRING), 200000))) AS n FROM range(100000)"
    done = home.run("sql", rows, DRIVER_MEMORY="512MiB")
    assert done.code == 4, done
    first, second = done.stderr.splitlines()
    assert first == "Error: The Spark engine was lost: its heap was exhausted (setting driver_memory)."
    assert "driver_memory" in second
