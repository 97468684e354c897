"""Sharded listings of buckets, and their resumption after a process was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ordered import Bucket
from tests.storm.power import Power
from tests.storm.preload import Preload
from volstream.base.model.paths import Selection
from volstream.changes.directory import listing as listings
from volstream.changes.directory.listing import ShardedListing, listed_in
from volstream.errors import InterruptedByUserError, StorageError

ALL = Selection(ignores=())


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "_GROUP_ROWS", 10)
    monkeypatch.setattr(listings, "_FILE_ROWS", 20)


def listing_of(folder: Path, bucket: Bucket, prefix: str = "", selection: Selection = ALL, **options: Any) -> ShardedListing:
    """A listing into small files."""
    return ShardedListing(str(folder), bucket, prefix, selection, **options)


def listed(folder: Path) -> list[str]:
    return [path for rows in listed_in(f"{folder}/listed") for path in rows["relative_path"].to_pylist()]


def keys_of(*prefixes: str, number: int = 25) -> list[str]:
    return [f"{prefix}{at:05}" for prefix in prefixes for at in range(number)]


def test_each_key_is_listed_once_regardless_of_the_shards(tmp_path: Path) -> None:
    keys = [*keys_of("", "a/", "a/x/", "b/", "ü/", number=45), "top", "z/ /one"]
    store = Bucket(keys)
    listing = listing_of(tmp_path / "l", store).run()
    assert listed(tmp_path / "l") == sorted(keys)
    assert (listing.files, listing.bytes, listing.resumed) == (len(keys), 3 * len(keys), False)
    assert {(prefix, deep) for prefix, _, deep in store.asked} == {
        ("", False),
        ("a/", True),
        ("b/", True),
        ("ü/", True),
        ("z/", True),
    }


def test_a_single_prefix_is_descended_until_there_are_several(tmp_path: Path) -> None:
    keys = ["logs/README", *keys_of("logs/2026/01/", "logs/2026/02/")]
    store = Bucket(keys)
    listing_of(tmp_path / "l", store).run()
    assert listed(tmp_path / "l") == sorted(keys)
    assert ("logs/2026/02/", "", True) in store.asked


def test_only_selected_keys_below_the_prefix_are_listed(tmp_path: Path) -> None:
    store = Bucket(["a/x.jpg", "a/y.txt", "ab/x.jpg", "x.jpg", "a/.trash/z.jpg"])
    selection = Selection(patterns=("*.jpg",))
    listing_of(tmp_path / "l", store, "a/", selection).run()
    assert listed(tmp_path / "l") == ["a/x.jpg"]


def test_an_empty_bucket_has_no_rows(tmp_path: Path) -> None:
    assert listing_of(tmp_path / "l", Bucket([])).run().files == 0
    assert listed(tmp_path / "l") == []


def test_keys_listed_before_the_store_failed_are_not_listed_again(tmp_path: Path) -> None:
    keys = keys_of("a/", number=95)
    with pytest.raises(StorageError):
        listing_of(tmp_path / "l", Bucket(keys, fails_at="a/00070")).run()
    store = Bucket([*keys, "b/new"])
    listing = listing_of(tmp_path / "l", store).run()
    assert listing.resumed
    assert ("a/", "a/00059", True) in store.asked
    assert listed(tmp_path / "l") == sorted(keys)
    assert listing.files == 95


def test_a_different_or_stale_listing_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        with pytest.raises(StorageError):
            listing_of(tmp_path / "l", Bucket(keys_of("a/", number=95), fails_at="a/00070")).run()

    interrupted()
    listing = listing_of(tmp_path / "l", Bucket(["x"]), "", Selection(patterns=("x",))).run()
    assert (listing.resumed, listed(tmp_path / "l")) == (False, ["x"])
    interrupted()
    monkeypatch.setattr(listings, "_STALE_SECONDS", -1.0)
    listing = listing_of(tmp_path / "l", Bucket(["x"])).run()
    assert (listing.resumed, listed(tmp_path / "l")) == (False, ["x"])


def test_a_resumed_listing_deletes_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    keys = keys_of("a/", number=95)
    with pytest.raises(StorageError):
        listing_of(tmp_path / "l", Bucket(keys, fails_at="a/00070")).run()
    (tmp_path / "l" / "listed").rename(tmp_path / "documents")
    (tmp_path / "documents" / "letter.txt").touch()
    (tmp_path / "l" / "listed").symlink_to(tmp_path / "documents")
    assert listing_of(tmp_path / "l", Bucket(keys)).run().resumed
    assert (tmp_path / "documents" / "letter.txt").exists()


def test_a_stop_ends_a_listing(tmp_path: Path) -> None:
    with pytest.raises(InterruptedByUserError):
        listing_of(tmp_path / "l", Bucket(keys_of("a/")), stopped=lambda: True).run()


_KILLED = """
import sys
from pathlib import Path
from tests.integration.changes.directory.test_shards import Bucket, keys_of, listing_of, listings
listings._GROUP_ROWS, listings._FILE_ROWS = 10, 20
listing_of(Path(sys.argv[1]), Bucket(keys_of("a/", "b/", number=95))).run()
"""


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
def test_a_process_that_dies_leaves_a_listing_that_the_next_one_resumes(tmp_path: Path, power: bool) -> None:
    root, preload = tmp_path / "root", Preload(tmp_path)
    if power and preload.why_not:
        pytest.skip(preload.why_not)
    root.mkdir()
    folder, disk = root / "l", Power(root, tmp_path / "synced", preload.variables)
    environment = {"VOLSTREAM_FAULT": "listing.file#5", "PYTHONPATH": "."}
    if power:
        disk.begin()
        environment |= {**preload.variables, **disk.variables}
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(folder)], env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    if power:
        disk.lose()
    keys = keys_of("a/", "b/", number=95)
    store = Bucket(keys)
    listing = listing_of(folder, store).run()
    assert listing.resumed
    assert any(after for _, after, _ in store.asked)
    assert listed(folder) == sorted(keys)
    assert listing.files == len(keys)
