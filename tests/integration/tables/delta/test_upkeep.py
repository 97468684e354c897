"""Small files are put together: no reader, stream or writer sees a change of rows."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from volstream.base.definitions import SourceKind
from volstream.changes.streams.sources import behind
from volstream.spark.session import SparkGateway
from volstream.tables.delta import commits, datafile, direct, history, upkeep
from volstream.tables.delta.datafile import FinishedFile
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.history import MayGo
from volstream.tables.delta.ownership import UPKEEP, Marker

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("nested", pa.map_(pa.string(), pa.list_(pa.int64())))])


def make(folder: Path, *, tracked: bool = False, kept: str = "on", **properties: str) -> str:
    location = str(folder / "t")
    given = {f"delta.{name}": value for name, value in properties.items()}
    assert direct.create(location, SCHEMA, {UPKEEP: kept, **given}, tracked=tracked)
    return location


def commit(location: str, number: int, names: list[str], gone: list[str] | None) -> None:
    rows = [{"id": name, "n": number, "nested": [(name, [number])]} for name in names]
    change = RowChanges([pa.Table.from_pylist(rows, schema=SCHEMA)], SCHEMA, "id", gone)
    assert direct.commit(location, Marker("test", number, {}), change)


def present(location: str, version: int | None = None) -> list[tuple[str, int]]:
    query = QueryBuilder().register("t", DeltaTable(location, version))
    rows = pa.RecordBatchReader.from_stream(query.execute("SELECT id, n, nested FROM t")).read_all().to_pylist()
    assert all(row["nested"] == [(row["id"], [row["n"]])] for row in rows)
    return sorted((row["id"], row["n"]) for row in rows)


@pytest.mark.long
def test_hundreds_of_commits_leave_tens_of_files_and_the_same_rows_in_every_version(tmp_path: Path) -> None:
    location, model, choice = make(tmp_path), dict[str, int](), random.Random(3)
    known: dict[int, list[tuple[str, int]]] = {}
    for number in range(1, 161):
        names = [f"{choice.randrange(150):03}"]
        gone = [*names, *([f"{choice.randrange(150):03}"] if number % 5 == 0 else [])]
        commit(location, number, [] if number % 7 == 0 else names, gone)
        model = {name: n for name, n in model.items() if name not in gone}
        model |= {} if number % 7 == 0 else dict.fromkeys(names, number)
        if number % 8 == 0:
            while upkeep.compact(location, "id"):
                assert present(location) == sorted(model.items())
        known[DeltaTable(location).version()] = sorted(model.items())
    assert present(location) == sorted(model.items())
    assert len(DeltaTable(location).file_uris()) < 40
    for version in choice.sample(sorted(known), 20):
        assert present(location, version) == known[version]


def test_a_table_without_small_files_is_left_alone(tmp_path: Path) -> None:
    location = make(tmp_path)
    assert not upkeep.compact(location, "id")
    for number in range(1, 8):
        commit(location, number, [f"{number}"], None)
    assert not upkeep.compact(location, "id")
    assert not upkeep.compact(str(tmp_path / "none"), "id")
    assert DeltaTable(location).version() == 7


def test_a_table_that_is_not_to_be_looked_after_is_not(tmp_path: Path) -> None:
    location = make(tmp_path, kept="off")
    for number in range(1, 18):
        commit(location, number, [f"{number}"], None)
    assert not upkeep.compact(location, "id")
    assert len(DeltaTable(location).file_uris()) == 17


def test_old_versions_are_looked_for_after_many_commits_and_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = make(tmp_path)
    monkeypatch.setattr(upkeep, "_CLEAN_COMMITS", 4)
    answers = []
    for number in range(1, 9):
        commit(location, number, [f"{number}"], None)
        answers.append(upkeep.is_old(location, 1))
    assert answers[1:] == [False, False, True, False, False, False, True]
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 2 * 3600)
    assert [upkeep.is_old(location, 1) for _ in range(3)] == [True, False, False]


def test_a_file_of_mostly_deleted_rows_is_rewritten_and_one_of_none_goes(tmp_path: Path) -> None:
    location = make(tmp_path)
    commit(location, 1, [f"{number:03}" for number in range(100)], None)
    commit(location, 2, [], [f"{number:03}" for number in range(49)])
    commit(location, 3, ["new"], None)
    assert not upkeep.compact(location, "id")
    commit(location, 4, [], ["049", "050"])
    assert upkeep.compact(location, "id")
    assert not upkeep.compact(location, "id")
    assert len(present(location)) == 50
    assert not _vectors(location)


def test_deleted_rows_of_small_files_are_left_out_while_nobody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = make(tmp_path)
    for number in range(1, 4):
        commit(location, number, [f"{number}{letter}" for letter in "abcdef"], None)
    commit(location, 4, [], ["1a", "3f"])
    before = present(location)
    assert not upkeep.compact(location, "id")
    assert upkeep.compact(location, "id", without_vectors=True)
    assert not upkeep.compact(location, "id", without_vectors=True)
    assert not _vectors(location)
    assert present(location) == before
    assert len(DeltaTable(location).file_uris()) == 2
    commit(location, 5, [], ["1b", "2a"])
    monkeypatch.setattr(upkeep, "_IDLE_BYTES", 1000)
    assert not upkeep.compact(location, "id", without_vectors=True), "a vector would remain, or too much be rewritten"


def _vectors(location: str) -> list[object]:
    return [batch for batch in pa.RecordBatchReader.from_stream(DeltaTable(location).deletion_vectors()) if len(batch)]


def test_a_commit_that_comes_first_is_kept_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = make(tmp_path)
    for number in range(1, 21):
        commit(location, number, [f"{number:02}"], None)
    made = commits.on

    def late(*arguments: object) -> bool:
        monkeypatch.setattr(commits, "on", made)
        commit(location, 21, ["21"], ["03"])
        return made(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "on", late)
    assert not upkeep.compact(location, "id")
    assert [name for name, _ in present(location)] == [f"{number:02}" for number in range(1, 22) if number != 3]
    assert len([*Path(location).glob("part-*")]) == 21
    assert upkeep.compact(location, "id")
    assert [name for name, _ in present(location)] == [f"{number:02}" for number in range(1, 22) if number != 3]


@pytest.mark.long
def test_rows_keep_their_ids_and_the_feed_shows_nothing(gateway: SparkGateway, tmp_path: Path) -> None:
    location, spark = make(tmp_path, tracked=True), gateway.session()
    table = f"delta.`{location}`"

    def ids() -> list[tuple[object, ...]]:
        found = spark.sql(f"SELECT id, n, _metadata.row_id, _metadata.row_commit_version FROM {table}").collect()
        return sorted(tuple(row) for row in found)

    for number in range(1, 11):
        commit(location, number, [f"{number:02}", f"{number:02}b"], None)
    spark.sql(f"UPDATE {table} SET n = 100, nested = map(id, array(100L)) WHERE id = '05'").collect()
    spark.sql(f"DELETE FROM {table} WHERE id = '06'").collect()
    for number in range(11, 25):
        commit(location, number, [f"{number:02}"], None)
    before, version = ids(), DeltaTable(location).version()
    assert upkeep.compact(location, "id")
    assert ids() == before
    commit(location, 25, ["25"], None)
    assert [row for row in ids() if row[0] != "25"] == before
    assert len({row[2] for row in ids()}) == len(before) + 1
    feed = spark.sql(f"SELECT id, _change_type FROM table_changes_by_path('{location}', {version + 1})").collect()
    assert [tuple(row) for row in feed] == [("25", "insert")]
    [done] = [entry for entry in DeltaTable(location).history(2) if entry["operation"] == "OPTIMIZE"]
    assert done["version"] == version + 1


def test_spark_reads_and_writes_what_was_put_together(gateway: SparkGateway, tmp_path: Path) -> None:
    location, spark = make(tmp_path), gateway.session()
    for number in range(1, 41):
        commit(location, number, [f"{number:02}"], [f"{number - 1:02}"] if number % 3 == 0 else None)
        while number % 16 == 0 and upkeep.compact(location, "id"):
            pass
    names = [name for name, _ in present(location)]
    spark.sql(f"DELETE FROM delta.`{location}` WHERE id = '{names[0]}'").collect()
    assert sorted(row.id for row in spark.sql(f"SELECT id FROM delta.`{location}`").collect()) == names[1:]
    assert [name for name, _ in present(location)] == names[1:]


def test_files_go_once_no_version_that_can_be_read_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = make(tmp_path)
    for number in range(1, 41):
        commit(location, number, [f"{number % 7}"], [f"{number % 7}"])
        upkeep.compact(location, "id")
    (Path(location) / "part-left-by-a-crash.parquet").write_bytes(b"")
    (Path(location) / "mine.txt").write_text("")

    def age(seconds: int) -> None:
        for path in Path(location).iterdir():
            if path.is_file():
                os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))

    assert upkeep.clean(location) == 0
    age(8 * 86_400)
    assert upkeep.clean(location) == 1  # the others were removed from the table just now
    old = DeltaTable(location).version()
    for module in (history, upkeep):
        monkeypatch.setattr(module, "files_kept", lambda _: timedelta(seconds=1))
    monkeypatch.setattr(history, "READING", timedelta(seconds=1))
    commit(location, 41, ["a", "b"], None)
    time.sleep(1.1)
    assert upkeep.clean(location) > 30
    assert present(location) == [*((f"{n}", max(m for m in range(41) if m % 7 == n)) for n in range(7)), ("a", 41), ("b", 41)]
    left = {path.name for path in Path(location).iterdir()}
    assert {Path(uri).name for uri in DeltaTable(location).file_uris()} | {"mine.txt", "_delta_log"} <= left
    assert len(left) < 40
    with pytest.raises(Exception, match=r"No such file|not found"):
        present(location, old - 20)
    commit(location, 42, [], ["3"])
    assert len(present(location)) == 8


@pytest.mark.parametrize("partitioned", [False, True])
def test_nothing_that_a_link_leads_to_is_deleted(tmp_path: Path, partitioned: bool) -> None:
    (tmp_path / "data").mkdir()
    others = [tmp_path / "data" / name for name in ("sales.parquet", "deletion_vector_1.bin")]
    if partitioned:
        location, link = str(tmp_path / "t"), "n=1"
        write_deltalake(location, pa.table({"id": ["a"], "n": [2]}), partition_by=["n"])
        entry = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
        entry.write_text(entry.read_text().replace('"configuration":{}', f'"configuration":{{"{UPKEEP}":"on"}}'))
    else:
        location, link = make(tmp_path), "_change_data"
    folder = Path(location) / "n=2" if partitioned else Path(location)
    folder.mkdir(exist_ok=True)
    left = folder / "part-left-by-a-crash.parquet"
    for path in (*others, left):
        path.touch()
        os.utime(path, (0, 0))
    (Path(location) / link).symlink_to(tmp_path / "data")
    (tmp_path / "link").symlink_to(location)  # by which the user may name the table
    assert upkeep.clean(str(tmp_path / "link")) == 1
    assert all(path.exists() for path in others)
    assert not left.exists()


def log_of(location: str) -> list[str]:
    return sorted(path.name for path in (Path(location) / "_delta_log").iterdir())


def forgotten(location: str, until: int, may_go: MayGo) -> list[tuple[int, int]]:
    """Cleans; the versions noted."""
    noted = list[tuple[int, int]]()
    upkeep.clean(location, until, may_go, lambda first, begin: noted.append((first, begin)))
    return noted


def _any(*_: object) -> bool:
    return True


@pytest.mark.long
def test_the_last_versions_can_be_read_and_what_only_older_ones_need_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gateway: SparkGateway
) -> None:
    for name, value in {"VERSIONS": 50, "READING": timedelta(0), "_FORGOTTEN": 20, "_SPARSE": 20}.items():
        monkeypatch.setattr(history, name, value)
    location, model, known = make(tmp_path), dict[str, int](), dict[int, list[tuple[str, int]]]()
    for number in range(1, 181):
        commit(location, number, [f"{number % 40:02}"], [f"{number % 40:02}"])
        model[f"{number % 40:02}"] = number
        known[DeltaTable(location).version()] = sorted(model.items())
        if number % 8 == 0:
            upkeep.compact(location, "id")
        if number % 45 == 0:
            newest = DeltaTable(location).version()
            upkeep.clean(location, may_go=_any)
            for version in range(max(1, newest - 50), newest + 1):
                assert present(location, version) == known.get(version, known.get(version - 1))
    newest = DeltaTable(location).version()
    entries = [name for name in log_of(location) if name.endswith(".json")]
    assert 50 <= len(entries) <= 60
    assert len([name for name in log_of(location) if "checkpoint.parquet" in name]) < 8
    hint = json.loads((Path(location) / "_delta_log" / "_last_checkpoint").read_text())
    assert hint["version"] > newest - 10
    newest_checkpoint = pq.read_table(Path(location) / "_delta_log" / f"{hint['version']:020d}.checkpoint.parquet")
    assert newest_checkpoint.num_rows == hint["size"] < 120
    assert len(list(Path(location).glob("*.parquet"))) < 150
    session = gateway.session()
    table = f"delta.`{location}`"
    assert session.sql(f"SELECT count(*), sum(n) FROM {table}").collect() == [(40, sum(model.values()))]
    session.sql(f"DELETE FROM {table} WHERE id = '07'")
    commit(location, 181, ["new"], ["08"])
    assert sorted(row.id for row in session.sql(f"SELECT id FROM {table}").collect()) == [
        *(f"{n:02}" for n in range(40) if n not in (7, 8)),
        "new",
    ]
    with pytest.raises(Exception, match=r"(?i)log|version"):
        present(location, newest - 120)


def grown(folder: Path, monkeypatch: pytest.MonkeyPatch, commits: int) -> str:
    """A table with a row of each of some commits, of which the last ten versions are to be kept."""
    monkeypatch.setattr(history, "VERSIONS", 10)
    monkeypatch.setattr(history, "_SPARSE", 10)
    location = make(folder)
    for number in range(1, commits + 1):
        commit(location, number, [f"{number}"], None)
    return location


def test_versions_that_someone_needs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = grown(tmp_path, monkeypatch, 60)
    assert forgotten(location, 34, _any) == [(0, 30)]  # a stream
    assert forgotten(location, 60, lambda version, actions: version != 45 and bool(actions)) == [(30, 40)]
    assert len(present(location, 40)) == 40
    assert forgotten(location, 60, _any) == [(40, 50)]
    assert forgotten(location, 60, _any) == []
    assert log_of(location)[0] == f"{50:020d}.checkpoint.parquet"


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table whose log begins at a checkpoint, of which the newest commits are not part."""
    location = grown(tmp_path, monkeypatch, 35)
    assert forgotten(location, 35, _any) == [(0, 20)]
    return location


def test_a_short_log_can_be_written_without_the_hint_that_copies_lack(short: str) -> None:
    (Path(short) / "_delta_log" / "_last_checkpoint").unlink()
    commit(short, 36, ["3"], ["3"])
    assert sorted(present(short)) == sorted([(f"{n}", 36 if n == 3 else n) for n in range(1, 36)])


def test_the_checkpoint_that_readers_begin_with_stays(short: str) -> None:
    hint = Path(short) / "_delta_log" / "_last_checkpoint"
    old = hint.read_text()
    for number in range(36, 61):
        commit(short, number, [f"{number}"], None)
    hint.write_text(old)  # by a writer that was slow
    assert forgotten(short, 60, _any) == [(20, 30)]
    commit(short, 61, ["3"], ["3"])
    assert len(present(short)) == 60


def test_a_checkpoint_that_is_not_whole_is_none(short: str) -> None:
    log = Path(short) / "_delta_log"
    for number in range(36, 56):
        commit(short, number, [f"{number}"], None)
    (log / f"{40:020d}.checkpoint.parquet").write_bytes(b"")  # a power cut
    (log / f"{45:020d}.checkpoint.{1:010d}.{2:010d}.parquet").write_bytes(b"")  # its writer died
    assert forgotten(short, 55, _any) == [(20, 30)]
    assert len(present(short, 45)) == 45


def test_what_another_writer_has_not_committed_yet_is_left_alone(short: str) -> None:
    names = [f"part-00000-{uuid.uuid4()}-c000.snappy.parquet", "deletion_vector_1.bin", f"part-{uuid.uuid4().hex}.parquet"]
    for name in names:
        (Path(short) / name).write_bytes(b"")
        os.utime(Path(short) / name, (time.time() - 7200,) * 2)
    assert upkeep.clean(short, may_go=_any) == 1
    assert [(Path(short) / name).exists() for name in names] == [True, True, False]


@pytest.mark.parametrize(
    "property", ["logRetentionDuration", pytest.param("deletedFileRetentionDuration", marks=pytest.mark.long)]
)
def test_a_table_with_a_retention_keeps_all_versions_for_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, property: str
) -> None:
    monkeypatch.setattr(history, "VERSIONS", 10)
    monkeypatch.setattr(history, "READING", timedelta(0))
    location = make(tmp_path, kept="on", **{property: "interval 3 days"})  # type: ignore[arg-type]
    for number in range(1, 31):
        commit(location, number, ["a"], ["a"])
    assert upkeep.clean(location, may_go=_any) == 0
    assert [present(location, version) for version in range(1, 31)] == [[("a", version)] for version in range(1, 31)]


@pytest.mark.parametrize("kept", ["interval 1 month", "interval 0 days"])
def test_a_retention_that_is_none_or_not_understood_deletes_nothing(tmp_path: Path, kept: str) -> None:
    location = make(tmp_path, deletedFileRetentionDuration=kept)
    commit(location, 1, ["a"], None)
    commit(location, 2, [], ["a"])
    for path in Path(location).glob("*.parquet"):
        os.utime(path, (0, 0))
    assert upkeep.clean(location) == 0


def test_files_that_cannot_be_put_together_hold_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = make(tmp_path)
    text = "x" * 1000
    for number in range(17):  # equal values take no room in a file, but in memory
        rows = [{"id": f"{number:02}{text}{row:03}", "n": number, "nested": [(text * 10, [row])]} for row in range(200)]
        change = RowChanges([pa.Table.from_pylist(rows, schema=SCHEMA)], SCHEMA, "id", None)
        assert direct.commit(location, Marker("test", number + 1, {}), change)
    for number in range(20):
        commit(location, 20 + number, [f"{number:02}"], None)
    monkeypatch.setattr(upkeep, "_MOST_MEMORY", 1 << 20)
    assert upkeep.compact(location, "id")
    assert not upkeep.compact(location, "id")
    assert len(DeltaTable(location).file_uris()) == 18
    monkeypatch.undo()
    assert upkeep.compact(location, "id")
    assert len(DeltaTable(location).file_uris()) == 2


def test_a_commit_goes_on_if_its_files_were_replaced_and_a_checkpoint_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, found = make(tmp_path), commits.adds
    for number in range(1, 20):
        commit(location, number, [f"{number:02}"], None)

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(commits, "adds", found)
        assert upkeep.compact(location, "id")
        DeltaTable(location).create_checkpoint()
        return found(*arguments)

    monkeypatch.setattr(commits, "adds", late)
    commit(location, 20, ["20"], ["03", "04"])
    assert [name for name, _ in present(location)] == [f"{number:02}" for number in range(1, 21) if number not in (3, 4)]


def test_a_key_may_be_spelled_in_another_case_than_the_tables(tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    upper = pa.schema([field.with_name(field.name.upper()) for field in SCHEMA])
    assert direct.create(location, upper, {UPKEEP: "on"})
    for number in range(1, 20):
        commit(location, number, [f"{number:02}"], [f"{number - 1:02}"] if number % 4 == 0 else None)
    while upkeep.compact(location, "id"):
        pass
    query = QueryBuilder().register("t", DeltaTable(location))
    rows = pa.RecordBatchReader.from_stream(query.execute('SELECT "ID" AS id FROM t')).read_all()["id"].to_pylist()
    assert sorted(rows) == [f"{number:02}" for number in range(1, 20) if number % 4 != 3 or number == 19]


def test_a_stream_needs_what_upkeep_replaced_after_its_offset(tmp_path: Path) -> None:
    location = make(tmp_path)
    for number in range(1, 20):
        commit(location, number, [f"{number:02}"], None)
    version, later = DeltaTable(location).version(), datetime.now(UTC) + timedelta(days=8)
    stream: Any = SimpleNamespace(source_kind=SourceKind.TABLE, offset=version)
    assert behind([stream], location, later) is None
    assert upkeep.compact(location, "id")
    assert behind([stream], location, later) is not None


def test_a_linked_file_is_as_young_as_its_commit(tmp_path: Path) -> None:
    made = datafile.of_rows(str(tmp_path), SCHEMA, "path")
    made.write(SCHEMA.empty_table())
    added = made.close()
    os.utime(tmp_path / added.path, (0, 0))
    (tmp_path / "t").mkdir()
    put = FinishedFile(str(tmp_path), added.path, added.size, added.stats).put(str(tmp_path / "t"))
    assert (tmp_path / "t" / put.path).stat().st_mtime > time.time() - 60
