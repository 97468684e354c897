"""Scale: whether 100 changes cost the same however large directory and results are, and however often they were changed.

Tables of 10^4, 10^5 and 10^6 rows; refreshes of 100 keys at random paths and of 100 new files under one prefix; a stream's
read and a job's planning of such a refresh; the commit of a batch of 100 replaced files to a result table, at random paths
and beside each other; the memory of this process and of the JVM. The files are not there: the store answers what it is
asked, and outcomes are staged without a function. ``python -m benchmarks --part scale``; with ``--refreshes 500`` the largest
directory also after so many.

What keeps it flat:

- A directory is a base in the order of paths, in files of 10,000 rows, and a tail of changes; a refresh reads the row groups
  of the base that may hold its keys, and adds a file to the tail. The tail is worked into the base when that is worth it:
  then the files that it touches are written anew, and no others.
- Deletion vectors in the result table. Without them a commit rewrites the files it touches.
- ``_file_path IN (...)`` as the condition of what a batch replaces: Spark reads only the pages that may hold these paths.
- Compiling (whole-stage code generation) for result tables above 250,000 rows or 16 MiB: below the column by which Delta
  numbers rows no condition is pushed into the scan, so that this look reads the paths of every file whose range has one of
  the keys, and a path is read five times as fast compiled as interpreted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks.contenders import function_named
from benchmarks.report import Figures
from volstream.delta import folders
from volstream.delta.writer import DeltaWriter, Marker
from volstream.directory import table
from volstream.directory.refresh import add_keys
from volstream.directory.writer import DirectoryWriter
from volstream.engine import record
from volstream.jobs import plan
from volstream.jobs.outcomes import outcome_schema
from volstream.jobs.results import ResultTables, write_batch
from volstream.jobs.schema import of_job
from volstream.jobs.sizing import Limits
from volstream.jobs.staged import Staged
from volstream.model.files import FileInfo, Finding
from volstream.model.names import Name
from volstream.model.objects import QueueType
from volstream.model.selection import Selection
from volstream.model.work import Batch, Plan, PlanKind
from volstream.session import Session
from volstream.sqltext import table_at

#: Changes of one refresh.
_KEYS = 100

#: Refreshes between two times that the directory's tables are put in order, as by the daemon when it is idle.
_LOOK = 10

#: Rows that are made at once.
_CHUNK = 100_000

_PER_DAY = 1000

#: Between a scenario's name and the number of refreshes before it.
_AFTER = ", after "

_T = TypeVar("_T")


class Made:
    """A store of files that only exist when they are asked for, each time in a new version."""

    def __init__(self) -> None:
        self._version = 0

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """Nothing: it is not listed here."""
        del prefix, selection
        return iter(())

    def head(self, path: str) -> FileInfo | None:
        """The newest version."""
        self._version += 1
        return _info(path, self._version)

    def open(self, path: str) -> BinaryIO:
        """None has a content."""
        raise FileNotFoundError(path)

    def url(self, path: str) -> str:
        """A URL."""
        return f"file:///made/{path}"


class Results:
    """A job's result table with a row for each of ``rows`` files, and commits of batches to it."""

    def __init__(self, session: Session, rows: int, scratch: Path) -> None:
        name = f"results_{rows}"
        self._session = session
        self._random = random.Random(rows)
        self._rows = rows
        self._commits = 0
        self._scratch = scratch / name
        self._delta = DeltaWriter(session.gateway)
        (self._scratch / "volume").mkdir(parents=True)
        session.volumes.create(name, str(self._scratch / "volume"), queue_type=QueueType.NONE)
        session.volumes.refresh(name)
        session.jobs.create(name, function_named("summarise"), name, volume=name)
        job = session.catalog.jobs.get(Name.parse(name))
        self._job = replace(ResultTables(session.catalog, self._delta, session.warehouse).prepare(job), clean=False)
        self._location = folders.table_location(session.warehouse, job.into)
        stream = session.catalog.streams.by_id(job.stream_id)
        covered = None if stream is None else session.reader.pin(stream)
        assert covered is not None, "the volume was listed"
        self._covered = covered
        session.spark.sql(
            f"INSERT INTO {table_at(self._location)} SELECT sha2(CAST(id AS STRING), 256), id % 100, 'a line', "
            f"format_string('day-%05d/file-%04d', id DIV {_PER_DAY}, id % {_PER_DAY}), '0', 1, '', current_timestamp() "
            f"FROM range(0, {rows}, 1, 2)"
        ).collect()

    def random_paths(self) -> float:
        """Seconds of the commit of a batch of files all over the table."""
        return self._commit(sorted(self._random.sample(range(self._rows), _KEYS)))

    def one_prefix(self) -> float:
        """Seconds of the commit of a batch of files beside each other."""
        first = self._random.randrange(self._rows - _KEYS)
        return self._commit(range(first, first + _KEYS))

    def _commit(self, numbers: Sequence[int]) -> float:
        self._commits += 1
        schema = outcome_schema(of_job(self._job))
        outcomes = [
            {"path": _path(number), "file_version": "1", "commit_version": 2, "rows": 1, "processed_at": datetime.now(UTC),
             "result": {"sha256": f"{self._commits:064}", "words": 1, "first_line": "another line"}}
            for number in numbers
        ]  # fmt: skip
        staged = Staged(str(self._scratch / f"staged-{self._commits}"), of_job(self._job))
        Path(staged.location).mkdir()
        pq.write_table(pa.Table.from_pylist(outcomes, schema=schema), f"{staged.location}/part-0.parquet")
        made, batch = self._planned([_path(number) for number in numbers])
        self._delta.prepare(self._location)  # a job asks while its function runs

        def commit() -> None:
            with self._delta.marked(Marker("benchmark", self._commits, {}), self._location) as session:
                write_batch(session, self._delta, self._job, made, batch, self._location, staged)

        return _timed(commit)

    def _planned(self, paths: Sequence[str]) -> tuple[Plan, Batch]:
        location = str(self._scratch / f"plan-{self._commits}")
        rows = table.rows([_info(path, 1) for path in paths], lambda path: path)
        wrote = rows.append_column("commit_version", pa.array([2] * len(paths), pa.int64()))
        plan.write([plan.files_of_rows(wrote.sort_by("relative_path"), plan.REPLACE)], location)
        made, [batch] = plan.cut(
            f"benchmark-{self._commits}",
            self._job,
            PlanKind.STREAM,
            self._covered,
            location,
            Limits(len(paths), 1 << 40),
        )
        return made, batch


class Directory:
    """A directory of ``rows`` rows, and the refreshes of it."""

    def __init__(self, session: Session, rows: int, scratch: Path) -> None:
        name = f"scale_{rows}"
        self._session = session
        self._random = random.Random(rows)
        self._rows = rows
        self._new = 0
        self._store = Made()
        (scratch / name).mkdir()
        volume = session.volumes.create(name, str(scratch / name), queue_type=QueueType.NONE)
        kept = session.settings.directory_versions
        self._writer = DirectoryWriter(volume, session.catalog, session.warehouse, kept)
        self._writer.commit_first(self._writer.open(), self._rows_in_order(), rows)
        session.catalog.volumes.change(self._writer.volume, reconciled_on=datetime.now(UTC))
        self._stream, self._job = f"{name}_stream", f"{name}_job"
        session.streams.create(self._stream, name)
        # Nothing is to be processed: that leaves the planning.
        session.jobs.create(self._job, function_named("summarise"), self._job, volume=name, where="size < 0")
        session.jobs.run(self._job)

    def random_paths(self) -> float:
        """Seconds of a refresh of keys all over the table."""
        return self._refresh([_path(self._random.randrange(self._rows)) for _ in range(_KEYS)])

    def one_prefix(self) -> float:
        """Seconds of a refresh of new keys beside each other."""
        self._new += _KEYS
        return self._refresh([f"day-99999/new-{self._new + number:08d}" for number in range(_KEYS)])

    def read(self) -> float:
        """Seconds of a read of the stream, after a refresh."""
        self._session.streams.advance(self._stream)
        self.random_paths()
        return _timed(lambda: self._session.table(self._stream).toArrow())

    def plan(self) -> float:
        """Seconds of a run that plans a refresh of which nothing is to be processed."""
        self._session.jobs.run(self._job)
        self.random_paths()
        return _timed(lambda: self._session.jobs.run(self._job))

    def maintain(self) -> float:
        """Seconds of the upkeep that the daemon does when it is idle; consumers keep up."""
        self._session.streams.advance(self._stream)
        self._session.jobs.run(self._job)
        return _timed(self._writer.maintain)

    def fold(self) -> float:
        """Seconds of working 100 changes at random paths into the base."""
        self.random_paths()
        return _timed(lambda: self._writer._fold(self._writer.open()))

    def _refresh(self, keys: Sequence[str]) -> float:
        def refresh() -> None:
            snapshot = self._writer.open()
            changes = self._writer.begin(snapshot)
            add_keys(changes, snapshot, self._store, list(dict.fromkeys(keys)), len(keys))
            self._writer.commit(snapshot, changes, "benchmark")

        return _timed(refresh)

    def _rows_in_order(self) -> Iterator[pa.Table]:
        for start in range(0, self._rows, _CHUNK):
            made = range(start, min(self._rows, start + _CHUNK))
            yield table.rows([_info(_path(number), 0) for number in made], self._store.url)


def measure(
    session: Session, scratch: Path, sizes: Sequence[int], rounds: int, refreshes: int, figures: Figures
) -> None:
    """All measurements; the sizes in turns, so that a busy minute meets them all."""
    directories = {size: Directory(session, size, scratch) for size in sizes}
    results = {size: Results(session, size, scratch) for size in sizes}
    _rounds(_OF_DIRECTORIES, directories, rounds + 1, "", figures, first=1)
    _rounds(_OF_RESULTS, results, rounds + 1, "", figures, first=1)
    if refreshes:
        size = max(sizes)
        directory = directories[size]
        for number in range(refreshes):
            _ = directory.random_paths() if number % 2 else directory.one_prefix()
            if number % _LOOK == _LOOK - 1:
                figures.note("upkeep", size, "volstream", directory.maintain())
        _rounds(_OF_DIRECTORIES, {size: directory}, rounds, f"{_AFTER}{refreshes} refreshes", figures)
    engine = record.read(session.settings)
    for name, pid in (("driver, MiB", None), ("JVM, MiB", engine.jvm_pid if engine else None)):
        figures.note(
            f"memory of the {name}", max(sizes), "volstream", psutil.Process(pid).memory_info().rss / (1 << 20)
        )


def scale_table(figures: Figures) -> Table:
    """The medians by size, and the largest in terms of the smallest."""
    found = figures.all()
    sizes = sorted({one.files for one in found})
    table_ = Table(title="Seconds of 100 changes, medians")
    table_.add_column("")
    for size in sizes:
        table_.add_column(f"{size:,} rows", justify="right")
    table_.add_column("ratio", justify="right")
    least = {one.scenario: one.median for one in found if one.files == sizes[0]}
    for scenario in dict.fromkeys(one.scenario for one in found):
        medians = {one.files: one.median for one in found if one.scenario == scenario}
        first = medians.get(sizes[0]) or least.get(scenario.partition(_AFTER)[0])
        ratio = medians[sizes[-1]] / first if first and sizes[-1] in medians else None
        cells = [f"{medians[size]:.3f}" if size in medians else "" for size in sizes]
        table_.add_row(scenario, *cells, "" if ratio is None else f"{ratio:.2f}")
    return table_


_OF_DIRECTORIES = {
    "refresh, random paths": Directory.random_paths,
    "refresh, one prefix": Directory.one_prefix,
    "fold": Directory.fold,
    "stream read": Directory.read,
    "planning": Directory.plan,
}
_OF_RESULTS = {
    "result commit, random paths": Results.random_paths,
    "result commit, one prefix": Results.one_prefix,
}


def _rounds(
    steps: Mapping[str, Callable[[_T], float]], of: Mapping[int, _T], rounds: int, suffix: str, figures: Figures,
    first: int = 0,
) -> None:  # fmt: skip
    for number in range(rounds):
        for scenario, step in steps.items():
            for size, one in of.items():
                seconds = step(one)
                if number >= first:
                    figures.note(f"{scenario}{suffix}", size, "volstream", seconds)


def _path(number: int) -> str:
    return f"day-{number // _PER_DAY:05d}/file-{number % _PER_DAY:04d}"


def _info(path: str, version: int) -> FileInfo:
    modified = datetime.fromtimestamp(1_700_000_000 + version, UTC)
    return FileInfo(path, 1000 + version, modified, f"{version:x}", None, "text/plain")


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
