"""A long-lived home, simulated: the catalog under a million refreshes and a hundred thousand batches, without an engine.

Each refresh and each batch goes through the catalog like the daemon's, at simulated times: the run spans ten times the
period for which history is kept, and old history is removed. Time, disk and memory should stay the same from step to step.
``python -m benchmarks --part soak``; ``--refreshes 100000`` for a quick run.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean

import psutil
from rich.table import Table

from volstream.base.definitions import FileJob, JobState, OnMove, QueueType, SourceKind, Stream, StreamMode, Volume, Write
from volstream.base.model.hints import Rejection
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, BatchState, Plan, PlanKind, PlanState, Refresh, Target
from volstream.catalog import Catalog
from volstream.catalog.consumptions import BatchOutcome

REFRESHES, STEPS = 1_000_000, 10

#: Number of refreshes per batch.
_A_BATCH = 10

#: Number of history clean-ups per step, and of queries whose mean is taken.
_SWEEPS, _ASKED = 10, 50

#: Number of refreshes kept regardless of age, like ``directory_versions``.
_KEPT = 1000

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PlanStep:
    """The results of one step of the run.

    Attributes:
        refresh, batch: milliseconds of one, with all of the catalog's work for it.
        forget: milliseconds of one clean-up of the history.
        ask: milliseconds of each recurring query.
        disk: bytes of the catalog, log included.
        memory: bytes of this process.
    """

    refreshes: int
    refresh: float
    batch: float
    forget: float
    ask: dict[str, float]
    disk: int
    memory: int


def run(folder: Path, refreshes: int) -> Iterator[PlanStep]:
    """Runs this many refreshes, in :data:`STEPS` steps."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(f"sqlite:///{folder}/catalog.db")
    try:
        volume, stream, job = _definitions(catalog)
        number, a_step = 0, refreshes // STEPS
        sweep_every = max(1, a_step // _SWEEPS)
        for _ in range(STEPS):
            spent = {"refresh": 0.0, "batch": 0.0, "forget": 0.0}
            for _ in range(a_step):
                number += 1
                spent["refresh"] += _timed(lambda: _refresh(catalog, volume, number))  # noqa: B023  # called at once
                if number % _A_BATCH == 0:
                    spent["batch"] += _timed(lambda: _batch(catalog, stream.id, job, number))  # noqa: B023
                if number % sweep_every == 0:
                    before = _at(number) - timedelta(minutes=a_step)
                    spent["forget"] += _timed(lambda: catalog.history.forget(before, kept=_KEPT))  # noqa: B023
            gc.collect()
            yield PlanStep(
                number,
                1000 * spent["refresh"] / a_step,
                1000 * spent["batch"] / (a_step / _A_BATCH),
                1000 * spent["forget"] / _SWEEPS,
                _asked(catalog, volume, stream, job),
                _size(folder),
                psutil.Process().memory_info().rss,
            )
    finally:
        catalog.close()


def growth(steps: Sequence[PlanStep]) -> dict[str, float]:
    """Returns by how much each figure grew in the second half: the mean of its last third over that of its second one.

    The first third is left out: history is complete after the first step, caches and free lists are soon afterwards.
    """
    third = len(steps) // 3
    return {name: fmean(values[-third:]) / fmean(values[third : 2 * third]) for name, values in _series(steps).items()}


def _series(steps: Sequence[PlanStep]) -> dict[str, list[float]]:
    return {
        "time of a refresh": [step.refresh for step in steps],
        "time of a batch": [step.batch for step in steps],
        "disk": [float(step.disk) for step in steps],
        "memory": [float(step.memory) for step in steps],
    }


def draw(steps: Sequence[PlanStep], target: Path) -> None:
    """Draws a line for each figure, relative to its mean, over the number of refreshes."""
    from matplotlib.figure import Figure as Chart

    chart = Chart(figsize=(7, 3), layout="constrained", facecolor="#ffffff")
    panel = chart.subplots()
    at = [step.refreshes for step in steps]
    for name, values in _series(steps).items():
        panel.plot(at, [value / fmean(values) for value in values], marker="o", label=name)
    panel.set_ylim(0, 2)
    panel.set_xlabel("refreshes")
    panel.set_ylabel("share of the mean")
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.legend(frameon=False)
    chart.savefig(target, dpi=150)


def table(steps: list[PlanStep]) -> Table:
    """Returns the steps, one per line."""
    shown = Table("refreshes", "ms a refresh", "ms a batch", "ms to forget", "ms to ask", "MiB of disk", "MiB of memory")
    for step in steps:
        asked = ", ".join(f"{name} {took:.2f}" for name, took in step.ask.items())
        shown.add_row(
            f"{step.refreshes:,}",
            f"{step.refresh:.2f}",
            f"{step.batch:.2f}",
            f"{step.forget:.0f}",
            asked,
            f"{step.disk / 2**20:.1f}",
            f"{step.memory / 2**20:.0f}",
        )
    return shown


def _refresh(catalog: Catalog, volume: Volume, number: int) -> None:
    """Records like the volume's writer: a refresh, a key to check again, and now and then a rejected message."""
    catalog.refreshes.record(Refresh(volume.id, number, "events", 1, 1, 1, 1000, _at(number)))
    asked = catalog.refreshes.ask_check(volume.id, [f"{number:09}"])
    catalog.refreshes.checked(volume.id, {f"{number:09}": asked})
    if number % _A_BATCH == 0:
        catalog.refreshes.reject(volume.id, [Rejection(f"message {number}", "It is of no use.")])


def _batch(catalog: Catalog, stream_id: str, job: FileJob, number: int) -> None:
    """Records like a run: a plan of one batch, an attempt, its end."""
    stream = catalog.streams.by_id(stream_id)
    assert stream is not None, "it is never dropped"
    identity, now = uuid.uuid4().hex, _at(number)
    plan = Plan(
        id=identity,
        kind=PlanKind.STREAM,
        state=PlanState.OPEN,
        job_id=job.id,
        stream_id=stream.id,
        table_id="table",
        from_version=stream.offset,
        to_version=number,
        initial=False,
        location=f"/plans/{identity}",
        where=None,
        files=10,
        bytes=1000,
        created_on=now,
    )
    batch = Batch(
        id=identity[:16],
        plan_id=identity,
        job_id=job.id,
        stream_id=stream.id,
        number=1,
        state=BatchState.PLANNED,
        after_path=None,
        until_path=f"{number:09}",
        files=10,
        replaced=0,
        removals=0,
        moves=0,
        bytes=1000,
        sequence=None,
        attempts=0,
        succeeded=0,
        failed=0,
        rows=0,
        created_on=now,
        committed_on=None,
    )
    catalog.consumptions.open((plan, [batch], stream))
    intent = catalog.consumptions.begin(batch, owner="soak", target=Target("/t", "table", number))
    catalog.consumptions.commit(intent, BatchOutcome(10, 0, 10, seconds=1.0))


def _asked(catalog: Catalog, volume: Volume, stream: Stream, job: FileJob) -> dict[str, float]:
    """Returns the milliseconds of the queries of daemon, scheduler and scrapes."""
    questions: dict[str, Callable[[], object]] = {
        "open plan": lambda: catalog.consumptions.open_plan(stream.id),
        "waiting": lambda: catalog.reports.waiting(job.id),
        "totals": lambda: catalog.reports.totals(job.id),
        "lag": lambda: catalog.refreshes.changed_after(volume.id, None),
        "files": lambda: catalog.refreshes.file_count(volume.id),
        "needed": lambda: catalog.refreshes.needed_after(volume.id),
        "measured": lambda: catalog.reports.measured(job.id),
    }
    return {name: 1000 * sum(_timed(ask) for _ in range(_ASKED)) / _ASKED for name, ask in questions.items()}


def _definitions(catalog: Catalog) -> tuple[Volume, Stream, FileJob]:
    volume = Volume(
        id=str(uuid.uuid4()),
        name=Name.parse("files"),
        location="memory://files",
        connection_id=None,
        queue_type=QueueType.NONE,
        queue_name=None,
        virtual_cluster="DEFAULT",
        recursive=True,
        patterns=(),
        ignores=(),
        comment=None,
        created_on=_BEGIN,
    )
    stream = Stream(
        id=str(uuid.uuid4()),
        name=Name.parse("changes"),
        source_kind=SourceKind.VOLUME,
        source_id=volume.id,
        source_name=volume.name,
        table_id="table",
        mode=StreamMode.STANDARD,
        offset=1,
        initial=False,
        sequence=0,
        comment=None,
        created_on=_BEGIN,
    )
    job = FileJob(
        id=str(uuid.uuid4()),
        name=Name.parse("count"),
        stream_id=stream.id,
        function="/f.py:f",
        search_path=None,
        fingerprint="",
        returns="n BIGINT",
        into=Name.parse("counts"),
        where=None,
        write=Write.UPSERT,
        on_move=OnMove.RERUN,
        retries=3,
        pause_after=3,
        timeout=None,
        isolate=False,
        max_files=None,
        max_bytes=None,
        arguments={},
        state=JobState.ACTIVE,
        state_reason=None,
        owns_stream=False,
        clean=False,
        failed_batches=0,
        comment=None,
        created_on=_BEGIN,
    )
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, volume)
        catalog.streams.add(transaction, stream)
        catalog.jobs.add(transaction, job)
    return volume, stream, job


def _at(number: int) -> datetime:
    return _BEGIN + timedelta(minutes=number)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("catalog.db*"))


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
