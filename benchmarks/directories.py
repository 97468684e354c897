"""Directories, without an engine: the cost of refreshes by size, a first listing, bursts, and the command as a process.

Directories of 10^4 and 10^6 rows (10^7 with ``--rows``): a refresh of 100 keys at random paths, of 100 new files, of one
file; the same after 500 refreshes with the daemon's upkeep; a fold. Their files do not exist: the store makes up its answers.
Then real ones (100,000, or ``--files``): listed and committed from nothing and again, and 20,000 of them overwritten at
once, compared with a plain loop that stats each; and ``volstream refresh`` of 10,000 as a process.
``python -m benchmarks --part directory --part cli``.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import processes
from benchmarks.files import LONG_AGO
from benchmarks.report import BASE, Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session
from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import HintSet, KeyHint
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.changes.directory import table
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.reconcile import add_keys
from volstream.changes.directory.writer import DirectoryWriter
from volstream.spark.engine.owner import read_record

#: Changes of one refresh.
KEYS = 100

#: Commits between checks whether the tables need upkeep, like a busy daemon's.
_LOOK = 50

#: With this many changed rows, and this fraction of the base, a fold is due, even if new files have made the base larger.
_FOLD_ROWS, _FOLD_PART = 10_000, 16

#: Number of rows made at a time.
_CHUNK = 100_000

_PER_DAY = 1000

#: Number of files that are overwritten at once.
BURST = 20_000

#: The loop that ``volstream refresh`` is compared with.
_WALK = "import os, sys; [os.stat(os.path.join(at, name)) for at, _, names in os.walk(sys.argv[1]) for name in names]"


class Made:
    """A store of made-up files, which have a new version at each request."""

    def __init__(self) -> None:
        self._version = 0

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """Yields nothing; never called."""
        del prefix, selection
        return iter(())

    def head(self, path: str) -> FileInfo | None:
        """Returns a new version."""
        self._version += 1
        return info_of(path, self._version)

    def open(self, path: str) -> BinaryIO:
        """Raises FileNotFoundError: the files have no content."""
        raise FileNotFoundError(path)

    def url(self, path: str) -> str:
        """Returns a URL."""
        return f"file:///made/{path}"


class Directory:
    """A directory of ``rows`` rows, whose first listing is made up, and refreshes of it."""

    def __init__(self, session: Session, rows: int, scratch: Path, name: str) -> None:
        folder = scratch / name
        folder.mkdir()
        self.rows = rows
        self._random = random.Random(rows)
        self._new = 0
        self._store = Made()
        made = session.volumes.create(name, str(folder), queue_type=QueueType.NONE)
        self._writer = DirectoryWriter(
            made, session.home.catalog, session.home.warehouse, session.home.settings.directory_versions
        )
        listed = (_listed(start, min(rows, start + _CHUNK)) for start in range(0, rows, _CHUNK))
        self._writer.commit_first(self._writer.open(), listed, 1000 * rows)
        self.volume: Volume = session.home.catalog.volumes.change(self._writer.volume, last_listing=datetime.now(UTC))

    def random_paths(self) -> float:
        """Returns the seconds of a refresh of keys all over the directory."""
        return self.refresh([path_of(number) for number in self._random.sample(range(self.rows), KEYS)])

    def one_prefix(self) -> float:
        """Returns the seconds of a refresh of adjacent new keys."""
        self._new += KEYS
        return self.refresh([f"day-99999/new-{self._new + number:08d}" for number in range(KEYS)])

    def one_file(self) -> float:
        """Returns the seconds of a refresh of one key."""
        return self.refresh([path_of(self._random.randrange(self.rows))])

    def refresh(self, keys: Sequence[str]) -> float:
        """Returns the seconds of a refresh of some keys, from reading the tables to the commit. Raises WrongRowsError."""
        started = time.perf_counter()
        snapshot = self._writer.open()
        changes = self._writer.begin(snapshot)
        add_keys(changes, snapshot, self._store, keys, len(keys))
        done = self._writer.commit(snapshot, changes, "benchmark")
        seconds = time.perf_counter() - started
        if done is None or done.inserted + done.updated != len(keys):
            raise WrongRowsError(f"A refresh of {len(keys)} keys came to {done}.")
        return seconds

    def maintain(self) -> float:
        """Returns the seconds of the upkeep that is due."""
        return timed(lambda: self._writer.maintain())

    def fold(self) -> float:
        """Returns the seconds of the upkeep once a fold is due. Raises WrongRowsError if it was not."""
        count = min(self.rows, max(_FOLD_ROWS, self.rows // _FOLD_PART))
        self.refresh([path_of(number) for number in sorted(self._random.sample(range(self.rows), count))])
        seconds = self.maintain()
        if self._writer.open().uncompacted:
            raise WrongRowsError("The directory was not compacted.")
        return seconds


def measure_made(session: Session, scratch: Path, sizes: Sequence[int], rounds: int, refreshes: int, figures: Figures) -> None:
    """Measures directories of made-up files; each round takes the sizes in turns, so that a busy minute affects them all."""
    steps: dict[str, Callable[[Directory], float]] = {
        f"refresh, {KEYS} random paths": Directory.random_paths,
        f"refresh, {KEYS} new files": Directory.one_prefix,
        "refresh, one file": Directory.one_file,
    }
    directories = {size: Directory(session, size, scratch, f"made_{size}") for size in sizes}

    def in_turns(suffix: str) -> None:
        for number in range(rounds + 1):
            for name, step in steps.items():
                for size, one in directories.items():
                    with_memory(figures, f"{name}{suffix}", size, partial(step, one), memory="refresh", counted=number > 0)

    in_turns("")
    for number in range(refreshes):
        for size, one in directories.items():
            _ = one.random_paths() if number % 2 else one.one_prefix()
            if number % _LOOK == _LOOK - 1:
                figures.note(f"upkeep after {_LOOK} refreshes", size, "volstream", one.maintain())
    if refreshes:
        in_turns(f", after {refreshes} refreshes")
    for _ in range(rounds):
        for size, one in directories.items():
            with_memory(figures, "fold", size, one.fold, memory="fold")
    _check_no_engine(session)


def measure_real(session: Session, kept: Path, count: int, rounds: int, figures: Figures) -> None:
    """Measures real files: listed and committed from nothing, listed again, and many of them overwritten at once.

    Args:
        kept: folder of the files, kept for the next run: creating a million of them takes minutes.
    """
    folder = kept / f"{count}-files"
    paths = make_files(folder, count)
    burst = paths[:: max(1, count // BURST)][:BURST]
    for number in range(rounds):
        volume = session.volumes.create(f"real_{number}", str(folder), queue_type=QueueType.NONE)
        keeper = DirectoryKeeper(volume, session.home.catalog, session.home.settings)
        for scenario, rows in (("from nothing", count), ("again", 0)):
            figures.note(f"files listed, {scenario}", count, BASE, timed(lambda: _walk(folder)))
            with_memory(figures, f"files listed, {scenario}", count, partial(reconcile, keeper, count, rows), memory="reconcile")
        _overwrite(folder, burst)
        scenario = f"{len(burst):,} files overwritten at once"
        figures.note(scenario, count, BASE, timed(lambda: [os.stat(folder / path) for path in burst]))
        with_memory(figures, scenario, count, partial(_take, keeper, burst), memory="burst")
        session.volumes.drop(f"real_{number}")
    _check_no_engine(session)


def measure_command(home: Path, scratch: Path, count: int, rounds: int, figures: Figures) -> None:
    """Measures ``volstream refresh`` of a new home, as a process, and one that only walks: no engine is started."""
    folder = scratch / "command-files"
    make_files(folder, count)
    for number in range(rounds):
        own = home / f"command-{number}"
        processes.command(own, "init")
        processes.command(own, "create-volume", "files", str(folder), "--queue-type", "none")
        started = time.time()
        for scenario in ("volstream refresh, from nothing", "volstream refresh, again"):
            seconds = timed(lambda: subprocess.run([sys.executable, "-c", _WALK, str(folder)], check=True))
            figures.note(scenario, count, BASE, seconds)
            figures.note(scenario, count, "volstream", timed(lambda: processes.command(own, "refresh", "files")))  # noqa: B023  # at once
        with Session.builder.config("home", own).create() as session:
            if session.home.catalog.refreshes.file_count(session.volumes.get("files").id) != count:
                raise WrongRowsError("The command did not find every file.")
            _check_no_engine(session, since=started)


def with_memory(
    figures: Figures, scenario: str, size: int, step: Callable[[], float], *, memory: str, counted: bool = True
) -> None:
    """Records a step's seconds, and this process's peak memory meanwhile, combined for all steps of one name."""
    _forget_peak()
    seconds = step()
    if counted:
        figures.note(scenario, size, "volstream", seconds)
        figures.note(f"peak memory of a {memory}, MiB", size, "volstream", _peak())


def with_processor(figures: Figures, scenario: str, size: int, step: Callable[[], float], *, memory: str) -> None:
    """Like :func:`with_memory`; also records the processor's seconds: of a busy machine, what another one would need."""
    used = time.process_time()
    with_memory(figures, scenario, size, step, memory=memory)
    figures.note(f"{scenario}: processor", size, "volstream", time.process_time() - used)


def make_files(folder: Path, count: int) -> Sequence[str]:
    """Creates ``count`` small files, unless an earlier run has; returns their paths in order."""
    paths = [path_of(number) for number in range(count)]
    made = folder.with_suffix(".made")
    if made.exists():
        return paths
    for number, path in enumerate(paths):
        if number % _PER_DAY == 0:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        _write(folder / path, b"as made", LONG_AGO)
    made.touch()
    return paths


def timed(step: Callable[[], object]) -> float:
    """Returns the seconds that a step takes."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def path_of(number: int) -> str:
    """Returns the path of a made-up file; paths sort like their numbers."""
    return f"day-{number // _PER_DAY:05d}/file-{number % _PER_DAY:04d}"


def paths_of(numbers: pa.Array) -> pa.Array:
    """Returns the paths of made-up files, as :func:`path_of` does."""
    day = pc.divide(numbers, _PER_DAY)
    within = pc.subtract(numbers, pc.multiply(day, _PER_DAY))
    days, names = (pc.utf8_lpad(pc.cast(one, pa.string()), width=width, padding="0") for one, width in ((day, 5), (within, 4)))
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise("day-", days, ""), pc.binary_join_element_wise("file-", names, ""), "/"
    )


def info_of(path: str, version: int) -> FileInfo:
    """Returns a made-up file in one of its versions."""
    modified = datetime.fromtimestamp(1_700_000_000 + version, UTC)
    return FileInfo(path, 1000 + version, modified, f"{version:x}", None, "text/plain")


def _listed(start: int, end: int) -> pa.Table:
    """Returns the made-up files of some numbers, as a listing has them; made as columns, because there are millions."""
    paths = paths_of(pa.array(range(start, end), pa.int64()))
    first = info_of("", 0)
    same = {
        name: pa.repeat(pa.scalar(getattr(first, name), table.SCHEMA.field(name).type), end - start)
        for name in ("size", "last_modified_time", "etag", "version_id", "content_type")
    }
    urls = pc.binary_join_element_wise("file:///made/", paths, "")
    return pa.table({"relative_path": paths, "url": urls, **same}, schema=table.SCHEMA)


def _walk(folder: Path) -> None:
    for at, _, names in os.walk(folder):
        for name in names:
            os.stat(os.path.join(at, name))


def reconcile(keeper: DirectoryKeeper, files: int, rows: int) -> float:
    """Returns the seconds of a listing. Raises WrongRowsError unless it has so many files, and changed so many rows."""
    started = time.perf_counter()
    done = keeper.reconcile()
    seconds = time.perf_counter() - started
    if (done.files, done.counts.rows) != (files, rows):
        raise WrongRowsError(f"Of {files} files {done.files} were listed, and {done.counts.rows} rows changed.")
    return seconds


def _take(keeper: DirectoryKeeper, paths: Sequence[str]) -> float:
    fold = HintSet(keeper.volume.selection)
    fold.add(map(KeyHint, paths))
    started = time.perf_counter()
    done = keeper.apply(fold)
    seconds = time.perf_counter() - started
    if (done.counts.updated, done.counts.rows, done.commit is None) != (len(paths), len(paths), False):
        raise WrongRowsError(f"{len(paths)} files were overwritten, and a refresh came to {done}.")
    return seconds


def _overwrite(folder: Path, paths: Sequence[str]) -> None:
    """Replaces the content of files; content and modification time differ at each call."""
    version = time.time_ns()
    for path in paths:
        _write(folder / path, b"%d" % version, LONG_AGO + version % 1_000_000)


def _write(target: Path, content: bytes, modified: int) -> None:
    target.write_bytes(content)
    os.utime(target, (modified, modified))


def _check_no_engine(session: Session, *, since: float | None = None) -> None:
    """Raises RuntimeError if an engine of the home was started."""
    home = str(session.home.settings.home)
    java = [
        one.pid
        for one in psutil.process_iter(["name", "cmdline", "create_time"])
        if one.info["name"] == "java"
        and home in " ".join(one.info["cmdline"] or ())
        and (since is None or one.info["create_time"] >= since)
    ]
    if java or read_record(session.home.settings) is not None:
        raise RuntimeError("An engine was started for work that needs none.")


def _forget_peak() -> None:
    """Resets :func:`_peak`. On Linux only; elsewhere the peak is that of the whole process."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as told:
            told.write("5")
    except OSError:
        return


def _peak() -> float:
    """Returns the peak memory of this process, in MiB."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
