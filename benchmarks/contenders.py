"""Who is compared, each as its user would run it. What is measured, and when, is in ``scenarios``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from benchmarks import functions, raw, spark_files
from benchmarks.functions import Summary
from volstream.model.objects import QueueType
from volstream.session import Session

#: A step that takes longer has failed.
LIMIT_SECONDS = 900.0


class Contender(Protocol):
    """Keeps one row for each file of a folder.

    Attributes:
        follows_changes: it claims to follow files that are overwritten or deleted; else rows that are wrong after that are
            counted, and no failure.
    """

    name: str
    follows_changes: bool

    def begin(self, folder: Path, *, slow: bool = False) -> None:
        """Forgets everything, and gets ready for ``folder``. Not measured."""
        ...

    def update(self) -> Mapping[str, float]:
        """Brings the rows up to the files. Measured as a whole; returns the seconds of its parts."""
        ...

    def rows(self) -> Mapping[str, Summary]:
        """The rows there are, by relative path."""
        ...


class Raw:
    """The plain loop, a process of its own as every script is."""

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
            self._called("job"), function_named("slow" if slow else "summarise"), self._called("table"),
            volume=self._called("volume"),
        )  # fmt: skip

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
        spark_files.ingest(self._session.gateway.session(), self._folder, self._table)
        return {}

    def rows(self) -> Mapping[str, Summary]:
        """See :meth:`Contender.rows`."""
        return spark_files.rows(self._session, self._folder, self._table)

    @property
    def _table(self) -> Path:
        return self._scratch / f"spark-{self._number}"


def function_named(name: str) -> str:
    """One of ``functions``, as a job names it."""
    return f"{functions.__file__}:{name}"


def rows_of(session: Session, table: str) -> dict[str, Summary]:
    """The rows of a job's table, by path."""
    found = session.sql(f"SELECT _file_path, sha256, words, first_line FROM {table}").toArrow().to_pylist()
    return {row.pop("_file_path"): Summary(**row) for row in found}
