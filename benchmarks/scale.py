"""Scale: whether 100 changes cost the same regardless of the size of directory and results, and of the number of past changes.

Tables of 10^4, 10^5 and 10^6 rows; refreshes of 100 keys at random paths and of 100 new files under one prefix; a stream's
read and a job's planning of such a refresh; the commit of a batch of 100 replaced files to a result table, at random paths
and adjacent; the memory of this process and of the JVM. The files do not exist: see ``directories``, which measures what
needs no engine. Outcomes are staged without a function. ``python -m benchmarks --part scale``; with ``--refreshes 500``
the largest directory is also measured after this many.

Costs of directories stay flat because a refresh reads only the row groups that its keys may be in, and appends its changes to
the tail; consumers read only the tail. Costs of results stay flat because of:

- Deletion vectors. Without them a commit rewrites the files it touches.
- ``_file_path IN (...)`` as the condition of what a batch replaces: Spark reads only the pages that may hold these paths.
- Compiling (whole-stage code generation) for result tables above 250,000 rows or 16 MiB: below the column by which Delta
  numbers rows no condition is pushed into the scan, so that it reads the paths of every file whose range has one of the
  keys, and compiled code reads a path five times as fast as interpreted code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil
import pyarrow as pa
from rich.table import Table

from benchmarks import directories
from benchmarks.contenders import function_named
from benchmarks.directories import KEYS, info_of, path_of, timed
from benchmarks.report import Figures
from volstream.api.session import Session
from volstream.base.definitions import FileJob, QueueType
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.changes.directory import table
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.jobs.batches.results import ResultTables, changes_of
from volstream.jobs.batches.staged import Staged
from volstream.jobs.batches.stager import target_of_rows
from volstream.jobs.batches.staging import replied
from volstream.jobs.plans import plan
from volstream.jobs.plans.plan import cut_plan
from volstream.jobs.plans.sizing import Limits
from volstream.spark.engine.owner import read_record
from volstream.sql.text import table_at
from volstream.tables.delta import direct, places
from volstream.tables.delta.ownership import Marker

#: Refreshes between checks whether the directory needs upkeep, like a busy daemon's.
_LOOK = 50

_PER_DAY = 1000

#: Separates a scenario's name from the number of refreshes before it.
_AFTER = ", after "

_T = TypeVar("_T")


class Results:
    """A job's result table with a row for each of ``rows`` files, and commits of batches to it."""

    def __init__(self, session: Session, rows: int, scratch: Path) -> None:
        name = f"results_{rows}"
        self._session = session
        self._random = random.Random(rows)
        self._rows = rows
        self._commits = 0
        self._scratch = scratch / name
        (self._scratch / "volume").mkdir(parents=True)
        session.volumes.create(name, str(self._scratch / "volume"), queue_type=QueueType.NONE)
        session.volumes.refresh(name)
        session.jobs.create(name, function_named("summarise"), name, volume=name)
        job = session.home.catalog.jobs.get(Name.parse(name))
        assert isinstance(job, FileJob), "created with a function"
        self._job = replace(ResultTables(session.home).prepare(job), clean=False)
        self._location = places.table_location(session.home.warehouse, job.into)
        stream = session.home.catalog.streams.by_id(job.stream_id)
        covered = None if stream is None else session.home.reader.pin(stream)
        assert covered is not None, "the volume was listed"
        self._covered = covered
        session.spark.sql(
            f"INSERT INTO {table_at(self._location)} SELECT sha2(CAST(id AS STRING), 256), id % 100, 'a line', "
            f"format_string('day-%05d/file-%04d', id DIV {_PER_DAY}, id % {_PER_DAY}), '0', 1, '', current_timestamp() "
            f"FROM range(0, {rows}, 1, 2)"
        ).collect()

    def random_paths(self) -> float:
        """Returns the seconds of the commit of a batch of files all over the table."""
        return self._commit(sorted(self._random.sample(range(self._rows), KEYS)))

    def one_prefix(self) -> float:
        """Returns the seconds of the commit of a batch of adjacent files."""
        first = self._random.randrange(self._rows - KEYS)
        return self._commit(range(first, first + KEYS))

    def _commit(self, numbers: Sequence[int]) -> float:
        self._commits += 1
        row = {"sha256": f"{self._commits:064}", "words": 1, "first_line": "another line"}
        outcomes = [FileOutcome(FileTask(info_of(path_of(number), 1), 2), [row]) for number in numbers]
        made, batch = self._planned([path_of(number) for number in numbers])
        location = str(self._scratch / f"staged-{self._commits}")
        target = target_of_rows(self._job, location, batch.id)
        replies = replied(outcomes, target, 0)
        staged = Staged.of(location, target, (pa.Table.from_batches([reply]) for reply in replies))
        changes, marker = changes_of(self._job, made, batch, staged), Marker("benchmark", self._commits, {})
        return timed(lambda: direct.commit(self._location, marker, changes))

    def _planned(self, paths: Sequence[str]) -> tuple[Plan, Batch]:
        location = str(self._scratch / f"plan-{self._commits}")
        rows = table.rows_of_files([info_of(path, 1) for path in paths], lambda path: path)
        versions = pa.repeat(pa.scalar(2, pa.int64()), len(paths))
        plan.write([plan.files_of_rows(rows.append_column("commit_version", versions), plan.REPLACE)], location)
        made, [batch] = cut_plan(
            f"benchmark-{self._commits}", self._job, PlanKind.STREAM, self._covered, location, Limits(len(paths), 1 << 40)
        )
        return made, batch


class Directory(directories.Directory):
    """A directory with a stream on it, and a job."""

    def __init__(self, session: Session, rows: int, scratch: Path) -> None:
        name = f"scale_{rows}"
        super().__init__(session, rows, scratch, name)
        self._session = session
        self._stream, self._job = f"{name}_stream", f"{name}_job"
        session.streams.create(self._stream, name)
        # No file meets the condition, so that only planning is measured.
        session.jobs.create(self._job, function_named("summarise"), self._job, volume=name, where="size < 0")
        session.jobs.run(self._job)

    def read(self) -> float:
        """Returns the seconds of a read of the stream, after a refresh."""
        self._session.streams.advance(self._stream)
        self.random_paths()
        return timed(lambda: self._session.table(self._stream).toArrow())

    def plan(self) -> float:
        """Returns the seconds of a run that plans a refresh without any file to process."""
        self._session.jobs.run(self._job)
        self.random_paths()
        return timed(lambda: self._session.jobs.run(self._job))

    def keep_up(self) -> float:
        """Returns the seconds of the directory's upkeep; consumers keep up."""
        self._session.streams.advance(self._stream)
        self._session.jobs.run(self._job)
        return self.maintain()


def measure(session: Session, scratch: Path, sizes: Sequence[int], rounds: int, refreshes: int, figures: Figures) -> None:
    """Runs all measurements; the sizes in turns, so that a busy minute affects them all."""
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
                figures.note("upkeep", size, "volstream", directory.keep_up())
        _rounds(_OF_DIRECTORIES, {size: directory}, rounds, f"{_AFTER}{refreshes} refreshes", figures)
    engine = read_record(session.home.settings)
    for name, pid in (("driver, MiB", None), ("JVM, MiB", engine.jvm_pid if engine else None)):
        figures.note(f"memory of the {name}", max(sizes), "volstream", psutil.Process(pid).memory_info().rss / (1 << 20))


def scale_table(figures: Figures) -> Table:
    """Returns the medians by size, and the ratio of the largest to the smallest."""
    found = figures.all()
    sizes = sorted({one.files for one in found})
    table_ = Table(title="Seconds of 100 changes, medians")
    table_.add_column("")
    for size in sizes:
        table_.add_column(f"{size:,} rows", justify="right")
    table_.add_column("ratio", justify="right")
    minimum = {one.scenario: one.median for one in found if one.files == sizes[0]}
    for scenario in dict.fromkeys(one.scenario for one in found):
        medians = {one.files: one.median for one in found if one.scenario == scenario}
        first = medians.get(sizes[0]) or minimum.get(scenario.partition(_AFTER)[0])
        ratio = medians[sizes[-1]] / first if first and sizes[-1] in medians else None
        cells = [f"{medians[size]:.2f}" if size in medians else "" for size in sizes]
        table_.add_row(scenario, *cells, "" if ratio is None else f"{ratio:.2f}")
    return table_


_OF_DIRECTORIES = {
    "refresh, random paths": Directory.random_paths,
    "refresh, one prefix": Directory.one_prefix,
    "stream read": Directory.read,
    "planning": Directory.plan,
}
_OF_RESULTS = {"result commit, random paths": Results.random_paths, "result commit, one prefix": Results.one_prefix}


def _rounds(
    steps: Mapping[str, Callable[[_T], float]], of: Mapping[int, _T], rounds: int, suffix: str, figures: Figures, first: int = 0
) -> None:
    for number in range(rounds):
        for scenario, step in steps.items():
            for size, one in of.items():
                seconds = step(one)
                if number >= first:
                    figures.note(f"{scenario}{suffix}", size, "volstream", seconds)
