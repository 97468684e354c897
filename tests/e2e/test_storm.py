"""Storms of random kills (``tests.storm``) leave a home consistent, and a storm detects a home that is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.e2e.homes import Home
from tests.storm import truth
from tests.storm.files import ARCHIVE, Folder, Landing
from tests.storm.storm import Plan, Storm
from tests.storm.truth import RowRequirements

#: Each alone takes up to half an hour on two busy cores.
_LONG = [pytest.mark.long, pytest.mark.timeout(5400)]


def weathers(folder: Path, plan: Plan) -> None:
    report = Storm(plan, folder, print).run()
    print(f"{plan}: {report}")  # noqa: T201  # the figures are what one wants to see of it
    assert report.kills >= plan.kills


@pytest.mark.timeout(300)
def test_everything_is_consistent_after_a_short_storm(tmp_path: Path) -> None:
    weathers(tmp_path, Plan(seed=5, kills=5, files=20, jobs=1, longest_pause=0.3, lull=4.0))


@pytest.mark.parametrize(
    ("seed", "catalog"),
    [
        pytest.param(seed, catalog, marks=_LONG)
        for seed, catalog in [(1, "sqlite"), (2, "sqlite"), (3, "sqlite"), (1, "postgres")]
    ],
)
def test_everything_is_consistent_after_a_thousand_kills(tmp_path: Path, seed: int, catalog: str) -> None:
    weathers(tmp_path, Plan(seed=seed, kills=1000, catalog=catalog))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["s3", "oss"])
def test_everything_is_consistent_after_kills_where_files_are_in_a_bucket(tmp_path: Path, store: str) -> None:
    weathers(tmp_path, Plan(seed=1, kills=150, store=store))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_everything_is_consistent_after_power_cuts_that_lose_what_was_not_synced(tmp_path: Path) -> None:
    weathers(tmp_path, Plan(seed=1, kills=150, often="power"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_everything_is_consistent_after_kills_of_a_daemon_with_a_hundred_volumes(tmp_path: Path) -> None:
    weathers(tmp_path, Plan(seed=1, kills=150, many=100))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_files_that_are_archived_or_deleted_after_they_were_loaded_are_neither_lost_nor_loaded_twice(tmp_path: Path) -> None:
    weathers(tmp_path, Plan(seed=1, kills=300, jobs=1, landing=True))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_outputs_are_exactly_those_that_rows_name_and_sets_are_whole_after_kills(tmp_path: Path) -> None:
    weathers(tmp_path, Plan(seed=1, kills=300, jobs=1, outputs=True, sets=True))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_2200_files_converge_after_a_storm(tmp_path: Path) -> None:
    weathers(tmp_path, Plan(seed=1, kills=12, files=2200, batch=50, jobs=1, longest_pause=4.0))


class EscapedText(Home):
    """A home that gives the answers of a test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.documents: dict[tuple[str, ...], Any] = {}

    def json(self, *arguments: str, **settings: str) -> Any:
        return self.documents[arguments]


@pytest.fixture
def expected(tmp_path: Path) -> RowRequirements:
    folder = Folder(tmp_path / "files", "seed")
    for name, text in (("a.txt", "good 1"), ("b.txt", "good 2"), ("c.txt", "bad 3")):
        (folder.path / name).write_text(text)
    return RowRequirements("j", "v", folder, ["bad"])


_RIGHT = [("a.txt", "e1", 2, "good 1"), ("b.txt", "e2", 1, "good 2")]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (_RIGHT, ""),
        (_RIGHT[:1], "there is no row: 1, such as b.txt"),
        ([*_RIGHT, _RIGHT[0]], "the file is there twice: 1, such as a.txt"),
        ([*_RIGHT, ("c.txt", "e3", 1, "bad 3")], "there is a row of no file: 1, such as c.txt"),
        ([*_RIGHT, ("d.txt", "e3", 1, "good 4")], "there is a row of no file: 1, such as d.txt"),
        ([*_RIGHT, ("c.txt", "e3", 1, "good 0")], ""),
        ([_RIGHT[0], ("b.txt", "e0", 1, "good 0")], "the row is of another version: 1, such as b.txt"),
    ],
)
def test_a_storm_detects_an_incorrect_table(
    tmp_path: Path, expected: RowRequirements, rows: list[tuple[str, str, int, str]], said: str
) -> None:
    home = EscapedText(tmp_path)
    columns = dict(zip(("_file_path", "_file_version", "_refresh_id", "text"), zip(*rows, strict=True), strict=True))
    write_deltalake(str(home.path / "warehouse" / "tables" / "public" / "j"), pa.table({k: list(v) for k, v in columns.items()}))
    assert [*truth.of_table(home, expected)] == ([f"j: {said}"] if said else [])


def _without_failure(home: EscapedText) -> None:
    home.documents["list", "failures"] = []


def _with_another_failure(home: EscapedText) -> None:
    home.documents["list", "failures"].append({"job": "public.j", "path": "a.txt"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda home: None, []),
        (_without_failure, ["j: the failure is forgotten: 1, such as c.txt"]),
        (_with_another_failure, ["j: there is a failure of a good file: 1, such as a.txt"]),
    ],
)
def test_a_storm_detects_incorrect_failures(
    tmp_path: Path, expected: RowRequirements, spoil: Callable[[EscapedText], None], said: list[str]
) -> None:
    home = EscapedText(tmp_path)
    home.documents["list", "failures"] = [{"job": "j", "path": "c.txt"}]
    spoil(home)
    assert [*truth.of_failures(home, [expected])] == said


def _nothing(_: Path, __: list[str]) -> None:
    pass


def _again(folder: Path, _: list[str]) -> None:
    (folder / "a.txt").write_text("good 1")


def _archive_lost(folder: Path, _: list[str]) -> None:
    (folder / ARCHIVE / "a.txt").unlink()


def _bad_gone(folder: Path, _: list[str]) -> None:
    (folder / "c.txt").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_nothing, []),
        (lambda _, texts: texts.append("good 1"), ["the file is there twice: 1, such as good 1"]),
        (
            lambda _, texts: texts.remove("good 1"),
            ["the file is lost: 1, such as good 1", "there is no row of what is archived: 1, such as good 1"],
        ),
        (_again, ["the file is still there: 1, such as good 1"]),
        (_bad_gone, ["the bad file was taken away: 1, such as bad 4"]),
        (_archive_lost, ["it is not archived: 1, such as good 1"]),
    ],
)
def test_a_storm_detects_files_that_are_lost_or_loaded_twice(
    tmp_path: Path, spoil: Callable[[Path, list[str]], object], said: list[str]
) -> None:
    home, landing = EscapedText(tmp_path), Landing(tmp_path / "files", "seed")
    landing.written = {"a.txt": ["good 1"], "b.txt": ["good 2", "good 3"], "c.txt": ["bad 4"]}
    for name, text in ((f"{ARCHIVE}/a.txt", "good 1"), (f"{ARCHIVE}/b.txt", "good 3"), ("c.txt", "bad 4")):
        (landing.path / name).parent.mkdir(exist_ok=True)
        (landing.path / name).write_text(text)
    texts = ["good 1", "good 3"]
    spoil(landing.path, texts)
    columns = {
        "_file_path": ["x"] * len(texts),
        "_file_version": ["e"] * len(texts),
        "_refresh_id": [1] * len(texts),
        "text": texts,
    }
    write_deltalake(str(home.path / "warehouse" / "tables" / "public" / "j"), pa.table(columns))
    assert [*truth.of_landing(home, "j", landing, archives=True)] == [f"j: {line}" for line in said]
