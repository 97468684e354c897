"""A function is tried whether it declares its columns or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from volstream.errors import InvalidValueError
from volstream.functions.output import OutputFile
from volstream.functions.trial import try_function


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    return [str(tmp_path / name) for name in ("a", "b")]


def test_undeclared_columns_are_those_of_the_rows(paths: list[str]) -> None:
    found = try_function(lambda file: {"n": file.size, "note": None}, paths, None, {}, None)
    assert [outcome.rows for outcome in found.outcomes] == [[{"n": 1, "note": None}]] * 2
    assert found.inferred is not None
    assert found.inferred.ddl == "n BIGINT, note STRING"
    assert found.inferred.caveat.startswith(" note was always empty")


def test_what_a_job_refuses_is_said_and_files_are_shown_as_they_are_declared(paths: list[str]) -> None:
    found = try_function(lambda file: {"a b": 1}, paths, None, {}, None)
    assert "The result column 'a b' cannot be in a table." in str(found.unfit)
    made = try_function(lambda file: {"thumb": OutputFile("t", data=b"")}, paths, None, {}, None)
    assert made.inferred is not None
    assert made.inferred.ddl == "thumb FILE"
    rows: Any = made.outcomes[0].rows
    assert rows[0]["thumb"]["size"] == 0


def test_rows_are_shown_even_if_they_contradict_each_other(paths: list[str]) -> None:
    found = try_function(lambda file: {"n": 1 if file.name == "a" else "x"}, paths, None, {}, None)
    assert [outcome.rows for outcome in found.outcomes] == [[{"n": 1}], [{"n": "x"}]]
    assert found.inferred is None
    assert "'n' is BIGINT in a, but STRING in b" in str(found.unfit)


def test_values_that_no_job_could_store_are_failures(paths: list[str]) -> None:
    found = try_function(lambda file: {"s": "page \ud83d" if file.name == "a" else "b"}, paths, None, {}, None)
    assert [outcome.kind for outcome in found.outcomes] == ["wrong-result", None]
    assert "surrogates not allowed" in str(found.outcomes[0].message)


def test_integers_beyond_64_bits_are_decimals(paths: list[str]) -> None:
    found = try_function(lambda file: {"n": 2**70 if file.name == "a" else 1}, paths, None, {}, None)
    assert [outcome.rows for outcome in found.outcomes] == [[{"n": 2**70}], [{"n": 1}]]
    assert found.inferred is not None
    assert found.inferred.ddl == "n DECIMAL(38,0)"


def test_given_columns_are_what_the_rows_are_held_to(paths: list[str]) -> None:
    found = try_function(lambda file: {"n": "x"}, paths, "n INT", {}, None)
    assert [outcome.kind for outcome in found.outcomes] == ["wrong-result"] * 2
    assert found.inferred is None


def test_an_annotation_that_names_no_rows_is_refused(paths: list[str]) -> None:
    def f(file: Any) -> str:
        return "x"

    with pytest.raises(InvalidValueError, match="f is annotated `-> str`"):
        try_function(f, paths, None, {}, None)
