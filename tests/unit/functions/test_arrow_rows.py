"""Functions that return Arrow batches: their rows are never Python objects, and wait in a file until they count."""

from __future__ import annotations

import enum
import pickle
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest

from tests.memory import MemoryStore
from tests.running import EVERYWHERE, Runner, failed, results
from volstream.base.model.work import FailureKind
from volstream.functions.returned import rows_of as returned_rows
from volstream.functions.rows import ArrowRows, Bounds, NotRowsError, RowRequirements
from volstream.functions.schema import Inference, from_ddl, to_ddl
from volstream.functions.types import convert

COLUMNS = pa.schema([("n", pa.int64()), ("s", pa.string())])


def rows_of(*sizes: int) -> ArrowRows:
    rows = ArrowRows(COLUMNS, 1 << 30, "rule")
    for size in sizes:
        rows.add(pa.record_batch({"n": [size], "s": ["x" * size]}, schema=COLUMNS))
    return rows


@pytest.mark.parametrize("size", [3, 3 << 20])
def test_rows_come_back_in_order_from_memory_or_from_a_file_and_from_another_process(size: int) -> None:
    for rows in (rows_of(size, 5, size), pickle.loads(pickle.dumps(rows_of(size, 5, size)))):
        assert len(rows) == 3
        assert rows.nbytes >= 2 * size
        assert [row["n"] for row in rows.to_pylist()] == [size, 5, size]


@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_a_table_and_a_generator_of_batches_become_rows(
    run: Runner, isolated: Callable[..., pa.Table], store: MemoryStore, isolate: bool
) -> None:
    code = """
import pyarrow as pa
def f(file):
    if file.name == "t":
        return pa.table({"n": [1, 2]})
    if file.name == "none":
        return pa.table({"n": pa.array([], pa.int64())})
    return (pa.record_batch({"n": pa.array([n] * 3000, pa.int32()), "s": ["x" * 1000] * 3000}) for n in range(4))
"""
    names = ["b", "none", "t"]
    table = (
        isolated(code, names, "n BIGINT, s STRING")
        if isolate
        else run(code, [store.put(name, b"") for name in names], "n BIGINT, s STRING")
    )
    found = results(table)
    assert [row["n"] for path, row in found if path == "b" and row] == [n for n in range(4) for _ in range(3000)]
    assert [(path, row) for path, row in found if path != "b"] == [
        ("none", None),
        ("t", {"n": 1, "s": None}),
        ("t", {"n": 2, "s": None}),
    ]
    assert table["rows"].drop_null().to_pylist() == [12_000, 0, 2]


@pytest.mark.parametrize(
    ("returned", "kind", "message"),
    [
        ("pa.table({'m': [1]})", FailureKind.WRONG_RESULT, "an undeclared column 'm' (the result declares n, s)"),
        ("pa.table({'n': ['x']})", FailureKind.WRONG_RESULT, "Column 'n' of a batch cannot be BIGINT"),
        ("pa.table([[1], [2]], names=['n', 'n'])", FailureKind.WRONG_RESULT, "two columns of one name"),
        ("[pa.table({'n': [1]}), {'n': 1}]", FailureKind.WRONG_RESULT, "Arrow batches, and then a dict"),
        ("[{'n': 1}, pa.table({'n': [1]})]", FailureKind.WRONG_RESULT, "returned a value of type Table instead of a row"),
        ("pa.table({'s': ['y', 'x' * 1001, 'z']})", FailureKind.TOO_LARGE, "a row may have at most 1000 B"),
    ],
)
def test_batches_that_do_not_fit_fail_their_file(
    run: Runner, store: MemoryStore, returned: str, kind: FailureKind, message: str
) -> None:
    given: dict[str, Any] = {"returns": "n BIGINT, s STRING", "bounds": Bounds(row_bytes=1000)}
    table = run(f"import pyarrow as pa\ndef f(file): return {returned}", [store.put("a", b"")], **given)
    assert failed(table)["a"][0] is kind
    assert message in failed(table)["a"][1]


def test_rows_before_an_error_do_not_count(run: Runner, store: MemoryStore) -> None:
    code = "import pyarrow as pa\ndef f(file):\n    yield pa.table({'n': [1]})\n    raise ValueError('late')"
    table = run(code, [store.put("a", b"")])
    assert results(table) == [("a", None)]
    assert failed(table) == {"a": (FailureKind.RAISED, "ValueError: late")}


def test_a_dataframe_is_rows_and_a_single_column_is_none() -> None:
    expected = RowRequirements(pa.schema([("a", pa.int64()), ("b", pa.string())]), Bounds())
    rows, _ = returned_rows(pd.DataFrame({"a": [1, 2], "b": ["x", None]}), expected)
    assert isinstance(rows, ArrowRows)
    assert rows.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    with pytest.raises(NotRowsError, match="value of type int"):
        returned_rows(pd.Series([1, 2]), expected)


def test_positions_of_a_dataframes_rows_are_no_column_and_uuids_are_text() -> None:
    expected = RowRequirements(pa.schema([("a", pa.int64()), ("u", pa.string())]), Bounds())
    ids = [uuid.UUID(int=number) for number in range(4)]
    texts = [str(one) for one in ids]
    frame = pd.DataFrame({"a": [3, 1, 2, 0], "u": texts})
    for shown in (frame[frame.a > 0], frame.sort_values("a"), pd.concat([frame, frame]), frame.set_index(frame.index * 2)):
        rows, _ = returned_rows(shown, expected)
        assert rows.to_pylist() == shown.to_dict("records")  # type: ignore[union-attr]  # it has rows
    own = pa.table({"a": [3, 1], "u": pa.array([ids[0].bytes, None], pa.binary(16)).cast(pa.uuid())})
    for returned in (own, own.to_batches()[0]):
        rows, _ = returned_rows(returned, expected)
        assert rows.to_pylist() == [{"a": 3, "u": texts[0]}, {"a": 1, "u": None}]  # type: ignore[union-attr]  # as above


class Color(enum.Enum):
    RED = "red"


class Site(pydantic.BaseModel):
    id: uuid.UUID


ID = uuid.UUID(int=5)


@pytest.mark.parametrize(
    "values",
    [
        [Color.RED, None],
        [ID],
        [PurePosixPath("/a")],
        [Site(id=ID), None],
        [{"a": 1}, {"b": 2}, None],
        [{"a": 1}, {"a": 2}],
        [Decimal("1.1"), Decimal(2)],
        [2**70, 1],
        [np.array([1.5]), [2.5]],
        [np.array([[1, 2]])],
        [1, 2.5],
        ["x", pd.NaT, pd.NA],
        [{"at": np.datetime64("2026-01-01", "ns")}],
        [date(2026, 1, 1), None],
        [datetime(2026, 1, 1)],
        [pd.Timestamp("2026-01-01", tz="Europe/Berlin")],
        [b"x"],
        [True, None],
    ],
    ids=repr,
)
def test_a_column_of_a_dataframe_is_what_dicts_with_its_values_are(values: list[Any]) -> None:
    def stored(returned: Any) -> tuple[str, Any]:
        rows, _ = returned_rows(returned, RowRequirements(None, Bounds()))
        found = Inference()
        found.add("a.txt", rows)
        columns = found.result().columns
        declared, _ = returned_rows(returned, RowRequirements(columns, Bounds()))
        kept = declared.to_pylist() if isinstance(declared, ArrowRows) else list(declared)
        return to_ddl(columns), convert.array([row["a"] for row in kept], columns.field("a").type).to_pylist()

    dicts = stored([{"a": value} for value in values])
    assert stored(pd.DataFrame({"a": values})) == dicts
    assert stored(pd.DataFrame({"a": pd.Series(values, dtype=object), "b": "x"})[["a"]]) == dicts


def test_objects_in_dataframes_become_what_columns_declare() -> None:
    columns = from_ddl("k STRING, m MAP<STRING, DOUBLE>, t TIMESTAMP_NTZ, u STRING")
    frame = pd.DataFrame({"m": [{"a": 1.0}, {"b": 2.5}], "t": [datetime(2026, 1, 1)] * 2, "u": [ID, None]}, index=[7, 9])
    rows, _ = returned_rows([frame, pa.table({"k": ["x"]})], RowRequirements(columns, Bounds()))
    assert isinstance(rows, ArrowRows)
    assert rows.to_pylist() == [
        {"k": None, "m": [("a", 1.0)], "t": datetime(2026, 1, 1), "u": str(ID)},
        {"k": None, "m": [("b", 2.5)], "t": datetime(2026, 1, 1), "u": None},
        {"k": "x", "m": None, "t": None, "u": None},
    ]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (pd.DataFrame({"a": [pd.Timedelta("1s")]}), "The column 'a' has a Timedelta, which no column holds; return seconds"),
        (pa.table({"a": [timedelta(1)]}), "The column 'a' has a timedelta, which no column holds; return seconds"),
        (pa.table({"a": [[time(1)]]}), "The column 'a' has a time, which no column holds; return text"),
        (pd.DataFrame({"a": pd.period_range("2026-01", periods=1)}), "The column 'a' has a Period, which no column holds"),
        (pd.DataFrame({"a": [{1, 2}]}), r"The column 'a' has a set, which no column holds; return a list"),
        (pd.DataFrame({"z": [ID]}), "an undeclared column 'z'"),
        (pd.DataFrame({"a": [Color.RED, 5]}), "Column 'a' of a batch cannot be STRING"),
    ],
)
def test_objects_that_no_column_holds_are_refused_with_the_columns_name(returned: Any, message: str) -> None:
    for columns in (from_ddl("a STRING"), None) if message.startswith("The column") else (from_ddl("a STRING"),):
        with pytest.raises(NotRowsError, match=message):
            returned_rows(returned, RowRequirements(columns, Bounds()))


def test_columns_of_extension_types_are_inferred_as_their_values() -> None:
    ids = pa.array([ID.bytes], pa.binary(16)).cast(pa.uuid())
    table = pa.table(
        {
            "u": ids,
            "s": pa.StructArray.from_arrays([ids], ["x"]),
            "b": pa.array([1], pa.int8()).cast(pa.bool8()),
            "v": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 2))),
        }
    )
    rows, _ = returned_rows(table, RowRequirements(None, Bounds()))
    found = Inference()
    found.add("a.txt", rows)
    assert to_ddl(found.result().columns) == "u STRING, s STRUCT<x: STRING>, b BOOLEAN, v ARRAY<DOUBLE>"
    rows, _ = returned_rows(table, RowRequirements(found.result().columns, Bounds()))
    assert isinstance(rows, ArrowRows)
    assert rows.to_pylist() == [{"u": str(ID), "s": {"x": str(ID)}, "b": True, "v": [1.0, 1.0]}]
