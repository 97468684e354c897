"""The columns of jobs that load files: their initial columns, and those that later files add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial

import pyarrow as pa

from volstream.base import faults
from volstream.base.definitions import FileJob, NewColumns, Volume
from volstream.base.log import get
from volstream.base.model.names import Name, folded
from volstream.base.model.paths import FileInfo, printable
from volstream.base.model.text import counted
from volstream.base.model.work import FailureKind
from volstream.errors import InvalidStateError, InvalidValueError, StorageDeniedError, StorageError
from volstream.files.volumes.access import store_of
from volstream.functions.child import ChildWorker
from volstream.functions.finding import find
from volstream.functions.loading.columns import RESERVED, inferred_of
from volstream.functions.loading.loader import add, merged
from volstream.functions.loading.options import INFERRED, RESCUED, LoadOptions, is_marker, may_be_read
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.rows import ArrowRows
from volstream.functions.schema import checked, from_ddl, of_job, to_ddl, type_named
from volstream.functions.types.widen import fields_in, grown
from volstream.functions.worker import Work
from volstream.jobs.load import loads
from volstream.jobs.sample import sample_of
from volstream.jobs.services import JobServices
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at

_log = get("jobs")

#: Number of files in a sample.
SAMPLE = 32

#: Files add columns, and fields of them, to a table only up to this number: beyond it, the names are probably data.
MAX_COLUMNS = 2000

#: The function that reports a file's columns, and its result.
_SHOWN, _SHOWN_AS = "volstream.functions.loading.loader:SampleColumns", pa.schema([pa.field("columns", pa.binary())])

#: A column of every job that loads.
_RESCUED = pa.field(RESCUED, pa.string())


def first_columns(services: JobServices, volume: Volume, into: Name, options: LoadOptions, where: str | None) -> tuple[str, str]:
    """Returns the columns, as DDL, for a job that loads a volume, found in a sample of its files, and its :data:`INFERRED`.

    Columns of an existing table keep their types; new ones are added only if the job adds columns.

    Args:
        where: the job's condition on files.

    Raises:
        InvalidValueError: no file of the sample can be read; or there are no files, and the job does not add columns later.
        StorageError: a file cannot be read.
    """
    existing = _existing(services, into)
    sampled = columns_shown(services, volume, options, sample(services, volume, options, where))
    own = [field for field in sampled if folded(field.name) not in existing]
    if existing:
        own = [*existing.values(), *(own if options.new_columns is NewColumns.ADD else ())]
    if not own and options.new_columns is not NewColumns.ADD:
        raise InvalidValueError(
            f"The volume {volume.name} has no rows yet to infer columns from.",
            "Name the columns (a schema), or let new columns be added.",
        )
    if len(own) > MAX_COLUMNS:
        raise InvalidValueError(
            f"The files of {volume.name} have {len(own)} columns, but a table gets at most {MAX_COLUMNS} from files.",
            "Name those that you need (a schema).",
        )
    found_before = {column for job in _loading(services, into) for column in job.arguments.get(INFERRED, "").split(",")}
    inferred = inferred_of(field for field in own if folded(field.name) not in existing or field.name in found_before)
    return to_ddl(checked(pa.schema([*own, _RESCUED]))), inferred


def _loading(services: JobServices, into: Name) -> Iterable[FileJob]:
    """Yields the jobs that load a table, a replaced job included."""
    jobs = services.catalog.jobs.list(into_schema=into.schema, into_name=into.name)
    return (job for job in jobs if isinstance(job, FileJob) and loads(job))


def adopt(services: JobServices, job: FileJob, ddls: Iterable[str]) -> FileJob | None:
    """Adds columns, and fields of columns, found in files to a job and its table; returns the job.

    None: the job does not accept them, or has them. The catalog changes first: if the table's change fails, the job's next run
    makes it, as after a change by the user.

    Args:
        ddls: columns that the job lacks, or has with fewer fields.

    Raises:
        InvalidValueError: the table has such a column with a type that a result cannot have.
    """
    if not loads(job) or LoadOptions.of(job.arguments).new_columns is not NewColumns.ADD:
        return None
    found: dict[str, pa.Field] = {}
    for field in (column for ddl in ddls for column in from_ddl(ddl)):
        add(found, field)
    before = {folded(field.name): field for field in of_job(job)}
    existing, columns = _existing(services, job.into), dict(before)
    for name, field in found.items():
        own = existing.get(name) or before.get(name) or field
        columns[name] = own.with_type(grown(own.type, field.type))
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
    """Returns a table's columns, except those into which no file's values go, by lower-case name."""
    schema = schema_at(places.table_location(services.warehouse, table))
    columns: dict[str, pa.Field] = {}
    for name in [] if schema is None else schema.columns:
        if schema is not None and folded(name) not in RESERVED:
            # The job cannot use a column whose type no result can have.
            with suppress(InvalidValueError):
                columns[folded(name)] = pa.field(name, type_named(schema.sql_type(name)))
    return columns


def sample(services: JobServices, volume: Volume, options: LoadOptions, where: str | None) -> Sequence[FileInfo]:
    """Returns some files of a volume that can be read."""
    return sample_of(services, volume, where, SAMPLE, partial(_suits, options))


def columns_shown(services: JobServices, volume: Volume, options: LoadOptions, infos: Sequence[FileInfo]) -> pa.Schema:
    """Returns the columns of files, read in a separate process: a file may fill its memory or crash it. Raises as
    :func:`first_columns`."""
    if not infos:
        return pa.schema([])
    store = store_of(volume, services.catalog, services.settings)
    work = Work(find(_SHOWN), options.arguments(), store, _SHOWN_AS, memory_bytes=services.settings.function_memory)
    shown: list[pa.Schema] = []
    failed: FileOutcome | None = None
    changed = ""
    with closing(ChildWorker(work)) as worker:
        for info in infos:
            [outcome] = worker.call([FileTask(info, 0)])
            if outcome.kind is None:
                assert not isinstance(outcome.rows, ArrowRows), "they are plain"
                [row] = outcome.rows
                shown.append(pa.ipc.read_schema(pa.py_buffer(row["columns"])))
                continue
            if outcome.kind in (FailureKind.DENIED, FailureKind.UNREADABLE):
                raise (StorageDeniedError if outcome.kind is FailureKind.DENIED else StorageError)(outcome.message)
            present = store.head(info.relative_path)
            if present is None or present.version != info.version:
                changed = printable(info.relative_path)
            else:
                failed = outcome
    if failed is not None and not shown:
        raise InvalidValueError(
            f"The columns of {volume.name} cannot be determined: none of {counted(len(infos), 'file')} can be read. "
            f"{failed.message}"
        )
    if changed and not shown:
        raise InvalidStateError(
            f"Files of the volume {volume.name} have changed since its last refresh: {changed}.",
            f"Run: volstream refresh {volume.name}",
        )
    return merged(shown)


def _suits(options: LoadOptions, info: FileInfo) -> bool:
    return bool(info.size) and not is_marker(info.relative_path) and may_be_read(info.relative_path, options)
