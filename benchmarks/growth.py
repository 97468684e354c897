"""A table under many small commits: what a commit and a read cost after 100,000 of them, compared with a young table.

Each commit has one file's row and goes in as a job's does, with the same upkeep after it; every fourth replaces the row of a file
that was there. Without function and stream, which cost the same whatever the table is; Spark reads it.
``python -m benchmarks --part growth``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from statistics import quantiles

import pyarrow as pa
from rich.table import Table

from volstream.api.session import Session
from volstream.sql.text import table_at
from volstream.tables.delta import direct, history, upkeep
from volstream.tables.delta.ownership import UPKEEP, Marker
from volstream.tables.delta.places import open_table

COMMITS = 100_000

#: Commits of a young table, and of a measurement; and how often the table is measured.
_YOUNG, _MEASURED, _POINTS = 100, 1_000, 10

_PATH = "_file_path"

_SCHEMA = pa.schema(
    [
        ("words", pa.int64()),
        ("title", pa.string()),
        (_PATH, pa.string()),
        ("_file_version", pa.string()),
        ("_processed_at", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True)
class Cost:
    """What a table costs after ``commits``.

    Attributes:
        middle, slow: median and 99th percentile of a commit, in milliseconds, checkpoints included; of the table, and of a young
            one in turns with it.
        upkeep: milliseconds of upkeep a commit, which follows it.
        read: seconds of a read of the whole table between two commits, once the job has rested, and of a copy made at once.
        files, log, folder: data files in the version; all files in the folder's log; all others in the folder.
    """

    commits: int
    middle: tuple[float, float]
    slow: tuple[float, float]
    upkeep: float
    read: tuple[float, float, float]
    files: int
    log: int
    folder: int


class _Live:
    """A table that gets commits of one file each."""

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self.random, self.paths, self.commits = Random(1), list[str](), 0
        direct.create(self.location, _SCHEMA, {UPKEEP: "on"})

    def commit(self) -> tuple[float, float]:
        """Commits once; returns the seconds of the commit and of the upkeep after it."""
        self.commits += 1
        new = not self.paths or self.commits % 4
        path = f"year/{self.random.randrange(10_000):05d}/{self.commits:09d}.txt"
        if new:
            self.paths.append(path)
        else:
            path = self.random.choice(self.paths)
        row = [self.commits, f"title of {self.commits}", path, str(self.commits), time.time_ns() // 1000]
        rows = pa.table([pa.array([value], column.type) for value, column in zip(row, _SCHEMA, strict=True)], _SCHEMA)
        began = time.perf_counter()
        change = direct.RowChanges([rows], _SCHEMA, _PATH, [path])
        assert direct.commit(self.location, Marker("growth", self.commits, {"batch": self.commits}), change)
        committed = time.perf_counter()
        if upkeep.is_due(self.location, 1):
            while upkeep.compact(self.location, _PATH):
                pass
            if upkeep.is_old(self.location, 1):
                upkeep.clean(self.location, may_go=lambda *_: True)
        return committed - began, time.perf_counter() - committed


def run(session: Session, folder: Path, commits: int) -> Iterator[Cost]:
    """Commits that often; yields what the table costs after each tenth."""
    # An hour has fifty times as many commits here as where one comes each second.
    history.READING = timedelta(hours=1) / 50
    live = _Live(folder / "table")
    for point in range(1, _POINTS + 1):
        while live.commits < commits * point // _POINTS - _MEASURED:
            live.commit()
        young = _Live(folder / f"young-{point}")
        for _ in range(_YOUNG):
            young.commit()
        seconds = [(live.commit(), young.commit()) for _ in range(_MEASURED)]
        cuts = [quantiles([pair[which][0] * 1000 for pair in seconds], n=100) for which in (0, 1)]
        yield Cost(
            live.commits,
            (cuts[0][49], cuts[1][49]),
            (cuts[0][98], cuts[1][98]),
            sum(pair[0][1] for pair in seconds) / _MEASURED * 1000,
            _reads(session, folder, live),
            len(open_table(live.location).file_uris()),
            len(os.listdir(f"{live.location}/_delta_log")),
            len(os.listdir(live.location)) - 1,
        )


def _reads(session: Session, folder: Path, live: _Live) -> tuple[float, float, float]:
    """Returns the seconds of a read of the table, of its like after a rest, and of a copy made at once, from opening them on: the
    best of ten, in turns."""
    rows = session.spark.read.format("delta").load(live.location).toArrow().cast(_SCHEMA)
    assert rows.num_rows == len(live.paths), f"{rows.num_rows} rows instead of {len(live.paths)}"
    rested, copy = (str(folder / f"{name}-{live.commits}") for name in ("rested", "copy"))
    shutil.copytree(live.location, rested)
    while upkeep.compact(rested, _PATH, without_vectors=True):
        pass
    direct.create(copy, _SCHEMA, {})
    direct.commit(copy, Marker("copy", 1, {}), direct.RowChanges([rows], _SCHEMA, _PATH, None))
    best = [float("inf")] * 3
    for _ in range(10):
        for number, table in enumerate((live.location, rested, copy)):
            began = time.perf_counter()
            query = "SELECT count(*), sum(words), max(title), max(_file_path), max(_processed_at)"
            session.spark.sql(f"{query} FROM {table_at(table)}").collect()
            best[number] = min(best[number], time.perf_counter() - began)
    return best[0], best[1], best[2]


def table(costs: Sequence[Cost]) -> Table:
    """Returns the costs as a table, each beside that of the young table or the fresh copy."""
    shown = Table("commits", "p50 ms", "p99 ms", "upkeep ms", "read s: between commits", "after a rest", "files", "log", "folder")
    for cost in costs:
        shown.add_row(
            f"{cost.commits:,}",
            *(f"{one:.1f} / {other:.1f} = {one / other:.2f}" for one, other in (cost.middle, cost.slow)),
            f"{cost.upkeep:.1f}",
            *(f"{one:.2f} / {cost.read[2]:.2f} = {one / cost.read[2]:.2f}" for one in cost.read[:2]),
            *(f"{number:,}" for number in (cost.files, cost.log, cost.folder)),
        )
    return shown
