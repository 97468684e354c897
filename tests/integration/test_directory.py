"""Directory tables on a real engine: what refreshes and reconciles write, and what is left after a crash in one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.conftest import Place
from volstream.catalog import Catalog
from volstream.catalog.refreshes import Refreshes
from volstream.delta.log import DeltaLog
from volstream.delta.writer import DeltaWriter, Marker, literal
from volstream.directory import table
from volstream.directory.fold import Fold
from volstream.directory.keeper import DirectoryKeeper, Tick
from volstream.directory.writer import Counts, DirectoryWriter
from volstream.errors import FencedError, NotFoundError, StorageError
from volstream.model.files import FileInfo
from volstream.model.hints import KeyHint, SubtreeHint
from volstream.model.objects import Volume
from volstream.spark.address import RemoteAddress
from volstream.spark.compiled import COMPILED, INTERPRETED
from volstream.spark.session import SparkGateway
from volstream.storage import open_store

#: Names that break quoting, escaping, globbing or ordering somewhere.
ODD_NAMES = (
    "sp ace", "pl+us", "per%cent", "%2F", "am&p=er", "quo'te", 'dou"ble', "back\\slash", "back`tick", "new\nline", "tab\t",
    "uml-ü", "中文", "emoji-\U0001f600", "dollar$", "semi;colon", "brace{}", "brack[et]", "star*", "quest?", "hash#", "co:lon",
    "dir with space/ü/file", "x=y/part", "-dash", "_under", "CASE", "case", "e\u0301", "\u00e9",
)  # fmt: skip


def log_of(place: Place) -> DeltaLog:
    return DeltaLog(table.location(place.session.warehouse, place.volume.id))


def version(place: Place) -> int:
    found = log_of(place).latest_version()
    assert found is not None
    return found


def directory(place: Place) -> dict[str, int]:
    """Path and size of each row; a path that is there twice is an error."""
    rows = place.rows("SELECT relative_path, size FROM DIRECTORY(VOLUME v)")
    found = {str(row["relative_path"]): int(str(row["size"])) for row in rows}
    assert len(found) == len(rows)
    return found


def changed(place: Place, at: int) -> list[tuple[str, str]]:
    """Type and path of the changes that one version made."""
    location = literal(log_of(place).location)
    rows = place.rows(f"SELECT _change_type, relative_path FROM table_changes_by_path({location}, {at}, {at})")
    return sorted((str(row["_change_type"]), str(row["relative_path"])) for row in rows)


def take(place: Place, *hints: KeyHint | SubtreeHint) -> Tick:
    fold = Fold(place.volume.selection)
    fold.add(hints)
    return place.keeper().take(fold)


def refreshes(place: Place) -> list[tuple[int, int | None, str, int, int, int]]:
    """Number, version, cause and counts of the committed ones."""
    return [
        (one.number, one.version, one.cause, one.inserted, one.updated, one.deleted)
        for one in place.session.catalog.refreshes.committed(place.volume.id)
    ]


def writer(place: Place, catalog: Catalog | None = None) -> DirectoryWriter:
    delta = DeltaWriter(place.gateway)
    return DirectoryWriter(place.volume, catalog or place.session.catalog, delta, place.session.warehouse)


def rows_of(place: Place, **actions: str) -> Callable[[Any], Any]:
    """A refresh's changes, with the files as they are now: path -> action."""
    store = open_store(place.volume.location)
    files = [store.head(path) or FileInfo(path, 0, datetime.fromtimestamp(0).astimezone(), "") for path in actions]
    changes = table.rows(files, store.url).append_column("action", pa.array(list(actions.values())))
    return lambda session: session.createDataFrame(changes)


class NoSpark(SparkGateway):
    """A gateway for what must do without."""

    def __init__(self) -> None:
        super().__init__(lambda: RemoteAddress("sc://nobody:1"), stall_seconds=60)

    def session(self) -> Any:
        raise AssertionError("Spark was asked")

    @contextmanager
    def fresh(self) -> Iterator[Any]:
        raise AssertionError("Spark was asked")
        yield

    @contextmanager
    def pooled(self, *, compiled: bool = False) -> Iterator[Any]:
        raise AssertionError(f"Spark was asked, {compiled=}")
        yield


def test_the_mark_of_a_commit_is_on_no_later_one(place: Place) -> None:
    place.put("a")
    place.refresh()
    with place.gateway.pooled() as first, place.gateway.pooled() as second:
        for session in (first, second):
            assert {session.conf.get(name, None) for name in Marker("", 0, {}).settings()} == {None}


@pytest.mark.parametrize("limit", ["LARGE_BYTES", "LARGE_ROWS"])
def test_what_reads_a_large_table_is_compiled(place: Place, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put("a")
    place.put("b")
    place.refresh()
    reads = "SELECT relative_path FROM DIRECTORY(VOLUME v) ORDER BY 1"
    assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "b"}]
    spark = place.session.spark
    assert {key: spark.conf.get(key) for key in INTERPRETED} == INTERPRETED
    size = {"LARGE_BYTES": bytes_of(place), "LARGE_ROWS": 2}[limit]
    monkeypatch.setattr(f"volstream.delta.writer.{limit}", size)
    assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "b"}]
    assert {key: spark.conf.get(key) for key in INTERPRETED} == INTERPRETED
    monkeypatch.setattr(f"volstream.delta.writer.{limit}", size - 1)
    try:
        assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "b"}]
        assert {key: spark.conf.get(key) for key in COMPILED} == COMPILED
        place.put("a", "changed")
        place.put("c")
        place.delete("b")
        place.refresh()
        assert place.rows(reads) == [{"relative_path": "a"}, {"relative_path": "c"}]
    finally:
        for key, value in INTERPRETED.items():
            spark.conf.set(key, value)


def test_the_size_of_a_table_is_told_by_its_checksum_or_its_files(place: Place) -> None:
    log = log_of(place)
    assert not log.is_larger(0, 0)
    place.put("a")
    place.refresh()
    place.put("b")
    place.refresh()
    size = bytes_of(place)
    (checksum,) = Path(log.location).glob(f"_delta_log/{log.latest_version():020}.crc")
    assert json.loads(checksum.read_text())["tableSizeBytes"] == size
    for _ in range(2):
        assert [log.is_larger(size, 2), log.is_larger(size - 1, 2), log.is_larger(size, 1)] == [False, True, True]
        checksum.unlink(missing_ok=True)


def bytes_of(place: Place) -> int:
    return sum(file.stat().st_size for file in Path(log_of(place).location).glob("*.parquet"))


def test_the_first_listing_is_one_commit(place: Place) -> None:
    place.put("a", "1")
    place.put("d/b", "22")
    place.refresh()
    assert [commit.operation for commit in log_of(place).commits_after(-1)] == ["CREATE TABLE", "WRITE"]
    assert refreshes(place) == [(1, 1, "bootstrap", 2, 0, 0)]
    (first, second) = place.rows("SELECT * FROM DIRECTORY(VOLUME v) ORDER BY relative_path")
    info = open_store(place.volume.location).head("a")
    assert info is not None
    assert first == {
        "relative_path": "a", "url": f"file://{place.folder}/a", "size": 1, "last_modified_time": info.last_modified_time,
        "etag": info.etag, "version_id": None, "content_type": None,
    }  # fmt: skip
    assert second["relative_path"] == "d/b"
    committed = place.session.catalog.refreshes.last(place.volume.id)
    assert committed is not None
    assert committed.committed_on == log_of(place).commits_after(0)[0].timestamp
    assert committed.bytes == 3
    assert place.volume.table_id == log_of(place).table_id()


def test_an_empty_directory_is_listed_without_a_commit(place: Place) -> None:
    place.refresh()
    assert version(place) == 0
    assert place.volume.reconciled_on is not None
    assert directory(place) == {}


def test_a_listing_like_the_last_one_asks_no_spark(place: Place) -> None:
    place.put("a")
    place.refresh()
    keeper = DirectoryKeeper(place.volume, place.session.catalog, NoSpark(), place.session.settings)
    done = keeper.reconcile()
    assert (done.files, done.commit, bool(done.counts)) == (1, None, False)
    place.put("a", "another")
    with pytest.raises(AssertionError, match="Spark was asked"):
        keeper.reconcile()


def test_a_reconcile_that_finds_nothing_commits_nothing(place: Place) -> None:
    place.put("a")
    place.refresh()
    place.put("b")
    assert take(place, KeyHint("b")).commits == 1
    # The listing is another one than the last: it has to be compared.
    place.refresh()
    assert version(place) == 2
    assert [number for number, *_ in refreshes(place)] == [1, 2]


def test_only_rows_that_differ_are_written_in_one_commit(place: Place) -> None:
    for name in "abcd":
        place.put(name)
    place.refresh()
    place.put("b", "other")
    place.delete("c")
    place.put("e")
    place.refresh()
    assert version(place) == 2
    assert changed(place, 2) == [
        ("delete", "c"), ("insert", "e"), ("update_postimage", "b"), ("update_preimage", "b"),
    ]  # fmt: skip
    assert refreshes(place)[-1] == (2, 2, "reconcile", 1, 1, 1)
    assert directory(place) == {"a": 1, "b": 5, "d": 1, "e": 1}
    place.session.catalog.volumes.change(place.volume, listing_digest=None)
    place.refresh()
    assert version(place) == 2


def test_a_row_goes_only_after_a_look_found_nothing(place: Place) -> None:
    place.put("back", "1")
    place.put("gone", "1")
    place.refresh()
    shutil.move(place.folder / "back", place.folder.parent / "kept")
    place.delete("gone")
    # It makes the listing wait for it to settle; meanwhile a file that was not listed returns.
    (place.folder / "fresh").write_text("new")

    def put_back(_seconds: float) -> None:
        shutil.move(place.folder.parent / "kept", place.folder / "back")

    settings = place.session.settings.model_copy(update={"settle_seconds": 60.0})
    keeper = DirectoryKeeper(place.volume, place.session.catalog, place.gateway, settings, put_back)
    assert keeper.reconcile().counts.deleted == 1
    assert directory(place) == {"back": 1, "fresh": 3}


def test_a_directory_that_is_not_there_removes_nothing(place: Place) -> None:
    place.put("a")
    place.refresh()
    place.folder.rename(place.folder.parent / "unmounted")
    with pytest.raises(StorageError):
        place.refresh()
    assert directory(place) == {"a": 1}


def test_a_subdirectory_is_made_true_and_the_rest_left_alone(place: Place) -> None:
    for path in ("d/a", "d/e/b", "d0", "d.x", "f/c"):
        place.put(path)
    place.refresh()
    for path in ("d/a", "d/e/b", "d0", "d.x", "f/c"):
        place.delete(path)
    place.put("d/new", "22")
    place.session.volumes.refresh("v", "d")
    assert directory(place) == {"d/new": 2, "d0": 1, "d.x": 1, "f/c": 1}
    place.session.volumes.refresh("v", "never was")
    assert version(place) == 2
    place.refresh()
    assert directory(place) == {"d/new": 2}


def test_a_tick_of_hints_is_one_commit(place: Place) -> None:
    for name in ("changed", "gone", "same"):
        place.put(name)
    place.refresh()
    place.put("changed", "22")
    place.delete("gone")
    place.put("new", "333")
    tick = take(place, *map(KeyHint, ("changed", "gone", "same", "new", "never was", "brief.tmp")))
    assert (tick.commits, tick.counts) == (1, Counts(1, 1, 1, 5))
    assert directory(place) == {"changed": 2, "new": 3, "same": 1}
    assert refreshes(place)[-1] == (2, 2, "events", 1, 1, 1)
    # The same hints again say nothing new (events.md, rule 2).
    assert take(place, *map(KeyHint, ("changed", "gone", "same", "new"))).commits == 0
    assert version(place) == 2


def test_hints_before_the_first_listing_make_the_table(place: Place) -> None:
    place.put("a")
    place.put("b")
    assert take(place, KeyHint("a")).commits == 1
    place.refresh()
    assert directory(place) == {"a": 1, "b": 1}


def test_names_that_cannot_be_rows_are_kept_as_rejected(place: Place) -> None:
    place.put("good")
    with open(os.fsencode(place.folder) + b"/bad\xff", "w"):
        pass
    os.utime(os.fsencode(place.folder) + b"/bad\xff", (0, 0))
    take(place, KeyHint("good"), KeyHint(os.fsdecode(b"bad\xff")))
    place.refresh()
    assert directory(place) == {"good": 1}
    assert {one.subject for one in place.session.catalog.refreshes.rejected(place.volume.id)} == {"bad\\xff"}


def test_odd_names_go_through_everything(place: Place) -> None:
    sizes = {name: number + 1 for number, name in enumerate(ODD_NAMES)}
    for name, size in sizes.items():
        place.put(name, "x" * size)
    place.job("def f(file):\n    assert len(file.read_bytes()) == file.size\n    return {'n': file.size}", max_files=20)
    place.run()
    place.session.streams.create("s", "v")
    assert directory(place) == sizes
    assert dict(place.table()) == sizes
    for name in ODD_NAMES[::2]:
        place.put(name, "y" * 100)
    for name in ODD_NAMES[1::2]:
        place.delete(name)
    assert take(place, *map(KeyHint, ODD_NAMES)).commits == 1
    wanted = dict.fromkeys(ODD_NAMES[::2], 100)
    assert directory(place) == wanted
    shown = [(str(row["__change_type"]), str(row["relative_path"])) for row in place.stream()]
    expected = [(kind, name) for name in ODD_NAMES[::2] for kind in ("UPDATE_BEFORE", "UPDATE_AFTER")]
    assert sorted(shown) == sorted(expected + [("DELETE", name) for name in ODD_NAMES[1::2]])
    place.run()
    assert place.session.jobs.failures("j") == []
    assert dict(place.table()) == wanted
    place.session.catalog.volumes.change(place.volume, listing_digest=None)
    before = version(place)
    place.refresh()
    assert version(place) == before


def test_a_refresh_that_died_before_its_commit_is_fenced_off(place: Place) -> None:
    place.put("a")
    place.refresh()
    place.session.streams.create("s", "v")
    catalog = place.session.catalog
    base = writer(place).open()
    dead = catalog.refreshes.begin(place.volume, "events", base.version, base.refresh_count)
    place.put("b")
    place.refresh()
    assert dead == 2
    assert [number for number, *_ in refreshes(place)] == [1, 3]
    assert catalog.refreshes.open(place.volume) is None
    assert directory(place) == {"a": 1, "b": 1}
    # The fence is a commit without rows; what the stream shows is the version that has them.
    assert [(row["relative_path"], row["__commit_version"]) for row in place.stream()] == [("b", 3)]


class Dying(Refreshes):
    """The catalog of a process that ends between its commit and its note of it."""

    def settle(
        self,
        volume: Volume,
        number: int,
        version: int | None,
        counts: tuple[int, ...],
        committed_on: datetime | None,
    ) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("action", ["insert", "update"])
def test_a_refresh_that_died_after_its_commit_is_settled_and_not_done_again(place: Place, action: str) -> None:
    place.put("a", "1")
    place.refresh()
    path = "b" if action == "insert" else "a"
    place.put(path, "22")
    catalog = Catalog(place.session.settings.database_url)
    catalog.refreshes = Dying(catalog.database)
    dying = writer(place, catalog)
    counts = Counts(1, 0, 0, 2) if action == "insert" else Counts(0, 1, 0, 2)
    with pytest.raises(KeyboardInterrupt):
        dying.commit(dying.open(), "events", counts, rows_of(place, **{path: action}), "true")
    catalog.close()
    assert place.session.catalog.refreshes.open(place.volume) == (2, 1)
    assert take(place, KeyHint(path)).commits == 0
    assert refreshes(place)[-1] == (2, 2, "events", counts.inserted, counts.updated, 0)
    settled = place.session.catalog.refreshes.last(place.volume.id)
    assert settled is not None
    assert settled.committed_on == log_of(place).commits_after(1)[0].timestamp
    assert directory(place) == ({"a": 1, "b": 2} if action == "insert" else {"a": 2})


def test_a_writer_that_was_overtaken_before_it_began_is_fenced(place: Place) -> None:
    place.put("a")
    place.refresh()
    slow = writer(place)
    base = slow.open()
    place.put("b")
    place.refresh()
    with pytest.raises(FencedError):
        slow.commit(base, "events", Counts(1), rows_of(place, b="insert"), "true")
    assert directory(place) == {"a": 1, "b": 1}


@pytest.mark.parametrize("action", ["insert", "update"])
def test_a_zombie_that_wakes_up_after_a_takeover_writes_nothing(place: Place, action: str) -> None:
    place.put("a", "1")
    place.refresh()
    zombie = writer(place)
    base = zombie.open()
    path = "b" if action == "insert" else "a"
    place.put(path, "22")
    stale = rows_of(place, **{path: action})

    def asleep(session: Any) -> Any:
        # Its INTENT is written, its commit is not: another writer takes over.
        place.put(path, "333")
        place.refresh()
        return stale(session)

    counts = Counts(1) if action == "insert" else Counts(0, 1)
    with pytest.raises(FencedError, match="Refresh 2"):
        zombie.commit(base, "events", counts, asleep, "true")
    assert directory(place) == ({"a": 1, "b": 3} if action == "insert" else {"a": 3})
    assert [number for number, *_ in refreshes(place)] == [1, 3]
    # It can go on, from what is true now.
    place.put("c")
    assert take(place, KeyHint("c")).commits == 1


def test_a_writer_of_a_dropped_volume_finds_out(place: Place) -> None:
    place.put("a")
    place.refresh()
    late = writer(place)
    base = late.open()
    place.session.volumes.drop("v")
    with pytest.raises(FencedError, match="was dropped"):
        late.commit(base, "events", Counts(1), lambda _: None, "true")  # type: ignore[arg-type, return-value]  # never called
    with pytest.raises(NotFoundError):
        late.open()
