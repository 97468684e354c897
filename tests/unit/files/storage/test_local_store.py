"""What is specific to local directories: links, names that are not text, permissions, vanishing roots."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.errors import StorageDeniedError, StorageError
from volstream.files.storage import local
from volstream.files.storage.base import HasLocalPaths
from volstream.files.storage.local import LocalStore

ALL = Selection(ignores=())
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that an unprivileged user reaches; pytest's own is closed to others."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root reads everything, so give that up for a while."""
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)


def paths(root: Path, prefix: str = "", selection: Selection = ALL) -> set[str]:
    return {found.relative_path for found in listed(root, prefix, selection) if isinstance(found, FileInfo)}


def findings(root: Path, selection: Selection = ALL) -> list[str]:
    return [found.path for found in listed(root, "", selection) if isinstance(found, Finding)]


def listed(root: Path, prefix: str, selection: Selection) -> list[FileInfo | Finding]:
    return list(LocalStore(str(root)).list(prefix, selection))


def test_the_etag_is_inode_time_and_size(root: Path) -> None:
    (root / "a").write_bytes(b"abc")
    os.utime(root / "a", ns=(0, 1_700_000_000_123_456_789))
    info = LocalStore(str(root)).head("a")
    assert info is not None
    inode = (root / "a").stat().st_ino
    assert info.etag == f"{inode:x}-{1_700_000_000_123_456_789:x}-3"
    assert info.last_modified_time == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


def test_a_move_keeps_when_a_file_was_made(root: Path) -> None:
    store = LocalStore(str(root))
    (root / "made").write_text("x")
    os.utime(root / "made", (1, 1))
    made = store.born("made")
    if made is None:
        pytest.skip("This file system does not say.")
    assert abs((datetime.now(UTC) - made).total_seconds()) < 60
    (root / "made").rename(root / "moved")
    assert (store.born("moved"), store.born("made"), store.born("a\0b")) == (made, None, None)


def test_a_compressed_file_has_the_type_of_its_bytes(root: Path) -> None:
    for name in ("a.tar.gz", "a.JPG", "a.unknown"):
        (root / name).touch()
    store = LocalStore(str(root))
    types = {name: info.content_type for name in ("a.tar.gz", "a.JPG", "a.unknown") if (info := store.head(name))}
    assert types == {"a.tar.gz": "application/gzip", "a.JPG": "image/jpeg", "a.unknown": None}


def test_a_link_to_a_file_inside_is_that_file(root: Path) -> None:
    (root / "a").write_bytes(b"abc")
    (root / "link").symlink_to("a")
    assert paths(root) == {"a", "link"}
    info = LocalStore(str(root)).head("link")
    assert info is not None
    assert info.size == 3
    with LocalStore(str(root)).open("link") as file:
        assert file.read() == b"abc"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1, (5 << 20) + 3])
@pytest.mark.parametrize("grows", [False, True])
def test_a_file_is_read_at_once_as_by_opening_it(root: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, grows: bool) -> None:
    (root / "a").write_bytes(os.urandom(size))
    (root / "link").symlink_to("a")
    store = LocalStore(str(root))
    find = store._find

    def found(path: str) -> Any:
        file = find(path)
        with (root / "a").open("ab") as more:  # after its size was read
            more.write(b"x" * 3)
        return file

    if grows:
        monkeypatch.setattr(store, "_find", found)
    for path in ("a", "link"):
        content = store.read_bytes(path)
        with store.open(path) as opened:
            assert opened.read()[: len(content)] == content
        assert len(content) >= size


def test_the_local_path_is_that_of_the_file_itself(root: Path) -> None:
    (root / "a b").write_bytes(b"abc")
    (root / "link").symlink_to("a b")
    store = LocalStore(str(root))
    assert isinstance(store, HasLocalPaths)
    assert store.local_path("link") == store.local_path("a b") == root / "a b"
    with pytest.raises(FileNotFoundError):
        store.local_path("gone")


def test_a_link_out_of_the_root_is_a_finding_and_cannot_be_read(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (root / "link").symlink_to(tmp_path / "secret")
    assert paths(root) == set()
    assert findings(root) == ["link"]
    assert LocalStore(str(root)).head("link") is None
    with pytest.raises(FileNotFoundError):
        LocalStore(str(root)).open("link")
    with pytest.raises(FileNotFoundError):
        LocalStore(str(root)).read_bytes("link")


def test_dangling_links_and_link_loops_are_ignored(root: Path) -> None:
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    assert listed(root, "", ALL) == []
    assert LocalStore(str(root)).head("dangling") is None
    assert LocalStore(str(root)).head("loop") is None


def test_a_link_to_a_directory_is_one_finding_and_not_followed(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "a").touch()
    (root / "link").symlink_to("real")
    (root / "up").symlink_to("..")
    assert paths(root) == {"real/a"}
    assert sorted(findings(root)) == ["link", "up"]
    assert paths(root, "link/") == set()
    assert LocalStore(str(root)).head("link/a") is None


def test_a_root_that_is_a_link_is_followed(root: Path, tmp_path: Path) -> None:
    (root / "a").touch()
    (root / "inside").symlink_to("a")
    (tmp_path / "alias").symlink_to(root)
    assert paths(tmp_path / "alias") == {"a", "inside"}
    assert LocalStore(str(tmp_path / "alias")).head("a") is not None


@pytest.mark.parametrize("path", ["../secret", "d/../../secret", "d/../a", "./a", "/etc/passwd", "", "..", "a\0", "d//b"])
def test_a_path_cannot_escape_the_root_and_has_one_spelling(root: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").touch()
    (root / "d").mkdir()
    (root / "d" / "b").touch()
    (root / "a").touch()
    assert LocalStore(str(root)).head(path) is None
    with pytest.raises(FileNotFoundError):
        LocalStore(str(root)).open(path)
    assert paths(root, "../") == set()


def test_anything_but_files_and_directories_is_skipped(root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "link").symlink_to("fifo")
    assert listed(root, "", ALL) == []
    assert LocalStore(str(root)).head("fifo") is None
    with pytest.raises(FileNotFoundError):
        LocalStore(str(root)).open("fifo")


def test_a_name_that_is_not_text_is_a_finding_with_its_bytes_shown(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/a\xff.txt")).touch()
    assert findings(root) == ["a\\xff.txt"]
    assert paths(root) == set()


def test_an_ignored_name_that_is_not_text_is_not_a_finding(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/.\xff")).touch()
    assert findings(root, Selection()) == []


def test_a_directory_whose_name_is_not_text_is_one_finding(root: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(root) + b"/d\xff"))
    directory.mkdir()
    for name in ("a", "b"):
        (directory / name).touch()
    assert findings(root) == ["d\\xff/"]
    assert paths(root) == set()


def test_an_unreadable_directory_is_an_error_and_not_an_empty_one(open_to_all: Path) -> None:
    (open_to_all / "closed").mkdir()
    (open_to_all / "closed" / "a").touch()
    (open_to_all / "closed").chmod(0)
    store = LocalStore(str(open_to_all))
    with unprivileged(), pytest.raises(StorageDeniedError, match="closed") as denied:
        list(store.list("", ALL))
    assert not denied.value.transient
    with unprivileged(), pytest.raises(StorageDeniedError, match="closed/a"):
        store.head("closed/a")
    (open_to_all / "closed").chmod(0o700)


def test_an_unreadable_directory_that_is_ignored_does_no_harm(open_to_all: Path) -> None:
    (open_to_all / ".closed").mkdir(mode=0)
    with unprivileged():
        assert paths(open_to_all, selection=Selection()) == set()
    (open_to_all / ".closed").chmod(0o700)


def test_an_unreadable_file_is_listed_and_refused_when_opened(open_to_all: Path) -> None:
    (open_to_all / "a").touch(mode=0)
    (open_to_all / "a").chmod(0)
    with unprivileged():
        assert paths(open_to_all) == {"a"}
        with pytest.raises(StorageDeniedError):
            LocalStore(str(open_to_all)).open("a")


def test_a_directory_that_vanishes_during_the_listing_has_no_files(root: Path) -> None:
    for name in ("a", "b"):
        (root / name).mkdir()
        for number in range(3):
            (root / name / str(number)).touch()
    listing = LocalStore(str(root)).list("", ALL)
    first = next(listing)
    assert isinstance(first, FileInfo)
    vanishing = "b" if first.relative_path.startswith("a/") else "a"
    shutil.rmtree(root / vanishing)
    rest = {found.relative_path for found in listing if isinstance(found, FileInfo)}
    assert len(rest) == 2
    assert not any(path.startswith(vanishing) for path in rest)


def test_a_root_that_is_replaced_during_the_listing_is_an_error(root: Path) -> None:
    (root / "d").mkdir()
    for path in ("a", "b", "d/c"):
        (root / path).touch()
    listing = LocalStore(str(root)).list("", ALL)
    next(listing)
    root.rename(root.with_name("elsewhere"))
    root.mkdir()
    with pytest.raises(StorageError, match="replaced or remounted"):
        list(listing)


def test_a_root_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="not a directory"):
        list(LocalStore(str(tmp_path / "file")).list("", ALL))


def test_a_listing_is_read_lazily(root: Path) -> None:
    for number in range(50):
        (root / f"{number}").mkdir()
        (root / f"{number}" / "a").touch()
    listing = LocalStore(str(root)).list("", ALL)
    next(listing)
    for number in range(50):
        shutil.rmtree(root / f"{number}")
    assert list(listing) == []


#: Puts a link to a directory outside, and the directory itself, in turns at one name.
SWAPPER = """
import os, sys
root = sys.argv[1]
os.symlink("../outside", f"{root}/link")
print("ready", flush=True)
while True:
    os.rename(f"{root}/d", f"{root}/away")
    os.rename(f"{root}/link", f"{root}/d")
    os.rename(f"{root}/d", f"{root}/link")
    os.rename(f"{root}/away", f"{root}/d")
"""


@pytest.mark.long
def test_a_directory_that_turns_into_a_link_elsewhere_is_not_followed(root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "a").write_bytes(b"inside")
    outside = root.with_name("outside")
    outside.mkdir()
    (outside / "a").write_bytes(b"secret!")
    store = LocalStore(str(root))
    sizes, contents = set(), set()
    with subprocess.Popen([sys.executable, "-c", SWAPPER, str(root)], stdout=subprocess.PIPE) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                with suppress(FileNotFoundError, StorageError), store.open("d/a") as file:
                    contents.add(file.read())
                with suppress(StorageError):
                    sizes |= {found.size for found in store.list("", ALL) if isinstance(found, FileInfo)}
        finally:
            swapper.kill()
    assert (contents, sizes) == ({b"inside"}, {6})


def test_extended_attributes_are_metadata(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    try:
        os.setxattr(file, "user.camera", "lëft".encode())
    except OSError:
        pytest.skip("this file system has no extended attributes")
    assert LocalStore(str(tmp_path)).details("a.txt").metadata == {"camera": "lëft"}


@contextmanager
def swapping(folder: Path, elsewhere: Path) -> Iterator[None]:
    """While the block runs, a folder is again and again replaced by a link to another one."""
    ended = threading.Event()
    aside = folder.with_name("aside")

    def swap() -> None:
        while not ended.is_set():
            with suppress(OSError):
                folder.rename(aside)
            with suppress(OSError):
                folder.symlink_to(elsewhere)
            with suppress(OSError):
                folder.unlink()
            with suppress(OSError):
                aside.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_nothing_is_written_moved_or_removed_through_a_folder_that_becomes_a_link(root: Path, tmp_path: Path) -> None:
    store, elsewhere = LocalStore(str(root)), tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "keys").write_text("mine")
    (elsewhere / "deep" / "keys").write_text("mine")
    (root / "folder").mkdir()
    done = 0
    with swapping(root / "folder", elsewhere):
        for number in range(400):
            made = f".made/{number}"
            for act in (
                partial(store.put, made, io.BytesIO(b"theirs"), None),
                partial(store.put, f"folder/{number}", io.BytesIO(b"theirs"), None),
                partial(store.move, made, "folder/keys"),
                partial(store.move, made, "folder/deep/keys"),
                partial(store.remove, "folder/keys"),
                partial(store.remove, "folder/deep/keys"),
                partial(store.remove_folder, "folder/deep"),
            ):
                with suppress(StorageError, FileNotFoundError):
                    act()
                    done += 1
    assert done > 400
    assert {path.name: path.read_text() for path in elsewhere.rglob("*") if path.is_file()} == {"keys": "mine"}
    assert (elsewhere / "deep" / "keys").read_text() == "mine"


def test_a_planted_link_is_named_and_only_removed_itself(root: Path, tmp_path: Path) -> None:
    store, elsewhere = LocalStore(str(root)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keys").write_text("mine")
    (root / ".made").symlink_to(elsewhere)
    for path in (".made/keys", ".made/a/b"):
        with pytest.raises(StorageError, match=r"^\.made is a file or a symbolic link, below which nothing is written"):
            store.put(path, io.BytesIO(b"x"), None)
    with pytest.raises(StorageError):
        store.move(".made/keys", "keys")
    store.remove(".made/keys")
    store.remove_folder(".made/x")
    assert (elsewhere / "keys").read_text() == "mine"
    store.remove_folder(".made")
    assert not (root / ".made").is_symlink()
    (root / "canary").symlink_to(elsewhere / "keys")
    with pytest.raises(StorageError):
        store.write("canary", b"x")
    (root / "target").symlink_to(elsewhere / "keys")
    store.put("new", io.BytesIO(b"new"), None)
    store.move("new", "target")
    assert (root / "target").read_text() == "new"
    assert not (root / "target").is_symlink()
    (root / "staged").symlink_to(elsewhere / "keys")
    with pytest.raises(StorageError, match="replaced by something that is not a file"):
        store.move("staged", "moved")
    assert (elsewhere / "keys").read_text() == "mine"


@pytest.mark.parametrize("system", ["renames", "links", "neither"])
def test_a_move_leaves_what_has_the_path_on_every_file_system(root: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    def link(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links")

    if system != "renames":
        monkeypatch.setattr(local, "_RENAMEAT2", None)
    if system == "neither":
        monkeypatch.setattr(os, "link", link)
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    (root / "folder").mkdir()
    store = LocalStore(str(root))
    for taken in ("b", "folder"):
        with pytest.raises(FileExistsError):
            store.move("a", taken, replaces=False)
    etag = store.move("a", "below/a", replaces=False)
    moved = store.head("below/a")
    assert moved is not None
    assert moved.etag == etag
    assert paths(root) == {"b", "below/a"}
    assert (root / "below/a").read_text() == "a"


@pytest.mark.parametrize("renames", [True, False])
def test_a_move_that_was_killed_between_two_names_of_the_file_is_finished(
    root: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    if not renames:
        monkeypatch.setattr(local, "_RENAMEAT2", None)
    (root / "a").write_text("x")
    os.link(root / "a", root / "b")
    assert LocalStore(str(root)).move("a", "b", replaces=False) is not None
    assert paths(root) == {"b"}


def test_a_folder_that_others_remove_because_it_is_empty_is_an_error_of_the_store_at_most(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    def work(number: int) -> list[str]:
        failed = []
        for at in range(150):
            path = f"a/b/{number}-{at}"
            try:
                store.put(path, io.BytesIO(b"x"), None)
                store.move(path, f"c/d/{number}-{at}")
            except StorageError as error:
                failed.append(error.message)
            store.remove(path)
            store.remove(f"c/d/{number}-{at}")
        return failed

    with ThreadPoolExecutor(4) as pool:
        failures = [message for failed in pool.map(work, range(4)) for message in failed]
    assert all("was removed meanwhile" in message for message in failures)
    assert not any(tmp_path.iterdir())
