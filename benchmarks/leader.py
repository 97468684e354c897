"""What a run's own process does for a million files, step by step, while executors call the function.

Files and executors are made up: the replies are those of so many tasks, made by the code of the executors, but without Spark and
without a call. All else is a job's run: first of new files, then of the same files, all overwritten, whose rows are replaced. The
executors' part is left out of the figures, and nothing of the run happens meanwhile, as it would in the background.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table

from benchmarks import directories
from benchmarks.contenders import function_named
from benchmarks.directories import info_of, path_of
from benchmarks.report import Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import Batch, Plan
from volstream.catalog.consumptions import Consumptions
from volstream.changes.streams.consume import Consumer
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.jobs.batches import attempt, ledger, stager
from volstream.jobs.batches.attempt import BatchExecutor, LookAhead
from volstream.jobs.batches.results import ResultTables
from volstream.jobs.batches.staged import Staged
from volstream.jobs.batches.staging import REPLY, replied
from volstream.jobs.plans import plan
from volstream.jobs.plans.planner import Planner
from volstream.spark.frames import batches
from volstream.tables.delta import places

NEW, OVERWRITTEN = "new files", "overwritten files"

#: Tasks of a batch.
_EXECUTORS = 100

#: Figures are per so many files.
_PER = 1_000_000

#: The steps, by what is called for them. A step's seconds leave out those of the steps that it calls.
_STEPS: dict[str, tuple[tuple[Any, str], ...]] = {
    "plan: changes to a sorted list of files": ((Planner, "_write_range"),),
    "plan: cut into batches": ((Planner, "_cut"), (Planner, "resize")),
    "catalog: batches and attempts": (
        (Consumptions, "open"),
        (Consumptions, "next_batch"),
        (Consumptions, "begin"),
        (Consumptions, "commit"),
        (Consumer, "begin"),
    ),
    "outcomes: read from the replies": ((Staged, "of"),),
    "outcomes: counted": ((Staged, "totals"),),
    "failures": ((attempt, "earlier_failures"), (BatchExecutor, "_record")),
    "ledger": ((ledger, "record"),),
    "commit to the table": ((attempt, "changes_of"), (Consumer, "write")),
    "upkeep of the table": ((ResultTables, "compact"),),
}

_FETCHED, _REST, _ALL = "replies: fetched through Spark", "all else", "all"

#: Not a step.
_VERIFIED = "volstream verify"


def measure(session: Session, scratch: Path, rows: int, figures: Figures) -> None:
    """Notes the seconds of each step per million files. Raises WrongRowsError."""
    session.spark.range(1).collect()  # starts the engine
    made = _Directory(session, rows, scratch)
    session.jobs.create("leader", function_named("sleeping"), "leader", volume="leader", returns="n BIGINT")
    for contender in (NEW, OVERWRITTEN):
        if contender == OVERWRITTEN:
            made.refresh([path_of(number) for number in range(rows)])
        executors = _Executors()
        seconds = executors.lead(lambda: session.jobs.run("leader"))
        _check(session, rows)
        seconds[_FETCHED] = _fetch(session, executors.replies, scratch / f"{contender.split()[0]}-replies.parquet")
        seconds[_ALL] = sum(seconds.values())
        seconds[_VERIFIED] = _verify(session, rows)
        for step, took in seconds.items():
            figures.note(step, rows, contender, took * _PER / rows)


def table(figures: Figures, rows: int) -> Table:
    """Returns the seconds of each step."""
    table_ = Table(title=f"Seconds of the leader per {_PER:,} files, of {rows:,}")
    table_.add_column("")
    medians = {(one.scenario, one.contender): one.median for one in figures.all()}
    for contender in (NEW, OVERWRITTEN):
        table_.add_column(contender, justify="right")
    for step in dict.fromkeys(step for step, _ in medians):
        table_.add_row(step, *(f"{medians[step, contender]:.2f}" for contender in (NEW, OVERWRITTEN)))
    table_.add_row("files a second", *(f"{_PER / medians[_ALL, contender]:,.0f}" for contender in (NEW, OVERWRITTEN)))
    return table_


class _Store(directories.Made):
    """A store in which all files were overwritten, with other contents each, but with few bytes, which limit no batch."""

    def head(self, path: str) -> FileInfo | None:
        """Returns the second version."""
        return info_of(path, 1)._replace(etag=f"{crc32(path.encode()):08x}")


class _Directory(directories.Directory):
    def __init__(self, session: Session, rows: int, scratch: Path) -> None:
        super().__init__(session, rows, scratch, "leader")
        self._store = _Store()


class _Executors:
    """Stand in for Spark and its tasks.

    Attributes:
        replies: all of them.
    """

    def __init__(self) -> None:
        self.replies: list[pa.RecordBatch] = []
        self._clock = _Clock()

    def lead(self, run: Callable[[], object]) -> dict[str, float]:
        """Returns the seconds of each step of a run."""
        with ExitStack() as patched:
            for owner, name, new in (
                (stager, "stage", self._stage),
                (plan, "work_of", _work_of),
                (LookAhead, "begin", lambda *_: None),
            ):
                patched.enter_context(patch.object(owner, name, new))
            for step, called in _STEPS.items():
                for owner, name in called:
                    patched.enter_context(self._clock.on(owner, name, step))
            with self._clock.step(_REST):
                run()
        return {step: self._clock.seconds[step] for step in (*_STEPS, _REST)}

    def _stage(
        self, services: Any, location: str, target: Any, files: pa.Table, work: Any, job: Any, count: int, **about: str
    ) -> Staged:
        del services, work, job, about
        with self._clock.step("executors"):
            size = -(-count // _EXECUTORS)
            tasks = (_outcomes(files.slice(start, size)) for start in range(0, count, size))
            replies = [reply for task in tasks for reply in replied(task, target, 0)]
            self.replies += replies
        return Staged.of(location, target, (pa.Table.from_batches([reply]) for reply in replies))


class _Clock:
    """Measures steps, each without those inside of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measures the block."""
        self._inside.append(0.0)
        started = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - started
            self.seconds[name] += took - self._inside.pop()
            self._inside[-1] += took

    def on(self, owner: Any, name: str, step: str) -> Any:
        """Returns a patch that measures the calls of an attribute."""
        original = getattr(owner, name)

        def measured(*arguments: Any, **named: Any) -> Any:
            with self.step(step):
                return original(*arguments, **named)

        return patch.object(owner, name, measured)


def _work_of(session: Any, open_plan: Plan, batch: Batch, without: Any = ()) -> pa.Table:
    """Returns what Spark would give the tasks."""
    del session, without
    path = pc.field("relative_path")
    within = path <= batch.until_path if batch.after_path is None else (path <= batch.until_path) & (path > batch.after_path)
    return places.dataset(open_plan.location).to_table(filter=within & (pc.field("action") != plan.REMOVE))


def _outcomes(files: pa.Table) -> Iterator[FileOutcome]:
    """Yields what a task makes of files that all have one row."""
    columns = [files[name].to_pylist() for name in (*FileInfo._fields, "commit_version")]
    for *info, version in zip(*columns, strict=True):
        yield FileOutcome(FileTask(FileInfo(*info), version), [{"n": 1}])


def _fetch(session: Session, replies: list[pa.RecordBatch], file: Path) -> float:
    """Returns the seconds of the way of replies through Spark to this process, with the reading of a file of them."""
    pq.write_table(pa.Table.from_batches(replies, REPLY), file)
    frame = session.spark.read.parquet(str(file))
    frame.limit(1).collect()
    started = time.perf_counter()
    fetched = sum(part.num_rows for part in batches(frame))
    seconds = time.perf_counter() - started
    if fetched != sum(reply.num_rows for reply in replies):
        raise WrongRowsError(f"{fetched} replies came.")
    return seconds


def _verify(session: Session, rows: int) -> float:
    """Returns how long it takes to find the table right."""
    started = time.perf_counter()
    found = session.jobs.verify("leader")
    if not found.is_proven or found.files != rows:
        raise WrongRowsError(f"Verified: {found}.")
    return time.perf_counter() - started


def _check(session: Session, rows: int) -> None:
    [row] = (
        session.sql(
            "SELECT count(*) AS n, count(DISTINCT _file_path) AS files, count(DISTINCT _file_version) AS versions, "
            "sum(n) AS total FROM leader"
        )
        .toArrow()
        .to_pylist()
    )
    if not row["n"] == row["files"] == row["total"] == rows:
        raise WrongRowsError(f"Of {rows} files: {row}.")
