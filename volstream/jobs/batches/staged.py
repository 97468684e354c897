"""A job's expectations about the rows of a file, in SQL. A file that breaks one fails, or is counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.definitions import FileJob
from volstream.base.model.text import counted
from volstream.base.model.work import FailureKind, add_counts, count_unsuccessful
from volstream.catalog.consumptions import BatchOutcome
from volstream.functions.output import StagedOutput
from volstream.functions.schema import key_column, to_ddl
from volstream.jobs.batches.staging import RECORDS, REPLY, RowsTarget, Task, WrittenFile
from volstream.jobs.rules.conditions import names_in
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import batches, mapped, relation
from volstream.sql.text import literal
from volstream.tables.delta import datafile, places
from volstream.tables.delta.datafile import FinishedFile

if TYPE_CHECKING:
    from pyarrow import dataset as ds
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.functions.call import Work

#: In an expectation, the file's number of rows. Such an expectation is checked per file, others per row.
ROWS = "rows"


def unmet(session: SparkSession, job: FileJob, expected: Sequence[str], staged: Staged) -> Mapping[str, list[tuple[str, int]]]:
    """Returns the expectations that files break, by path, each with the number of rows that break it.

    NULL breaks no expectation.

    Raises:
        SqlError: Spark cannot evaluate an expectation.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    rows, files = staged.rows(session), relation(session, staged.succeeded())
    key = key_column(job)
    queries: list[DataFrame] = []
    for number, condition in enumerate(expected):
        breaks = f"NOT coalesce(({condition}), true)"
        if ROWS in names_in(condition):
            queries.append(files.where(breaks).selectExpr("path", f"{number} AS number", "0L AS count"))
        else:
            of_file = rows.where(breaks).groupBy(key).count()
            queries.append(of_file.selectExpr(f"{key} AS path", f"{number} AS number", "count"))
    frame = queries[0]
    for other in queries[1:]:
        frame = frame.union(other)
    with map_spark_errors():
        result: pa.Table = frame.toArrow()
    for path, number, count in zip(*(result[name].to_pylist() for name in ("path", "number", "count")), strict=True):
        found.setdefault(path, []).append((expected[number], count))
    return found


def check_expectations(session: SparkSession, job: FileJob, staged: Staged) -> tuple[Staged, Mapping[str, float]]:
    """Returns the outcomes, in which files that break an expectation have failed, and the warnings.

    The warnings are the numbers of files that break an expectation of ``expect_warn``, by the counter's name.
    """
    if job.expect and (broken := unmet(session, job, job.expect, staged)):
        staged = staged.with_failed({path: _message(breaks) for path, breaks in broken.items()}, FailureKind.UNEXPECTED)
    warned: dict[str, float] = {}
    if job.expect_warn:
        for breaks in unmet(session, job, job.expect_warn, staged).values():
            for condition, _ in breaks:
                name = f"unexpected: {condition}"
                warned[name] = warned.get(name, 0.0) + 1
    return staged, warned


def _message(breaks: Sequence[tuple[str, int]]) -> str:
    parts = [
        f"{counted(count, 'row')} {'breaks' if count == 1 else 'break'} {literal(condition)}"
        if count
        else f"its rows break {literal(condition)}"
        for condition, count in sorted(breaks)
    ]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


# An attempt's staged outcomes: the replies of its tasks, which are counted and committed from here.
#
# Counts and commits use the same replies, so rows, failures and numbers cannot disagree.

#: Records up to this size stay in memory. Larger amounts, such as thousands of tracebacks, go to a file.
_RECORD_BYTES = 32 << 20

#: Maximum number of records in memory while they are in a file.
_RECORDS = 1000

_FAILURE = ("path", "file_version", "commit_version", "error_kind", "error_message", "error_traceback", "retry_after")


def task(work: Work, target: RowsTarget) -> Task:
    """Returns the callable for workers.

    Raises:
        StorageError: the store grants the workers no access.
    """
    # The pickle of a copied store contains keys for tasks. They are requested here for a clear error: Spark
    # prints an error that occurs while pickling, and raises another one.
    work = replace(work, store=copy(work.store))
    if work.outputs is not None:
        work = replace(work, outputs=replace(work.outputs, store=copy(work.outputs.store)))
    return Task(work, target)


@dataclass(frozen=True)
class Staged:
    """The staged outcomes of one attempt.

    Attributes:
        location: URI of the attempt's folder, for data that is too large for memory.
        target: where the rows go.
    """

    location: str
    target: RowsTarget
    _records: ds.Dataset
    _inline: Sequence[pa.Table] = ()
    _written: Sequence[WrittenFile] = ()

    @classmethod
    def run(cls, location: str, target: RowsTarget, files: DataFrame, work: Work, profile: Any = None) -> Staged:
        """Runs the function on ``files`` (rows of a plan), with Spark's resource profile if given. Raises as
        :func:`task`."""
        return cls.of(location, target, batches(mapped(files, task(work, target), REPLY, profile)))

    @classmethod
    def of(cls, location: str, target: RowsTarget, replies: Iterator[pa.Table]) -> Staged:
        """Reads the replies of tasks."""
        inline: list[pa.Table] = []
        written: list[WrittenFile] = []
        with _Records(f"{location}/records") as records:
            for reply in replies:
                for rows in reply["inline"].drop_null():
                    inline.append(pa.ipc.open_stream(rows.as_buffer()).read_all())
                written += [WrittenFile(**json.loads(file.as_py())) for file in reply["written"].drop_null()]
                of_files = pc.and_(pc.is_null(reply["inline"]), pc.is_null(reply["written"]))
                records.add(reply.filter(of_files).select(RECORDS.names))
        return cls(location, target, records.dataset(), inline, written)

    def outcome(self) -> BatchOutcome:
        """Counts the staged outcomes."""
        kinds: Counter[Any] = Counter()
        rows = 0
        numbers: dict[str, float] = {}
        files_per_call: int | None = None
        columns = ["rows", "error_kind", "counted", "files_per_call"]
        for batch in self._records.to_batches(columns=columns, filter=pc.field("rows").is_valid()):
            kinds.update({found["values"]: found["counts"] for found in batch["error_kind"].value_counts().to_pylist()})
            rows += pc.sum(batch["rows"]).as_py() or 0
            for text in batch["counted"].drop_null().to_pylist():
                add_counts(numbers, json.loads(text))
            files_per_call = pc.max(batch["files_per_call"]).as_py() or files_per_call
        succeeded = kinds.pop(None, 0)
        return BatchOutcome(succeeded, rows=rows, counted=numbers, files_per_call=files_per_call, **count_unsuccessful(kinds))

    def new_columns(self) -> Sequence[str]:
        """Returns the columns that files have and the result lacks, as DDL, without duplicates."""
        rows = self._records.to_table(columns=["new_columns"], filter=pc.field("new_columns").is_valid())
        distinct: list[str] = pc.unique(rows["new_columns"]).to_pylist()
        return distinct

    def printed(self) -> Iterator[str]:
        """Yields the function's output, as :meth:`~volstream.functions.printing.CapturedOutput.encoded`
        encodes it."""
        for batch in self._records.to_batches(columns=["printed"], filter=pc.field("printed").is_valid()):
            yield from batch["printed"].to_pylist()

    def broken(self) -> Mapping[str, Any] | None:
        """Returns a failure, as in :meth:`failures`, of a file for which the function's setup failed, or
        None."""
        failed = self._records.head(1, columns=list(_FAILURE), filter=pc.field("error_kind") == FailureKind.SET_UP)
        return failed.to_pylist()[0] if failed.num_rows else None

    def failures(self) -> Iterator[Mapping[str, Any]]:
        """Yields the failed files: ``path``, ``file_version``, ``commit_version`` and the ``error_``
        columns."""
        failed = self._records.to_batches(columns=list(_FAILURE), filter=pc.field("error_kind").is_valid())
        for batch in failed:
            yield from batch.to_pylist()

    def costs(self) -> pa.Table:
        """Returns a row per file: ``path``, its error, its counters and its cost. All in memory."""
        columns = ["path", "error_kind", "error_message", "counted", "seconds", "memory"]
        return self._records.to_table(columns=columns, filter=pc.field("rows").is_valid())

    def inline(self) -> pa.Table:
        """Returns the rows that came with the replies, by path."""
        rows = pa.concat_tables([self.target.schema.empty_table(), *self._inline])
        return rows.sort_by(self.target.key)

    def files(self) -> Sequence[FinishedFile]:
        """Returns the data files with the other rows."""
        return [self._finished(file) for file in self._written]

    def rows(self, session: SparkSession) -> DataFrame:
        """Returns all rows."""
        rows = relation(session, self.inline())
        if not self._written:
            return rows
        paths = [f"{self.target.folder}/{file.name}" for file in self._written]
        return rows.union(session.read.schema(to_ddl(self.target.schema)).parquet(*paths))

    def has_large_rows(self) -> bool:
        """Returns whether some rows may be as large as a row group should be."""
        return any(file.large for file in self._written)

    def replaced_paths(self) -> list[str]:
        """Returns the paths whose earlier rows are removed: of files that succeeded, and of sets that are no
        longer complete. All in memory."""
        incomplete = (pc.field("error_kind") == FailureKind.HELD.value) & pc.field("retry_after").is_null()
        replaced = pc.field("rows").is_valid() & (pc.field("error_kind").is_null() | incomplete)
        paths: list[str] = self._records.to_table(columns=["path"], filter=replaced)["path"].to_pylist()
        return paths

    def outputs(self) -> Iterator[tuple[str, StagedOutput]]:
        """Yields the output files that rows name, each with the path of the row's file."""
        made = self._records.to_batches(columns=["path", "outputs"], filter=pc.field("outputs").is_valid())
        for batch in made:
            for path, listed in zip(batch["path"].to_pylist(), batch["outputs"].to_pylist(), strict=True):
                for output in json.loads(listed):
                    yield path, StagedOutput(*output)

    def without_rows(self) -> pa.Table:
        """Returns ``path`` and ``version`` of the files that succeeded without a row. All in memory."""
        empty = (pc.field("rows") == 0) & pc.field("error_kind").is_null()
        return self._records.to_table(columns=["path", "file_version"], filter=empty).rename_columns(["path", "version"])

    def succeeded(self) -> pa.Table:
        """Returns ``path``, ``file_version`` and ``rows`` of the files that succeeded. All in memory."""
        succeeded = pc.field("rows").is_valid() & pc.field("error_kind").is_null()
        return self._records.to_table(columns=["path", "file_version", "rows"], filter=succeeded)

    def paths(self) -> set[str]:
        """Returns the paths of the files that have an outcome. All in memory."""
        rows = self._records.to_table(columns=["path"], filter=pc.field("rows").is_valid())
        return {*rows["path"].to_pylist()}

    def with_failed(self, why: Mapping[str, str], kind: FailureKind = FailureKind.RAISED) -> Staged:
        """Returns a copy of the outcomes in which some files failed.

        Args:
            why: messages, by path.
        """
        failing = pa.array(list(why), pa.string())
        with _Records(f"{self.location}/{kind.value}") as records:
            for batch in self._records.to_batches(batch_size=_RECORDS):
                failed = pc.is_in(batch["path"], value_set=failing)
                records.add(pa.Table.from_batches([batch.filter(pc.invert(failed))]))
                affected = batch.filter(failed)
                changed = {
                    "rows": pa.array([0] * len(affected), pa.int64()),
                    "error_kind": pa.array([kind.value] * len(affected), pa.string()),
                    "error_message": pa.array([why[path] for path in affected["path"].to_pylist()], pa.string()),
                    "outputs": pa.nulls(len(affected), pa.string()),
                }
                arrays = [changed.get(name, affected[name]) for name in RECORDS.names]
                records.add(pa.table(arrays, schema=RECORDS))
        inline = [self._without(rows, failing) for rows in self._inline]
        written = [self._file_without(file, failing) for file in self._written]
        return replace(self, _records=records.dataset(), _inline=inline, _written=written)

    def _finished(self, file: WrittenFile) -> FinishedFile:
        return FinishedFile(self.target.folder, file.name, file.size, file.stats)

    def _without(self, rows: pa.Table, failing: pa.Array) -> pa.Table:
        return rows.filter(pc.invert(pc.is_in(rows[self.target.key], value_set=failing)))

    def _file_without(self, file: WrittenFile, failing: pa.Array) -> WrittenFile:
        """Returns a data file without the rows of failing files, or the file itself if it has none of
        them."""
        finished = self._finished(file)
        keys = finished.rows([self.target.key])
        if not any(pc.any(pc.is_in(group[self.target.key], value_set=failing)).as_py() for group in keys):
            return file
        written = datafile.of_rows(self.target.folder, self.target.schema, self.target.key)
        for rows in finished.rows():
            written.write(self._without(rows, failing))
        added = written.close()
        return replace(file, name=added.path, size=added.size, stats=added.stats)


class _Records:
    """The records of an attempt's files, in memory or, once they are too large, in a file."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._pending: list[pa.Table] = []
        self._bytes = 0
        self._file = ExitStack()
        self._writer: Any = None

    def __enter__(self) -> _Records:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            if self._writer is not None:
                self._spill()

    def add(self, records: pa.Table) -> None:
        """Adds rows of :data:`RECORDS`."""
        self._pending.append(records)
        self._bytes += records.nbytes
        if self._bytes > _RECORD_BYTES:
            self._spill()

    def dataset(self) -> ds.Dataset:
        """Returns the records. Call it after the last :meth:`add`."""
        if self._writer is None:
            from pyarrow import dataset as ds  # imports pandas

            return ds.dataset(pa.concat_tables([RECORDS.empty_table(), *self._pending]))
        return places.dataset(self._location, RECORDS)

    def _spill(self) -> None:
        if self._writer is None:
            self._writer = self._file.enter_context(places.written(self._location, RECORDS))
        for records in self._pending:
            self._writer.write_table(records, row_group_size=_RECORDS)
        self._pending, self._bytes = [], 0
