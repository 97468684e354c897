"""Listings, spooled to files in the order of their paths."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import MemoryStore
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.changes.directory import listing as listings
from volstream.changes.directory import table
from volstream.changes.directory.listing import _pairs, list_to, listed_in
from volstream.errors import FencedError, StorageError
from volstream.files.storage import open_store

ALL = Selection(ignores=())
OLD = datetime(2024, 1, 1, tzinfo=UTC)
SETTLE = 5.0


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{tmp_path}/folder that is new"


def no_wait(_seconds: float) -> None:
    raise AssertionError("there was nothing to wait for")


def rows(target: str) -> list[dict[str, Any]]:
    return [row for found in listed_in(target) for row in found.to_pylist()]


def test_a_listing_has_one_row_per_file_with_the_columns_of_the_directory(store: MemoryStore, target: str) -> None:
    info = store.put("a b/ü.txt", b"content", last_modified_time=OLD)
    store.put("z", b"", last_modified_time=OLD)
    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    assert (listing.files, listing.bytes, listing.finding_count, listing.unsettled) == (2, 7, 0, [])
    assert {found.schema for found in listed_in(target)} == {table.SCHEMA}
    assert rows(target)[0] == {
        "relative_path": "a b/ü.txt",
        "url": f"{store.url('')}a%20b/%C3%BC.txt",
        "size": 7,
        "last_modified_time": OLD,
        "etag": info.etag,
        "version_id": None,
        "content_type": "text/plain",
    }


@pytest.mark.parametrize("left", [False, True])
def test_a_listing_that_another_process_removed_is_not_an_empty_one(store: MemoryStore, target: str, left: bool) -> None:
    store.put("a", b"x", last_modified_time=OLD)
    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    (part,) = Path(target).iterdir()
    part.unlink()
    if left:  # its name was read just before
        part.symlink_to("removed")
    with pytest.raises(FencedError, match="took over"):
        [*listed_in(target, listing.files)]


def test_only_selected_files_below_the_prefix_are_listed(store: MemoryStore, target: str) -> None:
    for path in ("a/x.jpg", "a/y.txt", "ab/x.jpg", "x.jpg"):
        store.put(path, b"", last_modified_time=OLD)
    list_to(target, store, ["a/"], Selection(patterns=("*.jpg",)), settle_seconds=SETTLE, wait=no_wait)
    assert [row["relative_path"] for row in rows(target)] == ["a/x.jpg"]


def test_an_empty_listing_has_no_rows(store: MemoryStore, target: str) -> None:
    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    assert listing.files == 0
    assert rows(target) == []


def test_a_just_modified_file_is_taken_after_a_second_look(store: MemoryStore, target: str) -> None:
    store.put("old", b"", last_modified_time=OLD)
    store.put("fresh", b"1")
    waited: list[float] = []
    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=waited.append)
    assert waited == [SETTLE]
    assert [row["relative_path"] for row in rows(target)] == ["fresh", "old"]
    assert listing.unsettled == []


def test_a_file_that_changes_while_it_settles_is_left_for_later(store: MemoryStore, target: str) -> None:
    store.put("growing", b"1")
    store.put("gone", b"1")
    store.put("quiet", b"1")

    def change(_seconds: float) -> None:
        store.put("growing", b"12")
        store.delete("gone")

    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=change)
    assert [row["relative_path"] for row in rows(target)] == ["quiet"]
    assert listing.unsettled == ["growing"]
    assert [(finding.path, "still being written" in finding.reason) for finding in listing.findings] == [("growing", True)]


def test_a_time_in_the_far_future_settles_at_once_and_the_current_time_does_not(store: MemoryStore, target: str) -> None:
    store.put("future", b"", last_modified_time=datetime.now(UTC) + timedelta(days=1))
    list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    store.put("soon", b"", last_modified_time=datetime.now(UTC) + timedelta(seconds=1))
    waited: list[float] = []
    list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=waited.append)
    assert waited == [SETTLE]


def test_many_recent_files_are_all_taken(store: MemoryStore, target: str) -> None:
    # More than what is kept in memory of them, with names that are long and odd.
    names = {f"{number:05}/" + "ü\n'" * 60 for number in range(6000)}
    for name in names:
        store.put(name, b"")
    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=lambda _: None)
    assert listing.files == 6000
    assert {row["relative_path"] for row in rows(target)} == names


def test_names_that_cannot_be_rows_are_findings(tmp_path: Path, target: str) -> None:
    root = tmp_path / "files"
    root.mkdir()
    (root / "good").write_text("")
    os.utime(root / "good", (0, 0))
    with open(os.fsencode(root) + b"/bad\xff", "w"):
        pass
    (root / "out").symlink_to("/etc/hostname")
    listing = list_to(target, open_store(str(root)), [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    assert [row["relative_path"] for row in rows(target)] == ["good"]
    assert sorted(finding.path for finding in listing.findings) == ["bad\\xff", "out"]
    assert listing.finding_count == 2


class Scripted(MemoryStore):
    """Lists what it was given, and then fails if asked to."""

    def __init__(self, *entries: FileInfo | Finding, error: StorageError | None = None) -> None:
        super().__init__("memory://scripted")
        self._entries = entries
        self._error = error

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        yield from self._entries
        if self._error is not None:
            raise self._error


def test_many_findings_are_all_counted_but_only_some_are_kept(target: str) -> None:
    store = Scripted(*(Finding(f"{number}", "no") for number in range(1500)))
    listing = list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    assert (listing.finding_count, len(listing.findings)) == (1500, 1000)


def test_a_listing_that_does_not_end_is_an_error(target: str) -> None:
    store = Scripted(FileInfo("a", 1, OLD, "e"), error=StorageError("The disk went away."))
    with pytest.raises(StorageError, match="went away"):
        list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)


@given(st.lists(st.text("ab\U0001f600\ue000/", min_size=1, max_size=4), max_size=40), st.integers(1, 7), st.integers(1, 5))
def test_files_are_listed_once_each_in_path_order(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], run_rows: int, group_rows: int
) -> None:
    target = f"{tmp_path_factory.getbasetemp()}/{uuid.uuid4().hex}"
    store = Scripted(*(FileInfo(path, 1, OLD, "e") for path in paths))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listings, "_RUN_ROWS", run_rows)
        patched.setattr(listings, "_GROUP_ROWS", group_rows)
        list_to(target, store, [""], ALL, settle_seconds=SETTLE, wait=no_wait)
    assert [row["relative_path"] for row in rows(target)] == sorted(set(paths), key=str.encode)


@given(st.lists(st.tuples(st.text("ab", max_size=9), st.text("xy", max_size=9)), max_size=20), st.integers(1, 7))
def test_pairs_are_read_whole_wherever_a_chunk_ends(pairs: list[tuple[str, str]], chunk: int) -> None:
    text = "".join(f"{path}\0{etag}\0" for path, etag in pairs)
    position = 0

    def read(_size: int) -> str:
        nonlocal position
        position += chunk
        return text[position - chunk : position]

    assert list(_pairs(read)) == pairs


def test_a_real_wait_is_as_long_as_the_settle_time(tmp_path: Path, target: str) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "fresh").write_text("x")
    started = time.monotonic()
    listing = list_to(target, open_store(str(tmp_path / "files")), [""], ALL, settle_seconds=0.1)
    assert listing.files == 1
    assert time.monotonic() - started >= 0.1
