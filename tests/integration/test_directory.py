"""Directories as Spark reads them, including large tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Home, Place
from volstream.delta.log import DeltaLog
from volstream.delta.marker import Marker
from volstream.jvm.codegen import COMPILED, INTERPRETED


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


@pytest.mark.parametrize("limit", [pytest.param("LARGE_BYTES", marks=pytest.mark.long), "LARGE_ROWS"])
def test_reads_of_a_large_table_are_compiled(place: Place, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("a")
    place.put("b")
    place.refresh()
    reads = "SELECT relative_path FROM DIRECTORY(VOLUME v) ORDER BY 1"
    assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "b"}]
    spark = place.session.spark
    assert {key: spark.conf.get(key) for key in INTERPRETED} == INTERPRETED
    size = {"LARGE_BYTES": bytes_of(place), "LARGE_ROWS": 2}[limit]
    monkeypatch.setattr(f"volstream.streams.volume_source.{limit}", size)
    assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "b"}]
    assert {key: spark.conf.get(key) for key in INTERPRETED} == INTERPRETED
    monkeypatch.setattr(f"volstream.streams.volume_source.{limit}", size - 1)
    try:
        assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "b"}]
        assert {key: spark.conf.get(key) for key in COMPILED} == COMPILED
        place.put("a", "changed")
        place.put("c")
        place.delete("b")
        place.refresh()
        assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "c"}]
    finally:
        for key, value in INTERPRETED.items():
            spark.conf.set(key, value)


def bytes_of(place: Place) -> int:
    folder = Path(place.session.home.warehouse, "directories", place.volume.id)
    return sum(file.stat().st_size for file in folder.glob("*/*.parquet"))


def test_the_size_of_a_table_comes_from_its_checksum_or_its_files(home: Home) -> None:
    log = DeltaLog(home.location("t"))
    assert not log.is_larger(0, 0)
    home.sql("CREATE TABLE t$ (n INT); INSERT INTO t$ VALUES (1); INSERT INTO t$ VALUES (2)")
    size = sum(file.stat().st_size for file in Path(log.location).glob("*.parquet"))
    (checksum,) = Path(log.location).glob(f"_delta_log/{log.latest_version():020}.crc")
    assert json.loads(checksum.read_text())["tableSizeBytes"] == size
    for _ in range(2):
        assert [log.is_larger(size, 2), log.is_larger(size - 1, 2), log.is_larger(size, 1)] == [False, True, True]
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
    assert [
        tuple(row) for row in spark.sql(f"SELECT relative_path, size, refresh_id FROM delta.`{root}/files`").collect()
    ] == [("a", 2, 2)]
    changes = spark.sql(f"SELECT refresh_id, change, relative_path, old_size FROM delta.`{root}/changes` ORDER BY 3")
    assert [tuple(row) for row in changes.collect()] == [(2, "update", "a", 1), (2, "delete", "b", 1)]
