"""An attempt's staged outcomes, counted and listed from their files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from volstream.functions.outcomes import outcome_schema
from volstream.functions.schema import from_ddl
from volstream.jobs.staged import Staged, Totals

RESULT = from_ddl("n BIGINT")


def stage(folder: Path, *parts: list[tuple[str, int | None, int | None, str | None]]) -> Staged:
    """One part file for each list of (path, rows, n, error kind)."""
    folder.mkdir()
    schema = outcome_schema(RESULT)
    for number, part in enumerate(parts):
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
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"part-{number:05}.snappy.parquet")
    (folder / "_SUCCESS").touch()
    return Staged(folder.as_uri(), RESULT)


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
