"""Rows are measured as they come: a row that is too large fails its file with its size, and large results are passed on in pieces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.memory import MemoryStore
from tests.running import EVERYWHERE, Runner, failed, planned, results
from volstream.base.model.work import FailureKind
from volstream.functions.rows import Bounds, size_of
from volstream.functions.schema import PROVENANCE, from_ddl
from volstream.jobs.batches.staging import RowsTarget, Task

MIB = 1 << 20
SMALL = Bounds(row_bytes=1000, file_bytes=5000)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 8),
        (True, 8),
        (1.5, 8),
        ("abc", 3),
        ("é", 2),
        (b"1234", 4),
        (bytearray(5), 5),
        ([1.0] * 100, 800),
        (["ab", "c"], 3),
        ({"k": "vvv"}, 4),
        ([{"k": b"12"}], 3),
        ([], 0),
        (np.zeros(10), 80),
        ("\udc80", 3),
    ],
)
def test_values_are_measured_by_the_size_they_take_in_a_table(value: object, size: int) -> None:
    assert size_of(value) == size


def test_a_row_that_is_too_large_fails_its_file_with_its_size(run: Runner, store: MemoryStore) -> None:
    files = [store.put("a", b"x" * 1001), store.put("b", b"x" * 1000)]
    table = run("def f(file): return {'s': file.read_bytes()}", files, "s BINARY", bounds=SMALL)
    (kind, message) = failed(table)["a"]
    assert kind is FailureKind.TOO_LARGE
    assert "Row 0 has 1001 B of values, but a row may have at most 1000 B (setting result_row_bytes)" in message
    assert [path for path, row in results(table) if row] == ["b"]


@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_a_generator_is_not_asked_for_more_rows_than_allowed(
    run: Runner, isolated: Callable[..., pa.Table], store: MemoryStore, isolate: bool
) -> None:
    code = """
def f(file):
    for number in range(10**12):
        if number > 10: raise RuntimeError("asked for more")
        yield {"s": "x" * 900}
"""
    given: dict[str, Any] = {"returns": "s STRING", "bounds": SMALL}
    table = isolated(code, ["a"], **given) if isolate else run(code, [store.put("a", b"")], **given)
    (kind, message) = failed(table)["a"]
    assert kind is FailureKind.TOO_LARGE
    assert "The first 6 rows have 5.3 KiB" in message
    assert "result_file_bytes" in message


@pytest.mark.parametrize("returned", ["[{'s': 'x' * (12 << 20)}] * 3", "pa.table({'s': ['x' * (12 << 20)] * 3})"])
def test_large_rows_are_written_in_pieces(run: Runner, store: MemoryStore, tmp_path: Path, returned: str) -> None:
    files = [store.put(f"{number}", b"") for number in range(4)]
    work = run.work(f"import pyarrow as pa\ndef f(file): return {returned}", "s STRING")
    target = RowsTarget(str(tmp_path / "rows"), pa.schema([*from_ddl("s STRING"), *PROVENANCE]), "_file_path", "b")
    list(Task(work, target)([planned(files)]))
    groups = []
    for file in (tmp_path / "rows").iterdir():
        read = pq.ParquetFile(file)
        groups += [read.metadata.row_group(number).num_rows for number in range(read.num_row_groups)]
    assert sum(groups) == 12
    assert max(groups) == 1


def test_the_pieces_passed_on_add_up_to_the_whole(run: Runner, store: MemoryStore) -> None:
    table = run("def f(file): return [{'s': str(n) * (6 << 20)} for n in range(9)]", [store.put("a", b"")], "s STRING")
    assert table["rows"].to_pylist() == [9, *[None] * 8]
    assert [row["s"][0] for _, row in results(table) if row] == [str(n) for n in range(9)]
    assert {len(row["s"]) for _, row in results(table) if row} == {6 << 20}
