"""What logs tell of tables that others wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import tails
from volstream.tables.delta.log import DeltaLog


@pytest.mark.parametrize("place", ["file:", "file://", "s3://bucket", ""])
def test_files_of_the_table_that_a_shallow_clone_removed_are_not_taken_for_vacuumed_ones(tmp_path: Path, place: str) -> None:
    location = tails.create(tmp_path)
    told = {"commitInfo": {"timestamp": 1, "operation": "DELETE"}}
    removed = {"remove": {"path": f"{place}/source/a.parquet", "deletionTimestamp": 1, "dataChange": True}}
    Path(location, "_delta_log", f"{1:020d}.json").write_text(f"{json.dumps(told)}\n{json.dumps(removed)}\n")
    assert DeltaLog(location).lost_file(0, 1) is None


def test_a_file_that_was_vacuumed_is_found_missing_whatever_characters_its_row_has(tmp_path: Path) -> None:
    location = tails.create(tmp_path)
    statistics = json.dumps({"numRecords": 1, "minValues": {"id": "a\u2028b"}}, ensure_ascii=False)
    removed = {"remove": {"path": "a%20b.parquet", "deletionTimestamp": 1, "dataChange": True, "stats": statistics}}
    Path(location, "_delta_log", f"{1:020d}.json").write_text(json.dumps(removed, ensure_ascii=False))
    assert DeltaLog(location).lost_file(0, 1) == "a b.parquet"
