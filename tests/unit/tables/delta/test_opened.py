"""An opened version of a table: what it says of rows, files and columns, and when it is opened again."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from volstream.base.model.names import Name
from volstream.errors import DependencyError
from volstream.tables.delta import opened
from volstream.tables.delta.opened import Bounds, OpenTable, columns_at, has_newer, newest_version, properties_at, schema_at


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table with two files, in versions 0 and 1."""
    place = str(tmp_path / "t")
    first = pa.table({"n": [1, 2, None], "s": ["b", "a", "c"], "d": [date(2026, 1, 2), None, None]})
    write_deltalake(place, first, configuration={"delta.appendOnly": "false"})
    more = CommitProperties(app_transactions=[Transaction("app", 7)])
    write_deltalake(place, pa.table({"n": [9], "s": ["z"], "d": [date(2026, 1, 1)]}), mode="append", commit_properties=more)
    return place


def newest(location: str) -> OpenTable:
    table = OpenTable.newest(location)
    assert table is not None
    return table


def test_it_says_what_the_files_have(location: str) -> None:
    table = newest(location)
    files = [*Path(location).glob("*.parquet")]
    assert (table.version, table.rows, table.bytes) == (1, 4, sum(file.stat().st_size for file in files))
    assert sorted(table.paths) == sorted(file.name for file in files)
    assert table.fields.names == [*table.schema.columns] == ["n", "s", "d"]
    assert table.bounds() == {"n": Bounds(1, 9, 1), "s": Bounds("a", "z", 0), "d": Bounds(date(2026, 1, 1), date(2026, 1, 2), 2)}
    assert (table.transaction("app"), table.transaction("other")) == (7, None)
    assert table.properties == properties_at(location) == {"delta.appendOnly": "false"}
    assert table.deleted(table.paths[0]) is None


def test_a_column_without_statistics_in_one_file_has_no_bounds(location: str) -> None:
    entry = Path(location, "_delta_log", f"{1:020d}.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = json.dumps(
                {"numRecords": 1, "minValues": {"s": "z"}, "maxValues": {"s": "z"}, "nullCount": {"s": 0}}
            )
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {*newest(location).bounds()} == {"s"}


def test_rows_are_unknown_if_a_file_does_not_count_them(location: str) -> None:
    entry = Path(location, "_delta_log", f"{1:020d}.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    entry.write_text(
        "".join(json.dumps({**line, "add": {**line["add"], "stats": None}} if "add" in line else line) + "\n" for line in lines)
    )
    assert newest(location).rows is None


@pytest.mark.parametrize("checksum", [True, False])
def test_its_size_is_compared_with_a_limit(location: str, checksum: bool) -> None:
    table = newest(location)
    if checksum:
        Path(location, "_delta_log", f"{1:020d}.crc").write_text(json.dumps({"tableSizeBytes": table.bytes}))
    limits = [(table.bytes, 4), (table.bytes - 1, 4), (table.bytes, 3), (0, 0)]
    assert [table.is_larger(*limit) for limit in limits] == [False, True, True, True]


@pytest.mark.parametrize("version", [0, 1])
def test_an_empty_log_entry_is_damage_and_no_commit_of_nothing(location: str, version: int) -> None:
    Path(location, "_delta_log", f"{version:020d}.json").write_bytes(b"")
    with pytest.raises(DependencyError, match=f"version {version} of its log is empty" if version else "damaged|cannot be read"):
        OpenTable.newest(location)


def test_an_empty_log_entry_before_a_checkpoint_is_not_read(location: str) -> None:
    DeltaTable(location).create_checkpoint()
    Path(location, "_delta_log", f"{0:020d}.json").write_bytes(b"")
    assert newest(location).version == 1


def test_earlier_versions_and_missing_tables(location: str, tmp_path: Path) -> None:
    first = OpenTable.at(location, 0)
    assert first is not None
    assert (first.version, first.rows, first.is_newest()) == (0, 3, False)
    assert OpenTable.at(location, 2) is None
    assert schema_at(location, 0) == schema_at(location)
    assert schema_at(location, 2) is None
    assert [*columns_at(location)] == ["n", "s", "d"]
    missing = str(tmp_path / "missing")
    assert (OpenTable.newest(missing), newest_version(missing), schema_at(missing)) == (None, None, None)
    assert (columns_at(missing), properties_at(missing)) == ({}, {})
    assert has_newer(missing, 0, "id")


def test_the_tables_of_the_latest_uses_are_kept(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "_MAX_OPENED", 1)
    monkeypatch.setattr(opened, "_opened", type(opened._opened)())
    other = str(tmp_path / "other")
    write_deltalake(other, pa.table({"n": [1]}))
    first = newest(location)
    assert newest(location) is first
    newest(other)
    assert newest(location) is not first
    assert len(opened._opened) == 1


def test_a_table_with_expressions_is_refused_by_its_name(location: str) -> None:
    newest(location).check_plain(Name.parse("t"))


def test_a_null_in_a_partition_column_that_is_not_null_is_an_error_that_says_how_to_repair_the_table(tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())])
    write_deltalake(location, pa.table({"k": ["a"], "n": [1]}, schema=schema), partition_by=["k"])
    first = Path(location, "_delta_log", f"{0:020}.json")
    [add] = [json.loads(line)["add"] for line in first.read_text().splitlines() if '"add"' in line]
    entry = {"add": {**add, "path": "other.parquet", "partitionValues": {"k": None}}}
    first.with_name(f"{1:020}.json").write_text(json.dumps(entry))
    with pytest.raises(DependencyError, match=rf"ALTER TABLE delta.`{location}` ALTER COLUMN ... DROP NOT NULL"):
        OpenTable.newest(location)
