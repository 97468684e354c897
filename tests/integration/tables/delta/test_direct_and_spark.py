"""Commits without a JVM between commits by Spark, verified by what Spark reads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from volstream.spark.session import SparkGateway
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.writer import DeltaWriter

SCHEMA = pa.schema(
    [
        ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("cost", pa.decimal128(12, 3)),
        ("place", pa.struct([("x", pa.float32())])),
        ("raw", pa.binary()),
        ("path", pa.string()),
        ("n", pa.int64()),
    ]
)


def rows(paths: list[str], number: int) -> pa.Table:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number, microseconds=number)
    one = {
        "tags": [("a", [number, None])],
        "seen": moment,
        "day": moment.date(),
        "cost": None,
        "place": {"x": 0.5},
        "raw": b"\x00\xff",
        "n": number,
    }
    return pa.Table.from_pylist([{**one, "path": path} for path in paths], schema=SCHEMA)


@pytest.mark.long
def test_spark_and_direct_commits_take_turns_on_one_table(gateway: SparkGateway, tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    table = f"delta.`{location}`"
    spark = gateway.session()
    direct.create(location, SCHEMA, {"volstream.job": "j"})
    names = [f"it's/${{env:HOME}}/{number:03d}" for number in range(60)]
    choice, model = random.Random(11), dict[str, int]()
    turns = ["direct", "delete", "direct", "optimize", "insert", "direct"]
    for number, turn in enumerate(turns, 1):
        some = choice.sample(names, choice.choice([1, 8, 30]))
        named = ", ".join(f'r"{path}"' for path in some)
        match turn:
            case "direct":
                gone = [*some, *choice.sample(names, 4)]
                marker = Marker("volstream:s", number, {"attempt": number})
                assert direct.commit(location, marker, RowChanges([rows(some, number)], SCHEMA, "path", gone))
                model = {path: n for path, n in model.items() if path not in gone} | dict.fromkeys(some, number)
            case "insert":
                fresh = [path for path in some if path not in model] or [f"new/{number}"]
                spark.createDataFrame(rows(fresh, number)).write.format("delta").mode("append").save(location)
                model |= dict.fromkeys(fresh, number)
            case "delete":
                spark.sql(f"DELETE FROM {table} WHERE path IN ({named})").collect()
                model = {path: n for path, n in model.items() if path not in some}
            case "update":
                spark.sql(f"UPDATE {table} SET n = {number} WHERE path IN ({named})").collect()
                model |= {path: number for path in some if path in model}
            case "optimize":
                spark.sql(f"OPTIMIZE {table}").collect()
        if turn == "direct":
            found = spark.sql(f"SELECT path, n, tags, place FROM {table}").collect()
            assert sorted((row.path, row.n) for row in found) == sorted(model.items()), (number, turn)
            assert all(row.tags["a"][1] is None and row.place.x == 0.5 for row in found)
            one = choice.choice(names)
            skipped = spark.sql(f'SELECT n FROM {table} WHERE path = r"{one}"').collect()
            assert [row.n for row in skipped] == ([model[one]] if one in model else [])
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    assert {"CREATE TABLE", "WRITE"} <= {row.operation for row in history}
    assert '{"attempt": 1}' in {row.userMetadata for row in history}


@pytest.mark.long
def test_only_one_of_spark_and_a_direct_commit_with_the_same_number_counts(gateway: SparkGateway, tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    direct.create(location, SCHEMA, {})
    delta = DeltaWriter(gateway)
    first, late = Marker("volstream:s", 1, {"attempt": "spark"}), Marker("volstream:s", 1, {"attempt": "direct"})
    with delta.marked(first, location) as spark:
        delta.append(spark, spark.createDataFrame(rows(["a"], 1)), location)
    assert direct.commit(location, late, RowChanges([rows(["b"], 2)], SCHEMA, "path", ["b"]))
    assert [commit.metadata for commit in DeltaLog(location).commits_after(0)] == [first.metadata]
    direct.commit(location, Marker("volstream:s", 2, {"fence": 2}))
    with delta.marked(Marker("volstream:s", 2, {"attempt": "late"}), location) as spark:
        delta.append(spark, spark.createDataFrame(rows(["c"], 3)), location)  # Delta passes over it in silence
    assert [row.path for row in gateway.session().sql(f"SELECT path FROM delta.`{location}`").collect()] == ["a"]


@pytest.mark.long
def test_no_commit_is_lost_while_spark_and_direct_commits_race(gateway: SparkGateway, tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    direct.create(location, SCHEMA, {})
    over = threading.Event()

    def others() -> int:
        number, chosen = 0, random.Random(7)
        while not over.wait(chosen.choice((0.02, 0.05, 1.0))):  # Spark needs a moment to come first: longer on a busy machine
            number += 1
            added = RowChanges([rows([f"direct/{number}"], number)], SCHEMA, "path", None)
            assert direct.commit(location, Marker("volstream:s", number, {}), added)
        return number

    spark = gateway.session()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(others)
        try:
            for number in range(20):
                spark.sql(f"INSERT INTO delta.`{location}` (path, n) VALUES ('spark', {number})").collect()
        finally:
            over.set()
        counted = made.result()
    assert counted > 20
    found = spark.sql(f"SELECT path, n FROM delta.`{location}`").collect()
    wanted = [*(("spark", number) for number in range(20)), *((f"direct/{n}", n) for n in range(1, counted + 1))]
    assert sorted((row.path, row.n) for row in found) == sorted(wanted)
