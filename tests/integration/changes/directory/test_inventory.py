"""What a directory takes from a report of its bucket. The bucket is in memory, where times of modification
can be chosen."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.inventories import Reported, report
from tests.memory import MemoryStore
from volstream.base import config
from volstream.base.definitions import QueueType, Volume, VolumeSpec
from volstream.base.model.hints import HintSet, KeyHint
from volstream.base.model.names import Name
from volstream.base.model.paths import FileInfo, Selection
from volstream.catalog import Catalog
from volstream.changes.directory import inventory as inventories
from volstream.changes.directory import table
from volstream.changes.directory.inventory import Inventory, check_newer, check_report, list_report
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.listing import listed_in
from volstream.changes.directory.reconcile import ConfirmReport, Observations, ReconcileResult
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import compare_files
from volstream.errors import InterruptedByUserError, InvalidStateError, InvalidValueError, NotFoundError, StorageError
from volstream.files.storage.inventory import Manifest
from volstream.files.volumes.definitions import create_volume

NOW = datetime.now(UTC).replace(microsecond=0)
LONG_AGO, FIRST, SECOND = NOW - timedelta(days=9), NOW - timedelta(hours=2), NOW - timedelta(hours=1)


class Looking(MemoryStore):
    """Notes which objects are looked at."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.looks: list[str] = []
        self.fails = False

    def head(self, path: str) -> FileInfo | None:
        self.looks.append(path)
        if self.fails:
            raise StorageError("The store does not answer.")
        return super().head(path)


class Bucket:
    """A volume at ``s3://photos/in``, and the reports of its bucket."""

    def __init__(self, folder: Path, patterns: Sequence[str] = ()) -> None:
        self.settings = config.load(folder / "home")
        self.catalog = Catalog(self.settings.database_url)
        self.store, self.reports = Looking(f"memory://{uuid.uuid4()}"), MemoryStore(f"memory://{uuid.uuid4()}")
        self.store.create()
        spec = VolumeSpec(name=Name.parse("v"), location="s3://photos/in", queue_type=QueueType.NONE, patterns=tuple(patterns))
        self._id = create_volume(self.catalog, self.settings, spec, check=False).id

    @property
    def volume(self) -> Volume:
        found = self.catalog.volumes.by_id(self._id)
        assert found is not None
        return found

    def put(self, path: str, content: bytes = b"x", modified: datetime = LONG_AGO) -> Reported:
        """Writes a file; what a report says of it."""
        one = self.store.put(path, content, last_modified_time=modified)
        return Reported(f"in/{path}", one.size, modified, one.etag)

    def report(self, taken_on: datetime, *parts: Sequence[Reported], bucket: str = "photos") -> Inventory:
        files = report(bucket, taken_on, parts)
        for key, content in files.items():
            self.reports.put(key, content)
        return Inventory(Manifest.parse(list(files.values())[-1], "m"), self.reports)

    def read(self, taken_on: datetime, *parts: Sequence[Reported]) -> ReconcileResult:
        return self.keeper().reconcile(inventory=self.report(taken_on, *parts))

    def keeper(self) -> DirectoryKeeper:
        return DirectoryKeeper(self.volume, self.catalog, self.settings, store=self.store)

    def snapshot(self) -> Snapshot | None:
        return Snapshot.open(table.directory_location(self.settings.warehouse_path, self._id), self._id)

    def directory(self) -> Mapping[str, str]:
        """Path and etag of each row."""
        snapshot = self.snapshot()
        if snapshot is None:
            return {}
        rows = pa.concat_tables([table.FILES.empty_table(), *snapshot.at()])
        return dict(zip(rows["relative_path"].to_pylist(), rows["etag"].to_pylist(), strict=True))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path)
    yield made
    made.catalog.close()


def etags(*reported: Reported) -> Mapping[str, str]:
    return {one.key.removeprefix("in/"): str(one.etag) for one in reported}


def test_an_empty_directory_is_filled_without_a_look_at_any_object(bucket: Bucket) -> None:
    files = [bucket.put(f"{number:02}") for number in range(30)]
    done = bucket.read(FIRST, files[20:], files[:10], [Reported("other/x"), *files[10:20]])
    assert bucket.directory() == etags(*files)
    assert (done.files, done.counts.inserted, done.as_of) == (30, 30, FIRST)
    assert bucket.store.looks == []
    assert bucket.volume.last_listing == FIRST
    assert bucket.keeper().reconcile().commit is None  # a listing finds nothing else


def test_old_versions_and_delete_markers_are_no_files(bucket: Bucket) -> None:
    kept = bucket.put("a")
    old = replace(kept, etag="older", is_latest=False)
    gone = [Reported("in/b", None, LONG_AGO, None, is_delete_marker=True), Reported("in/b", is_latest=False)]
    bucket.read(FIRST, [kept, old, *gone])
    assert bucket.directory() == etags(kept)


def test_missing_changed_and_phantom_files_are_as_a_look_finds_them(bucket: Bucket) -> None:
    same, changed, phantom, unreported = (bucket.put(path) for path in ("same", "changed", "phantom", "unreported"))
    bucket.read(FIRST, [same, changed, phantom, unreported])
    changed, missing = bucket.put("changed", b"xx"), bucket.put("missing")
    bucket.store.delete("phantom")
    brief = Reported("in/brief", 1, LONG_AGO, "went after the report")
    stale = bucket.put("stale")
    now = bucket.put("stale", b"newer", NOW)
    done = bucket.read(SECOND, [missing, stale, same, changed, brief])
    assert bucket.directory() == etags(same, changed, unreported, missing, now)
    assert (done.counts.inserted, done.counts.updated, done.counts.deleted) == (2, 1, 1)
    assert sorted(bucket.store.looks) == ["brief", "changed", "missing", "phantom", "stale", "unreported"]
    assert bucket.read(SECOND, [missing, now, same, changed, unreported]).commit is None


def test_what_is_newer_than_the_report_is_left_alone(bucket: Bucket) -> None:
    first = bucket.put("overwritten"), bucket.put("removed"), bucket.put("kept")
    bucket.read(FIRST, first)
    new, again = bucket.put("new", modified=NOW), bucket.put("overwritten", b"again", NOW)
    bucket.store.delete("removed")
    hints = HintSet(Selection())
    hints.add([KeyHint("new"), KeyHint("overwritten"), KeyHint("removed")])
    bucket.keeper().apply(hints)
    bucket.store.looks.clear()
    assert bucket.read(SECOND, first).commit is None
    assert bucket.store.looks == []
    assert bucket.directory() == etags(new, again, first[2])


def test_objects_written_while_the_report_was_made_are_looked_at(bucket: Bucket) -> None:
    before, since = bucket.put("before"), bucket.put("since", modified=SECOND)
    bucket.put("since", b"once more", NOW)
    gone = Reported("in/gone", 1, FIRST, "gone")
    unknown = replace(bucket.put("unknown"), etag=None)
    bucket.read(FIRST, [before, since, gone, unknown])
    assert sorted(bucket.store.looks) == ["gone", "since", "unknown"]
    listed = {one.relative_path: one.etag for one in bucket.store.list("", Selection()) if isinstance(one, FileInfo)}
    assert bucket.directory() == listed
    assert set(listed) == {"before", "since", "unknown"}


def test_beyond_a_number_of_looks_new_files_are_as_the_report_has_them_but_none_is_removed(bucket: Bucket) -> None:
    there, brief = bucket.put("there"), Reported("in/brief", 1, LONG_AGO, "brief")
    bucket.read(FIRST, [there])
    snapshot = bucket.snapshot()
    assert snapshot is not None
    new = [replace(one, key=f"in/new-{number}") for number, one in enumerate([brief] * 5)]
    files = [FileInfo(one.key.removeprefix("in/"), 1, LONG_AGO, str(one.etag)) for one in (brief, *new)]
    proposed = compare_files(table.rows_of_files(files, bucket.store.url), pa.concat_tables(snapshot.at()))
    checked = ConfirmReport(bucket.store, Selection(), Observations(), SECOND, "", checks=2)(proposed)
    assert checked["relative_path"].to_pylist() == [f"new-{number}" for number in range(1, 5)]
    assert sorted(bucket.store.looks) == ["brief", "new-0", "there"]


def test_a_row_that_was_written_after_the_report_is_looked_at_however_many_there_are(bucket: Bucket) -> None:
    bucket.read(FIRST, [bucket.put("restored")])
    snapshot = bucket.snapshot()
    assert snapshot is not None
    reported = table.rows_of_files([FileInfo("restored", 1, LONG_AGO, "of the report")], bucket.store.url)
    proposed = compare_files(reported, pa.concat_tables(snapshot.at()))
    assert proposed["change"].to_pylist() == ["update"]
    checked = ConfirmReport(bucket.store, Selection(), Observations(), SECOND, "", checks=0)(proposed)
    assert (checked.num_rows, bucket.store.looks) == (0, ["restored"])


def test_only_the_volumes_selection_is_read(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, ["*.jpg"])
    wanted = bucket.put("a/b.jpg")
    done = bucket.read(FIRST, [wanted, bucket.put("a/b.txt"), bucket.put("a/.git/c.jpg"), Reported("in/folder/", 3)])
    assert bucket.directory() == etags(wanted)
    assert (done.files, done.findings) == (1, 1)
    bucket.catalog.close()


def test_removals_beyond_the_limit_are_held_until_they_are_accepted(bucket: Bucket) -> None:
    files = [bucket.put(f"{number:03}") for number in range(100)]
    bucket.read(FIRST, files)
    for number in range(40, 100):
        bucket.store.delete(f"{number:03}")
    done = bucket.read(SECOND, files[:40])
    assert (done.held, done.counts.deleted, len(bucket.directory())) == (60, 0, 100)
    bucket.catalog.volumes.change(bucket.volume, accept_removals=True)
    done = bucket.read(SECOND, files[:40])
    assert (done.held, done.counts.deleted) == (0, 60)
    assert bucket.directory() == etags(*files[:40])


@pytest.mark.parametrize("content", [b"damaged", *(pytest.param(one, marks=pytest.mark.long) for one in (b"", None))])
def test_a_damaged_or_missing_file_changes_nothing(bucket: Bucket, content: bytes | None) -> None:
    kept = bucket.put("kept")
    bucket.read(FIRST, [kept])
    inventory = bucket.report(SECOND, [bucket.put("new")], [kept])
    last = inventory.manifest.files[-1].key
    bucket.reports.delete(last)
    if content is not None:
        bucket.reports.put(last, content)
    with pytest.raises(StorageError, match="Nothing was changed"):
        bucket.keeper().reconcile(inventory=inventory)
    assert bucket.directory() == etags(kept)
    assert bucket.volume.last_listing == FIRST


def test_a_store_that_does_not_answer_changes_nothing(bucket: Bucket) -> None:
    files = [bucket.put("a"), bucket.put("b")]
    bucket.read(FIRST, files)
    bucket.store.fails = True
    with pytest.raises(StorageError, match="does not answer"):
        bucket.read(SECOND, files[:1])
    assert bucket.directory() == etags(*files)


def test_reports_of_other_places_are_refused(bucket: Bucket) -> None:
    inventory = bucket.report(FIRST, [Reported("in/a")], bucket="videos")
    with pytest.raises(InvalidValueError, match="about the bucket videos, and volume v is in photos"):
        check_report(inventory.manifest, bucket.volume)
    for keys in ([], ["a", "in", "inside", "z"]):
        with pytest.raises(NotFoundError, match="has no object at s3://photos/in"):
            bucket.read(FIRST, [Reported(key) for key in keys])
    assert bucket.directory() == {}
    assert bucket.volume.last_listing is None


def test_a_report_of_a_part_of_the_volume_is_refused(bucket: Bucket) -> None:
    files = [bucket.put(f"{folder}/{number}") for folder in "xy" for number in range(3)]
    bucket.read(FIRST, files)
    with pytest.raises(StorageError, match="has only keys below"):
        bucket.read(SECOND, files[:3])
    assert bucket.directory() == etags(*files)
    for number in range(3):
        bucket.store.delete(f"y/{number}")
    assert bucket.read(SECOND, files[:3]).counts.deleted == 3


def test_a_file_written_shortly_before_a_report_may_be_missing_from_it(bucket: Bucket) -> None:
    known = [bucket.put("x/1"), bucket.put("x/2"), bucket.put("y/1", modified=FIRST - timedelta(minutes=1))]
    bucket.read(FIRST, known)
    assert bucket.read(SECOND, known[:2]).commit is None
    assert bucket.directory() == etags(*known)


def test_the_time_as_of_which_a_directory_is_complete_does_not_go_back(bucket: Bucket) -> None:
    file = bucket.put("a")
    keeper = bucket.keeper()
    inventory = bucket.report(FIRST, [file])
    keeper.reconcile()
    listed = keeper.last_listing
    keeper.reconcile(inventory=inventory)  # begun before the volume was listed
    assert keeper.last_listing == listed == bucket.volume.last_listing


def test_a_report_older_than_the_directory_is_refused(bucket: Bucket) -> None:
    bucket.keeper().reconcile()
    with pytest.raises(InvalidStateError, match="complete as of"):
        check_newer(bucket.report(FIRST, [Reported("in/a")]).manifest, bucket.volume)


def test_reading_is_stopped(bucket: Bucket) -> None:
    inventory = bucket.report(FIRST, [bucket.put("a")])
    with pytest.raises(InterruptedByUserError):
        DirectoryKeeper(bucket.volume, bucket.catalog, bucket.settings, stopped=lambda: True, store=bucket.store).reconcile(
            inventory=inventory
        )


def test_overlapping_runs_are_merged_in_order(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventories, "_RUN_ROWS", 90)
    monkeypatch.setattr(inventories, "_GROUP_ROWS", 30)
    files = [bucket.put(f"{number:04}") for number in range(1000)]
    inventory = bucket.report(FIRST, files[::3], files[2::3], files[1::3])
    listing = list_report(f"{tmp_path}/l", inventory, "s3://photos/in", bucket.store, Selection())
    found = [path for rows in listed_in(f"{tmp_path}/l") for path in rows["relative_path"].to_pylist()]
    assert found == [f"{number:04}" for number in range(1000)]
    assert (listing.files, listing.bytes, listing.covers) == (1000, 1000, "0")
