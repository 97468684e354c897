"""An attempt's staged outcomes, counted and listed from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from volstream.functions.outcomes import outcome_schema
from volstream.functions.schema import PROVENANCE, from_ddl
from volstream.jobs.batches import staged as staged_module
from volstream.jobs.batches.staged import Staged, Totals
from volstream.jobs.batches.staging import RowsTarget, replied

RESULT = from_ddl("n BIGINT")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def stage(folder: Path, *parts: list[tuple[str, int | None, int | None, str | None]]) -> Staged:
    """A task for each list of (path, rows, n, error kind)."""
    schema = outcome_schema(RESULT)
    target = RowsTarget((folder / "rows").as_uri(), pa.schema([*RESULT, *PROVENANCE]), "_file_path", "a batch")
    replies: list[pa.RecordBatch] = []
    for part in parts:
        rows = [
            {
                "path": path,
                "file_version": f"{path}1",
                "commit_version": 4,
                "rows": rows,
                "error_kind": kind,
                "result": None if n is None else {"n": n},
                "error_message": kind and f"{kind}!",
            }
            for path, rows, n, kind in part
        ]
        replies += replied([pa.RecordBatch.from_pylist(rows, schema=schema)], target)
    return Staged.of(folder.as_uri(), target, (pa.Table.from_batches([reply]) for reply in replies))


def test_each_file_counts_once_however_many_rows_it_gave(tmp_path: Path) -> None:
    staged = stage(
        tmp_path / "an attempt",
        [("a", 2, 1, None), ("a", None, 2, None), ("b", 0, None, None), ("c", 0, None, "raised")],
        [],
        [("d", 1, None, None), ("e", 0, None, "denied")],
    )
    assert staged.totals() == Totals(succeeded=3, failed=2, rows=3)
    assert [(failure["path"], failure["error_kind"], failure["error_message"]) for failure in staged.failures()] == [
        ("c", "raised", "raised!"),
        ("e", "denied", "denied!"),
    ]


def test_nothing_staged_is_nothing_counted(tmp_path: Path) -> None:
    staged = stage(tmp_path / "empty", [])
    assert staged.totals() == Totals(0, 0, 0)
    assert list(staged.failures()) == []


def produced(folder: Path, rows: Sequence[Mapping[str, Any]], result: pa.Schema, *, size: int) -> Staged:
    """What a task gives for rows of one file each, ``size`` at a time; each with the file's path and its columns."""
    outcome, target = (
        outcome_schema(result),
        RowsTarget(str(folder / "rows"), pa.schema([*result, *PROVENANCE]), "_file_path", "b"),
    )
    batches = [
        pa.RecordBatch.from_pylist(
            [
                {"path": row["path"], "file_version": "1", "commit_version": 1, "rows": 1, "processed_at": NOW}
                | {"result": {name: row[name] for name in result.names}}
                for row in rows[start : start + size]
            ],
            schema=outcome,
        )
        for start in range(0, len(rows), size)
    ]
    return Staged.of(str(folder), target, (pa.Table.from_batches([reply]) for reply in replied(batches, target)))


def contents(staged: Staged) -> list[Mapping[str, Any]]:
    parts = [staged.inline(), *(part for file in staged.files() for part in file.rows())]
    return [row for part in parts for row in part.to_pylist()]


MANY: list[dict[str, Any]] = [
    {"path": f"{number * 7919 % 25_000:05}", "n": number, "m": [("a", number)], "t": "x" * 60} for number in range(25_000)
]
COLUMNS = from_ddl("n BIGINT, m MAP<STRING, BIGINT>, t STRING")


def test_few_rows_travel_in_the_reply_and_many_in_data_files_each_part_by_path(tmp_path: Path) -> None:
    few = produced(tmp_path / "few", MANY[:2000], COLUMNS, size=500)
    assert few.files() == []
    assert few.inline()["_file_path"].to_pylist() == sorted(row["path"] for row in MANY[:2000])
    many = produced(tmp_path / "many", MANY, COLUMNS, size=2000)
    assert many.inline().num_rows == 0
    [file] = many.files()
    assert json.loads(file.stats)["numRecords"] == len(MANY)
    assert json.loads(file.stats)["maxValues"]["_file_path"] == "24999"
    for part in file.rows():
        assert part["_file_path"].to_pylist() == sorted(part["_file_path"].to_pylist())
    for staged, made in ((few, MANY[:2000]), (many, MANY)):
        assert staged.totals() == Totals(len(made), 0, len(made))
        found = {row["_file_path"]: (row["n"], row["m"], row["t"], row["_batch_id"]) for row in contents(staged)}
        assert found == {row["path"]: (row["n"], row["m"], row["t"], "b") for row in made}
    assert not many.has_large_rows()


def test_a_row_larger_than_a_row_group_is_told(tmp_path: Path) -> None:
    rows = [{"path": path, "n": 1, "m": [], "t": "y" * (9 << 20 if path == "b" else 10)} for path in "abc"]
    staged = produced(tmp_path, rows, COLUMNS, size=1)
    assert staged.has_large_rows()
    assert {row["_file_path"]: len(row["t"]) for row in contents(staged)} == {"a": 10, "b": 9 << 20, "c": 10}


@pytest.mark.parametrize("count", [100, 25_000], ids=["in the reply", "in files"])
def test_rows_of_files_that_fail_afterwards_go(tmp_path: Path, count: int) -> None:
    staged = produced(tmp_path, MANY[:count], COLUMNS, size=2000)
    failing = {MANY[0]["path"]: "no", MANY[99]["path"]: "neither"}
    checked = staged.with_failed(failing)
    assert checked.totals() == Totals(count - 2, 2, count - 2)
    assert {row["_file_path"] for row in contents(checked)} == {row["path"] for row in MANY[:count]} - failing.keys()
    assert {(row["path"], row["error_message"]) for row in checked.failures()} == {*failing.items()}
    assert len(contents(staged)) == count


def test_a_task_that_nobody_waits_for_leaves_no_open_file(tmp_path: Path) -> None:
    target = RowsTarget(str(tmp_path), pa.schema([*RESULT, *PROVENANCE]), "_file_path", "b")

    def outcomes() -> Iterator[pa.RecordBatch]:
        row = {"path": "a", "rows": 100_000, "result": {"n": 1}}
        yield pa.RecordBatch.from_pylist([row] * 100_000, schema=outcome_schema(RESULT))
        assert len([*tmp_path.iterdir()]) == 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(replied(outcomes(), target))
    assert [*tmp_path.iterdir()] == []


def test_records_too_large_for_memory_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "_RECORD_BYTES", 1000)
    staged = stage(tmp_path, [(f"{number}", 0, None, "raised") for number in range(100)], [("z", 1, 5, None)])
    assert [*(tmp_path / "records").iterdir()]
    assert staged.totals() == Totals(succeeded=1, failed=100, rows=1)
    assert sum(1 for _ in staged.failures()) == 100
    assert staged.with_failed({"z": "no"}).totals() == Totals(succeeded=0, failed=101, rows=0)
