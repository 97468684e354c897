from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from volstream.base.model.names import Name
from volstream.changes.streams.sources import TableSource


def test_changes_right_behind_a_log_that_was_cleaned_up_are_no_longer_kept(tmp_path: Path) -> None:
    properties = {"delta.enableChangeDataFeed": "true"}
    for number in range(4):
        write_deltalake(tmp_path, pa.table({"n": [number]}), mode="append", configuration=properties)
    DeltaTable(tmp_path).create_checkpoint()
    for version in range(3):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()

    missing = TableSource(Name("public", "t"), str(tmp_path), str(tmp_path)).missing(2, 3)

    assert missing == "the changes after version 2 are no longer kept"
