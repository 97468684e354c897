"""Rows added without a JVM to tables whose changes are tracked, verified by what Spark reads."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from volstream.spark.session import SparkGateway
from volstream.tables.delta import direct, upkeep
from volstream.tables.delta.commits import PROPERTIES
from volstream.tables.delta.datafile import FinishedFile, of_rows
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.ownership import UPKEEP, Marker
from volstream.tables.delta.schema import PRIMARY_KEY

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), ("n", pa.int64())])


def append(location: str, number: int, *names: str) -> bool:
    rows = pa.table({"id": list(names), "n": [number] * len(names)}, schema=SCHEMA)
    return direct.commit(location, Marker("test", number, {}), RowChanges([rows], SCHEMA, "", None))


@pytest.fixture
def location(tmp_path: Path) -> str:
    location = str(tmp_path / "t")
    assert direct.create(location, SCHEMA, {}, tracked=True)
    return location


@pytest.mark.long
def test_rows_have_ids_that_are_unique_and_stay(gateway: SparkGateway, location: str) -> None:
    spark = gateway.session()
    table = f"delta.`{location}`"

    def ids() -> dict[str, tuple[int, int]]:
        found = spark.sql(f"SELECT id, _metadata.row_id AS i, _metadata.row_commit_version AS v FROM {table}").collect()
        return {row.id: (row.i, row.v) for row in found}

    assert append(location, 1, "a", "b", "c")
    assert ids() == {"a": (0, 1), "b": (1, 1), "c": (2, 1)}
    spark.sql(f"INSERT INTO {table} VALUES ('d', 0)").collect()
    assert append(location, 2, "e")
    before = ids()
    assert len({row_id for row_id, _ in before.values()}) == 5
    assert before["e"][1] == 3
    spark.sql(f"UPDATE {table} SET n = 7 WHERE id = 'b'").collect()
    spark.sql(f"DELETE FROM {table} WHERE id = 'c'").collect()
    spark.sql(f"OPTIMIZE {table}").collect()
    for number in range(3, 15):  # with checkpoints
        assert append(location, number, f"x{number}")
    after = ids()
    assert {name: after[name][0] for name in "abde"} == {name: before[name][0] for name in "abde"}
    assert len({row_id for row_id, _ in after.values()}) == len(after) == 16


@pytest.mark.long
def test_the_change_feed_and_the_times_of_commits_are_those_of_spark(gateway: SparkGateway, location: str) -> None:
    spark = gateway.session()
    table = f"delta.`{location}`"
    append(location, 1, "a", "b")
    spark.sql(f"UPDATE {table} SET n = 7 WHERE id = 'b'").collect()
    append(location, 2, "c")
    found = spark.sql(f"SELECT * FROM table_changes_by_path('{location}', 1, 3)").collect()
    assert sorted((row._commit_version, row._change_type, row.id, row.n) for row in found) == [
        (1, "insert", "a", 1),
        (1, "insert", "b", 1),
        (2, "update_postimage", "b", 7),
        (2, "update_preimage", "b", 1),
        (3, "insert", "c", 2),
    ]
    history = spark.sql(f"DESCRIBE HISTORY {table}").collect()
    times = [row.timestamp for row in sorted(history, key=lambda row: row.version)]
    assert times == sorted({*times})


def upsert(location: str, number: int, upserted: Mapping[str, int], deleted: Collection[str] = ()) -> bool:
    rows = pa.table({"id": [*upserted], "n": [*upserted.values()]}, schema=SCHEMA)
    change = RowChanges([rows], SCHEMA, "id", [*upserted, *deleted])
    return direct.commit(location, Marker("test", number, {}), change)


@pytest.mark.long
@pytest.mark.parametrize("turns", [3, pytest.param(40, marks=pytest.mark.long)])
def test_rows_of_a_key_keep_their_ids_and_their_changes_are_those_of_spark(
    gateway: SparkGateway, tmp_path: Path, turns: int
) -> None:
    """Turns of direct commits and of Spark's statements; afterwards Spark reads every change of every version."""
    location = str(tmp_path / "keyed")
    assert direct.create(location, SCHEMA, {PRIMARY_KEY: '["id"]'}, tracked=True)
    spark, table = gateway.session(), f"delta.`{location}`"
    choice, names = random.Random(7), [f"k{number:02}" for number in range(30)]
    model, wanted, ids = dict[str, int](), list[tuple[int, str, str, int]](), dict[str, int]()
    version = 0
    for number in range(1, turns + 1):
        some = choice.sample(names, choice.choice([1, 5, 20]))
        match choice.choice(["upsert", "upsert", "upsert", "update", "delete", "insert", "optimize"]):
            case "upsert":
                gone = [name for name in some if choice.random() < 0.3]
                upserted = {name: number for name in some if name not in gone}
                assert upsert(location, number, upserted, gone)
                after = {name: n for name, n in model.items() if name not in gone} | upserted
            case "update":
                spark.sql(f"UPDATE {table} SET n = {number} WHERE id IN ({listed(some)})").collect()
                after = model | {name: number for name in some if name in model}
            case "delete":
                spark.sql(f"DELETE FROM {table} WHERE id IN ({listed(some)})").collect()
                after = {name: n for name, n in model.items() if name not in some}
            case "insert":
                after = model | {name: number for name in some if name not in model}
                new = ", ".join(f"('{name}', {number})" for name in after if name not in model)
                if new:
                    spark.sql(f"INSERT INTO {table} VALUES {new}").collect()
            case _:
                spark.sql(f"OPTIMIZE {table}").collect()
                after = model
        version = newest_version(location) or 0
        for name in {*model, *after}:
            if name not in after:
                wanted.append((version, "delete", name, model[name]))
            elif name not in model:
                wanted.append((version, "insert", name, after[name]))
            elif after[name] != model[name]:
                wanted += [(version, "update_preimage", name, model[name]), (version, "update_postimage", name, after[name])]
        found = spark.sql(f"SELECT id, n, _metadata.row_id AS i FROM {table}").collect()
        assert {row.id: row.n for row in found} == after
        now = {row.id: row.i for row in found}
        assert len({*now.values()}) == len(now)
        assert {name: now[name] for name in now if name in model} == {name: ids[name] for name in now if name in model}
        model, ids = after, now
    changes = spark.sql(f"SELECT * FROM table_changes_by_path('{location}', 1, {version})").collect()
    seen = [(row._commit_version, row._change_type, row.id, row.n) for row in changes]
    assert sorted(seen) == sorted(wanted)


def listed(names: Collection[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def test_the_time_of_a_commit_is_later_than_the_one_before_even_if_the_clock_went_back(location: str) -> None:
    append(location, 1, "a")
    entry = Path(location, "_delta_log", f"{1:020d}.json")
    future = 4_000_000_000_000
    entry.write_text(entry.read_text().replace('"inCommitTimestamp": ', f'"inCommitTimestamp": {future}, "was": '))
    append(location, 2, "b")
    assert f'"inCommitTimestamp": {future + 1}' in Path(location, "_delta_log", f"{2:020d}.json").read_text()


def of_other_key(location: str, number: int, paths: Mapping[str, int], gone: Collection[str] = ()) -> bool:
    """Replaces the rows of paths by as many as given."""
    named = [path for path, count in paths.items() for _ in range(count)]
    columns = {"path": named, "n": [number] * len(named), "kind": [kind_of(path) for path in named]}
    change = RowChanges([pa.table(columns, schema=FILES)], FILES, "path", [*paths, *gone])
    return direct.commit(location, Marker("test", number, {}), change)


VECTORS = {"delta.enableDeletionVectors": "true"}
FILES = pa.schema([("path", pa.string()), ("n", pa.int64()), ("kind", pa.string())])


def kind_of(path: str) -> str | None:
    return {"0": None, "1": "a b/ü%=", "2": "c"}[path[-1]]


@pytest.mark.long
@pytest.mark.parametrize("partitioned", [False, True], ids=["whole", "parts"])
def test_rows_of_a_key_that_several_have_are_replaced_and_follow_as_spark_reads_it(
    gateway: SparkGateway, tmp_path: Path, partitioned: bool
) -> None:
    """Turns of direct commits, of Spark's statements and of upkeep, in a table with tracked changes."""
    location = str(tmp_path / "files")
    spark, table = gateway.session(), f"delta.`{location}`"
    tracked = ", ".join(f"'{name}' = '{value}'" for name, value in {**PROPERTIES, **VECTORS, UPKEEP: "on"}.items())
    parts = "PARTITIONED BY (kind)" if partitioned else ""
    spark.sql(
        f"CREATE TABLE {table} (path STRING, n BIGINT, kind STRING) USING delta {parts} TBLPROPERTIES ({tracked})"
    ).collect()
    choice, names = random.Random(3), [f"f{number}{kind}" for number in range(10) for kind in range(3)]
    model: dict[str, list[int]] = {}
    ids: dict[str, set[int]] = {}
    version, compacted = 0, False
    turns = ["replace", "insert", "replace", "follow", "delete", "replace", "compact", "follow", "optimize", "replace"]
    for number, turn in enumerate([*turns, "compact", "replace"], 1):
        some = choice.sample(names, 8)
        before = {path: list(rows) for path, rows in model.items()}
        kept, new_names = {*model}, dict[str, str]()
        match turn:
            case "replace":
                gone = some[:2]
                counts = {name: choice.choice([0, 1, 3]) for name in some[2:]}
                assert of_other_key(location, number, counts, gone)
                for path in some:
                    model.pop(path, None)
                model |= {path: [number] * count for path, count in counts.items() if count}
                kept -= {*some}
            case "follow":
                new_names = {path: f"{number}/{path}" for path in [*model][:3]}
                follow = {old: {"path": new} for old, new in new_names.items()}
                change = RowChanges([], FILES, "path", [*new_names, *some[:1]], follow=follow)
                assert direct.commit(location, Marker("test", number, {}), change)
                if some[0] not in new_names:
                    model.pop(some[0], None)
                model = {new_names.get(path, path): rows for path, rows in model.items()}
                kept -= {*some[:1]} - {*new_names}
            case "insert":
                rows = [{"path": path, "n": number, "kind": kind_of(path)} for path in some if path not in model]
                spark.createDataFrame(pa.Table.from_pylist(rows, FILES)).write.format("delta").mode("append").save(location)
                model |= {str(row["path"]): [number] for row in rows}
            case "delete":
                spark.sql(f"DELETE FROM {table} WHERE path IN ({listed(some)})").collect()
                model = {path: rows for path, rows in model.items() if path not in some}
            case "compact":
                compacted |= upkeep.compact(location, "path", without_vectors=True)
            case _:
                spark.sql(f"OPTIMIZE {table}").collect()
        last, version = version, newest_version(location) or 0
        found = spark.sql(f"SELECT path, n, kind, _metadata.row_id AS i FROM {table}").collect()
        seen: dict[str, list[int]] = {}
        now: dict[str, set[int]] = {}
        for row in found:
            seen.setdefault(row.path, []).append(row.n)
            now.setdefault(row.path, set()).add(row.i)
            assert row.kind == kind_of(row.path), turn
        assert seen == model, (number, turn)
        assert sum(map(len, now.values())) == len(found)
        for path in kept & {*before}:
            if new_names.get(path, path) in now:
                assert now[new_names.get(path, path)] == ids[path], (number, turn, path)
        ids = now
        went = sorted((path, n) for path, rows in before.items() for n in rows)
        came = sorted((path, n) for path, rows in model.items() for n in rows)
        if turn not in ("compact", "optimize") and version != last:
            feed = spark.sql(f"SELECT * FROM table_changes_by_path('{location}', {version}, {version})").collect()
            old = [(row.path, row.n) for row in feed if row._change_type in ("delete", "update_preimage")]
            new = [(row.path, row.n) for row in feed if row._change_type in ("insert", "update_postimage")]
            after = list(went)
            for one in old:
                after.remove(one)
            assert sorted([*after, *new]) == came, (number, turn)
            assert all(row.kind == kind_of(row.path) for row in feed)
    assert compacted


@pytest.mark.parametrize(
    ("keyed", "come"),
    [
        pytest.param(keyed, come, marks=() if (keyed, come) in ((True, "both"), (False, "inline")) else pytest.mark.long)
        for keyed in (True, False)
        for come in ("inline", "in files", "both")
    ],
)
def test_the_feed_has_rows_however_they_come(gateway: SparkGateway, tmp_path: Path, keyed: bool, come: str) -> None:
    location, staged = str(tmp_path / "t"), str(tmp_path / "staged")
    assert direct.create(location, SCHEMA, {PRIMARY_KEY: '["id"]'} if keyed else {}, tracked=True)
    append(location, 1, "a", "b", "gone")

    def finished(*names: str) -> FinishedFile:
        Path(staged).mkdir(exist_ok=True)
        file = of_rows(staged, SCHEMA, "id")
        file.write(pa.table({"id": list(names), "n": [2] * len(names)}, schema=SCHEMA))
        made = file.close()
        return FinishedFile(staged, made.path, made.size, made.stats)

    inline = {"inline": ["a", "b", "c"], "in files": [], "both": ["a"]}[come]
    files = {"inline": [], "in files": [finished("a"), finished("b", "c")], "both": [finished("b", "c")]}[come]
    rows = pa.table({"id": inline, "n": [2] * len(inline)}, schema=SCHEMA)
    change = RowChanges([rows], SCHEMA, "id", ["a", "b", "c", "gone"], files)
    assert direct.commit(location, Marker("test", 2, {}), change)
    spark = gateway.session()
    feed = spark.sql(f"SELECT * FROM table_changes_by_path('{location}', 2, 2)").collect()
    found = sorted((row._change_type.removeprefix("update_"), row.id, row.n) for row in feed)
    old, new = ("preimage", "postimage") if keyed else ("delete", "insert")
    assert found == sorted(
        [*((old, name, 1) for name in "ab"), *((new, name, 2) for name in "ab"), ("insert", "c", 2), ("delete", "gone", 1)]
    )
    assert sorted((row.id, row.n) for row in spark.sql(f"SELECT id, n FROM delta.`{location}`").collect()) == [
        ("a", 2),
        ("b", 2),
        ("c", 2),
    ]
