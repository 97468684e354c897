"""Columns that no one declared, found in rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from volstream.errors import InvalidValueError
from volstream.functions.returned import rows_of
from volstream.functions.rows import Bounds, RowRequirements
from volstream.functions.schema import Inference, InferredColumns, from_ddl, to_ddl, with_known
from volstream.functions.types import convert


def inferred(*files: Any) -> InferredColumns:
    found = Inference()
    for number, returned in enumerate(files):
        found.add(f"{number}.txt", rows_of(returned, RowRequirements(None, Bounds()))[0])
    return found.result()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1], "BIGINT"),
        ([True], "BOOLEAN"),
        ([1, 2.5], "DOUBLE"),
        ([1, Decimal("2.5")], "DECIMAL(38,18)"),
        ([Decimal("1.10"), Decimal("1" * 30)], "DECIMAL(38,8)"),
        ([Decimal("0." + "1" * 25), Decimal(5)], "DECIMAL(38,25)"),
        ([{"x": [Decimal("1.5")]}, {"x": [Decimal("1" * 37)]}], "STRUCT<x: ARRAY<DECIMAL(38,1)>>"),
        ([{"a": Decimal("1.5")}, {"b": Decimal("1" * 36)}], "MAP<STRING,DECIMAL(38,2)>"),
        ([np.float32(1), np.int8(1)], "DOUBLE"),
        (["a", None], "STRING"),
        ([b"a"], "BINARY"),
        ([date(2026, 1, 1)], "DATE"),
        ([datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)], "TIMESTAMP"),
        ([[], [1], [2.5]], "ARRAY<DOUBLE>"),
        ([np.array([1.5])], "ARRAY<DOUBLE>"),
        ([{"x": 1, "y": "a"}, {"y": "b", "x": None}], "STRUCT<x: BIGINT, y: STRING>"),
        ([{"cat": 0.9}, {"dog": 1}], "MAP<STRING,DOUBLE>"),
        ([{"a": 1, "b": "x"}, {"a": 2}], "STRUCT<a: BIGINT, b: STRING>"),
        ([[{"x": 1}], [{"x": 2.5}]], "ARRAY<STRUCT<x: DOUBLE>>"),
    ],
)
def test_the_type_of_a_column_holds_all_values(values: list[Any], kind: str) -> None:
    found = inferred(*({"c": value} for value in values))
    assert found.ddl == f"c {kind}"
    assert len(convert.array(values, found.columns.field("c").type)) == len(values)


@pytest.mark.parametrize(
    ("one", "other", "types"),
    [
        (Decimal("1" * 30), Decimal("0." + "1" * 18), r"DECIMAL\(38,8\) in 0.txt, but DECIMAL\(38,18\) in 1.txt"),
        (Decimal(2), 1.5, r"DECIMAL\(38,18\) in 0.txt, but DOUBLE in 1.txt"),
    ],
)
def test_decimals_that_no_type_holds_together_are_an_error(one: Any, other: Any, types: str) -> None:
    with pytest.raises(InvalidValueError, match=f"'c' is {types}"):
        inferred({"c": one}, {"c": other})


def test_a_column_that_some_rows_lack_is_a_column() -> None:
    assert inferred([{"a": 1}, {"b": "x"}], {"c": 1.5}).ddl == "a BIGINT, b STRING, c DOUBLE"


def test_a_column_that_is_always_empty_is_text_and_that_is_said() -> None:
    found = inferred({"a": 1, "note": None, "tags": []})
    assert str(found) == (
        "Inferred columns from 1 file: a BIGINT, note STRING, tags ARRAY<STRING>. "
        "note was always empty, so it is STRING; to say otherwise, give returns."
    )


def test_arrow_tables_have_the_types_of_their_columns() -> None:
    table = pa.table({"a": pa.array([1], pa.uint8()), "b": pa.array(["x"], pa.large_string())})
    assert inferred(table).ddl == "a SMALLINT, b STRING"


def test_files_that_disagree_are_named_with_both_types() -> None:
    with pytest.raises(InvalidValueError, match=r"'score' is BIGINT in 0.txt, but STRING in 1.txt") as caught:
        inferred({"score": 1}, {"score": "high"})
    assert "give returns" in caught.value.remedy


def test_a_value_that_no_column_holds_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"0.txt: the column 'where' has a object, which no column can hold"):
        inferred({"where": object()})


def test_nothing_is_inferred_from_no_rows() -> None:
    with pytest.raises(InvalidValueError, match="returned no rows"):
        inferred(None, [])


def test_a_table_keeps_its_types_and_gets_what_is_new() -> None:
    assert to_ddl(with_known(from_ddl("a INT"), from_ddl("A BIGINT, b STRING"))) == "a INT, b STRING"


@pytest.mark.parametrize("value", [True, 5, 1.5, Decimal("1.5"), "x", b"x", date(2020, 1, 1), datetime(2020, 1, 1)])
@pytest.mark.parametrize(
    "kind", ["BOOLEAN", "BIGINT", "INT", "DOUBLE", "DECIMAL(10, 2)", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]
)
def test_a_table_keeps_a_type_that_holds_what_is_found(value: Any, kind: str) -> None:
    known, found = from_ddl(f"a {kind}"), inferred({"a": value}).columns
    kept = with_known(known, found)
    assert kept in (known, found)
    try:
        convert.array([value], known.field(0).type)
    except (InvalidValueError, pa.ArrowException, ValueError, TypeError):
        return
    assert kept == known


@pytest.mark.parametrize(
    ("kind", "value"), [("BIGINT", "5"), ("STRING", 5), ("BOOLEAN", 1), ("DATE", "2020-01-01"), ("DOUBLE", True)]
)
def test_a_table_does_not_keep_a_type_that_nothing_found_fits(kind: str, value: Any) -> None:
    found = inferred({"a": value}).columns
    assert with_known(from_ddl(f"a {kind}"), found) == found
