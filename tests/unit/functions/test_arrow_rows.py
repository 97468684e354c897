"""Functions that return Arrow batches: their rows are never Python objects, and wait in a file until they count."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.running import EVERYWHERE, Runner, failed, results
from volstream.base.model.work import FailureKind
from volstream.files.storage.memory import MemoryStore
from volstream.functions.bounds import Bounds
from volstream.functions.rows import ArrowRows, NotRowsError, RowRequirements
from volstream.functions.rows import rows_of as returned_rows

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
        ("pa.table({'n': ['x']})", FailureKind.WRONG_RESULT, "Column 'n' of a batch cannot be int64"),
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
