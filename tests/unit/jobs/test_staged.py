"""An attempt's staged outcomes, counted and listed from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind
from volstream.catalog.consumptions import BatchOutcome
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.schema import PROVENANCE, from_ddl
from volstream.jobs.batches import staged as staged_module
from volstream.jobs.batches.staged import Staged
from volstream.jobs.batches.staging import RowsTarget, replied

RESULT = from_ddl("n BIGINT")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
LOG_BYTES = 1 << 20


def outcome(path: str, rows: Sequence[Mapping[str, Any]], error: FailureKind | None = None) -> FileOutcome:
    return FileOutcome(FileTask(FileInfo(path, 0, NOW, f"{path}1"), 4), rows, error, (error and f"{error}!") or "")


def stage(folder: Path, *parts: list[tuple[str, Sequence[int], FailureKind | None]]) -> Staged:
    """A task for each list of (path, the rows' n, error)."""
    target = RowsTarget((folder / "rows").as_uri(), pa.schema([*RESULT, *PROVENANCE]), "_file_path", "a batch")
    replies: list[pa.RecordBatch] = []
    for part in parts:
        replies += replied((outcome(path, [{"n": n} for n in rows], kind) for path, rows, kind in part), target, LOG_BYTES)
    return Staged.of(folder.as_uri(), target, (pa.Table.from_batches([reply]) for reply in replies))


def test_each_file_counts_once_however_many_rows_it_gave(tmp_path: Path) -> None:
    staged = stage(
        tmp_path / "an attempt",
        [("a", [1, 2], None), ("b", [], None), ("c", [], FailureKind.RAISED)],
        [],
        [("d", [1], None), ("e", [], FailureKind.DENIED)],
    )
    assert staged.outcome() == BatchOutcome(succeeded=3, failed=2, rows=3, files_per_call=1)
    assert [(failure["path"], failure["error_kind"], failure["error_message"]) for failure in staged.failures()] == [
        ("c", "raised", "raised!"),
        ("e", "denied", "denied!"),
    ]


def test_nothing_staged_is_nothing_counted(tmp_path: Path) -> None:
    staged = stage(tmp_path / "empty", [])
    assert staged.outcome() == BatchOutcome(0, 0, 0)
    assert list(staged.failures()) == []


def produced(folder: Path, rows: Sequence[Mapping[str, Any]], result: pa.Schema) -> Staged:
    """What a task gives for rows of one file each; each with the file's path and its columns."""
    target = RowsTarget(str(folder / "rows"), pa.schema([*result, *PROVENANCE]), "_file_path", "b")
    outcomes = (outcome(row["path"], [{name: row[name] for name in result.names}]) for row in rows)
    replies = replied(outcomes, target, LOG_BYTES)
    return Staged.of(str(folder), target, (pa.Table.from_batches([reply]) for reply in replies))


def contents(staged: Staged) -> list[Mapping[str, Any]]:
    parts = [staged.inline(), *(part for file in staged.files() for part in file.rows())]
    return [row for part in parts for row in part.to_pylist()]


MANY: list[dict[str, Any]] = [
    {"path": f"{number * 7919 % 25_000:05}", "n": number, "m": [("a", number)], "t": "x" * 60} for number in range(25_000)
]
COLUMNS = from_ddl("n BIGINT, m MAP<STRING, BIGINT>, t STRING")


def test_few_rows_travel_in_the_reply_and_many_in_data_files_each_part_by_path(tmp_path: Path) -> None:
    few = produced(tmp_path / "few", MANY[:2000], COLUMNS)
    assert few.files() == []
    assert few.inline()["_file_path"].to_pylist() == sorted(row["path"] for row in MANY[:2000])
    many = produced(tmp_path / "many", MANY, COLUMNS)
    assert many.inline().num_rows == 0
    [file] = many.files()
    assert json.loads(file.stats)["numRecords"] == len(MANY)
    assert json.loads(file.stats)["maxValues"]["_file_path"] == "24999"
    for part in file.rows():
        assert part["_file_path"].to_pylist() == sorted(part["_file_path"].to_pylist())
    for staged, made in ((few, MANY[:2000]), (many, MANY)):
        assert staged.outcome() == BatchOutcome(len(made), 0, len(made), files_per_call=1)
        found = {row["_file_path"]: (row["n"], row["m"], row["t"], row["_batch_id"]) for row in contents(staged)}
        assert found == {row["path"]: (row["n"], row["m"], row["t"], "b") for row in made}
    assert not many.has_large_rows()


def test_a_row_larger_than_a_row_group_is_told(tmp_path: Path) -> None:
    rows = [{"path": path, "n": 1, "m": [], "t": "y" * (9 << 20 if path == "b" else 10)} for path in "abc"]
    staged = produced(tmp_path, rows, COLUMNS)
    assert staged.has_large_rows()
    assert {row["_file_path"]: len(row["t"]) for row in contents(staged)} == {"a": 10, "b": 9 << 20, "c": 10}


@pytest.mark.parametrize("count", [100, 25_000], ids=["in the reply", "in files"])
def test_rows_of_files_that_fail_afterwards_go(tmp_path: Path, count: int) -> None:
    staged = produced(tmp_path, MANY[:count], COLUMNS)
    failing = {MANY[0]["path"]: "no", MANY[99]["path"]: "neither"}
    checked = staged.with_failed(failing)
    assert checked.outcome() == BatchOutcome(count - 2, 2, count - 2, files_per_call=1)
    assert {row["_file_path"] for row in contents(checked)} == {row["path"] for row in MANY[:count]} - failing.keys()
    assert {(row["path"], row["error_message"]) for row in checked.failures()} == {*failing.items()}
    assert len(contents(staged)) == count


def test_a_task_that_nobody_waits_for_leaves_no_open_file(tmp_path: Path) -> None:
    target = RowsTarget(str(tmp_path), pa.schema([*RESULT, *PROVENANCE]), "_file_path", "b")

    def outcomes() -> Iterator[FileOutcome]:
        yield outcome("a", [{"n": 1}] * 100_000)
        assert len([*tmp_path.iterdir()]) == 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(replied(outcomes(), target, LOG_BYTES))
    assert [*tmp_path.iterdir()] == []


def test_records_too_large_for_memory_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "_RECORD_BYTES", 1000)
    staged = stage(tmp_path, [(f"{number}", [], FailureKind.RAISED) for number in range(100)], [("z", [5], None)])
    assert [*(tmp_path / "records").iterdir()]
    assert staged.outcome() == BatchOutcome(succeeded=1, failed=100, rows=1, files_per_call=1)
    assert sum(1 for _ in staged.failures()) == 100
    assert staged.with_failed({"z": "no"}).outcome() == BatchOutcome(succeeded=0, failed=101, rows=0, files_per_call=1)
