"""Many volumes and jobs in one daemon: what it costs while nothing happens, and how it takes one change and one everywhere."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.table import Table as Shown

from benchmarks import queues
from benchmarks.contenders import function_named
from benchmarks.processes import command, daemon
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session
from volstream.tables.delta.lookup import queried_rows

NUMBERS = (10, 100, 400, 1000)

#: Files of each volume at the begin.
_FILES = 3

#: Rest before it counts as idle, and how long that is measured; rest between changes.
_REST_SECONDS, _IDLE_SECONDS, _GAP_SECONDS = 15.0, 60.0, 2.0

#: Changes of one file, in different volumes.
_CHANGES = 5

#: The longest that anything may take.
_LIMIT_SECONDS = 1800.0


@dataclass(frozen=True)
class Cost:
    """What a daemon with so many volumes and jobs costs.

    Attributes:
        idle: processor of the daemon's process, in percent of a core.
        live: seconds from a file's close to its row: the median of some volumes.
        create, fill, burst: milliseconds for each volume and job: to create it, its first rows, and one more file in all of them
            at once.
        work: milliseconds of processor, on all cores, of the daemon and its engine for each change of that burst; the rest is the
            benchmark's, and that of the cloud beside it.
        status: seconds that the command takes.
    """

    number: int
    create: float
    fill: float
    idle: float
    threads: int
    mebibytes: int
    live: float
    burst: float
    work: float
    status: float


#: The columns of the result, and how each is written.
_COLUMNS: Mapping[str, Callable[[Cost], str]] = {
    "volumes and jobs": lambda cost: f"{cost.number:,}",
    "created, each": lambda cost: f"{cost.create:.0f} ms",
    "filled, each": lambda cost: f"{cost.fill:.0f} ms",
    "idle, of a core": lambda cost: f"{cost.idle:.1f} %",
    "threads": lambda cost: f"{cost.threads}",
    "memory": lambda cost: f"{cost.mebibytes} MiB",
    "one file": lambda cost: f"{cost.live:.2f} s",
    "a file in all, each": lambda cost: f"{cost.burst:.0f} ms",
    "its processor": lambda cost: f"{cost.work:.0f} ms",
    "status": lambda cost: f"{cost.status:.2f} s",
}


class Folders:
    """A folder for each volume."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def volume(self, at: int) -> Mapping[str, Any]:
        """Returns the options of a volume, with its first files."""
        for name in range(_FILES):
            self.write(at, str(name))
        return {"location": str(self._folder / str(at))}

    def write(self, at: int, name: str) -> None:
        """Writes a file of a volume."""
        path = self._folder / str(at) / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{at} {name}")


class Prefixes(Folders):
    """A prefix of one bucket for each volume; one queue reports the changes of all."""

    def __init__(self, cloud: queues.Place) -> None:
        self._cloud = cloud

    def volume(self, at: int) -> Mapping[str, Any]:
        for name in range(_FILES):
            self._cloud.put(f"v{at}/{name}.txt")
        location = f"s3://{queues.BUCKET}/v{at}/"
        return {"location": location, "connection": "cloud", "queue_type": "sqs", "queue_name": self._queue(at)}

    def write(self, at: int, name: str) -> None:
        self._cloud.put(f"v{at}/{name}.txt")

    def _queue(self, at: int) -> str:  # noqa: ARG002  # one queue for all
        return self._cloud.heard


class Queues(Prefixes):
    """A prefix of one bucket, and a queue, for each volume."""

    def write(self, at: int, name: str) -> None:
        super().write(at, name)
        self._cloud.send(self._queue(at), [self._cloud.body(f"v{at}/{name}.txt")])

    def _queue(self, at: int) -> str:
        return f"q{at}"

    def volume(self, at: int) -> Mapping[str, Any]:
        self._cloud.make(self._queue(at))
        return super().volume(at)


#: Where the volumes are.
PLACES: Mapping[str, type[Folders]] = {"folders": Folders, "prefixes": Prefixes, "queues": Queues}


def run(folder: Path, numbers: Sequence[int], place: str) -> Iterator[Cost]:
    """Measures daemons with so many volumes and jobs, each on a home of its own. Raises WrongRowsError."""
    for number in numbers:
        with ExitStack() as resources:
            kind, inside = PLACES[place], folder / str(number)
            if issubclass(kind, Prefixes):
                cloud = resources.enter_context(queues.KINDS["sqs"]())
                os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
                yield _measure(inside, number, kind(cloud), cloud.access.endpoint)
            else:
                yield _measure(inside, number, kind(inside / "files"))


def table(costs: Sequence[Cost]) -> Shown:
    """Returns the costs as a table."""
    shown = Shown(*_COLUMNS)
    for cost in costs:
        shown.add_row(*(written(cost) for written in _COLUMNS.values()))
    return shown


def draw(costs: Sequence[Cost], target: Path) -> None:
    """Draws how the costs grow with the number: flat is good."""
    from matplotlib.figure import Figure as Chart

    chart = Chart(figsize=(9, 2.6), layout="constrained")
    panels = chart.subplots(1, 4, squeeze=False)[0]
    drawn = {"idle, % of a core": "idle", "one file, s": "live", "a file in all, ms each": "burst", "threads": "threads"}
    for panel, (title, name) in zip(panels, drawn.items(), strict=True):
        panel.plot([cost.number for cost in costs], [getattr(cost, name) for cost in costs], "o-", color="#d1480f")
        panel.set_title(title, fontsize=9)
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    chart.savefig(target, dpi=150)


def _measure(folder: Path, number: int, place: Folders, endpoint: str | None = None) -> Cost:
    home = folder / "home"
    command(home, "init")
    with Session(home) as session:
        if endpoint is not None:
            session.connections.create("cloud", "s3", region="us-east-1", endpoint=endpoint)
        began = time.perf_counter()
        for at in range(number):
            session.volumes.create(f"v{at}", **place.volume(at))
            session.jobs.create(f"j{at}", function_named("summarise"), f"t{at}", volume=f"v{at}", on_change=True)
        create = time.perf_counter() - began
        tables = [_Log(Path(session.home.warehouse, "tables", "public", f"t{at}")) for at in range(number)]
    began = time.perf_counter()
    with daemon(home) as process:
        counts = dict.fromkeys(tables, _FILES)
        _await(counts)
        fill = time.perf_counter() - began
        time.sleep(_REST_SECONDS)
        used = _processor([process])
        time.sleep(_IDLE_SECONDS)
        idle = (_processor([process]) - used) / _IDLE_SECONDS
        threads, memory = process.num_threads(), process.memory_info().rss
        waits: list[float] = []
        for at in itertools.islice(itertools.cycle(range(0, number, max(1, number // _CHANGES))), _CHANGES):
            place.write(at, f"one {len(waits)}")
            changed = time.perf_counter()
            counts[tables[at]] += 1
            _await({tables[at]: counts[tables[at]]}, 0.005)
            waits.append(time.perf_counter() - changed)
            time.sleep(_GAP_SECONDS)
        began = time.perf_counter()
        command(home, "status")
        status = time.perf_counter() - began
        began, used = time.perf_counter(), _processor([process, *process.children(recursive=True)])
        for at in range(number):
            place.write(at, "burst")
        _await({log: count + 1 for log, count in counts.items()})
        burst = time.perf_counter() - began
        work = _processor([process, *process.children(recursive=True)]) - used
    command(home, "engine", "stop", "--now")
    for log, count in counts.items():
        paths = queried_rows(str(log.table), "SELECT _file_path FROM rows")["_file_path"].to_pylist()
        if len(paths) != count + 1 or len({*paths}) != len(paths):
            raise WrongRowsError(f"{log.table.name} has {len(paths)} rows instead of {count + 1}.")
    each = 1000 / number
    return Cost(
        number,
        create * each,
        fill * each,
        100 * idle,
        threads,
        memory >> 20,
        sorted(waits)[len(waits) // 2],
        burst * each,
        work * each,
        status,
    )


def _processor(processes: Sequence[psutil.Process]) -> float:
    """Returns the processor seconds of processes, and of children of theirs that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes)


class _Log:
    """The log of a table, read for the rows that were added: queries would use the cores that are measured."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self._version = 0
        self._rows = 0

    def rows(self) -> int:
        """Returns the number of rows by the commits until now."""
        while (entry := self.table / "_delta_log" / f"{self._version:020d}.json").exists():
            added = [json.loads(line).get("add", {}) for line in entry.read_text().splitlines()]
            self._rows += sum(json.loads(add["stats"])["numRecords"] for add in added if add.get("dataChange"))
            self._version += 1
        return self._rows


def _await(counts: Mapping[_Log, int], pause: float = 0.25) -> None:
    """Waits until each table has so many rows."""
    deadline, missing = time.monotonic() + _LIMIT_SECONDS, {**counts}
    while missing:
        if time.monotonic() > deadline:
            raise WrongRowsError(f"{len(missing)} of {len(counts)} tables lack rows.")
        time.sleep(pause)
        missing = {log: count for log, count in missing.items() if log.rows() < count}
