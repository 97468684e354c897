from __future__ import annotations

from volstream.delta.log import DataFile
from volstream.directory.compact import Need, crossed, need

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
