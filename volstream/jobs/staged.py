"""An attempt's staged outcomes: the executors write them in one pass; they are counted here and committed from there.

They are Parquet files in the attempt's folder. Counts and commits use the same files, so that rows, failures and numbers cannot
disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from volstream.delta import folders
from volstream.functions.outcomes import outcome_schema
from volstream.functions.output import StagedOutput
from volstream.functions.schema import to_ddl
from volstream.model import counts
from volstream.model.work import SUPERSEDED, FailureKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.functions.worker import Work

#: Rows in memory at a time; some may be large.
_ROWS = 1000

#: Stops Parquet's writer from keeping minimum and maximum values. It keeps them in full for all row groups until a file ends,
#: so that a file of large rows would be in memory twice.
WITHOUT_STATISTICS = {"parquet.column.statistics.enabled": "false"}

#: Row groups are small, and at first the writer checks its memory after each row, not after a hundred, which may be large:
#: writing and reading hold this many bytes, or one row, at once.
_GROUP_BYTES = 8 << 20
_OF_STAGED = {
    "parquet.block.size": str(_GROUP_BYTES),
    "parquet.block.size.row.check.min": "1",
    "parquet.page.size.row.check.min": "1",
    **WITHOUT_STATISTICS,
}

#: SQL condition on outcomes after which earlier rows go: success, or a set that is no longer complete.
SETTLED = f"(error_kind IS NULL OR (error_kind = '{FailureKind.HELD}' AND retry_after IS NULL))"

_FAILURE = ("path", "file_version", "commit_version", "error_kind", "error_message", "error_traceback", "retry_after")


@dataclass(frozen=True)
class Totals:
    """Numbers of an attempt's succeeded and failed files, and of the rows of the succeeded ones.

    Attributes:
        overtaken: failed files that were removed or changed before their turn; not real failures.
        later: failed files whose function asked to be called later; not real failures either.
        held: sets of files that are held back; not real failures either.
        printed: entries of the function's output.
        new_columns: failed files with columns that the result lacks.
        counted: what the function counted, including in failed files.
        files_per_call: number of files that the function takes; None: it was not called.
    """

    succeeded: int
    failed: int
    rows: int
    overtaken: int = 0
    later: int = 0
    held: int = 0
    printed: int = 0
    new_columns: int = 0
    counted: Mapping[str, float] = field(default_factory=dict)
    files_per_call: int | None = None


@dataclass(frozen=True)
class Staged:
    """The staged outcomes of one attempt.

    Attributes:
        location: URI of the folder.
        result: the function's own columns.
    """

    location: str
    result: pa.Schema

    def write(self, files: DataFrame, work: Work) -> None:
        """Runs the function on ``files`` (rows of a plan); replaces earlier outcomes in this folder.

        Raises:
            StorageError: the store grants the workers no access.
        """
        # The pickle of a copied store contains keys for tasks. Requesting them here keeps errors clear: Spark prints an error
        # that occurs while pickling, and raises another one.
        work = replace(work, store=copy(work.store))
        if work.outputs is not None:
            work = replace(work, outputs=replace(work.outputs, store=copy(work.outputs.store)))
        outcomes = files.mapInArrow(work, self._ddl()).write.mode("overwrite")
        outcomes.options(**_OF_STAGED).parquet(self.location)

    def write_nothing(self) -> None:
        """Stages empty outcomes, like :meth:`write` without files, but without Spark."""
        with folders.written(self.location, outcome_schema(self.result)):
            pass

    def read(self, session: SparkSession) -> DataFrame:
        """Returns the outcomes. Given columns save Spark a job to infer them."""
        return session.read.schema(self._ddl()).parquet(self.location)

    def totals(self) -> Totals:
        """Counts the staged outcomes, holding one batch of rows and five columns in memory at a time."""
        succeeded = failed = rows = overtaken = later = held = printed = new_columns = 0
        counted: dict[str, float] = {}
        files_per_call: int | None = None
        for batch in self._dataset().to_batches(
            columns=["rows", "error_kind", "printed", "new_columns", "counted", "files_per_call"]
        ):
            bad = len(batch) - batch["error_kind"].null_count
            failed += bad
            kinds = batch["error_kind"]
            overtaken += pc.sum(pc.is_in(kinds, value_set=pa.array(SUPERSEDED, pa.string()))).as_py() or 0
            later += pc.sum(pc.equal(kinds, FailureKind.RETRY_LATER.value)).as_py() or 0
            held += pc.sum(pc.equal(kinds, FailureKind.HELD.value)).as_py() or 0
            succeeded += len(batch) - batch["rows"].null_count - bad
            rows += pc.sum(batch["rows"]).as_py() or 0
            printed += len(batch) - batch["printed"].null_count
            new_columns += len(batch) - batch["new_columns"].null_count
            for text in batch["counted"].drop_null().to_pylist():
                counts.add(counted, json.loads(text))
            files_per_call = pc.max(batch["files_per_call"]).as_py() or files_per_call
        return Totals(succeeded, failed, rows, overtaken, later, held, printed, new_columns, counted, files_per_call)

    def new_columns(self) -> Sequence[str]:
        """Returns the columns that files have and the result lacks, as DDL, without duplicates."""
        rows = self._dataset().to_table(columns=["new_columns"], filter=ds.field("new_columns").is_valid())
        distinct: list[str] = pc.unique(rows["new_columns"]).to_pylist()
        return distinct

    def printed(self) -> Iterator[str]:
        """Yields the function's output, as :meth:`~volstream.functions.printing.CapturedOutput.encoded` encodes it."""
        for batch in self._dataset().to_batches(columns=["printed"], filter=ds.field("printed").is_valid()):
            yield from batch["printed"].to_pylist()

    def broken(self) -> Mapping[str, Any] | None:
        """Returns the failure, as in :meth:`failures`, of a file for which the function could not be set up, or None."""
        failed = self._dataset().head(1, columns=list(_FAILURE), filter=ds.field("error_kind") == FailureKind.SET_UP)
        return failed.to_pylist()[0] if failed.num_rows else None

    def failures(self) -> Iterator[Mapping[str, Any]]:
        """Yields the failed files: ``path``, ``file_version``, ``commit_version`` and the ``error_`` columns."""
        failed = self._dataset().to_batches(columns=list(_FAILURE), filter=ds.field("error_kind").is_valid())
        for batch in failed:
            yield from batch.to_pylist()

    def rows(self, batch_id: str, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yields the function's rows with their provenance, in chunks with the columns of a result table."""
        needed = ["result", "path", "file_version", "commit_version", "processed_at"]
        staged = self._dataset().to_batches(columns=needed, batch_size=_ROWS, batch_readahead=1, fragment_readahead=1)
        for batch in staged:
            succeeded = batch.filter(batch["result"].is_valid())
            columns = [
                *succeeded["result"].flatten(),
                succeeded["path"],
                succeeded["file_version"],
                succeeded["commit_version"],
            ]
            columns += [pa.repeat(batch_id, len(succeeded)), succeeded["processed_at"]]
            yield pa.table(columns, names=names)

    def has_large_rows(self) -> bool:
        """Returns whether any row is as large as a row group should be."""
        groups = (group for fragment in self._dataset().get_fragments() for group in fragment.row_groups)
        return any(group.total_byte_size > 2 * _GROUP_BYTES for group in groups)

    def settled(self) -> list[str]:
        """Returns the paths whose earlier rows go (:data:`SETTLED`); all in memory."""
        incomplete = (ds.field("error_kind") == FailureKind.HELD.value) & ds.field("retry_after").is_null()
        gone = ds.field("rows").is_valid() & (ds.field("error_kind").is_null() | incomplete)
        paths: list[str] = self._dataset().to_table(columns=["path"], filter=gone)["path"].to_pylist()
        return paths

    def outputs(self) -> Iterator[tuple[str, StagedOutput]]:
        """Yields the files that the rows name, each with the path of the file whose rows these are."""
        made = self._dataset().to_batches(columns=["path", "outputs"], filter=ds.field("outputs").is_valid())
        for batch in made:
            for path, listed in zip(batch["path"].to_pylist(), batch["outputs"].to_pylist(), strict=True):
                for output in json.loads(listed):
                    yield path, StagedOutput(*output)

    def paths(self) -> set[str]:
        """Returns the paths of the files that have an outcome; all in memory."""
        rows = self._dataset().to_table(columns=["path"], filter=ds.field("rows").is_valid())
        return {*rows["path"].to_pylist()}

    def with_failed(self, why: Mapping[str, str]) -> Staged:
        """Returns a copy of the outcomes in which some files failed.

        Args:
            why: messages, by path.
        """
        failing = pa.array(list(why), pa.string())
        copied = Staged(f"{self.location}-checked", self.result)
        schema = outcome_schema(self.result)
        with folders.written(copied.location, schema) as writer:
            for batch in self._dataset().to_batches(batch_size=_ROWS, batch_readahead=1, fragment_readahead=1):
                failed = pc.is_in(batch["path"], value_set=failing)
                writer.write_batch(batch.filter(pc.invert(failed)))
                first = batch.filter(pc.and_(failed, pc.is_valid(batch["rows"])))
                changed = {
                    "rows": pa.array([0] * len(first), pa.int64()),
                    "error_kind": pa.array([FailureKind.RAISED.value] * len(first), pa.string()),
                    "error_message": pa.array([why[path] for path in first["path"].to_pylist()], pa.string()),
                    "result": pa.nulls(len(first), schema.field("result").type),
                    "outputs": pa.nulls(len(first), pa.string()),
                }
                arrays = [changed.get(name, first[name]) for name in schema.names]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return copied

    def _dataset(self) -> ds.Dataset:
        return folders.dataset(self.location, outcome_schema(self.result))

    def _ddl(self) -> str:
        return to_ddl(outcome_schema(self.result))
