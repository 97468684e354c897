"""The watcher over a real directory and the real operating system."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from volstream.base.model.hints import Hint, KeyHint, ObjectHint, SubtreeHint
from volstream.base.model.paths import Selection
from volstream.errors import QueueError
from volstream.files.queues import local
from volstream.files.queues.base import QueueSettings, QueueSpec
from volstream.files.queues.local import LocalQueue

NEW = "directory new"
GONE = "directory gone"


class Listener:
    """A started queue, and every hint it has reported so far."""

    def __init__(self, root: Path, selection: Selection | None = None, debounce_seconds: float = 0.03) -> None:
        settings = QueueSettings(debounce_seconds=debounce_seconds, check_seconds=0.1)
        self.queue = LocalQueue(QueueSpec(str(root), selection or Selection(), settings))
        self.queue.start()
        self.hints: list[Hint] = []
        self.on_hint: Callable[[Hint], None] = self.hints.append

    def pump(self, wait_seconds: float = 0.02) -> None:
        """Receives and acknowledges what is there."""
        messages = self.queue.receive(1000, wait_seconds)
        for message in messages:
            for hint in message.hints:
                assert not isinstance(hint, ObjectHint)
                self.on_hint(hint)
        self.queue.acknowledge(messages)

    def hears(self, *expected: Hint) -> None:
        """Waits until all of these were reported."""

        def heard() -> bool:
            self.pump()
            return set(expected) <= set(self.hints)

        try:
            eventually(heard, timeout=5)
        except AssertionError:
            raise AssertionError(f"{set(expected) - set(self.hints)} not among {self.hints}") from None

    def settles(self, root: Path) -> None:
        """Waits until everything before this call was reported, by writing one more file."""
        (root / "marker").touch()
        self.hears(KeyHint("marker"))
        self.hints.remove(KeyHint("marker"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


Listen = Callable[..., Listener]


@pytest.fixture
def listen(root: Path) -> Iterator[Listen]:
    listeners: list[Listener] = []

    def listen(selection: Selection | None = None, debounce_seconds: float = 0.03, at: Path = root) -> Listener:
        listeners.append(Listener(at, selection, debounce_seconds))
        return listeners[-1]

    yield listen
    for listener in listeners:
        listener.queue.stop()


def test_a_written_file_is_reported_once(root: Path, listen: Listen) -> None:
    listener = listen()
    (root / "a").write_bytes(b"x")
    listener.hears(KeyHint("a"))
    listener.settles(root)
    assert listener.hints == [KeyHint("a")]


def test_the_queue_is_settled_once_all_it_has_seen_was_delivered(root: Path, listen: Listen) -> None:
    listener = listen(debounce_seconds=0.3)
    assert listener.queue.is_settled()
    with (root / "a").open("wb") as file:
        file.write(b"x")
        file.flush()
        eventually(lambda: not listener.queue.is_settled(), timeout=5)
    listener.hears(KeyHint("a"))
    eventually(listener.queue.is_settled, timeout=5)


def test_an_atomic_rename_into_place_is_reported_without_its_temporary_name(root: Path, listen: Listen) -> None:
    listener = listen()
    (root / "a.tmp").write_bytes(b"x")
    (root / "a.tmp").rename(root / "a")
    listener.hears(KeyHint("a"))
    listener.settles(root)
    assert listener.hints == [KeyHint("a")]


def test_a_rename_inside_reports_both_names(root: Path, listen: Listen) -> None:
    (root / "a").touch()
    listener = listen()
    (root / "a").rename(root / "b")
    listener.hears(KeyHint("a"), KeyHint("b"))


def test_files_moved_in_moved_out_and_deleted_are_reported(root: Path, tmp_path: Path, listen: Listen) -> None:
    for path in (tmp_path / "in", root / "out", root / "deleted"):
        path.touch()
    listener = listen()
    (tmp_path / "in").rename(root / "in")
    (root / "out").rename(tmp_path / "out")
    (root / "deleted").unlink()
    listener.hears(KeyHint("in"), KeyHint("out"), KeyHint("deleted"))


def test_hard_links_symbolic_links_and_touches_are_reported(root: Path, tmp_path: Path, listen: Listen) -> None:
    (tmp_path / "source").touch()
    (root / "touched").touch()
    listener = listen()
    (root / "hard").hardlink_to(tmp_path / "source")
    (root / "soft").symlink_to("touched")
    os.utime(root / "touched", ns=(0, 1))
    listener.hears(KeyHint("hard"), KeyHint("soft"), KeyHint("touched"))


def test_reading_reports_nothing(root: Path, listen: Listen) -> None:
    (root / "a").write_bytes(b"x")
    listener = listen()
    assert (root / "a").read_bytes() == b"x"
    assert os.listdir(root) == ["a"]
    listener.settles(root)
    assert listener.hints == []


@pytest.mark.parametrize("name", ["sp ace", "a+%25&=", "q'\"", "new\nline", "ü日", "-rf", "a" * 255, os.fsdecode(b"\xff")])
def test_any_file_name_is_reported_unchanged(root: Path, listen: Listen, name: str) -> None:
    listener = listen()
    (root / name).touch()
    listener.hears(KeyHint(name))


def test_a_slowly_written_file_is_reported_when_it_is_complete(root: Path, listen: Listen) -> None:
    listener = listen(debounce_seconds=0.25)
    sizes: list[int] = []
    listener.on_hint = lambda hint: sizes.append((root / "a").stat().st_size)
    pause = threading.Event()

    def write() -> None:
        # Kept open: a close would be the writer's word that it is done.
        with (root / "a").open("wb", buffering=0) as file:
            for _ in range(20):
                file.write(b"x")
                pause.wait(0.02)

    writer = threading.Thread(target=write)
    writer.start()

    def told() -> bool:
        listener.pump()
        return bool(sizes)

    eventually(told)
    writer.join()
    assert sizes == [20]


def test_unselected_files_are_not_reported(root: Path, listen: Listen) -> None:
    (root / ".git").mkdir()
    listener = listen(Selection(patterns=("*.png", "marker")))
    for path in (".git/a.png", "a.txt", ".hidden.png", "a.png.part", "a.png"):
        (root / path).touch()
    (root / ".new").mkdir()
    listener.settles(root)
    assert listener.hints == [KeyHint("a.png")]


def test_without_recursion_directories_are_not_reported(root: Path, listen: Listen) -> None:
    (root / "d").mkdir()
    listener = listen(Selection(recursive=False))
    (root / "d" / "a").touch()
    (root / "e").mkdir()
    listener.settles(root)
    assert listener.hints == []


def test_a_new_directory_is_reported_and_so_are_later_changes_inside(root: Path, listen: Listen) -> None:
    listener = listen()
    (root / "d" / "e").mkdir(parents=True)
    (root / "d" / "e" / "a").touch()
    listener.hears(SubtreeHint("d/", NEW))
    (root / "d" / "e" / "b").touch()
    listener.hears(KeyHint("d/e/b"))


def test_a_directory_moved_in_is_reported(root: Path, tmp_path: Path, listen: Listen) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").touch()
    listener = listen()
    (tmp_path / "d").rename(root / "d")
    listener.hears(SubtreeHint("d/", NEW))
    (root / "d" / "b").touch()
    listener.hears(KeyHint("d/b"))


def test_directories_moved_out_and_deleted_are_reported(root: Path, tmp_path: Path, listen: Listen) -> None:
    for name in ("out", "deleted"):
        (root / name).mkdir()
        (root / name / "a").touch()
    listener = listen()
    (root / "out").rename(tmp_path / "out")
    shutil.rmtree(root / "deleted")
    listener.hears(SubtreeHint("out/", GONE), SubtreeHint("deleted/", GONE))


def test_a_renamed_directory_is_reported_under_both_names(root: Path, listen: Listen) -> None:
    (root / "d" / "e").mkdir(parents=True)
    listener = listen()
    (root / "d").rename(root / "f")
    listener.hears(SubtreeHint("d/", GONE), SubtreeHint("f/", NEW))
    (root / "f" / "e" / "a").touch()
    listener.hears(KeyHint("f/e/a"))


def test_directories_that_are_exchanged_are_both_watched(root: Path, listen: Listen) -> None:
    for name in ("live", "next"):
        (root / name / "sub").mkdir(parents=True)
    listener = listen()
    exchanged = ctypes.CDLL(None).renameat2(-100, os.fsencode(root / "live"), -100, os.fsencode(root / "next"), 2)
    assert exchanged == 0
    listener.hears(SubtreeHint("live/", NEW), SubtreeHint("next/", GONE))
    paths = ["live/a", "live/sub/a", "next/a", "next/sub/a"]
    for path in paths:
        (root / path).touch()
    listener.hears(*map(KeyHint, paths))


def test_a_directory_that_may_be_read_only_later_is_watched_from_then_on(
    root: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = local.DirectoryWatch._watch

    def denied(self: local.DirectoryWatch, directory: str, full: str) -> None:
        if directory and not os.stat(full).st_mode & stat.S_IROTH:  # to whom the tests run as, everything may be read
            raise PermissionError(errno.EACCES, "Permission denied")
        watched(self, directory, full)

    monkeypatch.setattr(local.DirectoryWatch, "_watch", denied)
    listener = listen()
    (root / "d").mkdir(0o700)
    (root / "d" / "e").mkdir()
    (root / "d" / "e").chmod(0o755)  # the tests' umask is 077 once one of them has opened a home
    listener.hears(SubtreeHint("d/", NEW))
    listener.hints.clear()
    (root / "d").chmod(0o755)
    listener.hears(SubtreeHint("d/", NEW))
    (root / "d" / "e" / "a").touch()
    listener.hears(KeyHint("d/e/a"))


def test_a_directory_whose_path_is_too_long_costs_its_own_events_alone(root: Path, listen: Listen) -> None:
    (root / "ordinary").mkdir()
    listener = listen()
    inside = os.open(root, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=inside)
        inside, outside = os.open("d" * 250, os.O_RDONLY, dir_fd=inside), inside
        os.close(outside)
    os.close(inside)
    listener.hears(SubtreeHint("d" * 250 + "/", NEW))
    (root / "ordinary" / "a").touch()
    listener.hears(KeyHint("ordinary/a"))
    listener.queue.stop()
    listener.queue.start()
    (root / "ordinary" / "b").touch()
    listener.hears(KeyHint("ordinary/b"))


def test_a_link_to_a_directory_that_is_swapped_is_reported_as_its_directory(root: Path, listen: Listen) -> None:
    """As Kubernetes replaces the files of a ConfigMap."""

    def swap(folder: Path, version: str) -> None:
        (folder / f"..{version}").mkdir(parents=True)
        (folder / f"..{version}" / "a.txt").write_text(version)
        (folder / "..tmp").symlink_to(f"..{version}")
        (folder / "..tmp").rename(folder / "..data")

    for folder in (root, root / "sub"):
        swap(folder, "1")
        (folder / "a.txt").symlink_to("..data/a.txt")
    listener = listen()
    swap(root, "2")
    listener.hears(SubtreeHint("", "relinked"))
    swap(root / "sub", "2")
    listener.hears(SubtreeHint("sub/", "relinked"))
    listener.hints.clear()
    (root / "b.txt").symlink_to("a.txt")
    (root / "dir").mkdir()
    listener.hears(KeyHint("b.txt"), SubtreeHint("dir/", NEW))
    assert not [hint for hint in listener.hints if isinstance(hint, SubtreeHint) and hint.reason == "relinked"]


def test_a_root_that_is_a_link_is_watched(root: Path, tmp_path: Path, listen: Listen) -> None:
    (tmp_path / "alias").symlink_to(root)
    listener = listen(at=tmp_path / "alias")
    (root / "a").touch()
    listener.hears(KeyHint("a"))


def test_a_replaced_root_is_watched_and_reported(root: Path, tmp_path: Path, listen: Listen) -> None:
    listener = listen()
    root.rename(tmp_path / "old")
    root.mkdir()
    listener.hears(SubtreeHint("", "root replaced"))
    (root / "a").touch()
    listener.hears(KeyHint("a"))


def test_a_missing_root_is_an_error_until_it_is_back(root: Path, listen: Listen) -> None:
    listener = listen()
    root.rmdir()

    def refused() -> bool:
        try:
            listener.pump()
        except QueueError as error:
            return "No such file" in error.message and bool(error.remedy)
        return False

    eventually(refused)
    with pytest.raises(QueueError):  # between two checks, too: it lasts
        listener.pump(0)
    root.mkdir()
    eventually(lambda: not refused())
    listener.hears(SubtreeHint("", "root replaced"))
    (root / "a").touch()
    listener.hears(KeyHint("a"))


def test_a_directory_that_was_moved_out_is_no_longer_watched_and_one_of_its_name_is(
    root: Path, tmp_path: Path, listen: Listen
) -> None:
    listener = listen()
    (root / "d").mkdir()
    listener.hears(SubtreeHint("d/", NEW))
    (root / "d").rename(tmp_path / "d")
    listener.hears(SubtreeHint("d/", GONE))
    listener.hints.clear()
    (root / "d").mkdir()
    listener.hears(SubtreeHint("d/", NEW))
    (tmp_path / "d" / "elsewhere").touch()
    (root / "d" / "here").touch()
    listener.hears(KeyHint("d/here"))
    assert KeyHint("d/elsewhere") not in listener.hints
    (root / "d" / "here").unlink()
    (root / "d").rmdir()
    (tmp_path / "d" / "elsewhere").unlink()
    (tmp_path / "d").rmdir()
    listener.hears(SubtreeHint("d/", GONE))
    (root / "a").touch()
    listener.hears(KeyHint("a"))


def test_a_watch_whose_reader_died_is_re_armed_for_all_queues(root: Path, tmp_path: Path, listen: Listen) -> None:
    (tmp_path / "other").mkdir()
    listeners = [listen(), listen(at=tmp_path / "other")]
    reader = listeners[0].queue._watch._reader
    assert reader is not None
    assert listeners[1].queue._watch._reader is reader
    reader.stop()
    for listener, folder in zip(listeners, (root, tmp_path / "other"), strict=True):
        listener.hears(SubtreeHint("", "watch lost"))
        (folder / "a").touch()
        listener.hears(KeyHint("a"))


def test_more_directories_are_watched_than_the_kernel_has_instances(tmp_path: Path, listen: Listen) -> None:
    instances = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    threads = threading.active_count()
    folders = [tmp_path / f"v{number}" for number in range(min(instances, 256) + 20)]
    listeners = []
    for folder in folders:
        (folder / "inside").mkdir(parents=True)
        listeners.append(listen(at=folder))
    assert threading.active_count() == threads + 1
    for folder in folders:
        (folder / "inside" / "a").touch()
    for listener in listeners:
        listener.hears(KeyHint("inside/a"))


def test_an_overflow_of_the_kernels_queue_is_reported_as_everything_changed(root: Path, listen: Listen) -> None:
    (root / "a").touch()
    (root / "b").touch()
    listener = listen()
    capacity = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    # Calls through PyDLL keep the interpreter's lock, so watchdog's reader cannot run in between. Two files in turn,
    # because the kernel merges equal neighbours.
    chmod = ctypes.PyDLL(None).chmod
    names = [os.fsencode(root / "a"), os.fsencode(root / "b")] * (capacity // 2 + 1000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        for name in names:
            chmod(name, 0o644)
    finally:
        sys.setswitchinterval(interval)
    listener.hears(SubtreeHint("", "overflow"))
    (root / "c").touch()
    listener.hears(KeyHint("c"))


def test_a_directory_missing_at_the_start_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    queue = LocalQueue(QueueSpec(str(tmp_path / "missing")))
    threads = threading.active_count()
    with pytest.raises(QueueError, match="No such file") as error:
        queue.start()
    assert error.value.remedy
    assert threading.active_count() == threads


def test_a_stop_ends_all_threads(root: Path, listen: Listen) -> None:
    threads = threading.active_count()
    listener = listen()
    assert threading.active_count() > threads
    listener.queue.stop()
    eventually(lambda: threading.active_count() == threads)


LIMITED = """
import sys
from volstream.errors import QueueError
from volstream.files.queues.base import QueueSpec
from volstream.files.queues.local import LocalQueue
try:
    LocalQueue(QueueSpec(sys.argv[1])).start()
except QueueError as error:
    print(error)
"""


@pytest.mark.parametrize("watches", [1, 4, 20])
def test_the_kernels_watch_limit_is_an_error_even_if_only_subdirectories_hit_it(root: Path, watches: int) -> None:
    for number in range(5):
        (root / str(number)).mkdir()
    # The limit applies to the user namespace; nobody else meets it in our own.
    limit = f"echo {watches} > /proc/sys/user/max_inotify_watches"
    command = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    if subprocess.run([*command, limit], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    script = f'{limit}; exec "$@"'
    ended = subprocess.run(
        [*command, script, "sh", sys.executable, "-c", LIMITED, str(root)], capture_output=True, text=True, timeout=30, check=True
    )
    if watches == 20:
        assert ended.stdout == ""
    else:
        assert "fs.inotify.max_user_watches" in ended.stdout
        assert "--queue-type poll" in ended.stdout


def test_a_directory_with_two_names_is_heard_under_both(root: Path, listen: Listen) -> None:
    (root / "a").mkdir()
    (root / "b").mkdir()
    if subprocess.run(["mount", "--bind", root / "a", root / "b"], capture_output=True, check=False).returncode != 0:
        pytest.skip("bind mounts are not permitted here")
    try:
        listener = listen()
        (root / "a" / "x").write_bytes(b"x")
        listener.hears(KeyHint("a/x"), KeyHint("b/x"))
        (root / "b" / "y").write_bytes(b"y")
        listener.hears(KeyHint("a/y"), KeyHint("b/y"))
        listener.queue.stop()
    finally:
        subprocess.run(["umount", root / "b"], check=True)
