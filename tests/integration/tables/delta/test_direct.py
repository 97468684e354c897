"""Commits without a JVM, read back by deltalake. Spark reads them in ``test_direct_and_spark.py``."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from pyarrow import fs

from tests.interrupts import interrupted
from tests.s3 import bucket
from tests.servers import S3, each
from volstream.errors import InvalidValueError
from volstream.tables.delta import direct, log
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import filesystem_of, open_table
from volstream.tables.delta.schema import CHARACTERS
from volstream.tables.delta.warehouse import options_of, register_options

SCHEMA = pa.schema([("label", pa.string()), ("score", pa.float64()), ("path", pa.string()), ("n", pa.int64())])


#: Of the bucket, as for a process that works on it.
_WAREHOUSE = "s3://tables"


@pytest.fixture(scope="module")
def buckets() -> Iterator[Callable[[str], Mapping[str, str]]]:
    """The options of a bucket of a server, by its name."""
    with ExitStack() as running:
        yield cache(lambda server: running.enter_context(bucket("tables", server)))


@pytest.fixture(params=["folder", *each("moto", "localstack", "seaweedfs")])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    place = str(tmp_path / "t")
    if request.param != "folder":
        place = f"{_WAREHOUSE}/{uuid.uuid4().hex}"
        register_options(_WAREHOUSE, request.getfixturevalue("buckets")(request.param))
    assert direct.create(place, SCHEMA, {"volstream.job": "j"})
    yield place
    register_options(_WAREHOUSE, {})


def files(location: str) -> set[str]:
    """The table's files beside its log."""
    filesystem, root = filesystem_of(location)
    return {file.base_name for file in filesystem.get_file_info(fs.FileSelector(root)) if file.is_file}


def log_has(location: str, name: str) -> bool:
    filesystem, root = filesystem_of(location)
    return bool(filesystem.get_file_info(f"{root}/_delta_log/{name}").type == fs.FileType.File)


EVERYWHERE = pytest.mark.parametrize(
    "location", ["folder", *(pytest.param(server, marks=pytest.mark.long) for server in S3)], indirect=True
)


def change(paths: Sequence[str], number: int, gone: Sequence[str] | None = ()) -> RowChanges:
    rows = pa.table([["x"] * len(paths), [0.5] * len(paths), list(paths), [number] * len(paths)], schema=SCHEMA)
    return RowChanges([rows], SCHEMA, "path", gone)


def marker(number: int, **told: object) -> Marker:
    return Marker("volstream:s", number, told)


def present(location: str) -> list[tuple[str, int]]:
    query = QueryBuilder().register("t", open_table(location))
    rows = pa.RecordBatchReader.from_stream(query.execute("SELECT path, n FROM t")).read_all().to_pylist()
    return sorted((row["path"], row["n"]) for row in rows)


def adds(location: str, version: int) -> list[dict[str, object]]:
    return [action["add"] for action in log.actions(location, version, '"add"') if "add" in action]


def test_a_table_is_created_once_and_keeps_its_first_owner(location: str) -> None:
    assert direct.create(location, SCHEMA, {"volstream.job": "another"})
    assert open_table(location).metadata().configuration["volstream.job"] == "j"
    assert open_table(location).version() == 0


@EVERYWHERE
def test_rows_of_removed_keys_go_and_others_stay_across_many_commits_and_checkpoints(location: str) -> None:
    names = [f"folder's/${{x}}/{number:03d}\\".replace("0", "é") for number in range(200)]
    choice, model = random.Random(7), dict[str, int]()
    for number in range(1, 45):
        come = choice.sample(names, choice.choice([0, 1, 7, 90]))
        gone = [*come, *choice.sample(names, 3)]
        assert direct.commit(location, marker(number), change(come, number, gone))
        model = {path: n for path, n in model.items() if path not in gone} | dict.fromkeys(come, number)
        assert present(location) == sorted(model.items())
    assert log_has(location, f"{40:020d}.checkpoint.parquet")


def test_a_file_is_removed_once_all_of_its_rows_are(location: str) -> None:
    direct.commit(location, marker(1), change(["a", "b"], 1))
    direct.commit(location, marker(2), change(["b"], 2, ["b"]))
    direct.commit(location, marker(3), change([], 3, ["a"]))
    assert present(location) == [("b", 2)]
    assert len(open_table(location).file_uris()) == 1


def test_without_keys_rows_are_appended(location: str) -> None:
    direct.commit(location, marker(1), change(["a"], 1, None))
    direct.commit(location, marker(2), change(["a"], 2, None))
    assert present(location) == [("a", 1), ("a", 2)]


def test_a_used_number_cannot_commit_again(location: str) -> None:
    assert direct.commit(location, marker(5, fence=5))
    assert direct.commit(location, marker(5, attempt="late"), change(["a"], 1))
    assert present(location) == []
    assert open_table(location).version() == 1
    assert files(location) == set(), "nothing is left of a commit that was not made"


def _try_to_commit(location: str, number: int, who: int) -> None:
    direct.commit(location, marker(number, who=who), change([f"{who}-{number}"], number, [f"{1 - who}-{number - 1}"]))


@EVERYWHERE
def test_exactly_one_of_two_processes_makes_each_commit(location: str) -> None:
    know = partial(register_options, _WAREHOUSE, options_of(location))
    with ProcessPoolExecutor(2, get_context("spawn"), know) as pool:
        for number in range(1, 26):
            for future in [pool.submit(_try_to_commit, location, number, who) for who in (0, 1)]:
                future.result()
    table = open_table(location)
    assert table.version() == 25
    winners = [json.loads(entry["userMetadata"])["who"] for entry in reversed(table.history()) if "userMetadata" in entry]
    model = [(f"{who}-{n}", n) for n, who in enumerate(winners, 1)]
    gone = {f"{1 - who}-{n - 1}" for n, who in enumerate(winners, 1)}
    assert present(location) == sorted(row for row in model if row[0] not in gone)


def test_a_concurrent_commit_makes_it_recompute(location: str) -> None:
    direct.commit(location, marker(1), change(["a", "b"], 1))

    def rows() -> Iterator[pa.Table]:
        # Written when the version was read, and before the commit.
        direct.commit(location, Marker("other", 1, {}), change(["a"], 9, ["a"]))
        yield from change(["b"], 2).rows

    assert direct.commit(location, marker(2), RowChanges(rows(), SCHEMA, "path", ["a", "b"]))
    assert present(location) == [("b", 2)]


@pytest.mark.parametrize(("event", "function"), [("return", "put"), ("call", "_checkpoint")])
def test_an_interruption_after_the_commit_keeps_the_committed_files(
    location: str, event: Literal["call", "return"], function: str
) -> None:
    direct.commit(location, marker(8), change(["a"], 1))
    with interrupted(event, f"volstream.tables.delta.commits.{function}"):
        direct.commit(location, marker(9), change(["b"], 2))
    assert present(location) == [("a", 1), ("b", 2)]


def test_an_interruption_before_the_commit_leaves_no_file(location: str) -> None:
    direct.commit(location, marker(8), change(["a"], 1))
    before = files(location)
    with interrupted("return", "volstream.tables.delta.direct._Commit._write"):
        direct.commit(location, marker(9), change(["b"], 2))
    assert present(location) == [("a", 1)]
    assert files(location) == before


@pytest.mark.parametrize(
    "properties",
    [{"delta.enableChangeDataFeed": "true"}, {"delta.appendOnly": "true"}, {"delta.appendOnly": "TRUE"}],
    ids=["change feed", "append only", "append only in upper case"],
)
def test_a_table_with_features_it_does_not_support_is_left_to_spark(tmp_path: Path, properties: dict[str, str]) -> None:
    place = str(tmp_path / "t")
    write_deltalake(place, pa.table({"path": ["a"]}), configuration=properties)
    asked = RowChanges([], pa.schema([("path", pa.string())]), "path", ["a"])
    assert not direct.can_write(place, "path")
    assert not direct.commit(place, marker(1), asked)
    assert DeltaTable(place).version() == 0


@pytest.mark.parametrize(("kind", "writable"), [("string", True), ("variant", False)])
def test_a_table_that_may_have_variants_is_written_unless_it_has(tmp_path: Path, kind: str, writable: bool) -> None:
    place = str(tmp_path / "t")
    direct.create(place, pa.schema([("path", pa.string())]), {})
    DeltaTable(place).alter.set_table_properties({"delta.logRetentionDuration": "interval 5 days"})
    assert "variantType" in (DeltaTable(place).protocol().writer_features or ()), "as deltalake does unasked"
    if kind == "variant":
        for log in Path(place, "_delta_log").glob("*.json"):
            log.write_text(log.read_text().replace('\\"string\\"', '\\"variant\\"'))
    assert direct.can_write(place, "path") == writable


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ({"type": "array", "elementType": "string", "containsNull": True}, {CHARACTERS: "array<varchar(3)>"}),
        ({"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {}}]}, {}),
    ],
    ids=["lengths", "not null"],
)
def test_a_table_that_demands_something_inside_of_values_is_left_to_spark(
    tmp_path: Path, kind: dict[str, object], told: dict[str, str]
) -> None:
    columns = [
        {"name": "path", "type": "string", "nullable": True, "metadata": {}},
        {"name": "inside", "type": kind, "nullable": True, "metadata": told},
    ]
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": columns}))
    DeltaTable.create(str(tmp_path / "t"), schema)
    assert not direct.can_write(str(tmp_path / "t"), "path")


def test_a_key_that_files_may_have_with_blanks_and_without_is_left_to_spark(tmp_path: Path) -> None:
    key = {"name": "id", "type": "string", "nullable": False, "metadata": {CHARACTERS: "char(3)"}}
    schema = Schema.from_json(json.dumps({"type": "struct", "fields": [key]}))
    place = str(tmp_path / "t")
    DeltaTable.create(place, schema)
    rows = pa.table({"id": ["a"]})
    assert not direct.commit(place, marker(1), RowChanges([rows], rows.schema, "id", ["a"]))
    assert direct.commit(place, marker(1), RowChanges([rows], rows.schema, "", None))


@pytest.mark.parametrize("columns", [{"n": pa.string()}, {"m": pa.int64()}], ids=["another type", "another column"])
def test_rows_that_do_not_fit_a_table_that_was_replaced_meanwhile_are_left_to_spark(
    location: str, columns: dict[str, pa.DataType]
) -> None:
    schema = pa.schema([("path", pa.string()), *columns.items()])
    rows = pa.Table.from_pylist([{"path": "a"}], schema=schema)
    assert not direct.commit(location, marker(1), RowChanges([rows], schema, "path", None))
    assert open_table(location).version() == 0


def test_a_text_that_is_null_in_the_log_is_not_committed_to_a_not_null_partition_column(tmp_path: Path) -> None:
    place = str(tmp_path / "p")
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64())])
    DeltaTable.create(place, Schema.from_arrow(schema), partition_by=["k"])

    def asked(text: str) -> RowChanges:
        return RowChanges([pa.table({"k": ["a", text], "n": [1, 2]}, schema=schema)], schema, "", None)

    assert not direct.commit(place, marker(1), asked(""))  # Spark reports it
    with pytest.raises(InvalidValueError, match="Column k cannot be '__HIVE_DEFAULT_PARTITION__'"):
        direct.commit(place, marker(1), asked("__HIVE_DEFAULT_PARTITION__"))
    assert files(place) == set()
    assert direct.commit(place, marker(1), asked("b"))
    assert DeltaTable(place).version() == 1


@pytest.mark.parametrize("text", ["a\u2028b", "a\x85b"], ids=["line separator", "next line"])
def test_a_table_whose_statistics_have_a_line_end_that_is_none_in_json_can_be_written(location: str, text: str) -> None:
    rows = pa.table([["x"], [0.5], [text], [1]], schema=SCHEMA)
    write_deltalake(location, rows, mode="append", storage_options=options_of(location))
    assert direct.commit(location, marker(1), change(["b"], 2, [text]))
    assert present(location) == [("b", 2)]


@pytest.mark.parametrize("location", ["folder"], indirect=True)
def test_rows_of_files_without_statistics_can_be_removed(location: str) -> None:
    direct.commit(location, marker(1), change(["a", "b"], 1))
    entry = Path(location, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    assert direct.commit(location, marker(2), change([], 2, ["a"]))
    assert present(location) == [("b", 1)]


def test_rows_can_be_removed_whose_statistics_are_not_text_in_the_checkpoint(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    texts = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "true"}
    assert direct.create(place, SCHEMA, texts)
    for number in range(1, 11):
        direct.commit(place, marker(number), change([f"{number}a", f"{number}b"], number))
    assert direct.commit(place, marker(11), change([], 11, ["3a"]))
    assert ("3b", 3) in present(place)
    assert ("3a", 3) not in present(place)


def test_old_entries_of_a_log_stay_if_the_table_asks_for_that(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    kept = {"delta.enableExpiredLogCleanup": "false", "delta.logRetentionDuration": "interval 0 days"}
    assert direct.create(place, SCHEMA, kept)
    for number in range(1, 12):
        direct.commit(place, marker(number), change(["a"], number))
    assert len(list(Path(place, "_delta_log").glob("*.json"))) == 12


def test_without_deletion_vectors_only_whole_files_can_be_removed(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    for paths in (["a"], ["b", "c"]):
        write_deltalake(place, pa.table({"path": paths}), mode="append")
    schema = pa.schema([("path", pa.string())])
    assert not direct.commit(place, marker(1), RowChanges([], schema, "path", ["b"]))
    assert direct.commit(place, marker(1), RowChanges([], schema, "path", ["a"]))
    assert sorted(DeltaTable(place).to_pyarrow_table()["path"].to_pylist()) == ["b", "c"]


def test_statistics_are_never_narrower_than_the_values(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    schema = pa.schema(
        [("text", pa.string()), ("when", pa.timestamp("us", tz="UTC")), ("ratio", pa.float64()), ("path", pa.string())]
    )
    place = str(tmp_path / "t")
    direct.create(place, schema, {})
    rows = pa.table([["é" * 100, None], [moment, moment], [1.0, float("nan")], ["a", "b"]], schema=schema)
    direct.commit(place, marker(1), RowChanges([rows], schema, "path", None))
    told = json.loads(str(adds(place, 1)[0]["stats"]))
    assert told["numRecords"] == 2
    assert told["minValues"] == {"text": "é" * 32, "when": "2026-01-02T03:04:05.678Z", "path": "a"}
    assert told["maxValues"] == {"text": "é" * 32 + "\U0010ffff", "when": "2026-01-02T03:04:05.679Z", "path": "b"}
    assert told["nullCount"] == {"text": 1, "when": 0, "path": 0}
