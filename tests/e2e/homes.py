"""A home as its user sees it: the real command and the real daemon in subprocesses. Nothing from volstream is imported."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import eventually

VOLSTREAM = str(Path(sys.executable).parent / "volstream")

#: Ample time for a command that starts an engine on a busy machine.
COMMAND_SECONDS = 100.0

#: Seconds between two checks of ``patiently``.
_LOOK_SECONDS = 0.3

#: Settings that make tests fast and small; a test's own take precedence.
SETTINGS = {
    "VOLSTREAM_CORES": "2",
    "VOLSTREAM_DRIVER_MEMORY": "1GiB",
    "VOLSTREAM_SETTLE_SECONDS": "0.05s",
    "VOLSTREAM_DEBOUNCE_SECONDS": "0.05s",
    "VOLSTREAM_RETRY_FIRST_SECONDS": "0.2s",
    "VOLSTREAM_HTTP_PORT": "0",
}


@dataclass(frozen=True)
class Done:
    """A command that has ended. ``code`` is negative if a signal ended it."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class Home:
    """Runs commands on one home, in one working directory.

    Args:
        folder: gets ``home`` and is where commands run.
        seconds: a command that takes longer hangs.
        variables: of the environment of all processes, besides the tests' own.
    """

    def __init__(self, folder: Path, seconds: float = COMMAND_SECONDS, variables: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.seconds = seconds
        self.variables = variables or {}
        self.path = folder / "home"

    def environment(self, **settings: str) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("VOLSTREAM_")}
        if "VOLSTREAM_CACHE" in os.environ:
            own["VOLSTREAM_CACHE"] = os.environ["VOLSTREAM_CACHE"]
        given = {f"VOLSTREAM_{key}": value for key, value in settings.items()}
        fixed = {"VOLSTREAM_HOME": str(self.path), "PYTHONFAULTHANDLER": "1"}
        return {**own, **SETTINGS, **fixed, **self.variables, **given}

    def run(self, *arguments: str, stdin: str = "", **settings: str) -> Done:
        """Runs a command to its end; ``settings`` are names like ``LEASE_SECONDS``."""
        child = self.start(*arguments, **settings)
        return finished(child, stdin=stdin, seconds=self.seconds)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [VOLSTREAM, *arguments],
            cwd=self.folder,
            env=self.environment(**settings),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def crash(self, *arguments: str, at: str, **settings: str) -> None:
        """Runs a command that has to be killed at a fault point."""
        done = self.run(*arguments, FAULT=at, **settings)
        assert done.code == -signal.SIGKILL, f"{at} was not reached: {done}"

    def create_job(self, name: str, function: str, *options: str, **settings: str) -> None:
        """Creates a job on the volume of its name, into the table of its name."""
        self.ok("create-job", name, "--volume", name, "--function", function, "--into", name, *options, **settings)

    def ok(self, *arguments: str, **settings: str) -> str:
        """Runs a command that has to succeed; its output."""
        done = self.run(*arguments, **settings)
        assert done.code == 0, f"{arguments}: {done}"
        return done.stdout

    def json(self, *arguments: str, **settings: str) -> Any:
        """Runs a command that has to succeed; its JSON document."""
        return json.loads(self.ok(*arguments, "--format", "json", **settings))

    def rows(self, statement: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("sql", statement)
        return found

    def pairs(self, table: str, column: str = "text") -> list[tuple[str, str]]:
        """Path and ``column`` of all rows, sorted: a row that is there twice is there twice."""
        found = self.rows(f"SELECT _file_path, {column} FROM {table}")
        return sorted((row["_file_path"], row[column]) for row in found)

    def engine(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.json("engine", "status") or {}
        return status

    def end_engine(self) -> None:
        self.ok("engine", "stop", "--now")

    @contextmanager
    def daemon(self, *arguments: str, **settings: str) -> Iterator[Daemon]:
        """A daemon that is ready; killed at the end if it still runs."""
        daemon = Daemon(self, *arguments, **settings)
        try:
            daemon.await_ready()
            yield daemon
        finally:
            daemon.kill()


class Daemon:
    """A daemon's process. Constructing starts it and waits for nothing."""

    def __init__(self, home: Home, *arguments: str, **settings: str) -> None:
        self.home = home
        self._log_file = home.folder / f"daemon-{time.monotonic_ns()}.log"
        with self._log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [VOLSTREAM, "daemon", *arguments], cwd=home.folder, env=home.environment(**settings), stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log_file.read_text(encoding="utf-8")

    @property
    def port(self) -> int | None:
        found = re.search(r"http_port=(\d+)", self.log)
        return int(found[1]) if found else None

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an HTTP response; status 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError):
            return 0, ""

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one sample; None if there is none."""
        for line in self.get("/metrics")[1].splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] == name and dict(re.findall(r'(\w+)="([^"]*)"', found[2] or "")) == labels:
                return float(found[3])
        return None

    def follows(self, job: str, expected: Mapping[str, str]) -> None:
        """Waits until the job's table, of the job's name, holds a row for each of these files and nothing else."""
        seen: float | None = None

        def follows() -> bool:
            # Asking for rows takes a process: only when there is something new.
            nonlocal seen
            before, seen = seen, self.metric("volstream_job_batches_total", job_name=job)
            return seen not in (before, 0) and self.home.pairs(job) == sorted(expected.items())

        patiently(follows)

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return self.port is not None and self.get("/readyz")[0] == 200

        patiently(ready)

    def engine_state(self) -> Mapping[str, str]:
        """The state of the engine according to ``/readyz``."""
        said: Mapping[str, str] = json.loads(self.get("/readyz")[1])["engine"]
        return said

    def await_engine(self) -> psutil.Process:
        """The JVM of the daemon, once it is ready."""
        patiently(lambda: self.engine_state()["state"] == "running")
        return psutil.Process(self.home.engine()["jvm_pid"])

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 60.0) -> int:
        """Waits for the exit; the exit code."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Kills it and its JVM, whatever it is doing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def finished(child: subprocess.Popen[str], stdin: str = "", seconds: float = COMMAND_SECONDS) -> Done:
    """Waits for a command to end. One that hangs is killed so that it dumps its stacks."""
    try:
        out, err = child.communicate(stdin, timeout=seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)
        out, err = child.communicate()
        raise AssertionError(f"{child.args!r} hung:\n{out}\n{err}") from None
    return Done(child.returncode, out, err)


def patiently(check: Callable[[], object], timeout: float = COMMAND_SECONDS) -> None:
    """Like ``eventually``, for expensive checks: polling constantly would slow down what is waited for."""
    never = threading.Event()

    def look() -> bool:
        found = bool(check())
        if not found:
            never.wait(_LOOK_SECONDS)
        return found

    eventually(look, timeout=timeout)


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has frozen the process."""
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes files as careful programs do: under another name first."""
    for name, text in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = target.with_name(f".{target.name}")
        hidden.write_text(text, encoding="utf-8")
        hidden.rename(target)
