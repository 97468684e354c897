"""Directories as Spark reads them, including large tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from tests.directories import rows
from tests.integration.conftest import Home, Place
from volstream.changes.directory.table import compare_files
from volstream.changes.directory.writer import DirectoryWriter
from volstream.spark.jvm.command import COMPILED, INTERPRETED, LARGE_BYTES, LARGE_ROWS
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.ownership import Marker


def directory(place: Place) -> dict[str, int]:
    """Path and size of each row; a path that is there twice is an error."""
    rows = place.rows("SELECT relative_path, size FROM DIRECTORY(VOLUME v)")
    found = {str(row["relative_path"]): int(str(row["size"])) for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_marker_of_a_commit_is_not_on_later_ones(place: Place) -> None:
    place.put("a")
    place.refresh()
    with place.gateway.pooled() as first, place.gateway.pooled() as second:
        for session in (first, second):
            assert {session.conf.get(name, None) for name in Marker("", 0, {}).settings()} == {None}


@pytest.fixture
def writer(place: Place) -> Iterator[DirectoryWriter]:
    """Writes the directory of ``place`` without files."""
    home = place.session.home
    yield DirectoryWriter(place.volume, home.catalog, home.warehouse, home.settings.directory_versions)
    for key, value in INTERPRETED.items():
        place.session.spark.conf.set(key, value)


def compiles(place: Place, files: int) -> bool:
    """Counts the files, and returns whether Spark compiles the session's queries now."""
    assert place.rows("SELECT count(*) AS n FROM DIRECTORY(VOLUME v)") == [{"n": files}]
    settings = {key: place.session.spark.conf.get(key) for key in INTERPRETED}
    assert settings in (INTERPRETED, COMPILED)
    return settings == COMPILED


@pytest.mark.long
def test_reads_of_a_directory_with_many_rows_are_compiled(place: Place, writer: DirectoryWriter) -> None:
    listed = rows({f"{number:06}": 1 for number in range(LARGE_ROWS)})
    writer.commit_first(writer.open(), [listed], LARGE_ROWS)
    assert not compiles(place, LARGE_ROWS)
    snapshot = writer.open()
    changes = writer.begin(snapshot)
    changes.add(compare_files(rows({"more": 1}), snapshot.find(["more"])))
    writer.commit(snapshot, changes, "events")
    assert compiles(place, LARGE_ROWS + 1)


@pytest.mark.long
def test_reads_of_a_directory_with_many_bytes_are_compiled(place: Place, writer: DirectoryWriter) -> None:
    files = LARGE_BYTES // 500
    listed = rows({token_hex(500): 1 for _ in range(files)})  # names that do not compress to less than half
    writer.commit_first(writer.open(), [listed], files)
    assert compiles(place, files)


@pytest.mark.long
def test_the_size_of_a_table_comes_from_its_checksum_or_its_files(home: Home) -> None:
    location = home.location("t")
    home.sql("CREATE TABLE t$ (n INT); INSERT INTO t$ VALUES (1); INSERT INTO t$ VALUES (2)")
    size = sum(file.stat().st_size for file in Path(location).glob("*.parquet"))
    table = OpenTable.newest(location)
    assert table is not None
    (checksum,) = Path(location).glob(f"_delta_log/{table.version:020}.crc")
    assert json.loads(checksum.read_text())["tableSizeBytes"] == size
    for _ in range(2):
        assert [table.is_larger(size, 2), table.is_larger(size - 1, 2), table.is_larger(size, 1)] == [False, True, True]
        checksum.unlink(missing_ok=True)


def test_a_plain_reader_of_the_two_tables_sees_the_directory_and_its_changes(place: Place) -> None:
    place.put("a")
    place.put("b")
    place.refresh()
    place.put("a", "22")
    place.delete("b")
    place.refresh()
    root = f"{place.session.home.warehouse}/directories/{place.volume.id}"
    spark = place.session.spark
    assert [tuple(row) for row in spark.sql(f"SELECT relative_path, size, refresh_id FROM delta.`{root}/files`").collect()] == [
        ("a", 2, 2)
    ]
    changes = spark.sql(f"SELECT refresh_id, change, relative_path, old_size FROM delta.`{root}/changes` ORDER BY 3")
    assert [tuple(row) for row in changes.collect()] == [(2, "update", "a", 1), (2, "delete", "b", 1)]
