"""Files with more rows than a task's reply takes: workers write them, whatever the table then requires of its commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Place

NUMBERS = """
def f(file):
    return [{'n': number, 't': 'x' * 50} for number in range(int(file.read_text()))]
"""

TABLES = {
    "its own": "",
    "with rules for rows": "CREATE TABLE {at} (n INT NOT NULL, t VARCHAR(60)) USING delta",
    "with partitions": "CREATE TABLE {at} (n INT, t STRING) USING delta PARTITIONED BY (t)",
    "that only Spark writes": "CREATE TABLE {at} (n INT, t STRING) USING delta "
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "of other spelling": "CREATE TABLE {at} (N INT, T STRING) USING delta",
    "with tracked changes": "CREATE TABLE {at} (n INT, t STRING) USING delta TBLPROPERTIES ("
    "'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')",
}


def found(place: Place) -> list[tuple[object, ...]]:
    counts = f"SELECT _file_path, count(*), count(DISTINCT n), max(n), min(t), max(_file_version) FROM {place.at} GROUP BY 1"
    return sorted(tuple(row.values())[:5] for row in place.rows(counts))


@pytest.mark.long
@pytest.mark.parametrize(
    "create",
    [pytest.param(create, id=name, marks=() if name == "its own" else pytest.mark.long) for name, create in TABLES.items()],
)
def test_rows_that_workers_write_are_those_of_the_files(place: Place, create: str) -> None:
    if create:
        with place.gateway.fresh() as spark:  # by others: all tests share one engine, whose schema public is one home's
            spark.sql(create.format(at=place.at))
    for name, rows in (("a", 30_000), ("b", 3), ("c", 0)):
        place.put(name, str(rows))
    place.job(NUMBERS, returns="n INT, t STRING")
    assert place.run().progress.rows == 30_003
    assert found(place) == [("a", 30_000, 30_000, 29_999, "x" * 50), ("b", 3, 3, 2, "x" * 50)]
    place.put("a", "20000")
    place.put("c", "25000")
    place.delete("b")
    place.refresh()
    assert place.run().progress.rows == 45_000
    assert found(place) == [("a", 20_000, 20_000, 19_999, "x" * 50), ("c", 25_000, 25_000, 24_999, "x" * 50)]
    assert [*Path(place.session.home.warehouse).glob("_staging/*")] == []
