"""The contenders, each run as its users would. What does not belong here: what is measured, and when (``scenarios``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import pyarrow.parquet as pq

from benchmarks import functions, raw, spark_files
from benchmarks.functions import Summary
from volstream.api.session import Session
from volstream.base.definitions import QueueType

CHECKOUT = Path(__file__).resolve().parents[1]

#: Time limit of a step.
LIMIT_SECONDS = 900.0


class Contender(Protocol):
    """Keeps one row per file of a folder.

    Attributes:
        follows_changes: it claims to follow overwritten and deleted files; otherwise wrong rows after such changes are
            counted, but are not a failure.
    """

    name: str
    follows_changes: bool

    def begin(self, folder: Path, *, slow: bool = False) -> None:
        """Discards all state, and prepares for ``folder``. Not measured."""
        ...

    def update(self) -> Mapping[str, float]:
        """Brings the rows up to date with the files. Measured as a whole; returns the seconds of its parts."""
        ...

    def rows(self) -> Mapping[str, Summary]:
        """Returns the current rows, by relative path."""
        ...


class Raw:
    """The plain loop, run as a separate process, like any script."""

    name = "raw loop"
    follows_changes = True

    def __init__(self, scratch: Path) -> None:
        self._results = scratch / "raw.jsonl"
        self._arguments: list[str] = []

    def begin(self, folder: Path, *, slow: bool = False) -> None:
        """See :meth:`Contender.begin`."""
        self._results.unlink(missing_ok=True)
        self._arguments = [str(folder), str(self._results), *(["--slow"] if slow else [])]

    def update(self) -> Mapping[str, float]:
        """See :meth:`Contender.update`."""
        subprocess.run([sys.executable, "-m", "benchmarks.raw", *self._arguments], check=True, timeout=LIMIT_SECONDS)
        return {}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        return raw.rows(self._results)


class Volstream:
    """A volume and a job of a home whose engine is warm, through the Python session: refresh, then run the job."""

    name = "volstream"
    follows_changes = True

    def __init__(self, session: Session) -> None:
        self._session = session
        self._number = 0

    def begin(self, folder: Path, *, slow: bool = False) -> None:
        """See :meth:`Contender.begin`."""
        if self._number:
            self._session.jobs.drop(self._called("job"))
            self._session.volumes.drop(self._called("volume"))
        self._number += 1
        self._session.volumes.create(self._called("volume"), str(folder), queue_type=QueueType.NONE)
        self._session.jobs.create(
            self._called("job"),
            function_named("slow" if slow else "summarise"),
            self._called("table"),
            volume=self._called("volume"),
        )

    def update(self) -> Mapping[str, float]:
        """See :meth:`Contender.update`."""
        started = time.perf_counter()
        self._session.volumes.refresh(self._called("volume"))
        refreshed = time.perf_counter()
        self._session.jobs.run(self._called("job"))
        return {"refresh": refreshed - started, "run-job": time.perf_counter() - refreshed}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        return rows_of(self._session, self._called("table"))

    def _called(self, kind: str) -> str:
        return f"bench_{kind}_{self._number}"


class SparkFiles:
    """Spark's own file source, on the same warm engine."""

    name = "Spark file source"
    follows_changes = False

    def __init__(self, session: Session, scratch: Path) -> None:
        self._session = session
        self._scratch = scratch
        self._folder = scratch
        self._number = 0

    def begin(self, folder: Path, *, slow: bool = False) -> None:
        """See :meth:`Contender.begin`."""
        assert not slow, "it is measured with the cheap function only"
        self._folder = folder
        self._number += 1

    def update(self) -> Mapping[str, float]:
        """See :meth:`Contender.update`."""
        spark_files.ingest(self._session.home.gateway.session(), self._folder, self._table)
        return {}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        return spark_files.rows(self._session, self._folder, self._table)

    @property
    def _table(self) -> Path:
        return self._scratch / f"spark-{self._number}"


class _Script:
    """Another package, in its own environment, with a script of ``others`` that is run for each update."""

    name: str
    follows_changes: bool
    requirement: str

    def __init__(self, environments: Path, scratch: Path) -> None:
        name = self.name.lower()
        self._module = f"benchmarks.others.with_{name}"
        self._python = _environment(environments / name, self.requirement)
        self._state = scratch / name
        self._folder = scratch

    def begin(self, folder: Path, *, slow: bool = False) -> None:
        """See :meth:`Contender.begin`."""
        assert not slow, "it is measured with the cheap function only"
        shutil.rmtree(self._state, ignore_errors=True)
        self._state.mkdir()
        self._folder = folder

    def _run(self, *arguments: str, **variables: str) -> None:
        line = [self._python, "-m", self._module, *arguments]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=CHECKOUT, env=os.environ | variables
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}:\n{done.stderr}")


class CocoIndex(_Script):
    """An app that declares a row of SQLite for each file."""

    name = "CocoIndex"
    follows_changes = True
    requirement = "cocoindex==1.0.26"

    def update(self) -> Mapping[str, float]:
        """See :meth:`Contender.update`."""
        self._run(str(self._folder), str(self._state), COCOINDEX_DISABLE_USAGE_TRACKING="1")
        return {}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        return _rows_in_sqlite(self._state / "rows.sqlite", self._folder)


class DataChain(_Script):
    """A dataset that is kept with its ``delta``; files that were deleted stay in it."""

    name = "DataChain"
    follows_changes = False
    requirement = "datachain==0.62.0"

    def update(self) -> Mapping[str, float]:
        """See :meth:`Contender.update`."""
        self._act("update", self._folder)
        return {}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        exported = self._state / "rows.parquet"
        self._act("export", exported)
        found = pq.read_table(exported).to_pylist()
        return {row["file.path"]: Summary(row["sha256"], row["words"], row["first_line"]) for row in found}

    def _act(self, action: str, place: Path) -> None:
        self._run(action, str(place), DATACHAIN_ROOT_DIR=str(self._state), DATACHAIN_NO_ANALYTICS="1")


class Pathway(_Script):
    """A table of the files, persisted between runs, whose changes are applied to SQLite."""

    name = "Pathway"
    follows_changes = True
    requirement = "pathway==0.33.0"

    def update(self) -> Mapping[str, float]:
        """See :meth:`Contender.update`."""
        self._run(str(self._folder), str(self._state))
        return {}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        return _rows_in_sqlite(self._state / "rows.sqlite", self._folder)


#: Contenders of other packages, by their name on the command line.
OTHERS: dict[str, Callable[[Path, Path], Contender]] = {"cocoindex": CocoIndex, "datachain": DataChain, "pathway": Pathway}


def _rows_in_sqlite(database: Path, folder: Path) -> Mapping[str, Summary]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT path, sha256, words, first_line FROM summaries").fetchall()
    return {Path(path).relative_to(folder).as_posix(): Summary(*values) for path, *values in found}


def _environment(folder: Path, requirement: str) -> str:
    """Returns the Python of an environment with one package; creates it if it does not exist. Not measured."""
    python = folder / "bin" / "python"
    made = folder / requirement
    if not made.exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([str(python), "-I", "-m", "pip", "install", "-q", requirement], check=True)
        made.touch()
    return str(python)


def function_named(name: str) -> str:
    """Returns the name of one of ``functions`` for a job."""
    return f"{functions.__file__}:{name}"


def rows_of(session: Session, table: str) -> dict[str, Summary]:
    """Returns the rows of a job's table, by path."""
    found = session.sql(f"SELECT _file_path, sha256, words, first_line FROM {table}").toArrow().to_pylist()
    return {row.pop("_file_path"): Summary(**row) for row in found}
