"""Measurements from outside: the command from a cold start, and the daemon from a file's close to its row."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks import files, spark_files
from benchmarks.contenders import LIMIT_SECONDS, function_named, rows_of
from benchmarks.files import Tree
from benchmarks.report import Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session
from volstream.base.definitions import QueueType

COLD, LIVE = "from nothing", "live, one file"

#: Number of files added one by one before the measured ones.
_WARM = 5

#: Time limit for a file's row.
_ROW_SECONDS = 60.0

#: Interval of checks of a table's log.
_LOOK_SECONDS = 0.005

_VOLSTREAM = str(Path(sys.executable).parent / "volstream")


def cold_round(number: int, home: Path, tree: Tree, count: int, figures: Figures, *, spark: bool) -> None:
    """Measures, without a running JVM, ``run-job`` of a new job on a new volume, and Spark's file source in its own script."""
    tree.make(count)
    with Session.builder.config("home", home).create() as session:
        name = f"cold_{number}"
        session.volumes.create(name, str(tree.folder), queue_type=QueueType.NONE)
        session.jobs.create(name, function_named("summarise"), name, volume=name)
        command(home, "engine", "stop", "--now")
        seconds = _timed([_VOLSTREAM, "run-job", name, "--home", str(home)])
        _check(session, name, tree, "volstream")
        figures.note(COLD, count, "volstream", seconds)
        if spark:
            table = home.parent / f"spark-{name}"
            script = [sys.executable, "-m", spark_files.__name__, str(tree.folder), str(table)]
            seconds = _timed(script)
            if files.wrong_rows(spark_files.rows(session, tree.folder, table), files.truth(tree.folder)):
                raise WrongRowsError("Spark file source, from nothing: rows are wrong.")
            figures.note(COLD, count, "Spark file source", seconds)


def live(home: Path, tree: Tree, count: int, times: int, figures: Figures) -> None:
    """Runs a daemon on its own home and adds files one by one; measures from each file's close to the commit of its row."""
    tree.make(count)
    command(home, "init")
    with Session.builder.config("home", home).create() as session:
        session.volumes.create("live", str(tree.folder))
        session.jobs.create("live", function_named("summarise"), "live", volume="live", on_change=True)
        command(home, "run-job", "live")
        command(home, "engine", "stop", "--now")
        log = Path(session.home.warehouse, "tables", "public", "live", "_delta_log")
        with daemon(home):
            for number in range(_WARM + times):
                time.sleep(1.0 + number % 7 / 10)  # not in step with any polling
                version = _latest(log)
                tree.add_one()
                closed = time.perf_counter()
                _await_row(log, version)
                if number >= _WARM:
                    figures.note(LIVE, count, "volstream", time.perf_counter() - closed)
            _check(session, "live", tree, "volstream")


@contextlib.contextmanager
def daemon(home: Path) -> Iterator[psutil.Process]:
    """Runs a daemon, which is ready, until the end of the block. Yields its process."""
    log = home / "daemon.log"
    with log.open("wb") as sink:
        process = subprocess.Popen([_VOLSTREAM, "daemon", "--http-port", "0", "--home", str(home)], stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while b"daemon_started" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The daemon did not start:\n{log.read_text(encoding='utf-8')}")
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_SECONDS)


def command(home: Path, *arguments: str, **settings: object) -> str:
    """Runs a command of volstream; returns its output."""
    line = [_VOLSTREAM, *arguments, "--home", str(home)]
    environment = os.environ | {f"VOLSTREAM_{name.upper()}": str(value) for name, value in settings.items()}
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment)
    return done.stdout


def _timed(line: list[str]) -> float:
    started = time.perf_counter()
    # A session in this process sets variables for PySpark that would make the script's session a remote one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - started


def _check(session: Session, table: str, tree: Tree, contender: str) -> None:
    wrong = files.wrong_rows(rows_of(session, table), files.truth(tree.folder))
    if wrong:
        raise WrongRowsError(f"{contender}, {table}: {wrong} rows are wrong.")


def _latest(log: Path) -> int:
    return max(int(name.removesuffix(".json")) for name in os.listdir(log) if name.endswith(".json"))


def _await_row(log: Path, version: int) -> None:
    """Waits until a version after ``version`` has a batch's row, visible to any reader of the table."""
    deadline = time.monotonic() + _ROW_SECONDS
    while time.monotonic() < deadline:
        entry = log / f"{version + 1:020d}.json"
        if not entry.exists():
            time.sleep(_LOOK_SECONDS)
        elif _metadata(entry).get("rows"):
            return
        else:
            version += 1
    raise RuntimeError("The file has no row yet.")


def _metadata(entry: Path) -> Mapping[str, Any]:
    actions = map(json.loads, entry.read_text(encoding="utf-8").splitlines())
    information = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    found: Mapping[str, Any] = json.loads(information.get("userMetadata") or "{}")
    return found
