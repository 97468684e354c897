from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from volstream.delta import cleanup
from volstream.delta.log import Commit, DataFile
from volstream.directory import upkeep
from volstream.directory.upkeep import Need, crossed, need

MIB = 1 << 20


def file(rows: int, first: str, last: str, size: int = 8 * MIB) -> DataFile:
    return DataFile(size, rows, first, last)


def test_the_rows_for_one_path_are_those_of_files_that_may_hold_it_but_the_largest() -> None:
    assert crossed([]) == 0
    assert crossed([file(5, "a", "f"), file(7, "g", "m")]) == 0
    assert crossed([file(50, "a", "f"), file(7, "c", "m"), file(9, "e", "z")]) == 16


def test_files_that_meet_in_one_path_cross() -> None:
    assert crossed([file(5, "a", "f"), file(7, "f", "m")]) == 5


def test_a_few_small_files_need_nothing_and_many_are_put_together() -> None:
    small = file(100, "a", "z", size=20_000)
    assert need([file(100_000, "a", "z"), *[small] * 10]) == Need(small=False, sorted=False)
    assert need([file(100_000, "a", "z"), *[small] * 100]) == Need(small=True, sorted=False)


def test_large_files_are_sorted_where_they_cross_and_not_where_they_are_in_order() -> None:
    in_order = [file(50_000, f"{number:02d}a", f"{number:02d}z") for number in range(50)]
    everywhere = [file(50_000, "00a", "99z") for _ in range(10)]
    assert not need(in_order)
    assert need(in_order + everywhere).sorted


def test_one_file_however_large_is_in_order() -> None:
    assert not need([file(10_000_000, "a", "z")])


@pytest.mark.parametrize(
    ("days", "operations", "goes"),
    [
        ([13.9, 2.0], ["WRITE", "MERGE"], True),
        ([14.1, 0.1], ["WRITE", "MERGE"], False),  # what went since the oldest kept version can be asked for
        ([13.0, 1.1, 0.1], ["WRITE", "VACUUM END", "MERGE"], True),
        ([13.0, 0.9, 0.1], ["WRITE", "VACUUM END", "MERGE"], False),
    ],
)
def test_files_go_once_a_day_while_the_kept_versions_are_younger_than_those(
    days: Sequence[float], operations: Sequence[str], goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    commits = [
        Commit(40 + number, now - timedelta(days=ago), operation, {})
        for number, (ago, operation) in enumerate(zip(days, operations, strict=True))
    ]
    after: list[int] = []
    gone: list[str] = []

    def commits_after(version: int) -> Sequence[Commit]:
        after.append(version)
        return commits

    monkeypatch.setattr(cleanup, "earliest", lambda _: 40)
    monkeypatch.setattr(upkeep, "DeltaLog", lambda _: SimpleNamespace(commits_after=commits_after))
    assert upkeep.sweep(SimpleNamespace(vacuum=gone.append), "here") is goes  # type: ignore[arg-type]
    assert after == [39]
    assert gone == ["here"] * goes


@pytest.mark.parametrize("first", [None, 0])
def test_while_every_version_is_kept_no_file_goes(first: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "earliest", lambda _: first)
    assert not upkeep.sweep(SimpleNamespace(), "here")  # type: ignore[arg-type]
