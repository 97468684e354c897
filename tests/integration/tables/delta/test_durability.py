"""The order in which commits reach the disk: files before the entry that names them, and the entry before an answer."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests import tails
from tests.directories import Directory
from tests.interrupts import called
from volstream.changes.directory import table
from volstream.spark.session import SparkGateway
from volstream.tables.delta import direct, durable
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import Marker
from volstream.tables.tails.writer import Flush, TailWriter


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
    with called("fsync", "link") as seen:
        directory.refresh({"a": 2})
    before, after = around(seen, "link")
    assert before.count("fsync") >= 2
    assert after.count("fsync") >= 2
    directory.close()


def test_rows_that_arrive_are_on_disk_before_they_are_acknowledged(tmp_path: Path) -> None:
    writer = TailWriter(tails.create(tmp_path))
    rows = pa.table({"__operation": ["insert"], "id": ["a"], "n": [1]})
    writer.append([Flush("s", 1, rows)])
    with called("fsync", "link") as seen:
        writer.append([Flush("s", 2, rows)])
    before, after = around(seen, "link")
    assert before.count("fsync") >= 2
    assert after.count("fsync") >= 2


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths that this process syncs."""
    found, real = set[str](), os.fsync

    def note(descriptor: int) -> None:
        found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def _commit_directly(location: str) -> None:
    rows = pa.table({"id": ["b"], "n": [1]})
    assert direct.commit(location, Marker("app", 1, {}), RowChanges([rows], rows.schema, "", None))


def _make_a_checkpoint(location: str) -> None:
    durable.checkpoint(location, DeltaTable(location))


def _rely_on_it(location: str) -> None:
    table = DeltaTable(location)
    durable.sync(location, str(table.metadata().id), table.version())


@pytest.mark.long
@pytest.mark.parametrize(
    "use", [_commit_directly, *(pytest.param(use, marks=pytest.mark.long) for use in (_make_a_checkpoint, _rely_on_it))]
)
@pytest.mark.parametrize(
    "interval", [pytest.param("2", id="with a checkpoint"), pytest.param("10", id="without", marks=pytest.mark.long)]
)
def test_what_spark_wrote_is_on_disk_before_something_of_ours_follows_it(
    gateway: SparkGateway, tmp_path: Path, synced: set[str], use: Callable[[str], None], interval: str
) -> None:
    location = str(tmp_path / "schema" / "t")
    properties = {"delta.enableDeletionVectors": "true", "delta.checkpointInterval": interval}
    assert direct.create(location, tails.COLUMNS, properties)
    spark, table = gateway.session(), f"delta.`{location}`"
    spark.sql(f"INSERT INTO {table} SELECT id, id FROM range(0, 9, 1, 1)").collect()
    spark.sql(f"DELETE FROM {table} WHERE n = 3").collect()
    written = {str(one) for one in Path(location).rglob("*") if one.is_file() and one.suffix != ".crc"}
    assert [name for name in written if name.endswith(".bin")], "the deletion vector"
    assert (interval == "2") is bool([name for name in written if name.endswith(".checkpoint.parquet")])
    synced.clear()
    use(location)
    created = f"{location}/_delta_log/00000000000000000000.json"  # is ours
    assert written - {created} <= synced
    assert {location, f"{location}/_delta_log", str(tmp_path / "schema"), str(tmp_path)} <= synced
    synced.clear()
    _rely_on_it(location)
    assert synced == set(), "nothing is synced twice"


def test_the_name_of_a_deletion_vector_is_on_disk_before_the_entry_that_refers_to_it(tmp_path: Path, synced: set[str]) -> None:
    location = tails.create(tmp_path)
    rows = pa.table({"id": ["a", "b"], "n": [1, 2]})
    assert direct.commit(location, Marker("app", 1, {}), RowChanges([rows], rows.schema, "", None))
    synced.clear()
    assert direct.commit(location, Marker("app", 2, {}), RowChanges([], rows.schema, "id", ["a"]))
    (vector,) = Path(location).glob("deletion_vector_*.bin")
    assert {str(vector), location} <= synced


def test_a_checkpoint_is_on_disk_before_the_entries_that_it_replaces_are_deleted(tmp_path: Path) -> None:
    location = tails.create(tmp_path)
    rows = pa.table({"id": ["a"], "n": [1]})
    with called("fsync", "create_checkpoint", "cleanup_metadata") as seen:
        for number in range(1, 11):
            assert direct.commit(location, Marker("app", number, {}), RowChanges([rows], rows.schema, "", None))
    made, cleaned = seen.index("create_checkpoint"), seen.index("cleanup_metadata")
    assert seen[made:cleaned].count("fsync") >= 3


@pytest.mark.parametrize(
    "action",
    [
        {"cdc": {"path": "_change_data/gone.parquet", "partitionValues": {}, "size": 1, "dataChange": False}},
        {"add": {"path": "file:/source/a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}},
    ],
    ids=["vacuumed with its folder", "of a shallow clone"],
)
def test_files_that_are_not_in_the_tables_folder_do_not_prevent_that_it_is_on_disk(
    tmp_path: Path, action: dict[str, dict[str, object]]
) -> None:
    location = tails.create(tmp_path)
    told = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "engineInfo": "Apache-Spark/4.2.0"}}
    lines = "".join(f"{json.dumps(one)}\n" for one in (told, action))
    Path(location, "_delta_log", f"{1:020d}.json").write_text(lines)
    _rely_on_it(location)


def test_a_refresh_whose_process_died_before_it_was_on_disk_is_synced_before_anything_follows_it(
    tmp_path: Path, synced: set[str]
) -> None:
    directory = Directory(tmp_path)
    directory.list_first({"a": 1})
    directory.refresh({"a": 2})
    synced.clear()
    importlib.reload(durable)  # another process knows nothing of what this one has synced
    directory.new_writer().open()
    tail = table.tail_spec(directory.root, directory.volume.id).location
    entries = sorted(str(one) for one in Path(tail, "_delta_log").glob("*.json"))
    assert {*entries} <= synced  # their files were before them
    directory.close()
