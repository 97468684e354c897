"""Excerpts: the changed files of a table, read as a table of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.integration.conftest import Home, home_in
from volstream.base import config
from volstream.base.model.names import Name
from volstream.changes.changelog import SnapshotDifference, TrackedChanges, net_changes_query
from volstream.changes.streams.sources import TableSource
from volstream.errors import DependencyError
from volstream.server.daemon.housekeeping import clean
from volstream.spark.session import SparkGateway
from volstream.tables.delta import direct, places
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.opened import columns_at, newest_version
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.writer import HOUR, excerpt

TRACKED = "'change_tracking' = 'true'"

#: What a table may have: its clauses, by name.
SHAPES = {
    "plain": f"TBLPROPERTIES ({TRACKED})",
    "vectors": f"TBLPROPERTIES ({TRACKED}, 'delta.enableDeletionVectors' = 'true')",
    "mapped": f"TBLPROPERTIES ({TRACKED}, 'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')",
    "partitioned": f"PARTITIONED BY (p) TBLPROPERTIES ({TRACKED})",
    "prefixed": f"PARTITIONED BY (p) TBLPROPERTIES ({TRACKED}, 'delta.columnMapping.mode' = 'id', "
    "'delta.enableDeletionVectors' = 'true', 'delta.randomizeFilePrefixes' = 'true')",
}

STEPS = [
    "INSERT INTO t$ SELECT id, concat('v', id), CASE id % 3 WHEN 0 THEN 'a b%20/ü' WHEN 1 THEN NULL ELSE 'x=y' END FROM range(12)",
    "UPDATE t$ SET v = 'A' WHERE id IN (1, 5)",
    "DELETE FROM t$ WHERE id IN (2, 6)",
    "MERGE INTO t$ t USING (SELECT 3 AS id UNION ALL SELECT 20) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = 'M' WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 'new', 'q')",
    "OPTIMIZE t$",
    "UPDATE t$ SET p = 'q', v = 'A2' WHERE id = 1",
    "RESTORE t$ TO VERSION AS OF {restored}",
    "UPDATE t$ SET v = 'late' WHERE id >= 9",
]


@pytest.fixture
def home(tmp_path: Path, gateway: SparkGateway) -> Iterator[Home]:
    with home_in(config.load(tmp_path / "home of ü"), gateway) as home:
        yield home


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES)
def test_changed_files_show_the_same_changes_as_whole_versions(home: Home, shape: str) -> None:
    home.sql(f"CREATE TABLE t$ (id BIGINT, v STRING, p STRING) {SHAPES[shape]}")
    location = home.location("t")
    begin = newest_version(location)
    assert begin is not None
    ends = []
    for step in STEPS:
        home.sql(step.format(restored=begin + 2))
        ends.append(newest_version(location) or 0)
    columns = [*columns_at(location)]
    tracked = TrackedChanges(location, columns, columns, home.session.home.warehouse)
    for first, last in [(begin + 1, end) for end in ends] + [(ends[at] + 1, ends[-1]) for at in (0, 2, 4, 5)]:
        whole = SnapshotDifference(location, columns, columns, {})
        shown = "old.data, new.data, if(old IS NULL, NULL, old.wrote), if(new IS NULL, NULL, new.wrote)"
        queries = (f"SELECT {shown} FROM ({net_changes_query(one, first, last)})" for one in (tracked, whole))
        found, expected = (sorted(map(repr, home.session.spark.sql(query).collect())) for query in queries)
        assert found == expected, (first, last)
        assert expected or last - first < 3


#: What changes how files of a table are read: statements before the range, and in it.
REWRITES = {
    "vectors are given up": (
        f"CREATE TABLE t$ (id INT, p BIGINT) TBLPROPERTIES ({TRACKED}, 'delta.enableDeletionVectors' = 'true'); "
        "INSERT INTO t$ SELECT CAST(id AS INT), id FROM range(0, 9, 1, 1)",
        "DELETE FROM t$ WHERE id = 1; ALTER TABLE t$ SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false'); "
        "ALTER TABLE t$ DROP FEATURE deletionVectors",
    ),
    "NULLs are forbidden": (
        f"CREATE TABLE t$ (id INT, p BIGINT NOT NULL) TBLPROPERTIES ({TRACKED}); INSERT INTO t$ VALUES (1, 1); "
        "ALTER TABLE t$ ALTER COLUMN p DROP NOT NULL; INSERT INTO t$ VALUES (2, NULL)",
        "RESTORE t$ TO VERSION AS OF 1",
    ),
    "columns become partitions": (
        f"CREATE TABLE t$ (id INT, p BIGINT) TBLPROPERTIES ({TRACKED}); INSERT INTO t$ VALUES (1, 1), (2, 2)",
        f"CREATE OR REPLACE TABLE t$ (id INT, p BIGINT) PARTITIONED BY (p) TBLPROPERTIES ({TRACKED}); INSERT INTO t$ VALUES (3, 3)",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("rewrite", REWRITES)
def test_files_are_read_as_they_were_written(home: Home, rewrite: str) -> None:
    before, within = REWRITES[rewrite]
    home.sql(before)
    old = set(home.rows("SELECT * FROM t$"))
    first = (newest_version(home.location("t")) or 0) + 1
    home.sql(within)
    new = set(home.rows("SELECT * FROM t$"))
    found = home.session.changes(home.name("t"), startingVersion=first, deduplicationMode="netChanges").collect()
    changes = {(*row[:2], row["_change_type"]) for row in found}
    assert changes == {(*row, "delete") for row in old - new} | {(*row, "insert") for row in new - old}


@pytest.mark.parametrize("lost", [1, 2])
def test_a_version_that_the_log_no_longer_has_is_an_error(tmp_path: Path, lost: int) -> None:
    place = str(tmp_path / "t")
    assert direct.create(place, pa.schema([("id", pa.string())]), {}, tracked=True)
    for number in (1, 2, 3):
        rows = pa.table({"id": [str(number)]})
        assert direct.commit(place, Marker("app", number, {}), RowChanges([rows], rows.schema, "id", []))
    DeltaTable(place).create_checkpoint()
    assert f"{tmp_path}/w/" in excerpt(place, 1, 3, f"{tmp_path}/w")
    Path(place, "_delta_log", f"{lost:020d}.json").unlink()
    with pytest.raises(DependencyError, match="no longer has all versions from 1 to 3"):
        excerpt(place, 1, 3, f"{tmp_path}/w")


def test_queries_at_the_same_time_read_their_own_columns(home: Home) -> None:
    """Spark's ``CHANGES`` does not."""
    tables = {"t": "id INT, v STRING", "u": "a STRING, b BIGINT, c DOUBLE"}
    for table, columns in tables.items():
        home.sql(f"CREATE TABLE {table}$ ({columns}) TBLPROPERTIES ({TRACKED})")
    home.sql("INSERT INTO t$ VALUES (1, 'a'), (2, 'b'); UPDATE t$ SET v = 'A' WHERE id = 1; DELETE FROM t$ WHERE id = 2")
    home.sql(
        "INSERT INTO u$ VALUES ('x', 1, 1.5), ('y', 2, 2.5); UPDATE u$ SET b = 3 WHERE a = 'x'; DELETE FROM u$ WHERE a = 'y'"
    )
    expected = {"t": [(1, "A", "insert")], "u": [("x", 3, 1.5, "insert")]}

    def rows(table: str) -> None:
        first = (newest_version(home.location(table)) or 0) - 2
        frame = home.session.changes(home.name(table), startingVersion=first, deduplicationMode="netChanges", computeUpdates=True)
        for _ in range(2):
            assert [tuple(row)[:-2] for row in frame.collect()] == expected[table]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rows, [*tables] * 2))


def test_an_excerpt_survives_a_vacuum_and_is_deleted_after_a_day(home: Home) -> None:
    home.sql(f"CREATE TABLE t$ (id INT) TBLPROPERTIES ({TRACKED}); INSERT INTO t$ VALUES (1), (2); DELETE FROM t$ WHERE id = 1")
    location, own = home.location("t"), home.session.home
    last = newest_version(location) or 0
    ends = [(last, last), (last - 1, last), (last - 1, last)]
    _, place, again = (excerpt(location, first, end, own.warehouse) for first, end in ends)
    assert place == again
    clean(own.catalog, own.warehouse)
    home.sql("VACUUM t$")
    assert {row.id for row in home.session.spark.sql(f"SELECT DISTINCT id FROM {place}").collect()} == {1, 2}
    [hour] = Path(own.warehouse, places.STAGING).iterdir()
    assert len([*hour.iterdir()]) == 2
    names = [f"{datetime.now(UTC) - timedelta(hours=hours):{HOUR}}" for hours in (24, 26)]
    for name in names:
        shutil.copytree(hour, hour.with_name(name))
    clean(own.catalog, own.warehouse)
    assert {path.name for path in hour.parent.iterdir()} == {hour.name, names[0]}


def test_the_source_of_a_stream_reads_changed_files_of_every_table(home: Home) -> None:
    home.sql(f"CREATE TABLE t$ (id INT, p STRING) {SHAPES['prefixed']}; INSERT INTO t$ VALUES (1, 'a'); DELETE FROM t$")
    last = newest_version(home.location("t")) or 0
    source = TableSource(Name.parse(home.name("t")), home.location("t"), home.session.home.warehouse)
    assert isinstance(source.changelog(last, last), TrackedChanges)
