"""Conditions on files and sets, as far as they are known without Spark."""

from __future__ import annotations

import pytest

from volstream.errors import InvalidValueError
from volstream.jobs.rules.conditions import _check_complete


@pytest.mark.parametrize(
    "condition",
    [
        "count(*) >= 2",
        "count(*) FILTER (WHERE relative_path LIKE '%.json') = 1",
        "every(size > 0) AND some(relative_path LIKE '%.jpg')",
        "bool_and(size > 0)",
        "max(size) > 10 OR bool_or(content_type = 'text/csv')",
    ],
)
def test_conditions_on_all_files_of_a_set(condition: str) -> None:
    _check_complete(condition)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("size > 1", "must be on all files"),
        ("count(*) >= size", "must be on all files"),
        ("count(*) FILTER (WHERE size > 1) > size", "must be on all files"),
        ("max(last_modified_time) FILTER (WHERE size > 1) < now()", "while no file of the set changes"),
        ("every(nothing > 1)", "names a column 'nothing'"),
    ],
)
def test_conditions_that_are_not(condition: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        _check_complete(condition)
