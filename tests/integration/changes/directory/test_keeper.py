"""The effect of hints and listings of a real folder, without an engine."""

from __future__ import annotations

import os
import shutil

import pyarrow as pa
import pytest

from tests.integration.changes.directory.conftest import Keeping
from tests.waiting import eventually
from volstream.base.model.hints import KeyHint, SubtreeHint
from volstream.base.model.paths import FileInfo
from volstream.changes.directory.writer import Counts
from volstream.errors import StorageError
from volstream.files.storage import open_store
from volstream.files.storage.local import LocalStore

#: Names that break quoting, escaping, globbing or ordering somewhere.
ODD_NAMES = (
    "sp ace",
    "pl+us",
    "per%cent",
    "%2F",
    "am&p=er",
    "quo'te",
    'dou"ble',
    "back\\slash",
    "back`tick",
    "new\nline",
    "tab\t",
    "uml-ü",
    "中文",
    "emoji-\U0001f600",
    "\ue000private",
    "dollar$",
    "${env:HOME}",
    "${spark.app.name}",
    "semi;colon",
    "brace{}",
    "brack[et]",
    "star*",
    "quest?",
    "hash#",
    "co:lon",
    "dir with space/ü/file",
    "x=y/part",
    "-dash",
    "_under",
    "CASE",
    "case",
    "e\u0301",
    "\u00e9",
)


def test_the_first_listing_is_one_refresh_and_becomes_the_base(kept: Keeping) -> None:
    kept.put("a", "1")
    kept.put("d/b", "22")
    done = kept.keeper().reconcile()
    assert (done.files, done.bytes, done.counts) == (2, 3, Counts(2, 0, 0, 3))
    assert kept.refreshes() == [(1, "first-listing", 2, 0, 0)]
    snapshot = kept.snapshot()
    assert (snapshot.newest, snapshot.through, snapshot.floor, snapshot.tail.rows) == (1, 1, 1, 0)
    (first, _) = pa.concat_tables(snapshot.at()).to_pylist()
    info = open_store(kept.volume.location).head("a")
    assert info is not None
    assert first == {
        "relative_path": "a",
        "url": f"file://{kept.folder}/a",
        "size": 1,
        "last_modified_time": info.last_modified_time,
        "etag": info.etag,
        "version_id": None,
        "content_type": None,
        "refresh_id": 1,
        "refreshed_on": kept.catalog.refreshes.committed(kept.volume.id)[0].committed_on,
    }
    assert kept.volume.table_id == snapshot.table_id
    assert kept.volume.last_listing is not None


def test_only_files_found_by_later_listings_count_as_missed(kept: Keeping) -> None:
    kept.put("a")
    kept.keeper().reconcile()
    kept.put("b")
    kept.keeper().reconcile()
    assert [listing.added_by_listing for listing in kept.catalog.refreshes.reconciles(kept.volume.id, limit=2)] == [1, 0]


def test_an_empty_folder_is_listed_without_a_refresh(kept: Keeping) -> None:
    assert kept.keeper().reconcile().commit is None
    assert kept.snapshot().newest == 0
    assert kept.volume.last_listing is not None
    assert kept.directory() == {}


def test_a_reconcile_that_finds_nothing_commits_nothing(kept: Keeping) -> None:
    kept.put("a")
    kept.keeper().reconcile()
    kept.put("b")
    assert kept.take(KeyHint("b")).commit is not None
    assert kept.keeper().reconcile().commit is None
    assert [number for number, *_ in kept.refreshes()] == [1, 2]


def test_only_rows_that_differ_are_in_a_refresh(kept: Keeping) -> None:
    for name in "abcd":
        kept.put(name)
    kept.keeper().reconcile()
    kept.put("b", "other")
    kept.delete("c")
    kept.put("e")
    kept.keeper().reconcile()
    changed = kept.snapshot().changed(1, 2).select(["relative_path", "change", "size", "old_size", "old_refresh_id"])
    assert [tuple(row.values()) for row in changed.to_pylist()] == [
        ("b", "update", 5, 1, 1),
        ("c", "delete", 1, 1, 1),
        ("e", "insert", 1, None, None),
    ]
    assert kept.refreshes()[-1] == (2, "listing", 1, 1, 1)
    assert kept.directory() == {"a": 1, "b": 5, "d": 1, "e": 1}


def test_a_finding_contradicted_by_an_event_is_found_again_by_the_next_listing(kept: Keeping) -> None:
    kept.put("a")
    keeper = kept.keeper()
    keeper.reconcile()
    kept.put("b")
    listed = keeper.begin_listing()()
    kept.delete("b")
    kept.take(KeyHint("b"), keeper=keeper)
    kept.put("b")  # back, and no event told of it
    assert keeper.end_listing(listed) is not None
    assert kept.directory() == {"a": 1}
    keeper.reconcile()
    assert kept.directory() == {"a": 1, "b": 1}


def test_a_file_that_came_and_went_during_the_first_listing_is_absent(kept: Keeping) -> None:
    kept.put("a")
    kept.put("brief")
    keeper = kept.keeper()
    listed = keeper.begin_listing()()
    kept.delete("brief")
    kept.take(KeyHint("brief"), keeper=keeper)
    keeper.end_listing(listed)
    assert kept.directory() == {"a": 1}


def test_a_row_is_removed_only_after_a_check_found_nothing(kept: Keeping) -> None:
    kept.put("back", "1")
    kept.put("gone", "1")
    kept.keeper().reconcile()
    shutil.move(kept.folder / "back", kept.folder.parent / "kept")
    kept.delete("gone")
    (kept.folder / "fresh").write_text("new")  # lets the listing wait for it to settle; meanwhile another returns
    kept.settings = kept.settings.model_copy(update={"settle_seconds": 60.0})

    def put_back(_seconds: float) -> None:
        shutil.move(kept.folder.parent / "kept", kept.folder / "back")

    assert kept.keeper(put_back).reconcile().counts.deleted == 1
    assert kept.directory() == {"back": 1, "fresh": 3}


def test_a_missing_folder_removes_nothing(kept: Keeping) -> None:
    kept.put("a")
    kept.keeper().reconcile()
    kept.folder.rename(kept.folder.parent / "unmounted")
    with pytest.raises(StorageError):
        kept.keeper().reconcile()
    assert kept.directory() == {"a": 1}


def test_a_subdirectory_is_brought_up_to_date_and_the_rest_left_alone(kept: Keeping) -> None:
    paths = ("d/a", "d/e/b", "d0", "d.x", "f/c")
    for path in paths:
        kept.put(path)
    kept.keeper().reconcile()
    for path in paths:
        kept.delete(path)
    kept.put("d/new", "22")
    done = kept.keeper().reconcile("d/")
    assert (done.files, done.counts) == (1, Counts(1, 0, 2, 2))
    assert kept.directory() == {"d/new": 2, "d0": 1, "d.x": 1, "f/c": 1}
    assert kept.keeper().reconcile("never was/").commit is None
    kept.keeper().reconcile()
    assert kept.directory() == {"d/new": 2}


def test_the_hints_of_one_tick_are_one_refresh(kept: Keeping) -> None:
    for name in ("changed", "gone", "same"):
        kept.put(name)
    kept.keeper().reconcile()
    kept.put("changed", "22")
    kept.delete("gone")
    kept.put("new", "333")
    tick = kept.take(*map(KeyHint, ("changed", "gone", "same", "new", "never was", "brief.tmp")))
    assert tick.commit is not None
    assert tick.counts == Counts(1, 1, 1, 5)
    assert kept.directory() == {"changed": 2, "new": 3, "same": 1}
    assert kept.refreshes()[-1] == (2, "events", 1, 1, 1)
    assert kept.take(*map(KeyHint, ("changed", "gone", "same", "new"))).commit is None, "the same hints say nothing new"


def test_three_hundred_new_directories_and_other_keys_are_one_refresh(kept: Keeping) -> None:
    kept.put("old")
    kept.put("m/gone")
    kept.keeper().reconcile()
    waits: list[float] = []
    kept.settings = kept.settings.model_copy(update={"settle_seconds": 60.0})
    for number in range(300):
        (kept.folder / f"d{number}").mkdir()
        (kept.folder / f"d{number}" / "file").write_text("x")
    kept.put("single")
    shutil.rmtree(kept.folder / "m")
    hints = [SubtreeHint(f"d{number}/", "new") for number in range(300)]
    tick = kept.take(*hints, SubtreeHint("m/", "gone"), KeyHint("single"), keeper=kept.keeper(waits.append))
    assert tick.commit is not None
    assert tick.counts == Counts(301, 0, 1, 301)
    assert len(waits) == 1, "all files settle together"
    assert len(kept.directory()) == 302


@pytest.mark.parametrize("count", [1190, *(pytest.param(n, marks=pytest.mark.long) for n in (850, 2001, 20_000))])
def test_a_burst_of_changes_is_one_refresh_whatever_its_size(kept: Keeping, count: int) -> None:
    paths = [f"{number % 7}/{number:05}" for number in range(count)]
    for path in paths:
        kept.put(path)
    kept.keeper().reconcile()
    gone, changed = paths[::3], [path for at, path in enumerate(paths) if at % 3]
    for path in gone:
        kept.delete(path)
    for path in changed:
        kept.put(path, "22")
    tick = kept.take(*map(KeyHint, paths))
    assert tick.commit is not None
    assert tick.counts == Counts(0, len(changed), len(gone), 2 * len(changed))
    assert kept.directory() == dict.fromkeys(changed, 2)


def test_hints_before_the_first_listing_create_the_directory(kept: Keeping) -> None:
    kept.put("a")
    kept.put("b")
    assert kept.take(KeyHint("a")).commit is not None
    kept.keeper().reconcile()
    assert kept.directory() == {"a": 1, "b": 1}


def test_names_that_cannot_be_rows_are_recorded_as_rejected(kept: Keeping) -> None:
    kept.put("good")
    with open(os.fsencode(kept.folder) + b"/bad\xff", "w"):
        pass
    os.utime(os.fsencode(kept.folder) + b"/bad\xff", (0, 0))
    kept.take(KeyHint("good"), KeyHint(os.fsdecode(b"bad\xff")))
    kept.keeper().reconcile()
    assert kept.directory() == {"good": 1}
    assert {one.subject for one in kept.catalog.refreshes.rejected(kept.volume.id)} == {"bad\\xff"}


def test_files_with_odd_names_are_added_changed_and_removed(kept: Keeping) -> None:
    sizes = {name: number + 1 for number, name in enumerate(ODD_NAMES)}
    for name, size in sizes.items():
        kept.put(name, "x" * size)
    kept.keeper().reconcile()
    assert kept.directory() == sizes
    assert list(kept.directory()) == sorted(sizes, key=str.encode)
    for name in ODD_NAMES[::2]:
        kept.put(name, "y" * 100)
    for name in ODD_NAMES[1::2]:
        kept.delete(name)
    assert kept.take(*map(KeyHint, ODD_NAMES)).counts == Counts(
        0, len(ODD_NAMES[::2]), len(ODD_NAMES[1::2]), 100 * len(ODD_NAMES[::2])
    )
    wanted = dict.fromkeys(ODD_NAMES[::2], 100)
    assert kept.directory() == wanted
    kept.keeper().maintain()
    assert kept.directory() == wanted
    assert kept.keeper().reconcile().commit is None


class Flaky(LocalStore):
    """A folder in which some or all files cannot be checked."""

    def __init__(self, kept: Keeping, *bad: str) -> None:
        super().__init__(kept.volume.location)
        self.bad = set(bad)

    def head(self, path: str) -> FileInfo | None:
        if path in self.bad or "*" in self.bad:
            raise StorageError(f"{path} was answered with 500.")
        return super().head(path)


def test_a_key_that_cannot_be_checked_does_not_hold_up_others_and_is_retried_later(kept: Keeping) -> None:
    store = Flaky(kept, "bad")
    keeper = kept.keeper(store=store)
    for name in ("bad", "good"):
        kept.put(name)
    assert kept.take(KeyHint("bad"), KeyHint("good"), keeper=keeper).commit is not None
    assert kept.take(KeyHint("bad"), keeper=keeper).commit is None, "it alone is not the store's fault either"
    assert kept.directory() == {"good": 1}
    assert [one.subject for one in kept.catalog.refreshes.rejected(kept.volume.id)] == ["bad"]
    assert not keeper.requested_checks(), "not at once"
    store.bad.clear()
    eventually(lambda: KeyHint("bad") in keeper.requested_checks())
    asked = keeper.requested_checks()
    kept.take(*asked, keeper=keeper)
    keeper.complete_checks(asked)
    assert kept.directory() == {"bad": 1, "good": 1}
    assert not kept.catalog.refreshes.asked_checks(kept.volume.id, 10)


def test_an_event_that_somebody_made_up_causes_a_look_and_no_more(kept: Keeping) -> None:
    kept.put("a")
    keeper = kept.keeper()
    keeper.reconcile()
    before = kept.catalog.refreshes.last(kept.volume.id)
    assert kept.take(KeyHint("a"), KeyHint("made up"), SubtreeHint("nor/this/", "event"), keeper=keeper).commit is None
    assert kept.directory() == {"a": 1}
    assert kept.catalog.refreshes.last(kept.volume.id) == before


def test_an_unreachable_store_is_not_blamed_on_a_key(kept: Keeping) -> None:
    kept.put("a")
    with pytest.raises(StorageError):
        kept.take(KeyHint("a"), keeper=kept.keeper(store=Flaky(kept, "*")))
    assert not kept.catalog.refreshes.rejected(kept.volume.id)


def test_a_missing_key_that_cannot_be_checked_stays_and_the_listing_still_counts(kept: Keeping) -> None:
    for name in ("bad", "gone"):
        kept.put(name)
    kept.keeper().reconcile()
    for name in ("bad", "gone"):
        kept.delete(name)
    kept.put("new")
    assert kept.keeper(store=Flaky(kept, "bad")).reconcile().counts == Counts(1, 0, 1, 1)
    assert kept.directory() == {"bad": 1, "new": 1}
    assert [one.subject for one in kept.catalog.refreshes.rejected(kept.volume.id)] == ["bad"]


def test_a_directory_whose_name_is_not_text_is_rejected_and_the_rest_is_listed(kept: Keeping) -> None:
    kept.put("good")
    kept.put("d/a")
    hints = (SubtreeHint(os.fsdecode(b"bad\xff/"), "directory new"), SubtreeHint("d/", "directory new"), KeyHint("good"))
    assert kept.take(*hints).commit is not None
    assert kept.directory() == {"d/a": 1, "good": 1}
    assert [one.subject for one in kept.catalog.refreshes.rejected(kept.volume.id)] == ["bad\\xff/"]


def test_a_name_with_nul_is_rejected(kept: Keeping) -> None:
    kept.put("good")
    kept.take(KeyHint("a\0b"), KeyHint("good"))
    assert kept.directory() == {"good": 1}
    assert [one.subject for one in kept.catalog.refreshes.rejected(kept.volume.id)] == ["a\\x00b"]


def test_an_emptied_mount_point_removes_nothing_until_accepted(kept: Keeping) -> None:
    names = {str(number): 1 for number in range(12)}
    for name in names:
        kept.put(name)
    keeper = kept.keeper()
    keeper.reconcile()
    kept.folder.rename(kept.folder.parent / "unmounted")
    kept.folder.mkdir()
    kept.put("new")
    done = keeper.reconcile()
    assert (done.counts, done.held) == (Counts(1, 0, 0, 1), 12)
    assert kept.directory() == {**names, "new": 1}
    assert (kept.volume.held_removals, keeper.held_removals) == (12, 12)
    kept.catalog.volumes.change(kept.volume, accept_removals=True)
    assert keeper.reconcile().counts.deleted == 12
    assert kept.directory() == {"new": 1}
    assert (kept.volume.held_removals, kept.volume.accept_removals) == (0, False)


@pytest.mark.parametrize("left", [0, 1])
def test_a_share_that_is_away_removes_not_even_a_few_files(kept: Keeping, left: int) -> None:
    """Another directory is in its place. Files that were deleted in the directory itself are removed without a question."""
    names = {str(number): 1 for number in range(9)}
    for name in names:
        kept.put(name)
    keeper, away = kept.keeper(), kept.folder.parent / "away"
    keeper.reconcile()
    kept.folder.rename(away)
    kept.folder.mkdir()
    for number in range(left):
        kept.put(str(number))
    assert keeper.reconcile().held == 9 - left
    shutil.rmtree(kept.folder)
    away.rename(kept.folder)
    done = keeper.reconcile()
    assert (done.counts.deleted, done.held, kept.directory()) == (0, 0, names)
    for name in names:
        (kept.folder / name).unlink()
    assert (keeper.reconcile().held, kept.directory()) == (0, {})


def test_moved_files_are_not_held_as_removals(kept: Keeping) -> None:
    for number in range(12):
        kept.put(f"before/{number}")
    kept.keeper().reconcile()
    os.rename(kept.folder / "before", kept.folder / "after")
    done = kept.keeper().reconcile()
    assert (done.counts.inserted, done.counts.deleted, done.held) == (12, 12, 0)
    assert kept.directory() == {f"after/{number}": 1 for number in range(12)}


def test_new_files_with_other_contents_do_not_let_removals_through(kept: Keeping) -> None:
    for number in range(12):
        kept.put(f"before/{number}")
    kept.keeper().reconcile()
    shutil.rmtree(kept.folder / "before")
    for number in range(12):
        kept.put(f"after/{number}", "other")
    assert kept.keeper().reconcile().held == 12


def test_files_that_came_back_are_no_longer_held(kept: Keeping) -> None:
    for number in range(12):
        kept.put(str(number))
    kept.keeper().reconcile()
    kept.folder.rename(kept.folder.parent / "unmounted")
    kept.folder.mkdir()
    assert kept.keeper().reconcile().held == 12
    kept.folder.rmdir()
    (kept.folder.parent / "unmounted").rename(kept.folder)
    assert kept.keeper().reconcile().held == 0
    assert kept.volume.held_removals == 0
