"""The one writer of a directory: fencing, crashes, folding, trimming, and tables older than the catalog."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests import objects
from tests.directories import Directory, Files
from volstream.base.model.work import Refresh
from volstream.catalog import Catalog
from volstream.catalog.refreshes import Refreshes
from volstream.changes.directory.writer import FileSizes
from volstream.errors import FencedError, InvalidStateError, NotFoundError


def contents(directory: Directory, at: int | None = None) -> dict[str, int]:
    """The number in each file's etag, by path."""
    rows = pa.concat_tables(directory.snapshot().at(at))
    etags = [int(etag.removeprefix("etag-")) for etag in rows["etag"].to_pylist()]
    found = dict(zip(rows["relative_path"].to_pylist(), etags, strict=True))
    assert len(found) == rows.num_rows, "each path once"
    assert list(found) == sorted(found)
    return found


def numbers(directory: Directory) -> list[int]:
    return [one.number for one in directory.catalog.refreshes.committed(directory.volume.id)]


def test_an_overtaken_writer_is_fenced_and_leaves_nothing(directory: Directory) -> None:
    directory.list_first({"a": 1})
    zombie = directory.new_writer()
    snapshot = zombie.open()
    changes = zombie.begin(snapshot)
    changes.add(_inserted({"b": 9}))
    directory.refresh({"b": 2})
    with pytest.raises(FencedError):
        zombie.commit(snapshot, changes, "events")
    assert contents(directory) == {"a": 1, "b": 2}
    assert numbers(directory) == [1, 2]
    # It can go on, from what is true now.
    assert directory.refresh({"c": 3}, zombie) is not None
    assert contents(directory) == {"a": 1, "b": 2, "c": 3}


def test_a_writer_that_saw_an_empty_directory_is_fenced_by_the_first_listing(directory: Directory) -> None:
    zombie = directory.new_writer()
    snapshot = zombie.open()
    changes = zombie.begin(snapshot)
    changes.add(_inserted({"a": 9}))
    directory.list_first({"a": 1})
    with pytest.raises(FencedError):
        zombie.commit(snapshot, changes, "events")
    assert contents(directory) == {"a": 1}


@pytest.mark.parametrize("act", ["fold", "trim"])
def test_maintenance_by_an_overtaken_writer_is_fenced(directory: Directory, act: str) -> None:
    directory.list_first({"a": 1})
    for number in range(3):
        directory.refresh({"b": number})
    if act == "trim":
        directory.writer.maintain()
    zombie = Directory(Path(directory.warehouse).parent, kept=0, volume=directory.volume).writer
    late = zombie.open()
    directory.refresh({"c": 4})
    directory.writer.maintain()
    with pytest.raises(FencedError):
        zombie._fold(late) if act == "fold" else zombie._trim(late)
    assert contents(directory) == {"a": 1, "b": 2, "c": 4}


def test_a_writer_of_a_dropped_volume_notices(directory: Directory) -> None:
    directory.list_first({"a": 1})
    with directory.catalog.database.transaction() as transaction:
        directory.catalog.volumes.remove(transaction, directory.volume)
    with pytest.raises(NotFoundError):
        directory.refresh({"b": 1})


class Forgetful(Refreshes):
    """The catalog of a process that ends between its commit and its record of it."""

    def record(self, refresh: Refresh) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("first", [True, False])
def test_the_next_writer_records_a_refresh_whose_writer_died_before_recording_it(directory: Directory, first: bool) -> None:
    if not first:
        directory.list_first({"a": 1, "old": 1})
    catalog = Catalog(str(directory.catalog.database._url))
    catalog.refreshes = Forgetful(catalog.database)
    dying = Directory(Path(directory.warehouse).parent, volume=directory.volume)
    dying.catalog.close()
    dying.catalog = catalog
    dying.writer = dying.new_writer()
    with pytest.raises(KeyboardInterrupt):
        dying.list_first({"a": 5, "b": 6}) if first else dying.refresh({"a": 2, "b": 3, "old": None})
    catalog.close()
    assert numbers(directory) == ([] if first else [1])
    directory.writer.open()
    last = directory.catalog.refreshes.last(directory.volume.id)
    assert last is not None
    assert (last.number, last.cause) == ((1, "first-listing") if first else (2, "recovered"))
    assert (last.inserted, last.updated, last.deleted) == ((2, 0, 0) if first else (1, 1, 1))
    assert last.bytes == (11 if first else 5)
    assert contents(directory) == ({"a": 5, "b": 6} if first else {"a": 2, "b": 3})
    assert directory.refresh({"c": 1}) is not None
    assert numbers(directory) == ([1, 2] if first else [1, 2, 3])


_KILLED = """
import sys
from pathlib import Path
from tests.directories import Directory
from volstream.catalog import Catalog
from volstream.base.model.names import Name
folder = Path(sys.argv[1])
catalog = Catalog(f"sqlite:///{folder}/catalog.db")
directory = Directory(folder, volume=catalog.volumes.get(Name.parse("v")))
if sys.argv[2] == "first":
    directory.list_first({"a": 1, "b": 1})
else:
    directory.refresh({"a": 2, "c": 3})
    directory.writer.maintain()
"""

POINTS = ("refresh.intent", "refresh.committed", "refresh.first", "compaction.written", "compaction.committed")


@pytest.mark.parametrize("point", [POINTS[0], *(pytest.param(point, marks=pytest.mark.long) for point in POINTS[1:])])
def test_a_killed_writer_leaves_a_directory_that_the_next_one_repairs(tmp_path: Path, point: str) -> None:
    directory = Directory(tmp_path)
    first = point in ("refresh.first",)
    if not first:
        directory.list_first({"a": 1, "b": 1})
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), "first" if first else "then"],
        env={"VOLSTREAM_FAULT": point, "PYTHONPATH": "."},
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert ended.returncode == -signal.SIGKILL
    done = point != "refresh.intent"
    if first:
        assert contents(directory) == {"a": 1, "b": 1}
        assert pa.concat_tables(directory.snapshot().at(1)).num_rows == 2
    else:
        assert contents(directory) == ({"a": 2, "b": 1, "c": 3} if done else {"a": 1, "b": 1})
        directory.refresh({"a": 2, "c": 3})
    directory.refresh({"d": 4})
    if first:
        assert directory.snapshot().floor == 1, "the tail still begins where the first listing is"
    directory.writer.maintain()
    rest = {"d": 4}
    assert contents(directory) == ({"a": 1, "b": 1} if first else {"a": 2, "b": 1, "c": 3}) | rest
    assert numbers(directory) == ([1, 2] if first else [1, 2, 3])
    directory.close()


def test_no_later_change_is_lost_when_tables_are_older_than_the_catalog(directory: Directory, tmp_path: Path) -> None:
    directory.list_first({"a": 1})
    directory.refresh({"b": 2})
    saved = tmp_path / "saved"
    shutil.copytree(directory.root, saved)
    directory.refresh({"c": 3})
    directory.refresh({"d": 4})
    shutil.rmtree(directory.root)
    shutil.copytree(saved, directory.root)
    directory.writer = directory.new_writer()
    assert contents(directory) == {"a": 1, "b": 2}
    found = directory.refresh({"c": 3, "d": 4, "e": 5})
    assert found is not None
    assert (found.number, found.inserted) == (5, 3), "later than all that anybody may have consumed"
    assert contents(directory) == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}


def test_the_time_of_refreshes_never_goes_backwards(directory: Directory) -> None:
    from datetime import UTC, datetime, timedelta

    directory.list_first({"a": 1})
    ahead = datetime.now(UTC) + timedelta(days=1)
    directory.catalog.refreshes.record(Refresh(directory.volume.id, 2, "events", 1, 0, 0, 0, ahead))
    found = directory.refresh({"b": 2})
    assert found is not None
    assert found.committed_on == ahead


@pytest.fixture
def finely_cut(tmp_path: Path) -> Iterator[Directory]:
    """A directory whose files have few rows."""
    made = Directory(tmp_path, sizes=FileSizes(rows=10, few_rows=3, small_files=4))
    yield made
    made.close()


def test_folding_rewrites_only_the_files_that_changes_touch(finely_cut: Directory) -> None:
    files: Files = {f"{number:03}": 1 for number in range(95)}
    finely_cut.list_first(files)
    before = {file.path for file in finely_cut.snapshot().base.files}
    assert len(before) == 10
    finely_cut.refresh({"035": 2, "036": None, "035b": 3})
    assert finely_cut.writer.maintain()
    snapshot = finely_cut.snapshot()
    after = {file.path for file in snapshot.base.files}
    assert len(before - after) == 1
    assert (snapshot.through, snapshot.newest) == (2, 2)
    wanted = dict(files) | {"035": 2, "035b": 3}
    del wanted["036"]
    assert contents(finely_cut) == wanted
    assert contents(finely_cut, 1) == files, "the past is known from the old images"


def test_files_left_nearly_empty_by_deletes_are_merged(finely_cut: Directory) -> None:
    files: Files = {f"{number:03}": 1 for number in range(60)}
    finely_cut.list_first(files)
    finely_cut.refresh({f"{number:03}": None for number in range(58)})
    finely_cut.writer.maintain()
    assert contents(finely_cut) == {"058": 1, "059": 1}
    assert len(finely_cut.snapshot().base.files) == 1
    finely_cut.refresh({"058": None, "059": None})
    finely_cut.writer.maintain()
    assert contents(finely_cut) == {}
    finely_cut.refresh({"again": 1})
    finely_cut.writer.maintain()
    assert contents(finely_cut) == {"again": 1}


def test_small_files_of_the_tail_are_merged_and_keep_every_change(finely_cut: Directory) -> None:
    finely_cut.list_first({"a": 0})
    for number in range(1, 10):
        finely_cut.refresh({"a": number, f"n{number}": 1})
    past = [contents(finely_cut, at) for at in range(1, 11)]
    finely_cut.writer.maintain()
    assert len(finely_cut.snapshot().tail.files) == 1
    assert [contents(finely_cut, at) for at in range(1, 11)] == past
    assert finely_cut.snapshot().changed(1, 10).num_rows == 18


def test_unneeded_history_is_removed_and_asking_for_it_says_so(tmp_path: Path) -> None:
    directory = Directory(tmp_path, kept=2)
    directory.list_first({"a": 0})
    for number in range(1, 8):
        directory.refresh({"a": number})
    directory.writer.maintain()
    snapshot = directory.snapshot()
    assert (snapshot.newest, snapshot.floor) == (8, 6)
    assert contents(directory, 6) == {"a": 5}
    with pytest.raises(InvalidStateError, match="begins at refresh 6, but refresh 5 is needed"):
        contents(directory, 5)
    directory.close()


@pytest.mark.long
def test_the_log_has_checkpoints_and_the_directory_stays_readable(directory: Directory) -> None:
    directory.list_first({"a": 0})
    for number in range(1, 110):
        directory.refresh({"a": number})
        if number % 10 == 0:
            directory.writer.maintain()
    checkpoints = list(Path(directory.root, "changes", "_delta_log").glob("*.checkpoint.parquet"))
    assert 0 < len(checkpoints) <= 109 // 25  # when there is time, but at most after so many commits
    assert contents(directory) == {"a": 109}
    assert DeltaTable(f"{directory.root}/changes").version() > 109


def test_a_sweep_removes_only_old_leftovers_of_crashes(directory: Directory) -> None:
    import os
    import time

    directory.list_first({"a": 1})
    directory.refresh({"a": 2})
    old, new = (Path(directory.root, "changes", f"part-{name}.parquet") for name in ("old", "new"))
    old.write_bytes(b"PAR1")
    new.write_bytes(b"PAR1")
    aged = time.time() - 2 * 86400
    os.utime(old, (aged, aged))
    directory.writer.sweep()
    assert (old.exists(), new.exists()) == (False, True)
    assert contents(directory) == {"a": 2}
    assert contents(directory, 1) == {"a": 1}


def _inserted(files: Files) -> pa.Table:
    from tests.directories import rows
    from volstream.changes.directory import table
    from volstream.changes.directory.table import compare_files

    return compare_files(rows(files), table.FILES.empty_table())


def test_tables_older_than_the_catalog_continue_from_its_number_and_are_listed_again(
    directory: Directory, tmp_path: Path
) -> None:
    directory.list_first({"a": 1})
    directory.refresh({"b": 1})
    shutil.copytree(directory.root, tmp_path / "backup")
    on_it = objects.stream(directory.volume, offset=4)
    consumer = objects.job(on_it, clean=True)
    with directory.catalog.database.transaction() as transaction:
        directory.catalog.streams.add(transaction, on_it)
        directory.catalog.jobs.add(transaction, consumer)
    directory.refresh({"c": 1})
    directory.refresh({"d": 1})
    shutil.rmtree(directory.root)
    shutil.copytree(tmp_path / "backup", directory.root)

    writer = directory.new_writer()
    assert writer.open().newest == 4
    assert directory.catalog.refreshes.is_asked(directory.volume.id, "")
    assert not objects.file_job(directory.catalog.jobs.get(consumer.name)).clean, "files come again of which the table has rows"
    directory.catalog.refreshes.checked(directory.volume.id, directory.catalog.refreshes.asked_checks(directory.volume.id, 10))
    again = directory.refresh({"c": 1, "d": 1}, writer)
    assert again is not None
    assert again.number == 5
    changed = directory.snapshot().changed(4, 5)
    assert sorted(changed["relative_path"].to_pylist()) == ["c", "d"]
    assert not directory.catalog.refreshes.asked_checks(directory.volume.id, 10), "once is enough"
