"""Directories of volstream 0.1, with their catalog, are migrated: rows, offsets and unconsumed changes survive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from alembic import command
from alembic.config import Config
from deltalake import CommitProperties, DeltaTable, write_deltalake
from sqlalchemy import create_engine, text

from tests.directories import Directory, file
from tests.interrupts import interrupted
from tests.objects import NOW
from volstream.catalog import Catalog, database
from volstream.catalog.database import Database
from volstream.directory import table
from volstream.model.names import Name
from volstream.model.objects import Stream
from volstream.streams import net_files
from volstream.streams.read import StreamReader

VOLUME, STREAM, JOB, PLAN = "volume-id", "stream-id", "job-id", "plan-id"

_OLD = pa.schema([*table.SCHEMA, ("refresh_id", pa.int64())])


def old_rows(number: int, **files: int) -> pa.Table:
    """Rows that refresh ``number`` wrote."""
    infos = [file(path, content) for path, content in files.items()]
    return table.rows(infos, lambda path: f"memory://{path}").append_column(
        "refresh_id", pa.array([number] * len(infos), pa.int64())
    )


def told(number: int) -> CommitProperties:
    return CommitProperties(custom_metadata={"userMetadata": f'{{"refresh": {number}}}'})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of volstream 0.1: versions 1, 2, 4 and 5 of its directory are refreshes 1, 2, 4 and 5; refresh 3 was aborted."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    engine = create_engine(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        for statement in _CATALOG:
            connection.execute(text(statement), {"now": NOW.replace(tzinfo=None)})
        connection.commit()
    engine.dispose()
    root = table.location(f"{tmp_path}/warehouse", VOLUME)
    DeltaTable.create(root, _OLD, configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(root, old_rows(1, a=1, b=1, c=1), mode="append", commit_properties=told(1))
    write_deltalake(root, old_rows(2, d=1), mode="append", commit_properties=told(2))
    write_deltalake(root, old_rows(9).slice(0, 0), mode="append")  # the fence of refresh 3
    (
        DeltaTable(root)
        .merge(
            old_rows(4, a=2),
            "t.relative_path = s.relative_path",
            source_alias="s",
            target_alias="t",
            commit_properties=told(4),
        )
        .when_matched_update_all()
        .execute()
    )
    DeltaTable(root).delete("relative_path = 'b'", commit_properties=told(5))
    return tmp_path


_CATALOG = (
    f"""INSERT INTO volumes (id, schema_name, name, location, queue_type, virtual_cluster, recursive, patterns, ignores,
        created_on, table_id, refresh_count) VALUES
        ('{VOLUME}', 'public', 'v', 'memory://x', 'none', 'DEFAULT', 1, '[]', '[]', :now, 'old-table', 5)""",
    f"""INSERT INTO streams (id, schema_name, name, source_kind, source_id, source_schema, source_name, table_id, mode,
        "offset", initial, sequence, created_on, identity) VALUES
        ('{STREAM}', 'public', 's', 'volume', '{VOLUME}', 'public', 'v', 'old-table', 'standard', 3, 0, 0, :now, '[]'),
        ('on-table', 'public', 'on_table', 'table', 'public.t', 'public', 't', 'its', 'standard', 3, 0, 0, :now, '[]')""",
    *(
        f"""INSERT INTO refreshes (volume_id, number, state, cause, base_version, version, inserted, updated, deleted, bytes,
            started_on, committed_on) VALUES ('{VOLUME}', {number}, '{state}', 'events', {base}, {version}, {counts}, 0, :now, {when})"""
        for number, state, base, version, counts, when in (
            (1, "committed", 0, 1, "3, 0, 0", ":now"),
            (2, "committed", 1, 2, "1, 0, 0", ":now"),
            (3, "aborted", 2, "NULL", "0, 0, 0", "NULL"),
            (4, "committed", 3, 4, "0, 1, 0", ":now"),
            (5, "intent", 4, "NULL", "0, 0, 1", "NULL"),
        )
    ),
    f"""INSERT INTO plans (id, kind, state, stream_id, table_id, from_version, to_version, initial, location, files, bytes,
        created_on) VALUES ('{PLAN}', 'stream', 'done', '{STREAM}', 'old-table', 1, 5, 0, '', 1, 1, :now)""",
)


@pytest.fixture
def directory(home: Path) -> Iterator[Directory]:
    catalog = Catalog(f"sqlite:///{home}/catalog.db")
    made = Directory(home, volume=catalog.volumes.get(Name.parse("v")), kept=0)
    old = str(DeltaTable(made.root).metadata().id)
    with Database(f"sqlite:///{home}/catalog.db").transaction() as transaction:
        for kind in ("streams", "plans", "volumes"):
            transaction.execute(text(f"UPDATE {kind} SET table_id = :id WHERE table_id = 'old-table'"), {"id": old})
    yield made
    catalog.close()
    made.close()


def stream_of(directory: Directory) -> Stream:
    return directory.catalog.streams.get(Name.parse("s"))


def test_offsets_become_refresh_numbers(directory: Directory) -> None:
    assert stream_of(directory).offset == 2, "version 3 was a fence: all up to refresh 2 is consumed"
    on_table = directory.catalog.streams.get(Name.parse("on_table"))
    assert on_table.offset == 3
    plan = directory.catalog.consumptions.plan(PLAN)
    assert plan is not None
    assert (plan.from_version, plan.to_version) == (1, 5)
    assert [one.number for one in directory.catalog.refreshes.committed(VOLUME)] == [1, 2, 4]


def test_rows_and_unconsumed_changes_survive_the_migration(directory: Directory) -> None:
    snapshot = directory.writer.open()
    rows = pa.concat_tables(snapshot.at()).to_pylist()
    assert [(row["relative_path"], row["refresh_id"]) for row in rows] == [("a", 4), ("c", 1), ("d", 2)]
    assert {row["refreshed_on"] for row in rows} == {NOW}
    assert (snapshot.newest, snapshot.through, snapshot.floor) == (5, 5, 2)
    reader = StreamReader(directory.catalog, directory.warehouse)
    covered = reader.pin(stream_of(directory))
    assert covered is not None, "the stream is not stale"
    assert (covered.from_version, covered.to_version) == (2, 5)
    net = net_files.changed(snapshot, 2, 5)
    columns = (net[name].to_pylist() for name in ("relative_path", "had", "has", "commit_version"))
    assert list(zip(*columns, strict=True)) == [("a", True, True, 4), ("b", True, False, 5)]
    assert not Path(directory.root, "_delta_log").exists()
    assert sorted(path.name for path in Path(directory.root).iterdir()) == ["changes", "files"]
    found = directory.refresh({"e": 1})
    assert found is not None
    assert found.number == 6


def test_an_interrupted_migration_starts_over(directory: Directory) -> None:
    with interrupted("call", "volstream.directory.migrate._remove_old"):
        directory.writer.open()
    assert Path(directory.root, "_delta_log").exists()
    snapshot = directory.new_writer().open()
    assert [path for rows in snapshot.at() for path in rows["relative_path"].to_pylist()] == ["a", "c", "d"]
    assert stream_of(directory).table_id == snapshot.table_id
    assert not Path(directory.root, "_delta_log").exists()


def test_times_are_those_on_record(directory: Directory) -> None:
    snapshot = directory.writer.open()
    assert all(
        abs(row["refreshed_on"] - NOW) < timedelta(seconds=1) for rows in snapshot.at() for row in rows.to_pylist()
    )
