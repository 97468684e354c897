"""Backups while a directory is being written: catalog and tables are consistent."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests import tails
from tests.waiting import eventually
from volstream.api.dbapi import Connection, _OpenHome
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot
from volstream.errors import DependencyError, InvalidValueError, ObjectInUseError
from volstream.ingest import RealtimeOperation, RowOperator
from volstream.ops.backup import Manifest, make_backup, restore_backup
from volstream.tables.tails.writer import commit_tail


def _session(home: Path) -> Session:
    return Session(config.load(home, settle_seconds=0.01, catalog_url="", warehouse=""))


@pytest.mark.long
def test_a_constantly_refreshed_directory_is_backed_up_as_of_one_refresh(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    begun, enough = threading.Event(), threading.Event()
    backups = [tmp_path / f"backup-{number}" for number in range(5)]
    with _session(tmp_path / "home") as session:
        session.volumes.create("v", str(files), queue_type=QueueType.NONE)

        def churn() -> None:
            """Refresh ``n`` adds the file of that number."""
            number = 0
            with _session(tmp_path / "home") as own:
                while not enough.is_set():
                    number += 1
                    (files / f"{number:05d}").touch()
                    own.volumes.refresh("v")
                    begun.set()

        writer = threading.Thread(target=churn)
        writer.start()
        try:
            assert begun.wait(60)
            for folder in backups:
                make_backup(session.home.catalog, session.home.settings, folder)
        finally:
            enough.set()
            writer.join()
    seen = []
    for folder in backups:
        with _session(tmp_path / f"home-{folder.name}") as session:
            restore_backup(session.home.catalog, session.home.settings, folder)
            volume = session.volumes.get("v")
            found = Snapshot.open(table.directory_location(session.home.warehouse, volume.id), volume.id)
            newest = 0 if found is None else found.newest
            paths = [path for part in (found.at() if found else ()) for path in part["relative_path"].to_pylist()]
            assert paths == [f"{number:05d}" for number in range(1, newest + 1)]
            # A refresh is recorded after it was committed, as after a crash in between.
            assert newest - 1 <= volume.refresh_count <= newest
            done = session.volumes.refresh("v")
            assert done.inserted == len([*files.iterdir()]) - newest
            seen.append(newest)
    assert seen == sorted(seen)
    assert seen[-1] > 0


@pytest.mark.parametrize("key", [pytest.param([], id="added", marks=pytest.mark.long), pytest.param(["id"], id="keyed")])
def test_a_table_whose_rows_keep_arriving_is_backed_up_as_of_one_flush(tmp_path: Path, key: list[str]) -> None:
    enough, acknowledged = threading.Event(), [0]
    operate = RealtimeOperation.CDC if key else RealtimeOperation.APPEND_ONLY
    spans: list[tuple[int, int]] = []
    with _session(tmp_path / "home") as session:
        tables = Path(session.home.warehouse, "tables/public")
        tables.mkdir(parents=True)
        location = tails.create(tables, key)

        def write() -> None:
            """Writes ``n`` = 1, 2, ..., ten rows in a flush."""
            with (
                Connection(_OpenHome(_session(tmp_path / "home")), "public") as connection,
                connection.get_realtime_stream(table="t", operate=operate) as stream,
            ):
                while not enough.is_set():
                    for number in range(acknowledged[0] + 1, acknowledged[0] + 11):
                        row = stream.create_row(RowOperator.UPSERT if key else RowOperator.INSERT)
                        row.set_values({"id": f"{number % 7 if key else number}", "n": number})
                        stream.apply(row)
                    stream.flush()
                    acknowledged[0] += 10

        def commit() -> None:
            while not enough.is_set():
                commit_tail(location, tails.no_spark)

        threads = [threading.Thread(target=one) for one in (write, commit)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: acknowledged[0] > 0)
            for number in range(4):
                before = acknowledged[0]
                make_backup(session.home.catalog, session.home.settings, tmp_path / f"backup-{number}")
                spans.append((before, acknowledged[0] + 10))
        finally:
            enough.set()
            for thread in threads:
                thread.join()
    for number, (minimum, maximum) in enumerate(spans):
        with _session(tmp_path / f"home-{number}") as session:
            restore_backup(session.home.catalog, session.home.settings, tmp_path / f"backup-{number}")
            found = tails.everything(f"{session.home.warehouse}/tables/public/t")
        newest = max((row["n"] for row in found), default=0)
        assert minimum <= newest <= maximum
        numbers = sorted(row["n"] for row in found)
        assert numbers == [*range(max(1, newest - 6) if key else 1, newest + 1)]


def test_of_two_restores_at_once_one_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    with _session(tmp_path / "home") as session:
        session.source.create_stream("s")
        make_backup(session.home.catalog, session.home.settings, tmp_path / "backup")
    with _session(tmp_path / "new") as session:
        home = session.home

        def other(what: str) -> None:
            if what == "tables":
                with pytest.raises(ObjectInUseError, match="is restoring a backup into this home"):
                    restore_backup(home.catalog, home.settings, tmp_path / "backup")

        restore_backup(home.catalog, home.settings, tmp_path / "backup", other)
        assert Path(home.warehouse, "tables", "public", "s").is_dir()
        assert [str(one.name) for one in session.source.list()] == ["s"]


def test_a_backup_without_its_catalog_is_damaged(tmp_path: Path) -> None:
    with _session(tmp_path / "home") as session:
        make_backup(session.home.catalog, session.home.settings, tmp_path / "backup")
    (tmp_path / "backup" / "catalog.db").unlink()
    with _session(tmp_path / "new") as session, pytest.raises(InvalidValueError, match="is damaged"):
        restore_backup(session.home.catalog, session.home.settings, tmp_path / "backup")


@pytest.mark.parametrize("damaged", ["tables/public/s", "tables/public/s/_tail", "tables/public/plain"])
def test_a_damaged_table_is_named_with_what_to_do_and_nothing_is_left_of_the_backup(tmp_path: Path, damaged: str) -> None:
    folder = tmp_path / "backup"
    with _session(tmp_path / "home") as session:
        home = session.home
        tables = Path(home.warehouse, "tables", "public")
        session.source.create_stream("s").upload([{"n": 1}])
        write_deltalake(tables / "plain", pa.table({"n": [1]}))
        for entry in Path(home.warehouse, damaged, "_delta_log").glob("*.json"):
            entry.write_text("not a log")
        name = damaged.split("/")[2]
        with pytest.raises(DependencyError, match=f"The table {name} cannot be backed up: The table at ") as caught:
            make_backup(home.catalog, home.settings, folder)
        assert caught.value.remedy == f"Repair it; or drop it and back up again: volstream sql 'DROP TABLE {name}'."
        assert not folder.exists()
        if name == "s":
            session.source.drop("s")
        else:
            shutil.rmtree(tables / "plain")
        make_backup(home.catalog, home.settings, folder)
        assert [*Manifest.read(folder).tables]


def test_a_damaged_directory_is_named_by_its_volume(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with _session(tmp_path / "home") as session:
        home = session.home
        session.volumes.create("v", str(tmp_path / "files"), queue_type=QueueType.NONE)
        session.volumes.refresh("v")
        for entry in Path(home.warehouse).rglob("_delta_log/*.json"):
            entry.write_text("not a log")
        with pytest.raises(DependencyError, match=r"(?s)The directory of volume v cannot be backed up.* drop volume v --cascade"):
            make_backup(home.catalog, home.settings, tmp_path / "backup")
        session.volumes.drop("v", cascade=True)
        make_backup(home.catalog, home.settings, tmp_path / "backup")


@pytest.mark.parametrize("link", ["catalog.db", "backup.json", "warehouse/tables/public/t", "warehouse/tables/public/x.parquet"])
def test_a_backup_with_a_link_is_not_restored(tmp_path: Path, link: str) -> None:
    backup, secret = tmp_path / "backup", tmp_path / "secret"
    with _session(tmp_path / "home") as session:
        write_deltalake(f"{session.home.warehouse}/tables/public/t", pa.table({"n": [1]}))
        make_backup(session.home.catalog, session.home.settings, backup)
    if (backup / link).exists():
        (backup / link).rename(secret)
    else:
        secret.touch()
    (backup / link).symlink_to(secret)
    with _session(tmp_path / "restored") as session:
        with pytest.raises(InvalidValueError, match=rf"was changed: {link} is a link\. Restore another backup"):
            restore_backup(session.home.catalog, session.home.settings, backup)
        assert not list(Path(session.home.warehouse).rglob("*.parquet"))


def test_a_backup_with_a_pipe_is_not_restored(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with _session(tmp_path / "home") as session:
        make_backup(session.home.catalog, session.home.settings, backup)
    (backup / "warehouse").mkdir(exist_ok=True)
    os.mkfifo(backup / "warehouse" / "pipe")
    with (
        _session(tmp_path / "restored") as session,
        pytest.raises(InvalidValueError, match="was changed: warehouse/pipe is neither a file nor a folder"),
    ):
        restore_backup(session.home.catalog, session.home.settings, backup)
