"""Compares other code with a job's: runs it on a sample of delivered files, and compares the outcomes with the table's rows and
the current failures. Writes to neither table nor catalog.

The same code on the executors stages the outcomes as for a batch; they are removed at the end.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.definitions import FileJob, Write
from volstream.base.model.paths import did_you_mean
from volstream.base.model.work import WAITING, FailureKind, total_counts
from volstream.errors import FunctionLoadError, InvalidStateError, NotFoundError
from volstream.files.volumes.access import store_of
from volstream.functions.output import FILE, has_files
from volstream.functions.pickled import code_of
from volstream.functions.rows import size_of
from volstream.functions.schema import key_column, of_job, provenance_of
from volstream.functions.source import FunctionSource
from volstream.jobs import plan
from volstream.jobs.comparison import (
    Columns,
    Comparison,
    ComparisonObserver,
    ComparisonProgress,
    CostPercentiles,
    SampleSelection,
)
from volstream.jobs.differences import CodeOutcome, Comparer, Differences, Percentiles, Row
from volstream.jobs.environments import with_environment
from volstream.jobs.services import JobServices
from volstream.jobs.staged import Staged
from volstream.jobs.stager import stage, target_of_rows, work_on
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import batches, relation
from volstream.sql.text import literal, one_of, quote_columns, table_at
from volstream.tables.delta import places
from volstream.tables.delta.opened import columns_at
from volstream.tables.delta.places import reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

#: Maximum number of files in a sample, whose paths, failures and measurements are in memory.
MAX_SAMPLE = 10_000

#: Up to this many rows and bytes of a file are compared; beyond that, only the number of rows.
_MAX_ROWS, _MAX_BYTES = 10_000, 64 << 20

#: Failures read at once.
_FAILURES = 1000


def compare(
    services: JobServices,
    job: FileJob,
    other: FileJob,
    chosen: SampleSelection,
    *,
    both: bool = False,
    observe: ComparisonObserver = lambda _: None,
) -> Comparison:
    """Runs the code of ``other`` (the job with another function) and compares the outcomes.

    Args:
        both: also run the job's own code on the same files.
        observe: called before each code runs, and after each file is compared.

    Raises:
        InvalidStateError: the job has not delivered any file.
        NotFoundError: the choice includes no delivered file.
        FunctionLoadError: a function cannot be found or set up.
        StreamStaleError: the delivered files are no longer known.
    """
    environments = services.settings.environments_directory
    source = with_environment(code_of(other), other.environment, environments)
    own = with_environment(code_of(job), job.environment, environments) if both else None
    with services.gateway.explaining(), as_sql_errors(), reached(services.warehouse):
        run = _Run(services, job, chosen, observe)
        differences, cost = run.differences(other, source)
        again = run.differences(job, own, own=True) if own is not None else (None, None)
        columns = Columns.of(of_job(job), of_job(other))
        return Comparison(str(job.name), other.function, run.delivered, columns, differences, cost, *again)


class _Run:
    """One sample of a job's files, on which codes run."""

    def __init__(self, services: JobServices, job: FileJob, chosen: SampleSelection, observe: ComparisonObserver) -> None:
        self._services = services
        self._job = job
        self._observe = observe
        stream = services.stream(job)
        covered = services.reader.delivered(stream)
        if covered is None:
            raise InvalidStateError(
                f"The job {job.name} has not finished its first run, so there is nothing to compare with.",
                f"Run: volstream run-job {job.name}. To run the function on files of this machine: volstream try.",
            )
        self._files, self.delivered = services.planner.sample(services.session, job, covered, chosen.condition, chosen.maximum)
        self._paths: list[str] = self._files["relative_path"].to_pylist()
        self._versions = pc.coalesce(self._files["version_id"], self._files["etag"])
        volume = services.catalog.volumes.by_id(stream.source_id)
        if volume is None:
            raise NotFoundError(f"The volume {stream.source_name} was dropped.")
        missing = sorted({*chosen.paths} - {*self._paths})
        if missing or not self._paths:
            what = f"The file {missing[0]!r} was not" if missing else "No such file was"
            hint = did_you_mean(volume.location, missing[0]) if missing else ""
            raise NotFoundError(
                f"{what} delivered to the job {job.name}, or it has changed since.",
                f"{hint}Run the job first: volstream run-job {job.name}.",
            )
        self._store = store_of(volume, services.catalog, services.settings)

    def differences(self, other: FileJob, source: FunctionSource, *, own: bool = False) -> tuple[Differences, CostPercentiles]:
        """Runs code on the sample; returns how its outcomes differ from the existing ones, and its cost."""
        progress = ComparisonProgress(len(self._paths), own=own)
        self._observe(progress)
        work = dataclasses.replace(work_on(self._services.settings, other, source, self._store), measures=True)
        with self._services.session() as session, places.staged(self._services.warehouse, "compare") as location:
            planned, target = plan.work_of_rows(session, self._files), target_of_rows(other, location, "")
            staged = stage(self._services, location, target, planned, work, other, len(self._paths))
            if (broken := staged.broken()) is not None:
                raise FunctionLoadError(
                    f"The function {other.function} cannot be set up: {broken['error_message']}",
                    "Nothing was changed; fix it and compare again.",
                )
            existing = self._existing()
            comparer = Comparer([field.name for field in of_job(other) if field.name in existing])
            failed, files = self._failed(), list[_Gathered]()
            files_in = [field.name for field in of_job(self._job) if has_files(field.type)]
            for path, rows in self._outcomes(session, staged, existing):
                old, new = _gathered(rows, files_in)
                files.append(new)
                if new.outcome.kind in WAITING:
                    comparer.changed()
                else:
                    comparer.add(path, failed.get(path, old.outcome), new.outcome)
                new.forget()
                self._observe(dataclasses.replace(progress, compared=len(files)))
        seconds, memory = (
            Percentiles.of(value for value in costs if value is not None)
            for costs in ([file.seconds for file in files], [file.memory for file in files])
        )
        return comparer.found, CostPercentiles(seconds, memory, total_counts(*(file.counted for file in files)))

    def _existing(self) -> Sequence[str]:
        """Returns the job's columns that its table has; the job's next run adds the others."""
        there = {name.lower() for name in columns_at(self._services.table_of(self._job))}
        return [field.name for field in of_job(self._job) if field.name.lower() in there]

    def _outcomes(
        self, session: SparkSession, staged: Staged, existing: Sequence[str]
    ) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
        """Yields each file's outcome and rows as they come from Spark: the table's in ``had``, new ones in ``result``."""
        target, added = staged.target, provenance_of(self._job).names
        own = quote_columns(name for name in target.schema.names if name not in added)
        new = staged.rows(session).selectExpr(f"{target.key} AS path", f"struct({own}) AS result")
        new = relation(session, staged.costs()).unionByName(new, allowMissingColumns=True)
        if existing:
            new = new.unionByName(self._had(session, existing), allowMissingColumns=True)
        else:
            new = new.selectExpr("*", "NULL AS had")
        rows = (row for part in batches(new.sort("path")) for row in part.to_pylist())
        return groupby(rows, lambda row: str(row["path"]))

    def _had(self, session: SparkSession, existing: Sequence[str]) -> DataFrame:
        """Returns the table's rows of the sample's files in their current version."""
        location = self._services.table_of(self._job)
        named = pa.table({"path": self._files["relative_path"], "version": self._versions})
        relation(session, named).createOrReplaceTempView("volstream_sample")
        columns = quote_columns(existing)
        key = key_column(self._job)
        within = one_of(f"t.{key}", self._paths)
        query = (
            f"SELECT {key} AS path, struct({columns}) AS had, _batch_id, _processed_at FROM {table_at(location)} t "
            f"LEFT SEMI JOIN volstream_sample s ON t.{key} = s.path AND t._file_version = s.version WHERE {within}"
        )
        if self._job.write is Write.APPEND:
            query = self._newest(session, query)
        return session.sql(f"SELECT path, had FROM ({query})")

    def _newest(self, session: SparkSession, query: str) -> str:
        """Returns SQL for the rows that the job last wrote to a log for each file. Other jobs may append to it, too."""
        present = session.sql(f"SELECT DISTINCT _batch_id FROM ({query})").toArrow()["_batch_id"].to_pylist()
        pairs = ((identity, self._services.catalog.reports.batch(identity)) for identity in present if identity is not None)
        others = [identity for identity, batch in pairs if batch is not None and batch.job_id != self._job.id]
        mine = f"_batch_id NOT IN ({', '.join(map(literal, others))})" if others else "true"
        last = "rank() OVER (PARTITION BY path ORDER BY _processed_at DESC) AS age"
        return f"SELECT * FROM (SELECT *, {last} FROM ({query}) q WHERE {mine}) r WHERE age = 1"

    def _failed(self) -> dict[str, CodeOutcome]:
        """Returns the current failures of the sample's files in their current version, by path."""
        versions = dict(zip(self._paths, self._versions.to_pylist(), strict=True))
        failed: dict[str, CodeOutcome] = {}
        after: str | None = None
        while part := self._services.catalog.failures.active(self._job.id, after=after, limit=_FAILURES):
            for failure in part:
                if versions.get(failure.path) == failure.file_version:
                    failed[failure.path] = CodeOutcome(kind=failure.kind, message=failure.message)
            after = part[-1].path
        return failed


def _without_etags(value: Any) -> Any:
    """Returns a value of a column with outputs without the outputs' etags."""
    if isinstance(value, Mapping):
        cleared = {"etag": None} if value.keys() == {*FILE.names} else {}
        return {**{key: _without_etags(item) for key, item in value.items()}, **cleared}
    return [_without_etags(item) for item in value] if isinstance(value, list) else value


class _Gathered:
    """The outcome of one file, gathered row by row within limits, and its cost."""

    def __init__(self) -> None:
        self.outcome = CodeOutcome()
        self.seconds: float | None = None
        self.memory: int | None = None
        self.counted: Mapping[str, float] = {}
        self._rows: list[Row] | None = []
        self._bytes = 0

    def add(self, row: Row | None, kind: str | None = None, message: str | None = None) -> None:
        """Adds a row or an error. With neither, the file has no rows."""
        outcome = self.outcome
        outcome.kind, outcome.message = kind and FailureKind(kind), message or ""
        if row is None:
            return
        outcome.count += 1
        if self._rows is not None:
            self._rows.append(row)
            self._bytes += sum(map(size_of, row.values()))
            if outcome.count > _MAX_ROWS or self._bytes > _MAX_BYTES:
                self._rows = None
        outcome.rows = self._rows

    def forget(self) -> None:
        """Discards the rows."""
        self.outcome, self._rows = CodeOutcome(), None


def _gathered(rows: Iterable[Mapping[str, Any]], files_in: Sequence[str]) -> tuple[_Gathered, _Gathered]:
    """Returns the old and the new outcome of a file. Outputs are not written again, so their etags are left out.

    Args:
        files_in: columns with outputs.
    """
    old, new = _Gathered(), _Gathered()
    for row in rows:
        if row["had"] is not None:
            had = dict(row["had"])
            old.add({**had, **{name: _without_etags(had[name]) for name in files_in if name in had}})
            continue
        if row["result"] is not None:
            new.add(row["result"])
        else:
            new.add(None, row["error_kind"], row["error_message"])
            new.seconds, new.memory = row["seconds"], row["memory"]
            new.counted = json.loads(row["counted"] or "{}")
    return old, new
