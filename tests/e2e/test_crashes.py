"""SIGKILL at every critical point: the next run resumes, and every file version counts once.

All tests share one home, one volume and two jobs, as real homes do; each adds, replaces and deletes files, crashes, and
compares the tables with what it wrote. ``every`` appends, so that a batch that lands twice shows; ``latest`` upserts.
"""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import psutil
import pytest

from tests.e2e.homes import Home, finished, is_stopped, write
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)


class World:
    """The shared volume, and the expected rows of its jobs' tables."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.folder = home.folder / "files"
        self.now: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        self._ever: list[tuple[str, str]] = []
        self.folder.mkdir()
        write(self.folder, {"first.txt": "first"})
        home.ok("create-volume", "files", "files", "--pattern", "*.txt")
        self.create("every", "append")
        self.now["first.txt"] = "first"
        self.check("every")

    def create(self, job: str, write: str) -> None:
        """Creates a job, and runs it."""
        options = ("--volume", "files", "--function", "functions.py:read", "--into", job, "--write", write)
        # Two files a batch: some points lie between two batches.
        self.home.ok("create-job", job, *options, "--max-files", "2")
        self.home.ok("refresh", "files")
        self.home.ok("run-job", job)

    def change(self) -> None:
        """Adds two files, replaces one and deletes one."""
        mark = uuid.uuid4().hex
        *_, last = self.now
        (self.folder / last).unlink()
        del self.now[last]
        written = {f"a{mark[:6]}.txt": mark, f"b{mark[:6]}.txt": mark}
        if self.now:
            written[next(iter(self.now))] = mark
        write(self.folder, written)
        self.now |= written

    def check(self, job: str) -> None:
        """Checks the table after a complete run."""
        if job == "latest":
            assert self.home.pairs(job) == sorted(self.now.items())
            return
        # The net changes since the last check: a file that came and went in between is in no batch.
        if self._seen != self.now:
            self._ever += self.now.items() - self._seen.items()
            self._seen = dict(self.now)
        assert self.home.pairs(job) == sorted(self._ever)
        counted = self.home.json("describe", "job", job)["counted"]
        assert counted == {"files": len(self._ever)}, "each call that was committed counts once, wherever a run ended"


@pytest.fixture(scope="module")
def world(home: Home) -> World:
    return World(home)


@pytest.fixture(scope="module")
def latest(world: World) -> World:
    """The world, with the job ``latest``."""
    world.create("latest", "upsert")
    return world


@pytest.mark.long
@pytest.mark.parametrize("point", ["refresh.committed", "refresh.intent"])
def test_the_next_refresh_finishes_one_that_was_killed(world: World, point: str) -> None:
    world.change()
    world.home.crash("refresh", "files", at=point)

    world.home.ok("refresh", "files")

    listed = world.home.rows("SELECT relative_path FROM DIRECTORY(VOLUME files)")
    assert sorted(row["relative_path"] for row in listed) == sorted(world.now)


_POINTS = ("plan.written", "plan.opened", "batch.intent", "batch.staged", "batch.written", "batch.committed")


@pytest.mark.parametrize(
    "points",
    [("plan.opened", "batch.intent", "batch.written"), pytest.param(_POINTS, marks=pytest.mark.long)],
    ids=["some points", "all points"],
)
def test_a_run_killed_at_any_point_is_finished_by_the_next_without_duplicate_rows(world: World, points: tuple[str, ...]) -> None:
    world.change()
    world.home.ok("refresh", "files")
    # Each run gets a little farther than the one before; what one left open the next one settles first.
    for point in points:
        world.home.crash("run-job", "every", at=point)

    world.home.ok("run-job", "every")

    world.check("every")


@pytest.mark.long
def test_a_committed_batch_is_not_repeated_because_the_ledger_is_damaged(home: Home, name: str, files: Path) -> None:
    write(files, {"a.txt": "a", "none.txt": ""})
    home.ok("create-volume", name, str(files))
    before = {*(home.path / "warehouse" / "_ledgers").glob("*")}
    code = "def read(file):\n    return {'text': file.read_text()} if file.size else None\n"
    (home.folder / f"{name}.py").write_text(code)
    home.create_job(name, f"{name}.py:read", "--write", "append", "--returns", "text STRING")
    home.ok("run-job", name)
    [ledger] = {*(home.path / "warehouse" / "_ledgers").glob("*")} - before
    write(files, {"b.txt": "b"})
    home.ok("refresh", name)
    home.crash("run-job", name, at="batch.written")
    for entry in (ledger / "_delta_log").glob("*.json"):
        entry.write_text("?")

    home.ok("heal", name)

    home.ok("run-job", name)
    assert home.pairs(name) == [("a.txt", "a"), ("b.txt", "b")]


@pytest.mark.long
def test_the_next_run_finishes_a_recovery_that_was_killed(latest: World) -> None:
    latest.change()
    latest.home.ok("refresh", "files")
    # Nothing of the first batch is in the table, and then all of it.
    for point in ("batch.staged", "recover.fence", "recover.fenced", "batch.written", "recover.fenced"):
        latest.home.crash("run-job", "latest", at=point)

    report = latest.home.json("run-job", "latest")

    assert report["recovered"]
    latest.check("latest")


@pytest.mark.long
def test_a_run_killed_right_after_its_plan_was_recut_resumes_with_the_new_batches(world: World, name: str, files: Path) -> None:
    home = world.home
    written = {f"{number}.txt": f"text {number}" for number in range(9)}
    write(files, written)
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read", "--write", "append", "--max-files", "2")
    world.home.crash("run-job", name, at="batch.committed")
    home.ok("alter-job", name, "--max-files", "100")
    world.home.crash("run-job", name, at="plan.recut", BATCH_SECONDS="1h")

    report = home.json("run-job", name, BATCH_SECONDS="1h")

    assert report["batches"] == 1
    assert home.pairs(name) == sorted(written.items())
    batches = sorted(home.json("list", "batches", "--job", name), key=lambda one: one["number"])
    assert [(batch["after_path"], batch["until_path"]) for batch in batches] == [(None, "1.txt"), ("1.txt", "8.txt")]


@pytest.mark.long
def test_a_column_that_a_file_brings_is_added_and_loaded_once_wherever_the_run_is_killed(
    world: World, name: str, files: Path
) -> None:
    home = world.home
    write(files, {"a.csv": "id\n1\n", "c.csv": "id\n3\n"})
    home.ok("create-volume", name, str(files))
    home.ok("load", name, "--into", name, "--name", name)
    home.ok("run-job", name)
    write(files, {"a.csv": "id,more\n1,5\n", "b.csv": "id,more\n2,1.5\n"})
    (files / "c.csv").unlink()
    home.ok("refresh", name)
    # The catalog has the column and the table has not; both have it; the rows are in the table.
    for point in ("columns.adopted", "batch.staged", "batch.written"):
        home.crash("run-job", name, at=point)

    home.ok("run-job", name)

    rows = home.rows(f"SELECT id, more, _rescued_data FROM {name}")
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 1, "more": 5.0, "_rescued_data": None},
        {"id": 2, "more": 1.5, "_rescued_data": None},
    ]


@pytest.mark.long
def test_rows_follow_a_moved_file_exactly_once_wherever_the_run_is_killed(world: World, name: str, files: Path) -> None:
    home = world.home
    write(files, {"a.txt": "one", "b.txt": "two", "c.txt": "three"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read", "--on-move", "rekey", "--max-files", "1")
    home.ok("run-job", name)
    (files / "a.txt").rename(files / "z.txt")
    (files / "c.txt").rename(files / "0.txt")
    home.ok("refresh", name)
    for point in ("batch.staged", "batch.written", "batch.staged", "batch.committed"):
        world.home.crash("run-job", name, at=point)

    home.ok("run-job", name)

    assert home.pairs(name) == [("0.txt", "three"), ("b.txt", "two"), ("z.txt", "one")]


@pytest.mark.long
@pytest.mark.parametrize("point", ["batch.staged", "batch.written"])
def test_a_runner_that_wakes_after_a_takeover_is_fenced_and_the_table_stays_correct(world: World, point: str) -> None:
    world.change()
    world.home.ok("refresh", "files")
    zombie = world.home.start("run-job", "every", FAULT=f"{point}:stop", LEASE_SECONDS="1s")
    try:
        eventually(lambda: is_stopped(zombie.pid), timeout=60)

        # Until the lease is over the job is busy.
        eventually(lambda: world.home.run("run-job", "every", LEASE_SECONDS="1s").code == 0, timeout=60)
        world.check("every")
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
    done = finished(zombie)

    assert done.code == 4, done
    assert "another process" in done.stderr
    world.check("every")


@pytest.mark.long
def test_a_jvm_that_dies_mid_batch_ends_the_run_and_the_next_run_processes_everything_once(
    world: World, tmp_path: Path, name: str, files: Path
) -> None:
    home, started = world.home, tmp_path / "started"
    written = {f"{number}.txt": f"text {number}" for number in range(8)}
    write(files, written)
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:slow", "--write", "append", "--arg", f"started={started}", "--arg", "seconds=0.5")
    running = home.start("run-job", name)
    eventually(started.exists, timeout=90)
    psutil.Process(home.engine()["jvm_pid"]).kill()

    done = finished(running)

    assert done.code == 4, done
    assert "engine" in done.stderr
    assert "Traceback" not in done.stderr
    home.ok("run-job", name)
    assert home.pairs(name) == sorted(written.items())
