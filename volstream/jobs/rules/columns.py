"""Finds the columns of a job, by calling its function on samples or by reading the files that it loads."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa

from volstream.base import faults
from volstream.base.definitions import FileJob, FileJobSpec, Job, NewColumns, Volume, Write
from volstream.base.log import get
from volstream.base.model.names import Name, folded
from volstream.base.model.paths import FileInfo, printable
from volstream.base.model.text import cause, counted, frames
from volstream.base.model.work import FailureKind
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import COLUMNS
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import FunctionLoadError, InvalidStateError, InvalidValueError, StorageDeniedError, StorageError
from volstream.files.volumes.access import store_of
from volstream.functions.call import Work
from volstream.functions.child import ChildWorker
from volstream.functions.finding import find
from volstream.functions.loading.columns import RESERVED, inferred_of
from volstream.functions.loading.loader import add, merged
from volstream.functions.loading.options import INFERRED, RESCUED, LoadOptions, is_marker, may_be_read
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.rows import ArrowRows
from volstream.functions.schema import Inference, InferredColumns, checked, from_ddl, of_job, to_ddl, type_named
from volstream.functions.source import FunctionSource, to_install
from volstream.functions.types.widen import fields_in, grown
from volstream.functions.worker import tasks_of
from volstream.home import Home
from volstream.jobs.plans import sets
from volstream.jobs.plans.sizing import result_bounds
from volstream.jobs.runs.services import JobServices
from volstream.spark.frames import relation
from volstream.tables.delta import direct, places
from volstream.tables.delta.opened import columns_at, schema_at

# A deterministic sample of a volume's files. It is spread evenly, to find columns and files that a table
# already has.

#: Number of files from which a sample is chosen.
_CANDIDATES = 1000


def sample_of(
    services: JobServices, volume: Volume, where: str | None, limit: int, suits: Callable[[FileInfo], bool] = lambda _: True
) -> Sequence[FileInfo]:
    """Returns files of a listed volume, by path: all of them, or the first, the last and some in between.

    Args:
        where: SQL condition on the directory's columns.
        limit: maximum number of files; at least 2.
    """
    infos = _candidates(services, volume, where, suits)
    if len(infos) <= limit:
        return infos
    return [infos[at * (len(infos) - 1) // (limit - 1)] for at in range(limit)]


def check_not_appended(home: Home, spec: FileJobSpec, replaced: Job | None) -> None:
    """Checks that a new job, which begins with all files, does not append rows that its table already has.

    Raises:
        InvalidStateError: the table has rows of the first files of the volume, in their current version.
    """
    files_leave = isinstance(replaced, FileJob) and replaced.takes_files  # a landing zone
    if spec.write is not Write.APPEND or spec.volume is None or spec.group_by is not None or files_leave:
        return
    location = places.table_location(home.warehouse, spec.into)
    volume = home.catalog.volumes.get(spec.volume)
    if not {"_file_path", "_file_version"} <= columns_at(location).keys() or _listed(home, volume) is None:
        return
    files = _candidates(JobServices(home), volume, spec.where, lambda _: True)
    paths = {file.relative_path for file in files}
    rows = direct.rows_of(location, "_file_path", paths, ["_file_path", "_file_version"]) if paths else None
    present = set(zip(*(column.to_pylist() for column in rows.columns), strict=True)) if rows is not None else set()
    repeated = [file.relative_path for file in files if (file.relative_path, file.version) in present]
    if repeated:
        raise InvalidStateError(
            f"The table {spec.into} has rows of {counted(len(repeated), 'file')} of the volume {spec.volume} already, such as "
            f"{printable(repeated[0])}. A new job begins with all files, and would append their rows again.",
            f"To change a job, run volstream alter-job {spec.name}. To load all files again, drop the table or name another one.",
        )


def _listed(home: Home | JobServices, volume: Volume) -> Snapshot | None:
    """Returns the directory of a volume, or None before its first listing."""
    return VolumeSource(home.catalog, home.warehouse, volume.id).find()


def _candidates(
    services: JobServices, volume: Volume, where: str | None, suits: Callable[[FileInfo], bool]
) -> Sequence[FileInfo]:
    snapshot = _listed(services, volume)
    if snapshot is None:
        return ()
    infos: list[FileInfo] = []
    for rows in snapshot.at():
        if where is not None and rows.num_rows:
            with services.session() as session:
                rows = relation(session, rows.select(COLUMNS)).where(where).toArrow()
        candidates = (FileInfo(*row.values()) for row in rows.select(list(FileInfo._fields)).to_pylist())
        infos += islice(filter(suits, candidates), _CANDIDATES - len(infos))
        if len(infos) >= _CANDIDATES:
            break
    return infos


# Finds the columns of a function that declares none, by calling it on a few files in a child process.

#: The function is called on this many files, or on up to the maximum while a column was always empty or no
#: file gave rows.
_MIN_FILES, _MAX_FILES = 3, 10

#: No further file is tried after this time. Also the timeout of a call if the job sets none.
_SECONDS = 60.0

#: Finds the columns that a function returns, given its arguments. Raises InvalidValueError,
#: FunctionLoadError.
Infer = Callable[[FunctionSource, Mapping[str, str]], InferredColumns]


@dataclass(frozen=True)
class ColumnInference:
    """Infers columns from files of a listed volume.

    Args:
        job: the function's job.
    """

    services: JobServices
    volume: Volume
    job: FileJob | FileJobSpec

    def __call__(self, source: FunctionSource, arguments: Mapping[str, str]) -> InferredColumns:
        """Returns the columns that a function returns for a sample.

        Raises:
            InvalidValueError: there are no files, no file gave rows, or the rows contradict each other.
            FunctionLoadError: the function cannot be set up.
        """
        tasks = self._sample()
        if not tasks:
            where, has_sets = self.job.where, self.job.group_by is not None
            reason = f"no file satisfies {where}" if where is not None else "there are no files yet"
            if where is None and self.volume.patterns:
                reason = f"no file matches {', '.join(map(repr, self.volume.patterns))}, as far as volstream refresh has listed"
            reason = "no set is complete yet" if has_sets and where is None else reason
            raise self._refused(reason)
        inference, failed, tried = Inference(), list[FileOutcome](), 0
        began = time.monotonic()
        with closing(ChildWorker(self._work(source, arguments))) as worker:
            # Start with files that are far apart.
            for task in [*tasks[::4], *(task for at, task in enumerate(tasks) if at % 4)]:
                [outcome] = worker.call([task])
                tried += 1
                if outcome.kind is FailureKind.SET_UP:
                    raise FunctionLoadError(f"The function cannot be set up: {outcome.message}")
                if outcome.kind is not None:
                    failed.append(outcome)
                else:
                    inference.add_types(task.info.relative_path, outcome.types)
                if (tried >= _MIN_FILES and inference.complete) or time.monotonic() - began > _SECONDS:
                    break
        why = _summary(failed, tried)
        if not inference.files and failed:
            if missing := re.match(r"ModuleNotFoundError: No module named '([^']+)'", failed[0].message):
                raise InvalidValueError(f"The function failed for {why}.", to_install(missing[1], source))
            raise self._refused(f"the function failed for {why}", "Correct the function, or name its columns")
        if not inference.files:
            raise self._refused(f"the function returned no rows for {counted(tried, 'file')}")
        return replace(inference.result(), failed=why)

    def _sample(self) -> Sequence[FileTask]:
        if self.job.group_by is None:
            return [FileTask(info, 0) for info in sample_of(self.services, self.volume, self.job.where, _MAX_FILES)]
        snapshot = VolumeSource(self.services.catalog, self.services.warehouse, self.volume.id).find()
        if snapshot is None:
            return []
        with self.services.session() as session:
            due = sets.present(session, self.job, snapshot, snapshot.newest).where("held IS NULL")
            return list(tasks_of(due.sort("relative_path").limit(_MAX_FILES).toArrow().to_batches()))

    def _work(self, source: FunctionSource, arguments: Mapping[str, str]) -> Work:
        settings = self.services.settings
        return Work(
            source,
            arguments,
            store_of(self.volume, self.services.catalog, settings),
            schema=None,
            timeout_seconds=self.job.timeout or _SECONDS,
            isolate=True,
            memory_bytes=settings.function_memory,
            ahead_bytes=0,
            bounds=result_bounds(settings),
            declared=False,
            sets=self.job.group_by is not None,
        )

    def _refused(self, why: str, remedy: str = "Name the columns") -> InvalidValueError:
        return InvalidValueError(
            f"The columns cannot be inferred from the volume {self.volume.name}: {why.rstrip('.')}.",
            f"{remedy}: returns='label STRING, score DOUBLE', or a dataclass as the annotation.",
        )


def _summary(failed: Sequence[FileOutcome], tried: int) -> str:
    """Returns the number of files for which a function failed, with an example of the most frequent cause, or
    an empty text."""
    if not failed:
        return ""
    # The first file may be atypical: its error would hide the error of all others.
    causes = Counter(cause(outcome.message) for outcome in failed)
    first = next(outcome for outcome in failed if causes[cause(outcome.message)] == max(causes.values()))
    path = printable(first.task.info.relative_path)
    what = f"{counted(len(failed), 'file')} of {tried}, such as {path}" if tried > 1 else path
    return f"{what}: {_with_line(first).rstrip('.')}"


def _with_line(outcome: FileOutcome) -> str:
    """Returns a failure's message with the line of the function that raised it."""
    locations = [f"{Path(file).name}, line {line}" for file, line, _ in frames(outcome.traceback)[:1]]
    return " ".join([outcome.message.rstrip("."), *(f"({place})" for place in locations)])


# The columns of jobs that load files: initial columns, and columns that later files add.

_log = get("jobs")

#: Number of files in a sample.
SAMPLE = 32

#: Files add columns, and fields in them, to a table only up to this number. Beyond it, the names are probably
#: data.
MAX_COLUMNS = 2000

#: The function that reports a file's columns, and its result.
_SAMPLER, _SAMPLER_RESULT = "volstream.functions.loading.loader:SampleColumns", pa.schema([pa.field("columns", pa.binary())])

#: A column of every job that loads.
_RESCUED = pa.field(RESCUED, pa.string())


def first_columns(services: JobServices, volume: Volume, into: Name, options: LoadOptions, where: str | None) -> tuple[str, str]:
    """Returns the columns, as DDL, for a job that loads a volume, and its :data:`INFERRED` argument.

    The columns are found in a sample of the volume's files. Columns of an existing table keep their types.
    New columns are added only if the job adds columns.

    Args:
        where: the job's condition on files.

    Raises:
        InvalidValueError: no file of the sample can be read, or there are no files and the job does not add
            columns later.
        StorageError: a file cannot be read.
    """
    existing = _existing(services, into)
    sampled = read_columns(services, volume, options, sample(services, volume, options, where))
    columns = [field for field in sampled if folded(field.name) not in existing]
    if existing:
        columns = [*existing.values(), *(columns if options.new_columns is NewColumns.ADD else ())]
    if not columns and options.new_columns is not NewColumns.ADD:
        raise InvalidValueError(
            f"The volume {volume.name} has no rows yet to infer columns from.",
            "Name the columns (a schema), or let new columns be added.",
        )
    if len(columns) > MAX_COLUMNS:
        raise InvalidValueError(
            f"The files of {volume.name} have {len(columns)} columns, but a table gets at most {MAX_COLUMNS} from files.",
            "Name those that you need (a schema).",
        )
    found_before = {name for job in _loading(services, into) for name in job.arguments.get(INFERRED, "").split(",")}
    inferred = inferred_of(field for field in columns if folded(field.name) not in existing or field.name in found_before)
    return to_ddl(checked(pa.schema([*columns, _RESCUED]))), inferred


def _loading(services: JobServices, into: Name) -> Iterable[FileJob]:
    """Yields the jobs that load a table, including a replaced job."""
    jobs = services.catalog.jobs.list(into_schema=into.schema, into_name=into.name)
    return (job for job in jobs if isinstance(job, FileJob) and job.loads)


def adopt(services: JobServices, job: FileJob, ddls: Iterable[str]) -> FileJob | None:
    """Adds columns, and fields of columns, found in files to a job and its table. Returns the changed job.

    Returns None if the job does not accept them, or has them. The catalog changes first: if the change of the
    table fails, the job's next run repeats it, as after a change by the user.

    Args:
        ddls: columns that the job lacks, or has with fewer fields.

    Raises:
        InvalidValueError: the table has such a column with a type that a result cannot have.
    """
    if not job.loads or LoadOptions.of(job.arguments).new_columns is not NewColumns.ADD:
        return None
    found: dict[str, pa.Field] = {}
    for field in (column for ddl in ddls for column in from_ddl(ddl)):
        add(found, field)
    before = {folded(field.name): field for field in of_job(job)}
    existing, columns = _existing(services, job.into), dict(before)
    for name, field in found.items():
        current = existing.get(name) or before.get(name) or field
        columns[name] = current.with_type(grown(current.type, field.type))
    if columns == before or sum(fields_in(field.type) for field in columns.values()) > MAX_COLUMNS:
        return None
    added = pa.schema([field for name, field in columns.items() if name not in before or field != before[name]])
    inferred = inferred_of(column for column in added if folded(column.name) not in {*before, *existing})
    job = services.catalog.jobs.change(
        job,
        returns=to_ddl(checked(pa.schema([*columns.values()]))),
        arguments={**job.arguments, INFERRED: ",".join(filter(None, [job.arguments.get(INFERRED), inferred]))},
    )
    faults.point("columns.adopted")
    job = services.results.prepare(job)
    _log.info("columns_added", job=str(job.name), table=str(job.into), columns=to_ddl(added))
    return job


def _existing(services: JobServices, table: Name) -> Mapping[str, pa.Field]:
    """Returns the columns of a table that file values may fill, by lower-case name."""
    schema = schema_at(places.table_location(services.warehouse, table))
    columns: dict[str, pa.Field] = {}
    for name in [] if schema is None else schema.columns:
        if schema is not None and folded(name) not in RESERVED:
            # The job cannot use a column whose type a result cannot have.
            with suppress(InvalidValueError):
                columns[folded(name)] = pa.field(name, type_named(schema.sql_type(name)))
    return columns


def sample(services: JobServices, volume: Volume, options: LoadOptions, where: str | None) -> Sequence[FileInfo]:
    """Returns some files of a volume that can be read."""
    return sample_of(services, volume, where, SAMPLE, partial(_suits, options))


def read_columns(services: JobServices, volume: Volume, options: LoadOptions, infos: Sequence[FileInfo]) -> pa.Schema:
    """Returns the columns of files, read in a separate process because a file may fill its memory or crash
    it. Raises as :func:`first_columns`."""
    if not infos:
        return pa.schema([])
    store = store_of(volume, services.catalog, services.settings)
    work = Work(find(_SAMPLER), options.arguments(), store, _SAMPLER_RESULT, memory_bytes=services.settings.function_memory)
    schemas: list[pa.Schema] = []
    failed: FileOutcome | None = None
    changed = ""
    with closing(ChildWorker(work)) as worker:
        for info in infos:
            [outcome] = worker.call([FileTask(info, 0)])
            if outcome.kind is None:
                assert not isinstance(outcome.rows, ArrowRows), "they are plain"
                [row] = outcome.rows
                schemas.append(pa.ipc.read_schema(pa.py_buffer(row["columns"])))
                continue
            if outcome.kind in (FailureKind.DENIED, FailureKind.UNREADABLE):
                raise (StorageDeniedError if outcome.kind is FailureKind.DENIED else StorageError)(outcome.message)
            present = store.head(info.relative_path)
            if present is None or present.version != info.version:
                changed = printable(info.relative_path)
            else:
                failed = outcome
    if failed is not None and not schemas:
        raise InvalidValueError(
            f"The columns of {volume.name} cannot be determined: none of {counted(len(infos), 'file')} can be read. "
            f"{failed.message}"
        )
    if changed and not schemas:
        raise InvalidStateError(
            f"Files of the volume {volume.name} have changed since its last refresh: {changed}.",
            f"Run: volstream refresh {volume.name}",
        )
    return merged(schemas)


def _suits(options: LoadOptions, info: FileInfo) -> bool:
    return bool(info.size) and not is_marker(info.relative_path) and may_be_read(info.relative_path, options)
