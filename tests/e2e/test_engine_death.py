"""What a user sees when the engine dies: one line with the cause, one with the remedy, and exit code 4."""

from __future__ import annotations

import shutil
import time
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
        "  Unless someone killed it, memory ran out: lower driver_memory. The daemon, or the next command, restarts the engine.",
    ]
    [job] = home.json("status")["jobs"]
    assert job["outcome"] == "failed: The Spark engine was lost: it was killed by signal 9 (SIGKILL)."


@pytest.mark.long
def test_a_job_runs_after_spark_has_removed_the_folder_of_its_workers(home: Home, name: str, files: Path) -> None:
    """Spark does so to a session that was at rest for half an hour, while what its workers are forked from goes on."""
    write(files, {"one.txt": "1"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read")
    home.ok("run-job", name)
    folders = [*(home.path / "scratch").glob("spark-*/userFiles-*/*")]
    assert folders
    for folder in folders:
        shutil.rmtree(folder)
    write(files, {"two.txt": "2"})
    home.ok("refresh", name)
    home.ok("run-job", name)
    assert home.pairs(name) == [("one.txt", "1"), ("two.txt", "2")]


@pytest.mark.long
def test_commands_in_flight_continue_when_a_daemon_takes_the_engine(home: Home, name: str, files: Path, tmp_path: Path) -> None:
    home.end_engine()
    started = tmp_path / "started"
    write(files, {"one.txt": "1"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:slow", "--arg", f"started={started}", "--arg", "seconds=8")
    job = home.start("run-job", name, SHUTDOWN_SECONDS="0.1s")
    eventually(started.exists, timeout=100)
    slow = "SELECT count(*) AS n, max(sha2(repeat(CAST(id AS STRING), 500), 512)) AS m FROM range(600000)"
    query = home.start("sql", slow, "--format", "json")
    insert = home.start("sql", f"CREATE TABLE {name}_copy AS {slow}")
    time.sleep(2.0)  # nothing tells that Spark runs a statement
    with home.daemon():
        assert finished(job).code == 0
        assert finished(query).json[0]["n"] == 600000
        told = finished(insert)
    assert (told.code, told.stderr.splitlines()) == (
        4,
        [
            "Error: The Spark engine was lost: it was asked to end, by a daemon that started or by `volstream engine stop`.",
            "  Run the command again; first check whether it changed anything.",
        ],
    )
    [made] = [one for one in home.json("status")["jobs"] if one["job"].endswith(name)]
    assert made["outcome"].startswith("1 file")


@pytest.mark.long
def test_a_statement_that_needs_more_than_the_heap_says_so(home: Home) -> None:
    home.end_engine()
    rows = "SELECT size(collect_list(repeat(CAST(id AS STRING), 200000))) AS n FROM range(100000)"
    done = home.run("sql", rows, DRIVER_MEMORY="512MiB")
    assert done.code == 4, done
    first, second = done.stderr.splitlines()
    assert first == "Error: The Spark engine was lost: its heap was exhausted (setting driver_memory)."
    assert "driver_memory" in second
