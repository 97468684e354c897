"""The daemon commits what arrives by real-time streams, without an engine where the tables allow it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tests import tails
from tests.tails import committed
from tests.waiting import eventually
from volstream.base.config import Settings
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.catalog.alerts import ConditionKind
from volstream.home import Home
from volstream.server.daemon.arrivals import Committer
from volstream.tables.tails.writer import Flush, TailWriter


@pytest.fixture
def home(settings: Settings) -> Iterator[Home]:
    def connect() -> object:
        raise AssertionError("no engine is needed")

    with Home(settings.model_copy(update={"commit_seconds": 0.05}), connect) as home:  # type: ignore[arg-type]
        yield home


def table(home: Home, schema: str) -> str:
    """A table ``t`` with one row in its tail."""
    folder = Path(home.warehouse, "tables", schema)
    folder.mkdir(parents=True)
    location = tails.create(folder)
    arrive(location, 1)
    home.catalog.tails.put(Name(schema, "t"), location)
    return location


def arrive(location: str, sequence: int) -> None:
    rows = pa.table({"__operation": ["insert"], "id": [str(sequence)], "n": [sequence]})
    TailWriter(location).append([Flush("s", sequence, rows)])


@contextmanager
def committing(home: Home) -> Iterator[Committer]:
    stop = Stop()
    committer = Committer(home, home.settings, stop)
    thread = threading.Thread(target=committer.run)
    thread.start()
    try:
        yield committer
    finally:
        stop.set()
        thread.join()


def test_what_arrives_is_committed_again_and_again(home: Home) -> None:
    location = table(home, "a")
    with committing(home):
        eventually(lambda: len(committed(location)) == 1)
        arrive(location, 2)
        eventually(lambda: len(committed(location)) == 2)


def test_a_table_that_cannot_be_committed_holds_no_other_up(home: Home) -> None:
    broken, whole = table(home, "a"), table(home, "b")
    entries = {entry: entry.read_text() for entry in Path(broken, "_delta_log").glob("*.json")}
    for entry in entries:
        entry.write_text("not a log")
    with committing(home) as committer:
        eventually(lambda: len(committed(whole)) == 1)
        arrive(whole, 2)
        eventually(lambda: len(committed(whole)) == 2)
        # The status tells, until it is mended.
        eventually(lambda: "cannot be read" in str(home.catalog.conditions.cause(ConditionKind.TABLE, "a.t")))
        assert [*committer.failing] == ["a.t"]
        for entry, text in entries.items():
            entry.write_text(text)
        eventually(lambda: home.catalog.conditions.cause(ConditionKind.TABLE, "a.t") is None)
        assert committer.failing == {}
    assert len(committed(broken)) == 1


def test_a_table_whose_rows_cannot_be_read_holds_no_other_up_and_is_told(home: Home) -> None:
    broken, whole = table(home, "a"), table(home, "b")
    (arrived,) = Path(broken, "_tail").glob("*.parquet")
    arrived.write_bytes(b"not Parquet at all")
    with committing(home) as committer:
        eventually(lambda: len(committed(whole)) == 1)
        assert "Parquet" in committer.failing["a.t"]
        assert "Parquet" in str(home.catalog.conditions.cause(ConditionKind.TABLE, "a.t"))


def test_a_table_that_cannot_be_committed_is_forgotten_once_it_is_dropped(home: Home) -> None:
    broken = table(home, "a")
    (arrived,) = Path(broken, "_tail").glob("*.parquet")
    arrived.write_bytes(b"not Parquet at all")
    with committing(home) as committer:
        eventually(lambda: [*committer.failing] == ["a.t"])
        shutil.rmtree(broken)
        home.catalog.tails.remove(Name("a", "t"))  # as DROP TABLE does
        eventually(lambda: committer.failing == {})


def test_a_table_that_was_dropped_is_forgotten(home: Home) -> None:
    location = table(home, "a")
    shutil.rmtree(location)
    with committing(home):
        eventually(lambda: not home.catalog.tails.list())


def test_a_table_is_not_forgotten_while_the_disk_of_the_warehouse_is_away(home: Home) -> None:
    location = table(home, "a")
    away = Path(home.warehouse).rename(f"{home.warehouse} away")
    with committing(home) as committer:
        eventually(lambda: "mounted" in str(committer.failing) or "does not exist" in str(committer.failing))
        away.rename(home.warehouse)
        eventually(lambda: len(committed(location)) == 1 and committer.failing == {})


def test_files_that_no_tail_needs_are_deleted_once_they_are_old(home: Home) -> None:
    location = table(home, "a")
    old, new = (Path(location, "_tail", f"part-{name}.parquet") for name in ("old", "new"))
    for file in (old, new):
        file.write_bytes(b"PAR1")
    aged = time.time() - 86400
    os.utime(old, (aged, aged))
    with committing(home):
        eventually(lambda: not old.exists())
    assert new.exists()
    assert len(committed(location)) == 1
