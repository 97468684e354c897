"""Comparison of a job's code with other code: the request, the result and the comparison itself."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.definitions import FileJob, Write
from volstream.base.model.paths import did_you_mean
from volstream.base.model.text import cause, json_document
from volstream.base.model.work import WAITING, FailureKind, total_counts
from volstream.errors import FunctionLoadError, InvalidStateError, NotFoundError
from volstream.files.volumes.access import store_of
from volstream.functions.output import FILE, has_files
from volstream.functions.pickled import code_of
from volstream.functions.rows import size_of
from volstream.functions.schema import key_column, of_job, provenance_of
from volstream.functions.source import FunctionSource
from volstream.functions.types.kinds import name_of
from volstream.jobs.batches.staged import Staged
from volstream.jobs.batches.stager import stage, target_of_rows, work_on
from volstream.jobs.plans import plan
from volstream.jobs.rules.definitions import with_environment
from volstream.jobs.runs.services import JobServices
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import batches, relation
from volstream.sql.text import literal, one_of, quote_columns, table_at
from volstream.tables.delta import places
from volstream.tables.delta.opened import columns_at
from volstream.tables.delta.places import reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


@dataclass(frozen=True)
class SampleSelection:
    """Selects the delivered files to compare.

    Attributes:
        maximum: maximum number of files, at least the number of ``paths``.
        condition: on the directory's columns.
        paths: files that the condition names, all of which must exist.
    """

    maximum: int = 200
    condition: str | None = None
    paths: Sequence[str] = ()


@dataclass(frozen=True)
class Columns:
    """How the columns of two codes differ: SQL types by column. ``retyped`` has the old and the new type."""

    new: Mapping[str, str]
    dropped: Mapping[str, str]
    retyped: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, old: pa.Schema, new: pa.Schema) -> Columns:
        """Compares two schemas."""
        before, after = ({field.name: name_of(field.type) for field in schema} for schema in (old, new))
        return cls(
            {name: kind for name, kind in after.items() if name not in before},
            {name: kind for name, kind in before.items() if name not in after},
            {
                name: (before[name], kind)
                for name, kind in after.items()
                if name in before and not old.field(name).type.equals(new.field(name).type)
            },
        )


@dataclass(frozen=True)
class CostPercentiles:
    """The cost of a function's calls, per file.

    Attributes:
        seconds: duration of the call.
        memory: bytes by which the worker's memory grew at its peak, or None if unknown on this system.
        counted: the function's counters by name, over all files.
    """

    seconds: Percentiles | None
    memory: Percentiles | None
    counted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparisonProgress:
    """The progress of a comparison.

    Attributes:
        files: in the sample.
        compared: files already compared; 0 while code is running on them.
        own: the job's own code is being run or compared, after the other code.
    """

    files: int
    compared: int = 0
    own: bool = False


#: Receives the progress. An error that it raises ends the comparison.
ComparisonObserver = Callable[[ComparisonProgress], None]


@dataclass(frozen=True)
class Comparison:
    """The result of running other code on delivered files.

    Attributes:
        function: the other code.
        delivered: number of files from which the sample was taken.
        differences: between the other code's outcomes, and the table's rows and current failures.
        own: the same for the job's own code, if it was run. It differs from its earlier outcomes if its
            results vary from call to call, or if it was changed since.
        own_cost: of the job's own code, on the same files.
    """

    job: str
    function: str
    delivered: int
    columns: Columns
    differences: Differences
    cost: CostPercentiles
    own: Differences | None = None
    own_cost: CostPercentiles | None = None

    def commands_to_switch(self, function: str, returns: str | None, arguments: Mapping[str, str] | None = None) -> Sequence[str]:
        """Returns the commands that switch the job to the other code, or none if a changed column type needs
        a new table.

        Args:
            function: the other code, as the user gave it.
            returns: columns that the user gave for the other code.
            arguments: arguments that the user gave for it.
        """
        if self.columns.retyped:
            return ()
        pairs = [f"{key}={value}" for key, value in (arguments or {}).items()]
        options = [*(["--returns", returns] if returns else []), *(word for pair in pairs for word in ("--arg", pair))]
        return (
            shlex.join(["volstream", "alter-job", self.job, "--function", function, *options]),
            shlex.join(["volstream", "replay", self.job]),
        )


# Differences between the outcomes of two codes for the same files: by column, number of rows, and error.
# Pure.
#
# Outcomes are added and counted file by file. Each kind of difference keeps a few shortened examples, so that
# memory does not grow with the files.

#: A row from a function or the table: values by column.
Row = Mapping[str, Any]

#: Number of examples kept of each kind of difference.
_EXAMPLES = 3

#: Maximum number of groups of errors. Further errors are counted under :data:`OTHERS`.
_GROUPS = 50

#: Number of characters in an example, and how many of them precede the first difference.
_SHOWN, _BEFORE = 80, 20

#: Up to this many differing rows of a file are paired by similarity, in quadratic time. More rows are paired
#: in order.
_PAIRED = 100

_NOT_A_NUMBER = object()

#: The group for all errors beyond the maximum number of groups.
OTHERS = "other errors"


@dataclass
class CodeOutcome:
    """The outcome of a code for a file: rows, or an error.

    Attributes:
        rows: None if they are too many to compare.
        count: number of rows.
        kind, message: of the error, if there is one.
    """

    rows: Sequence[Row] | None = ()
    count: int = 0
    kind: str | None = None
    message: str = ""


@dataclass(frozen=True)
class Example:
    """One difference.

    ``old`` and ``new`` are values (long ones cut around the first difference) or numbers of rows.
    """

    path: str
    old: Any
    new: Any


@dataclass
class Examples:
    """A number of files or rows, with the first few as examples."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)

    def add(self, path: str, old: Any, new: Any) -> None:
        """Counts one difference."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(Example(path, *_cut(old, new)))


@dataclass
class ErrorGroup:
    """Failures with the same error, ignoring numbers and quoted text.

    Attributes:
        message: of the first failure.
        paths: the first few.
    """

    kind: str
    message: str
    files: int = 0
    paths: list[str] = field(default_factory=list)


@dataclass
class Differences:
    """The differences between an old and a new code's outcomes.

    Attributes:
        files: number of compared files, with ``old_rows`` and ``new_rows`` in total.
        same: files without differences.
        rows: differing rows, in ``differing`` files.
        columns: differing rows by column.
        more, fewer: files with more or fewer rows. Examples show the numbers.
        new_failures, healed: files that fail only with the new code, or only with the old one, by error.
        still_failing: files that fail with both.
        uncompared: files with too many rows to compare. Only their numbers of rows were compared.
        changed: files that were removed or changed before the new code's turn. Not in ``files``.
    """

    files: int = 0
    old_rows: int = 0
    new_rows: int = 0
    same: int = 0
    rows: int = 0
    differing: int = 0
    columns: dict[str, Examples] = field(default_factory=dict)
    more: Examples = field(default_factory=Examples)
    fewer: Examples = field(default_factory=Examples)
    new_failures: list[ErrorGroup] = field(default_factory=list)
    healed: list[ErrorGroup] = field(default_factory=list)
    still_failing: int = 0
    uncompared: int = 0
    changed: int = 0

    @property
    def none(self) -> bool:
        """Whether there are no differences."""
        return self.files == self.same


class Comparer:
    """Compares outcomes file by file.

    Args:
        columns: the columns of both codes.
    """

    def __init__(self, columns: Collection[str]) -> None:
        self.found = Differences()
        self._columns = tuple(columns)
        self._groups: dict[tuple[str, str, str], ErrorGroup] = {}

    def changed(self) -> None:
        """Counts a file that could not be compared because it was changed or removed."""
        self.found.changed += 1

    def add(self, path: str, old: CodeOutcome, new: CodeOutcome) -> None:
        """Compares the outcomes of one file."""
        differences = self.found
        differences.files += 1
        differences.old_rows += old.count
        differences.new_rows += new.count
        if old.kind is not None and new.kind is not None:
            differences.still_failing += 1
            differences.same += 1
        elif new.kind is not None:
            self._group("new", differences.new_failures, path, new)
        elif old.kind is not None:
            self._group("healed", differences.healed, path, old)
        elif not self._compare(path, old, new):
            differences.same += 1

    def _compare(self, path: str, old: CodeOutcome, new: CodeOutcome) -> bool:
        """Compares rows. Returns whether any differ."""
        differences = self.found
        if old.count != new.count:
            (differences.more if new.count > old.count else differences.fewer).add(path, old.count, new.count)
        if old.rows is None or new.rows is None:
            differences.uncompared += 1
            return old.count != new.count
        pairs = _pairs(*_without_equal(old.rows, new.rows, self._columns), self._columns)
        for before, after in pairs:
            differences.rows += 1
            for name in _differing_columns(before, after, self._columns):
                differences.columns.setdefault(name, Examples()).add(path, before.get(name), after.get(name))
        differences.differing += bool(pairs)
        return bool(pairs) or old.count != new.count

    def _group(self, side: str, groups: list[ErrorGroup], path: str, outcome: CodeOutcome) -> None:
        kind = outcome.kind or ""
        key = (side, kind, cause(outcome.message))
        if key not in self._groups and len(groups) >= _GROUPS:
            kind, key = OTHERS, (side, OTHERS, "")
        if key not in self._groups:
            message = "" if kind == OTHERS else outcome.message
            self._groups[key] = ErrorGroup(kind, _short(message.partition("\n")[0], 0, 3 * _SHOWN))
            groups.append(self._groups[key])
        group = self._groups[key]
        group.files += 1
        if len(group.paths) < _EXAMPLES:
            group.paths.append(path)


@dataclass(frozen=True)
class Percentiles:
    """Median and 95th percentile of measurements."""

    median: float
    high: float

    @classmethod
    def of(cls, measured: Iterable[float]) -> Percentiles | None:
        """Computes them for measurements. Returns None without measurements."""
        ordered = sorted(measured)
        if not ordered:
            return None
        return cls(ordered[(len(ordered) - 1) // 2], ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)])


def _without_equal(old: Sequence[Row], new: Sequence[Row], columns: Sequence[str]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Returns the rows of each side without an equal row on the other side, in order."""
    old_counts, new_counts = (Counter(_key(row, columns) for row in rows) for rows in (old, new))
    return _unmatched(old, new_counts, columns), _unmatched(new, old_counts, columns)


def _unmatched(rows: Sequence[Row], others: Counter[Any], columns: Sequence[str]) -> Sequence[Row]:
    unmatched: list[Row] = []
    for row in rows:
        key = _key(row, columns)
        if others[key]:
            others[key] -= 1
        else:
            unmatched.append(row)
    return unmatched


def _pairs(old: Sequence[Row], new: Sequence[Row], columns: Sequence[str]) -> list[tuple[Row, Row]]:
    """Pairs each old row with the new row that differs in the fewest columns (the first if several). The rest
    stay unpaired.

    A table does not keep the order of rows, so order says little about which row became which.
    """
    if max(len(old), len(new)) > _PAIRED:
        return list(zip(old, new, strict=False))
    unpaired, pairs = list(new), []
    for row in old[: len(unpaired)]:
        nearest = min(range(len(unpaired)), key=lambda number: len(_differing_columns(row, unpaired[number], columns)))
        pairs.append((row, unpaired.pop(nearest)))
    return pairs


def _differing_columns(old: Row, new: Row, columns: Sequence[str]) -> Sequence[str]:
    return [name for name in columns if _frozen(old.get(name)) != _frozen(new.get(name))]


def _key(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(_frozen(row.get(name)) for name in columns)


def _frozen(value: Any) -> Any:
    """Returns a hashable form of a value, in which NaN equals itself, as in SQL."""
    match value:
        case float():
            return _NOT_A_NUMBER if math.isnan(value) else value
        case list() | tuple():
            return tuple(map(_frozen, value))
        case Mapping():
            return tuple((name, _frozen(item)) for name, item in value.items())
        case bytearray():
            return bytes(value)
        case _:
            return value


def _cut(old: Any, new: Any) -> tuple[Any, Any]:
    """Returns two values for an example.

    Long ones become text that starts shortly before their first difference.
    """
    texts = [_text(old), _text(new)]
    if max(map(len, texts)) <= _SHOWN:
        return _plain(old, texts[0]), _plain(new, texts[1])
    pairs = zip(*texts, strict=False)
    first = next((number for number, (left, right) in enumerate(pairs) if left != right), min(map(len, texts)))
    start = max(0, first - _BEFORE) if first > _SHOWN // 2 else 0
    before, after = (_short(text, start, _SHOWN) for text in texts)
    return before, after


def _plain(value: Any, text: str) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bytes() | bytearray():
            return f"{len(value)} bytes {value[:_SHOWN].hex()}"
        case Mapping() | list() | tuple():
            return json_document(value, default=str)
        case _:
            return str(value)


def _short(text: str, start: int, length: int) -> str:
    more = "..." if len(text) > start + length else ""
    return f"{'...' if start else ''}{text[start : start + length]}{more}"


# Compares other code with a job's code: runs it on a sample of delivered files, and compares the outcomes
# with the table's rows and the current failures. Writes to neither table nor catalog.
#
# The executors stage the outcomes with the same code as for a batch. They are removed at the end.

#: Maximum number of files in a sample. Their paths, failures and measurements are in memory.
MAX_SAMPLE = 10_000

#: Up to this many rows and bytes of a file are compared. Beyond that, only the number of rows is.
_MAX_ROWS, _MAX_BYTES = 10_000, 64 << 20

#: Number of failures read at once.
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
        NotFoundError: the selection includes no delivered file.
        FunctionLoadError: a function cannot be found or set up.
        StreamStaleError: the delivered files are no longer known.
    """
    environments = services.settings.environments_directory
    source = with_environment(code_of(other), other.environment, environments)
    own = with_environment(code_of(job), job.environment, environments) if both else None
    with services.gateway.explaining(), as_sql_errors(), reached(services.warehouse):
        run = _Run(services, job, chosen, observe)
        differences, cost = run.differences(other, source)
        own_result = run.differences(job, own, own=True) if own is not None else (None, None)
        columns = Columns.of(of_job(job), of_job(other))
        return Comparison(str(job.name), other.function, run.delivered, columns, differences, cost, *own_result)


class _Run:
    """A run of codes on one sample of a job's files."""

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
        """Runs code on the sample. Returns the differences from the existing outcomes, and its cost."""
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
            failed, files = self._failed(), list[_OutcomeBuilder]()
            files_in = [field.name for field in of_job(self._job) if has_files(field.type)]
            for path, rows in self._outcomes(session, staged, existing):
                old, new = _collect_outcomes(rows, files_in)
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
        """Returns the job's columns that exist in its table. The job's next run adds the others."""
        present = {name.lower() for name in columns_at(self._services.results.location_of(self._job))}
        return [field.name for field in of_job(self._job) if field.name.lower() in present]

    def _outcomes(
        self, session: SparkSession, staged: Staged, existing: Sequence[str]
    ) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
        """Yields each file's outcome and rows as Spark returns them: the table's rows in ``had``, new rows in
        ``result``."""
        target, added = staged.target, provenance_of(self._job).names
        columns = quote_columns(name for name in target.schema.names if name not in added)
        new = staged.rows(session).selectExpr(f"{target.key} AS path", f"struct({columns}) AS result")
        new = relation(session, staged.costs()).unionByName(new, allowMissingColumns=True)
        if existing:
            new = new.unionByName(self._existing_rows(session, existing), allowMissingColumns=True)
        else:
            new = new.selectExpr("*", "NULL AS had")
        rows = (row for part in batches(new.sort("path")) for row in part.to_pylist())
        return groupby(rows, lambda row: str(row["path"]))

    def _existing_rows(self, session: SparkSession, existing: Sequence[str]) -> DataFrame:
        """Returns the table's rows for the current version of the sample's files."""
        location = self._services.results.location_of(self._job)
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
        """Returns SQL for each file's rows that the job last wrote to a log. Other jobs may append to the
        log, too."""
        present = session.sql(f"SELECT DISTINCT _batch_id FROM ({query})").toArrow()["_batch_id"].to_pylist()
        pairs = ((identity, self._services.catalog.reports.batch(identity)) for identity in present if identity is not None)
        others = [identity for identity, batch in pairs if batch is not None and batch.job_id != self._job.id]
        own = f"_batch_id NOT IN ({', '.join(map(literal, others))})" if others else "true"
        last = "rank() OVER (PARTITION BY path ORDER BY _processed_at DESC) AS age"
        return f"SELECT * FROM (SELECT *, {last} FROM ({query}) q WHERE {own}) r WHERE age = 1"

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
    """Returns a value of a column with outputs, without the outputs' etags."""
    if isinstance(value, Mapping):
        cleared = {"etag": None} if value.keys() == {*FILE.names} else {}
        return {**{key: _without_etags(item) for key, item in value.items()}, **cleared}
    return [_without_etags(item) for item in value] if isinstance(value, list) else value


class _OutcomeBuilder:
    """Collects the outcome of one file, row by row within limits, and its cost."""

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


def _collect_outcomes(rows: Iterable[Mapping[str, Any]], files_in: Sequence[str]) -> tuple[_OutcomeBuilder, _OutcomeBuilder]:
    """Returns the old and the new outcome of a file. Outputs are not written again, so their etags are left
    out.

    Args:
        files_in: columns with outputs.
    """
    old, new = _OutcomeBuilder(), _OutcomeBuilder()
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
