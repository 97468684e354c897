"""The same job on an engine with two slots, and on a cluster of Spark with two workers of one core each.

A call waits 20 ms, so that the function keeps both slots busy, and what differs is what Spark adds. The commands are the same.
The cluster is the one of the tests, with Spark and volstream as other Unix users if this one is root.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import processes
from benchmarks.contenders import LIMIT_SECONDS, function_named
from benchmarks.files import LONG_AGO
from benchmarks.report import Figures
from benchmarks.scenarios import WrongRowsError
from tests.spark_cluster import Cluster

ENGINE, CLUSTER = "engine, two slots", "cluster, two workers"

_SCENARIO = "files that wait 20 ms"

#: Files of the job that warms up both.
_WARM = 1_000

_FILES, _WARM_FILES = "files", "warm_files"

#: Runs a command of volstream; returns what it prints.
_Command = Callable[..., str]


def measure(home: Path, folder: Path, count: int, rounds: int, figures: Figures) -> None:
    """Notes, in turns, what ``run-job`` of a new job takes on the engine and on the cluster. Raises WrongRowsError."""
    folder.mkdir()
    processes.command(home, "engine", "stop", "--now")  # it may have another number of slots
    with _started(folder) as cluster:
        contenders = {ENGINE: _of_engine(home), CLUSTER: _of_cluster(cluster)}
        for volume, files in ((_WARM_FILES, _WARM), (_FILES, count)):
            _make_files(cluster.ours / volume, files)
            for command in contenders.values():
                command("create-volume", volume, str(cluster.ours / volume), "--queue-type", "none")
                command("refresh", volume)
        for command in contenders.values():
            _run(command, "warm", _WARM_FILES, _WARM)
        for number in range(rounds):
            for name, command in contenders.items():
                figures.note(_SCENARIO, count, name, _run(command, f"round_{number}", _FILES, count))


def ratio(figures: Figures) -> float | None:
    """Returns how many times as long as on the engine the job took on the cluster, if both were measured."""
    medians = {one.contender: one.median for one in figures.all()}
    return medians[CLUSTER] / medians[ENGINE] if {*medians} == {ENGINE, CLUSTER} else None


def _run(command: _Command, job: str, volume: str, count: int) -> float:
    function = ("--function", function_named("sleeping"), "--returns", "n BIGINT")
    command("create-job", job, "--volume", volume, "--into", f"of_{job}", *function)
    started = time.perf_counter()
    command("run-job", job)
    seconds = time.perf_counter() - started
    query = f"SELECT count(*) AS n, count(DISTINCT _file_path) AS files, sum(n) AS bytes FROM of_{job}"
    [row] = json.loads(command("sql", query, "--format", "json"))
    if row != (expected := {"n": count, "files": count, "bytes": _size(count)}):
        raise WrongRowsError(f"{job}: {row}, not {expected}.")
    return seconds


@contextmanager
def _started(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _of_engine(home: Path) -> _Command:
    def command(*arguments: str) -> str:
        return processes.command(home, *arguments, cores=2)

    return command


def _of_cluster(cluster: Cluster) -> _Command:
    def command(*arguments: str) -> str:
        with cluster.begun(*arguments) as process:
            printed, said = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode:
            raise RuntimeError(f"volstream {' '.join(arguments)} ended with {process.returncode}:\n{said}")
        return printed

    return command


def _make_files(folder: Path, count: int) -> None:
    for number in range(count):
        file = folder / f"{number // 1000:03}" / f"{number:07}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number))
        os.utime(file, (LONG_AGO, LONG_AGO))


def _size(count: int) -> int:
    """Returns the size of so many files."""
    return sum(len(str(number)) for number in range(count))
