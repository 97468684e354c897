"""The order in which commits without Spark reach the disk: files before the entry that names them, and the entry before an answer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests import tails
from tests.directories import Directory
from tests.interrupts import called
from volstream.delta import direct
from volstream.delta.direct import RowChanges
from volstream.delta.marker import Marker
from volstream.tails.writer import Flush, TailWriter

DELTALAKE = "create_write_transaction"


def around(seen: list[str], commit: str) -> tuple[list[str], list[str]]:
    """The calls before and after the only commit."""
    assert seen.count(commit) == 1
    at = seen.index(commit)
    return seen[:at], seen[at + 1 :]


def test_a_result_tables_files_are_on_disk_before_its_entry_and_that_before_the_answer(tmp_path: Path) -> None:
    location = tails.create(tmp_path)
    rows = pa.table({"id": ["a"], "n": [1]})
    with called("fsync", "link") as seen:
        assert direct.commit(location, Marker("app", 1, {}), RowChanges([rows], rows.schema, "", None))
    before, after = around(seen, "link")
    assert before.count("fsync") >= 3, "the file, its folder, and the entry's draft"
    assert after.count("fsync") >= 2, "the entry's name: the file and its folder"


def test_a_directorys_refresh_is_on_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    directory.list_first({"a": 1})
    with called("fsync", DELTALAKE) as seen:
        directory.refresh({"a": 2})
    before, after = around(seen, DELTALAKE)
    assert before.count("fsync") >= 2
    assert after.count("fsync") >= 2
    directory.close()


def test_rows_that_arrive_are_on_disk_before_they_are_acknowledged(tmp_path: Path) -> None:
    writer = TailWriter(tails.create(tmp_path))
    rows = pa.table({"__operation": ["insert"], "id": ["a"], "n": [1]})
    with called("fsync", DELTALAKE) as seen:
        writer.append([Flush("s", 1, rows)])
    before, after = around(seen, DELTALAKE)
    assert before.count("fsync") >= 2
    assert after.count("fsync") >= 2
