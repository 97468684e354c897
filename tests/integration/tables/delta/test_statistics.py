"""Statistics of data files: what readers skip by them, and values of other writers' files."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from volstream.errors import NotFoundError
from volstream.spark.session import SparkGateway
from volstream.sql.text import table_at
from volstream.tables.delta import direct, upkeep
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import UPKEEP, Marker
from volstream.tables.tails.lookup import Lookup

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])

#: One of each plane, and the ends of some. U+20BB7 is in the name of a chain of restaurants and in family names.
CHARACTERS = ["~", "\uffff", "\U0001f600", "\U00020bb7", "\U0010fffe", "\U0010ffff"] + [
    chr(plane << 16 | 0x123) for plane in range(1, 17)
]


@pytest.fixture
def location(tmp_path: Path) -> str:
    place = str(tmp_path / "t")
    assert direct.create(place, SCHEMA, {})
    return place


def put(location: str, number: int, rows: dict[str, int], gone: Sequence[str] | None = None) -> None:
    table = pa.table({"id": list(rows), "n": list(rows.values())}, schema=SCHEMA)
    changes = RowChanges([table], SCHEMA, "id", [*rows] if gone is None else gone)
    assert direct.commit(location, Marker("app", number, {}), changes)


def select(location: str, where: str = "true") -> list[tuple[str, int]]:
    query = QueryBuilder().register("t", DeltaTable(location)).execute(f"SELECT id, n FROM t WHERE {where}")
    return sorted((row["id"], row["n"]) for row in pa.table(query.read_all()).to_pylist())


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_rows_of_a_key_are_replaced_and_found_whatever_its_characters(location: str, character: str) -> None:
    for number in (1, 2, 3):
        put(location, number, {f"{character}野": number})
    assert select(location) == [(f"{character}野", 3)]
    assert select(location, f"id = '{character}野'") == [(f"{character}野", 3)]
    put(location, 4, {}, [f"{character}野"])
    assert select(location) == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_generated_keys_of_all_planes_have_one_row_each(location: str, seed: int) -> None:
    choice, model = random.Random(seed), dict[str, int]()
    for number in range(1, 30):
        keys = {"".join(choice.choice(CHARACTERS) for _ in range(choice.choice([1, 2, 33, 34, 40]))) for _ in range(5)} | set(
            choice.sample(sorted(model), min(3, len(model)))
        )
        put(location, number, dict.fromkeys(keys, number))
        model |= dict.fromkeys(keys, number)
    assert select(location) == sorted(model.items())
    for key, number in choice.sample(sorted(model.items()), 20):
        assert select(location, f"id = '{key}'") == [(key, number)]


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_the_upper_bound_of_a_long_text_is_not_below_it(location: str, character: str) -> None:
    key = "a" * 32 + character * 3 + "z"
    for number in (1, 2):
        put(location, number, {key: number})
    assert select(location) == [(key, 2)]
    assert select(location, f"id = '{key}'") == [(key, 2)]


TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 4, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.0, -0.0, 1.0], pa.float64()),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in [
                ([-0.0, -0.0], pa.float64()),
                ([-0.0, 1.0], pa.float64()),
                ([-0.0, 1.0], pa.float32()),
                ([float("nan"), 1.0], pa.float64()),
                *(([moment], pa.timestamp("us", "UTC")) for moment in TIMES),
            ]
        ),
        ([*TIMES, None], pa.timestamp("us", "UTC")),
        ([2**63 - 1, -(2**63)], pa.int64()),
        ([moment.date() for moment in TIMES], pa.date32()),
    ],
    ids=str,
)
def test_spark_and_deltalake_find_each_value_by_itself(
    gateway: SparkGateway, tmp_path: Path, values: list[Any], kind: pa.DataType
) -> None:
    location, schema = str(tmp_path / "t"), pa.schema([("v", kind), ("id", pa.string())])
    assert direct.create(location, schema, {})
    rows = pa.table({"v": pa.array(values, kind), "id": [str(at) for at in range(len(values))]}, schema=schema)
    assert direct.commit(location, Marker("app", 1, {}), RowChanges([rows], schema, "id", None))
    spark = gateway.session()
    spark.createDataFrame(rows).createOrReplaceTempView("wanted")
    found = spark.sql(
        f"SELECT count(*) FROM wanted w WHERE EXISTS (SELECT 1 FROM {table_at(location)} t WHERE t.id = w.id AND t.v <=> w.v)"
    ).collect()
    spark.catalog.dropTempView("wanted")  # others share the session
    assert found[0][0] == len(values)
    for value in values:
        if value is None or value != value:
            continue
        literal = f"CAST('{value}' AS {'FLOAT' if kind == pa.float32() else 'DOUBLE'})" if value == 0 else None
        if isinstance(value, datetime):
            literal = f"TIMESTAMP'{value.isoformat()}'"
        elif literal is None:
            literal = f"DATE'{value}'" if pa.types.is_date(kind) else repr(value)
        if literal == repr(-(2**63)):
            literal = "-9223372036854775807 - 1"
        count = spark.sql(f"SELECT count(*) FROM {table_at(location)} WHERE v = {literal}").collect()[0][0]
        assert count == sum(other == value for other in values), literal


def test_the_greatest_time_has_no_upper_bound_as_the_log_cannot_store_it(tmp_path: Path) -> None:
    location, schema = str(tmp_path / "t"), pa.schema([("v", pa.timestamp("us", "UTC"))])
    assert direct.create(location, schema, {})
    for number, moment in enumerate(TIMES):
        rows = pa.table({"v": pa.array([moment], pa.timestamp("us", "UTC"))}, schema=schema)
        assert direct.commit(location, Marker("app", number, {}), RowChanges([rows], schema, "v", None))
        entry = Path(location, "_delta_log", f"{number + 1:020d}.json").read_text()
        add = next(action["add"] for action in map(json.loads, entry.splitlines()) if "add" in action)
        maximum = json.loads(add["stats"])["maxValues"].get("v")
        assert (maximum is None) if moment == TIMES[-1] else datetime.fromisoformat(maximum) >= moment


#: Files of a table as other writers make them: the types of text, and times of Spark's.
WRITERS = {
    "string_view": lambda rows: rows.set_column(0, "id", rows["id"].cast(pa.string_view())),
    "large_string": lambda rows: rows.set_column(0, "id", rows["id"].cast(pa.large_string())),
    "dictionary": lambda rows: rows.set_column(0, "id", rows["id"].combine_chunks().dictionary_encode()),
}


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_lookup_searches_the_table_that_is_there_now(location: str, commits: int) -> None:
    put(location, 1, {"a": 1})
    put(location, 2, {"b": 1})
    lookup = Lookup(location, ["id"])
    assert lookup.get("b") == {"id": "b", "n": 1}
    shutil.rmtree(location)
    with pytest.raises(NotFoundError):
        lookup.get("b")
    assert direct.create(location, SCHEMA, {})
    for number in range(commits):
        put(location, number + 1, {"c": number})
    assert [lookup.get(key) for key in ("a", "b", "c")] == [None, None, {"id": "c", "n": commits - 1}]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_rows_that_others_wrote_are_replaced_and_read(tmp_path: Path, writer: str, tracked: bool) -> None:
    place = str(tmp_path / "t")
    assert direct.create(place, SCHEMA, {"volstream.primary_key": '["id"]'}, tracked=tracked)
    put(place, 1, {"a": 1, "b": 1})
    name = "part-00000-of-another-writer.parquet"
    rows = WRITERS[writer](pa.table({"id": ["c", "d", "e"], "n": [1, 1, 1]}, schema=SCHEMA))
    pq.write_table(rows, f"{place}/{name}")
    assert re.search("string_view|large_string|dictionary", str(pq.read_schema(f"{place}/{name}").field("id").type))
    size = Path(place, name).stat().st_size
    ids = {"baseRowId": 100, "defaultRowCommitVersion": 2} if tracked else {}
    add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True, **ids}
    info = {"commitInfo": {"timestamp": 0, "operation": "WRITE", "inCommitTimestamp": 9_000_000_000_000}}
    entry = "\n".join(json.dumps(one) for one in (info, {"add": {**add, "stats": '{"numRecords": 3}'}}))
    Path(place, "_delta_log", f"{2:020d}.json").write_text(entry)
    assert Lookup(place, ["id"]).get("c") == {"id": "c", "n": 1}
    put(place, 2, {"c": 2, "a": 2}, ["a", "c", "d"])
    assert select(place) == [("a", 2), ("b", 1), ("c", 2), ("e", 1)]


@pytest.mark.long
def test_keys_of_all_planes_that_spark_wrote_are_replaced(gateway: SparkGateway, location: str) -> None:
    keys = [f"{character}野" for character in CHARACTERS]
    spark = gateway.session()
    frame = spark.createDataFrame(pa.table({"id": keys, "n": [1] * len(keys)}, schema=SCHEMA)).repartition(len(keys))
    frame.createOrReplaceTempView("written")
    spark.sql(f"INSERT INTO {table_at(location)} SELECT * FROM written")
    spark.catalog.dropTempView("written")  # others share the session
    for number, key in enumerate(keys, 1):
        put(location, number, {key: 2})
    assert select(location) == sorted((key, 2) for key in keys)


def test_rows_that_deltalake_wrote_are_replaced(location: str) -> None:
    write_deltalake(location, pa.table({"id": pa.array(["a", "b"], pa.string_view()), "n": [1, 1]}), mode="append")
    put(location, 1, {"a": 2})
    assert select(location) == [("a", 2), ("b", 1)]


@pytest.mark.long
def test_spark_finds_rows_with_nan_which_is_greater_than_all_numbers(gateway: SparkGateway, tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    inside = pa.struct([("d", pa.float32()), ("n", pa.int64())])
    schema = pa.schema([("id", pa.string()), ("d", pa.float64()), ("s", inside)])
    assert direct.create(location, schema, {UPKEEP: "on"})
    spark = gateway.session()

    def found() -> list[int]:
        wheres = ("d > 0.5", "d = double('NaN')", "s.d > 0.5", "s.n > 1")
        counts = ", ".join(f"(SELECT count(*) FROM {table_at(location)} WHERE {where})" for where in wheres)
        return [*spark.sql(f"SELECT {counts}").collect()[0]]

    for number, name in enumerate("abc", 1):
        values = [{"id": f"{name}{d}", "d": d, "s": {"d": d, "n": 2}} for d in (float("nan"), 0.1, -0.0)]
        changes = RowChanges([pa.Table.from_pylist(values, schema=schema)], schema, "id", ["a0.1"])
        assert direct.commit(location, Marker("app", number, {}), changes)
    assert found() == [3, 3, 3, 8]
    assert upkeep.compact(location, "id", without_vectors=True)
    assert found() == [3, 3, 3, 8]
