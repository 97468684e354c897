"""The comparison of two codes' outcomes: equal ones say nothing, and each kind of difference is found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.jobs.proof.compare import OTHERS, CodeOutcome, Comparer, Differences, ErrorGroup, Example, Percentiles, Row

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), max_size=6)


def of(*rows: Row) -> CodeOutcome:
    return CodeOutcome(rows, len(rows))


def failed(message: str = "ValueError: 1", kind: str = "raised") -> CodeOutcome:
    return CodeOutcome(kind=kind, message=message)


def compared(old: CodeOutcome, new: CodeOutcome, columns: Sequence[str] = ("a", "b")) -> Differences:
    comparer = Comparer(columns)
    comparer.add("p", old, new)
    return comparer.found


@given(ROWS, st.randoms())
def test_equal_rows_in_any_order_are_no_difference(rows: list[dict[str, Any]], randomness: Any) -> None:
    shuffled = [dict(row) for row in rows]
    randomness.shuffle(shuffled)
    found = compared(of(*rows), of(*shuffled))
    assert found == Differences(files=1, old_rows=len(rows), new_rows=len(rows), same=1)
    assert found.none


@given(ROWS, ROWS)
def test_different_rows_are_a_difference_and_each_counts_once(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    new = [*new, {"a": object(), "b": None}]  # no other row is equal to it
    found = compared(of(*old), of(*new))
    assert not found.none
    assert found.rows <= min(len(old), len(new))
    assert found.more.count == (len(new) > len(old))
    assert found.fewer.count == (len(new) < len(old))
    assert all(1 <= column.count <= found.rows for column in found.columns.values())
    assert bool(found.columns) is bool(found.rows)
    if len(old) == len(new):
        assert found.rows > 0


def test_a_changed_value_is_told_by_its_column() -> None:
    found = compared(of({"a": 1, "b": "x"}), of({"a": 1, "b": "y"}))
    assert (found.rows, found.differing, found.same) == (1, 1, 0)
    assert {name: (column.count, column.examples) for name, column in found.columns.items()} == {
        "b": (1, [Example("p", "x", "y")])
    }


def test_columns_that_only_one_code_has_are_not_compared() -> None:
    assert compared(of({"a": 1, "b": 2}), of({"a": 1, "c": 3}), ["a"]).none


def test_of_several_rows_those_that_are_most_alike_are_compared() -> None:
    old = [{"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 3, "b": 3}]
    new = [{"a": 3, "b": 30}, {"a": 2, "b": 2}, {"a": 1, "b": 10}]
    found = compared(of(*old), of(*new))
    assert found.rows == 2
    assert set(found.columns) == {"b"}
    assert [(example.old, example.new) for example in found.columns["b"].examples] == [(1, 10), (3, 30)]


def test_a_row_more_or_less_is_not_a_row_that_differs() -> None:
    one, two = {"a": 1}, {"a": 2}
    more, fewer = compared(of(one), of(one, two)), compared(of(one, one), of(one))
    assert (more.more.examples, more.rows) == ([Example("p", 1, 2)], 0)
    assert (fewer.fewer.examples, fewer.rows) == ([Example("p", 2, 1)], 0)
    assert compared(of(one, one), of(one, two)).rows == 1, "rows are counted, not only known"


def test_many_rows_of_a_file_are_compared_in_order() -> None:
    old, new = ([{"a": number, "b": value} for number in range(150)] for value in (1, 2))
    assert compared(of(*old), of(*new)).columns["b"].count == 150


def test_new_healed_and_lasting_failures_are_told_apart() -> None:
    comparer = Comparer(["a"])
    comparer.add("new", of({"a": 1}), failed())
    comparer.add("healed", failed("old"), of({"a": 1}))
    comparer.add("still", failed("x"), failed("y"))
    comparer.changed()
    found = comparer.found
    assert found.new_failures == [ErrorGroup("raised", "ValueError: 1", 1, ["new"])]
    assert found.healed == [ErrorGroup("raised", "old", 1, ["healed"])]
    assert (found.still_failing, found.files, found.same, found.changed) == (1, 3, 1, 1)


def test_errors_that_differ_in_numbers_names_and_paths_are_one_group() -> None:
    comparer = Comparer(["a"])
    for number in range(9):
        comparer.add(f"p{number}", of({"a": 1}), failed(f"KeyError: 'key {number}' in /x/{number}.txt at {number}"))
    comparer.add("q", of({"a": 1}), failed("KeyError: 'key 1' in /x/1.txt at 1", kind="timed-out"))
    assert [(failure.kind, failure.files, failure.paths) for failure in comparer.found.new_failures] == [
        ("raised", 9, ["p0", "p1", "p2"]),
        ("timed-out", 1, ["q"]),
    ]


def test_there_are_only_so_many_groups_and_examples() -> None:
    comparer = Comparer(["a"])
    for number in range(1000):
        comparer.add("p", of({"a": 1}), failed("x" * (1 + number)))
        comparer.add("p", of({"a": 1}), of({"a": 2}))
    groups = comparer.found.new_failures
    assert (len(groups), groups[-1].kind, sum(group.files for group in groups)) == (51, OTHERS, 1000)
    assert (comparer.found.columns["a"].count, len(comparer.found.columns["a"].examples)) == (1000, 3)


def test_files_with_too_many_rows_are_compared_by_their_number() -> None:
    same, more = (compared(CodeOutcome(None, 20_000), CodeOutcome(None, count)) for count in (20_000, 20_001))
    assert (same.uncompared, same.same, same.more.count) == (1, 1, 0)
    assert (more.uncompared, more.same, more.more.count) == (1, 0, 1)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        (1, None, (1, None)),
        ([1], {"x": b"y"}, ("[1]", '{"x": "b\'y\'"}')),
        (b"\x01", b"\x02", ("1 bytes 01", "1 bytes 02")),
        ("a" * 200 + "b", "a" * 200 + "c", ("..." + "a" * 20 + "b", "..." + "a" * 20 + "c")),
        ("b" + "a" * 200, "c", ("b" + "a" * 79 + "...", "c")),
    ],
)
def test_long_values_are_cut_where_they_differ(old: Any, new: Any, shown: tuple[Any, Any]) -> None:
    example = compared(of({"a": old}), of({"a": new})).columns["a"].examples[0]
    assert (example.old, example.new) == shown


def test_not_a_number_is_equal_to_itself() -> None:
    assert compared(of({"a": math.nan}), of({"a": math.nan})).none


def test_the_spread_of_measurements() -> None:
    assert Percentiles.of([]) is None
    assert Percentiles.of([3.0]) == Percentiles(3.0, 3.0)
    assert Percentiles.of(range(1, 101)) == Percentiles(50, 95)
