"""SIGKILL while files are made: no committed row ever names a file with other content, and no other file stays."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from tests.e2e.homes import Home, finished, is_stopped, write
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)

_FUNCTION = """
from dataclasses import dataclass

import volstream


@dataclass
class Made:
    text: str
    made: volstream.OutputFile


def make(file) -> Made:
    text = file.read_text()
    path, _, _ = text.partition(" ")
    return Made(text, volstream.OutputFile(path, data=text.encode()))
"""


class World:
    """A volume of texts, each of which says where its copy goes, and the volume with the copies."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home = home
        self.name = f"n{uuid.uuid4().hex[:8]}"
        self.texts, self.copies = folder / "texts", folder / "copies"
        (home.folder / "making.py").write_text(_FUNCTION, encoding="utf-8")
        for place, volume in ((self.texts, self.name), (self.copies, f"{self.name}_out")):
            place.mkdir()
            home.ok("create-volume", volume, str(place))
        home.create_job(self.name, "making.py:make", "--outputs-to", f"{self.name}_out", "--outputs-prefix", "made")

    def change(self, number: int) -> None:
        """Replaces what a file's copy has, gives one another path, exchanges the paths of two, removes one, adds one."""
        for name in ("removed", *self._at(f"added{number - 1}")):
            (self.texts / name).unlink(missing_ok=True)
        one, other = ("x", "y") if number % 2 else ("y", "x")
        texts = {"same": f"same {number}", "moving": f"moving-{number} text", "one": f"{one} {number} 1"}
        write(self.texts, {**texts, "other": f"{other} {number} 2", f"added{number}": f"added-{number} new"})
        self.home.ok("refresh", self.name)

    def _at(self, name: str) -> list[str]:
        return [name] if (self.texts / name).exists() else []

    @property
    def found(self) -> dict[str, str]:
        return {str(path.relative_to(self.copies)): path.read_text() for path in self.copies.rglob("*") if path.is_file()}

    def named(self) -> dict[str, str]:
        rows = self.home.rows(f"SELECT text, made.relative_path AS path FROM {self.name}")
        return {row["path"]: row["text"] for row in rows}

    def check(self) -> None:
        """Checks, after a complete run, that there is what rows name, and nothing else."""
        assert self.found == self.named()
        assert sorted(self.named().values()) == sorted(path.read_text() for path in self.texts.iterdir())


@pytest.fixture
def world(home: Home, tmp_path: Path) -> World:
    world = World(home, tmp_path)
    write(world.texts, {"removed": "removed text"})
    world.change(0)
    home.ok("run-job", world.name)
    world.check()
    return world


#: Where nothing is committed yet: each run gets a little farther than the one before.
_BEFORE = ("batch.intent", "outputs.written", "outputs.noted", "outputs.placed", "batch.staged")


@pytest.mark.long
def test_outputs_are_those_that_rows_name_wherever_the_run_is_killed(world: World) -> None:
    before = world.named()
    world.change(1)
    for point in _BEFORE:
        world.home.crash("run-job", world.name, at=point)
        there = world.found
        assert {path: there.get(path) for path in before} == before, point
    # The rows are committed: the runs finish what they ask for.
    for point in ("batch.written", "outputs.moved", "outputs.removed"):
        world.home.crash("run-job", world.name, at=point)
        named = world.named()
        assert named.keys() <= world.found.keys()
        # A replaced file has its former content, complete, or the new one.
        assert all(world.found[path] in (text, before.get(path)) for path, text in named.items()), point

    world.home.ok("run-job", world.name)

    world.check()


@pytest.mark.long
def test_outputs_of_a_run_that_was_killed_after_its_commit_are_finished_by_the_next(world: World) -> None:
    world.change(1)
    world.home.crash("run-job", world.name, at="batch.committed")
    world.home.ok("run-job", world.name)
    world.check()


@pytest.mark.long
def test_outputs_of_a_file_that_goes_before_its_batch_is_repeated_do_not_stay(world: World) -> None:
    world.change(1)
    world.home.crash("run-job", world.name, at="outputs.placed")
    assert "made/added-1" in world.found
    (world.texts / "added1").unlink()
    world.home.ok("refresh", world.name)
    world.home.ok("run-job", world.name)
    world.check()


@pytest.mark.long
@pytest.mark.parametrize("point", ["outputs.written", "outputs.noted", "outputs.placed", "outputs.moved"])
def test_a_runner_that_wakes_after_a_takeover_changes_no_output(world: World, point: str) -> None:
    world.change(1)
    zombie = world.home.start("run-job", world.name, FAULT=f"{point}:stop", LEASE_SECONDS="1s")
    try:
        eventually(lambda: is_stopped(zombie.pid), timeout=60)
        eventually(lambda: world.home.run("run-job", world.name, LEASE_SECONDS="1s").code == 0, timeout=60)
        world.check()
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
    finished(zombie)

    world.home.ok("run-job", world.name)
    world.check()


@pytest.mark.long
@pytest.mark.parametrize("after_load", ["archive:.done", "delete"])
def test_files_leave_their_volume_with_their_commit_wherever_the_run_is_killed(
    home: Home, tmp_path: Path, after_load: str
) -> None:
    name, folder = f"n{uuid.uuid4().hex[:8]}", tmp_path / "landing"
    folder.mkdir()
    home.ok("create-volume", name, str(folder))
    home.ok("load", name, "--into", name, "--schema", "n INT", "--write", "append", "--after-load", after_load)
    points = (
        "outputs.noted",
        "batch.staged",
        "batch.written",
        "batch.committed",
        "outputs.moved",
        "outputs.aside",
        "outputs.removed",
    )
    for number, point in enumerate(points):
        # Under the same paths again.
        write(folder, {f"{at}.csv": f"n\n{10 * number + at}\n" for at in range(3)})
        home.ok("refresh", name)
        home.crash("run-job", f"load_{name}", at=point)
        committed = point not in ("outputs.noted", "batch.staged")
        assert committed or len([*folder.glob("*.csv")]) == 3, point
        home.ok("run-job", f"load_{name}")
        home.ok("refresh", name)
        home.ok("run-job", f"load_{name}")
        numbers = sorted(10 * before + at for before in range(number + 1) for at in range(3))
        assert sorted(row["n"] for row in home.rows(f"SELECT n FROM {name}")) == numbers, point
        assert [*folder.glob("*.csv")] == [], point
    archived = sorted(int(path.read_text().split()[1]) for path in folder.rglob("*.csv"))
    assert archived == (numbers if after_load != "delete" else [])


@pytest.mark.long
def test_files_that_were_loaded_leave_although_their_job_is_replaced_after_a_kill(home: Home, tmp_path: Path) -> None:
    name, files = f"replaced_{tmp_path.name.lower()}"[:40], tmp_path / "files"
    files.mkdir()
    write(files, {"a.csv": "n\n1\n"})
    home.ok("create-volume", name, str(files))
    options = ("load", name, "--into", name, "--schema", "n INT", "--write", "append", "--after-load", "delete")
    home.ok(*options)
    home.crash("run-job", f"load_{name}", at="batch.written")
    home.ok(*options, "--or-replace")
    home.ok("run-job", f"load_{name}")
    assert [row["n"] for row in home.rows(f"SELECT n FROM {name}")] == [1]
    assert list(files.iterdir()) == []
