"""Creates and alters jobs, by the rules for what they read, what they fill, and what their functions make."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import (
    NO_SCHEDULE,
    PAUSED_BY_USER,
    DynamicJob,
    DynamicJobSpec,
    FileJob,
    FileJobOptions,
    FileJobSpec,
    Job,
    JobOptions,
    JobSpec,
    JobState,
    OnMove,
    SetOptions,
    StatementJob,
    StatementJobSpec,
    Stream,
    StreamSpec,
    Write,
)
from volstream.base.definitions.job import LOADER
from volstream.base.definitions.options import keys
from volstream.base.model.names import DEFAULT_SCHEMA, Name, check_table
from volstream.base.model.work import FAILING, PERMANENT, FailureKind, FailureState
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.failures import FailureFilter
from volstream.changes.streams.definitions import new_stream
from volstream.errors import (
    AlreadyExistsError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
    StreamBusyError,
)
from volstream.functions.declared import declared_apart, declared_by
from volstream.functions.environments import EnvironmentStore
from volstream.functions.loading.columns import with_rescued
from volstream.functions.loading.options import INFERRED, LoadOptions
from volstream.functions.pickled import code_of, resolved
from volstream.functions.schema import as_declared, check_names, from_ddl, of_job, of_table, with_known
from volstream.functions.source import FunctionSource
from volstream.home import Home
from volstream.jobs.rules.columns import Infer
from volstream.jobs.rules.conditions import check_expectations, check_sets, check_where
from volstream.jobs.rules.targets import check_after_load, check_outputs, check_target, missing_columns
from volstream.jobs.runs.schedule import check_cron
from volstream.tables.delta import places
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import is_remote, is_table

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.jobs.runs.services import JobServices

# Finds the environment in which a job's function runs, and brings it to remote workers.


def resolve_environment(path: str | None, directory: Path | None) -> str | None:
    """Returns the absolute path of an environment's definition, or None for no path or an empty one.

    Args:
        directory: base of a relative path. The working directory by default.
    """
    return os.path.abspath((directory or Path.cwd()) / os.path.expanduser(path)) if path else None


def with_environment(source: FunctionSource, path: str | None, folder: Path) -> FunctionSource:
    """Returns a function in the environment at ``path``, which is built if missing. Without a path, the
    function runs in volstream's own environment.

    Args:
        folder: where environments are built.

    Raises:
        As :meth:`EnvironmentStore.at`.
    """
    if path is None:
        return source
    return replace(source, environment=EnvironmentStore(folder).at(path))


def ship(services: JobServices, session: SparkSession, source: FunctionSource) -> FunctionSource:
    """Returns a function whose environment the session's workers have.

    On an external Spark, they get a copy. A folder is not copied: they must see it under the same path.
    """
    environment = source.environment
    if environment is None or not services.settings.spark_remote:
        return source
    packed = EnvironmentStore(services.settings.environments_directory).packed(environment)
    if packed is None:
        return source
    return replace(source, environment=replace(environment, archive=services.gateway.bring(session, packed)))


# Creates, changes and drops jobs. Imports the function once to reject unusable functions immediately.

#: Prefix of the reason for pausing a job whose function fails during setup.
FUNCTION_BROKEN = "its function cannot be set up"


def create_job(
    home: Home,
    spec: JobSpec,
    *,
    or_replace: bool = False,
    if_not_exists: bool = False,
    directory: Path | None = None,
    infer: Infer | None = None,
    job_id: str | None = None,
) -> Job:
    """Creates a job and, with ``spec.volume``, the job's own stream, which begins with the existing files.

    Args:
        infer: finds the columns of a function that declares none. Without it, such a function is refused.
        directory: where to find the function's file or module, and its environment. The working directory by
            default.
        job_id: id of the new job. A random one by default.

    Raises:
        FunctionLoadError: the function cannot be imported.
        DependencyError: its environment cannot be built.
        NotFoundError: the stream, the volume or the environment does not exist.
        InvalidValueError: result columns, condition, schedule or limits are invalid.
        InvalidStateError: another job keeps the table, or the table is in use and lacks columns.
        AlreadyExistsError: the name is taken.
        ObjectInUseError: a stream serves another job.
    """
    catalog, warehouse = home.catalog, home.warehouse
    existing = catalog.jobs.resolve_existing(spec.name, or_replace=or_replace, if_not_exists=if_not_exists)
    if existing is not None and if_not_exists:
        return existing
    if isinstance(spec, FileJobSpec):
        if (spec.stream is None) == (spec.volume is None):
            raise InvalidValueError(f"The job {spec.name} needs either a stream or a volume.", "Give one of them.")
        _check_options(spec)
    check_table(spec.into)
    if spec.cron is not None:
        check_cron(spec.cron, home.zone)
    function: dict[str, Any] = {}
    if isinstance(spec, FileJobSpec):
        environment = resolve_environment(spec.environment, directory)
        in_environment = partial(with_environment, path=environment, folder=home.settings.environments_directory)
        function = function_of(
            vars(spec), spec.returns, spec.arguments, in_environment=in_environment, infer=infer, directory=directory
        )
        function |= {"arguments": dict(spec.arguments), "environment": environment}
    own_streams = [_new_own_stream(catalog, warehouse, own, existing) for own in _own_streams(spec)]
    streams = own_streams or [_unused(catalog, name, existing) for name in _given_streams(spec)]
    _check_alone(catalog, spec, existing)
    if catalog.streams.find(spec.into) is not None:
        raise AlreadyExistsError(f"{spec.into} is a stream.", "Choose another name for the table.")
    common: dict[str, Any] = {
        "id": job_id or str(uuid.uuid4()),
        "name": spec.name,
        "stream_id": streams[0].id,
        "other_stream_ids": tuple(stream.id for stream in streams[1:]),
        "into": spec.into,
        "state": JobState.ACTIVE,
        "state_reason": None,
        "owns_stream": bool(own_streams),
        "created_on": datetime.now(UTC),
        **{name: getattr(spec, name) for name in _options_of(spec)},
    }
    job: Job
    match spec:
        case FileJobSpec():
            _check_schema(warehouse, spec.into)
            columns = from_ddl(function["returns"])
            _check_columns(warehouse, spec.into, columns)
            if spec.function != LOADER:
                check_target(catalog, spec.into, places.table_location(warehouse, spec.into), columns.names)
            common |= {name: getattr(spec, name) for name in ("outputs_to", "outputs_prefix")}
            job = FileJob(**common, **function)
            _check_job_expectations(job)
            _check_types(warehouse, job, job.id if existing is None else existing.id)
            check_outputs(catalog, job, columns, streams[0])
        case StatementJobSpec():
            job = StatementJob(**common, statement=spec.statement)
        case DynamicJobSpec():
            job = DynamicJob(**common, query=spec.query)
        case _:
            raise AssertionError(spec)
    check_after_load(catalog, job, streams, existing)
    with catalog.database.transaction() as transaction:
        if existing is not None:
            _remove(catalog, transaction, existing, keep=job.stream_ids)
        for stream in own_streams:
            catalog.streams.add(transaction, stream)
        catalog.jobs.add(transaction, job)
    return job


def _options_of(spec: JobSpec) -> Iterable[str]:
    """Returns the names of a job's options, except the options of its function."""
    return (*keys(FileJobOptions), *keys(SetOptions)) if isinstance(spec, FileJobSpec) else keys(JobOptions)


def alter_job(home: Home, name: Name, *, directory: Path | None = None, infer: Infer | None = None, **changes: Any) -> Job:
    """Changes a job, which keeps its cursor and failures.

    ``changes`` are attributes of a :class:`FileJobSpec`, except names. ``directory`` and ``infer`` are as in
    :func:`create_job`. A job with inferred columns gains new columns.

    Some changes make failed files due:

    - another function or environment, other columns, or other options of a load job: files that could only
      fail before. A job that was paused because of its function resumes;
    - other conditions of sets: sets that are held back;
    - another condition: all failed files. The next run drops failures of files that it excludes.

    A run in progress starts over after its batch, whose failures are due, unless only the trigger, comment or
    alerts change.

    Raises:
        StreamBusyError: as :func:`check_no_plan`.
        JobChangedError: another process changed the job meanwhile.
        InvalidValueError: a value is invalid, or does not apply to a statement job.
    """
    catalog = home.catalog
    job = catalog.jobs.get(name)
    inapplicable = sorted(changes.keys() - keys(JobOptions))
    if not isinstance(job, FileJob) and inapplicable:
        raise InvalidValueError(
            f"The job {name} runs a statement, which has no {inapplicable[0]}.",
            "Only its trigger, its comment and its alerts can be changed; for the rest: CREATE OR REPLACE JOB.",
        )
    if changes.keys() & NO_SCHEDULE:
        changes = {**NO_SCHEDULE, **changes}
    if changes.get("cron") is not None:
        check_cron(changes["cron"], home.zone)
    if not isinstance(job, FileJob):
        return catalog.jobs.change(job, **changes)
    check_no_plan(catalog, job, changes)
    others = {key: value for key, value in changes.items() if key not in ("function", "pickled", "returns")}
    _check_options(dataclasses.replace(job, **others))
    arguments = changes.get("arguments", job.arguments)
    if job.loads:
        changes = _load_changes(job, changes)
        arguments = changes.get("arguments", job.arguments)
    if "environment" in changes:
        changes["environment"] = resolve_environment(changes["environment"], directory)
    environment = changes.get("environment", job.environment)
    in_environment = partial(with_environment, path=environment, folder=home.settings.environments_directory)
    if "function" in changes or "returns" in changes:
        changes |= function_of(
            changes if "function" in changes else vars(job),
            changes.get("returns"),
            arguments,
            job=job,
            in_environment=in_environment,
            infer=infer if "function" in changes else None,
            directory=directory,
        )
    elif changes.keys() & {"arguments", "environment"}:
        declared_by(in_environment(code_of(job)), arguments, columns=False)
    stream = catalog.streams.by_id(job.stream_id)
    assert stream is not None, "a job's stream cannot be dropped before the job"
    if changes.keys() & {"returns", "environment"}:
        columns = from_ddl(changes.get("returns", job.returns))
        check_outputs(catalog, dataclasses.replace(job, environment=environment), columns, stream)
    renewed = bool(changes.keys() & {"function", "returns", "environment"}) or (job.loads and "arguments" in changes)
    if renewed and (job.state_reason or "").startswith(FUNCTION_BROKEN):
        changes |= {"state": JobState.ACTIVE, "state_reason": None, "failed_batches": 0}
    _check_job_expectations(dataclasses.replace(job, **changes))
    if "returns" in changes:
        _check_types(home.warehouse, dataclasses.replace(job, **changes), job.id)
    if "after_load" in changes:
        check_after_load(catalog, dataclasses.replace(job, **changes), [stream], job)
    if not changes.keys() - keys(JobOptions):
        return catalog.jobs.change(job, **changes)
    changed = dataclasses.replace(job, **changes)
    due: list[FailureFilter] = []
    if (changed.group_complete, changed.group_quiet) != (job.group_complete, job.group_quiet):
        due.append(FailureFilter((FailureState.WAITING,), (FailureKind.HELD,)))
    if changed.expect != job.expect:
        due.append(FailureFilter(FAILING, (FailureKind.UNEXPECTED,)))
    if changed.where != job.where:
        due.append(FailureFilter(FAILING))
    elif renewed:
        due.append(FailureFilter((FailureState.QUARANTINED,), PERMANENT))
    with catalog.database.transaction() as transaction:
        altered = catalog.jobs.alter(transaction, job, **changes)
        check_no_plan(catalog, job, changes)  # a run opens none until the end of the transaction
        for wanted in due:
            catalog.failures.set_state(transaction, job.id, FailureState.RETRYING, paths=None, wanted=wanted)
    return altered


def check_no_plan(catalog: Catalog, job: Job, changes: Mapping[str, Any]) -> None:
    """Raises StreamBusyError if an unfinished plan of a job depends on an option to be changed."""
    plan = catalog.consumptions.open_plan(job.stream_id)
    if plan is not None and changes.keys() & {"where", "into", "on_move", "order", "group_complete"}:
        raise StreamBusyError(
            f"A run of the job {job.name} is in progress, or was interrupted.",
            f"Try again when it has ended; if none is in progress, run: volstream run-job {job.name}.",
        )


def _load_changes(job: FileJob, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes of a load job. Each option changes separately."""
    if inapplicable := sorted(changes.keys() & {"function", "environment"}):
        raise InvalidValueError(
            f"The job {job.name} loads files, so it has no {inapplicable[-1]}.", "Create another job for the function."
        )
    changed = dict(changes)
    if "arguments" in changed:
        changed["arguments"] = {name: text for name, text in {**job.arguments, **changed["arguments"]}.items() if text}
        LoadOptions.of(changed["arguments"])
    if "returns" in changed:
        changed["returns"] = with_rescued(changed["returns"])
        if INFERRED not in changes.get("arguments", {}):
            arguments = changed.get("arguments", job.arguments)
            changed["arguments"] = {name: text for name, text in arguments.items() if name != INFERRED}
    return changed


def set_paused(catalog: Catalog, name: Name, *, paused: bool) -> Job:
    """Pauses or resumes a job, which keeps its position."""
    job = catalog.jobs.get(name)
    state = JobState.PAUSED if paused else JobState.ACTIVE
    changes: dict[str, Any] = {"state": state, "state_reason": PAUSED_BY_USER if paused else None}
    if isinstance(job, FileJob):
        changes["failed_batches"] = 0
    if not paused:  # the next run shows whether it still fails
        catalog.conditions.note(ConditionKind.JOB, job.id, None)
    return catalog.jobs.change(job, **changes)


def drop_job(catalog: Catalog, name: Name, *, if_exists: bool = False, force: bool = False) -> bool:
    """Drops a job with its failures, batches and own stream. The result table stays.

    Returns False if the job does not exist and ``if_exists`` is set.

    Args:
        force: drop it even if an attempt at a batch is open, whose rows may or may not be in the table, or
            may still arrive.

    Raises:
        InvalidStateError: an attempt at a batch is open.
    """
    job = catalog.jobs.find(name) if if_exists else catalog.jobs.get(name)
    if job is None:
        return False
    with catalog.database.transaction() as transaction:
        _remove(catalog, transaction, job, force=force)
    return True


def with_function(
    job: FileJob,
    given: Mapping[str, Any],
    returns: str | None,
    arguments: Mapping[str, str] | None,
    *,
    environments: Path,
    directory: Path | None = None,
    infer: Infer | None = None,
) -> FileJob:
    """Returns the job with another function. Without ``returns`` or ``arguments``, those stay. See
    :func:`alter_job`.

    The function is imported in a separate process, because daemons compare, too.

    Args:
        given: ``function`` and ``pickled``.
    """
    if job.loads:
        _load_changes(job, given)
    chosen = job.arguments if arguments is None else arguments
    in_environment = partial(with_environment, path=job.environment, folder=environments)
    attributes = function_of(
        given, returns, chosen, job=job, in_environment=in_environment, infer=infer, directory=directory, declared=declared_apart
    )
    return dataclasses.replace(job, **attributes, arguments=chosen)


def function_of(
    given: Mapping[str, Any],
    returns: str | None,
    arguments: Mapping[str, str],
    *,
    job: FileJob | None = None,
    in_environment: Callable[[FunctionSource], FunctionSource],
    infer: Infer | None = None,
    directory: Path | None = None,
    declared: Callable[..., pa.Schema | None] = declared_by,
) -> dict[str, Any]:
    """Imports a job's function with ``declared``. Returns the job's attributes for it: absolute name, search
    path, hash of its source, and DDL of its result.

    Args:
        given: ``function`` and, if it is not in a file, ``pickled``.
        job: the job that gets the function, if it exists.
        in_environment: gives the function its environment.
        infer: finds the columns of a function that declares none. Without it, ``job`` keeps its columns.
    """
    place, source = resolved(given, directory or Path.cwd())
    source = in_environment(source)
    annotated = declared(source, arguments, columns=returns is None)
    schema = from_ddl(returns, given=True) if returns is not None else annotated
    if schema is None and infer is not None:
        schema = _inferred(infer, source, arguments, job)
    if schema is None and job is None:
        raise InvalidValueError(
            f"The columns that {given['function']} returns are not declared.",
            "Give them as returns, 'label STRING, score DOUBLE', or annotate the function with a dataclass.",
        )
    return {
        "function": place,
        "pickled": given.get("pickled"),
        "search_path": source.root,
        "fingerprint": source.behaviour,
        "returns": job.returns if schema is None and job is not None else as_declared(schema),
        "declared": returns is None and (schema is not None or (job is not None and job.declared)),
    }


def _inferred(infer: Infer, source: FunctionSource, arguments: Mapping[str, str], job: FileJob | None) -> pa.Schema | None:
    """Returns the columns that a function returns, after the job's existing columns."""
    if job is None:
        return infer(source, arguments).columns
    if not job.declared:
        return None
    try:
        return with_known(of_job(job), infer(source, arguments).columns)
    except InvalidValueError:  # each file will report it
        return None


def _check_alone(catalog: Catalog, spec: JobSpec, existing: Job | None) -> None:
    """Raises InvalidStateError if both this job and another one would keep the table."""
    if not _keeps_table(spec):
        return
    for job in catalog.jobs.list(into_schema=spec.into.schema, into_name=spec.into.name):
        if _keeps_table(job) and not _is_same(job, existing):
            what = "is kept by" if isinstance(job, DynamicJob) else "mirrors the files of"
            raise InvalidStateError(
                f"The table {spec.into} {what} job {job.name}.",
                f"Let {spec.name} write another table, or only append to it (write append).",
            )


def _is_same(job: Job, existing: Job | None) -> bool:
    """Returns whether a job is the one to be replaced, even if a run has changed it meanwhile."""
    return existing is not None and job.id == existing.id


def _keeps_table(job: JobSpec | Job) -> bool:
    """Returns whether a job maintains all rows of its table, rather than adding rows."""
    if isinstance(job, FileJob | FileJobSpec):
        return job.write is Write.UPSERT
    return isinstance(job, DynamicJob | DynamicJobSpec)


def _check_schema(warehouse: str, table: Name) -> None:
    """Raises NotFoundError if the table's schema does not exist. Object stores have no folders, so they are
    not checked."""
    linked = places.table_location(warehouse, table) != places.own_location(warehouse, table)
    if table.schema == DEFAULT_SCHEMA or linked or is_remote(warehouse):
        return
    if table.schema not in places.inside(f"{warehouse}/tables"):
        raise NotFoundError(
            f"There is no schema {table.schema} for the table {table}.", f'Run: volstream sql "CREATE SCHEMA {table.schema}".'
        )


def _check_columns(warehouse: str, table: Name, columns: Iterable[pa.Field]) -> None:
    """Raises InvalidValueError for invalid names in a new table. An existing table may map its columns and
    accept them."""
    if not is_table(places.table_location(warehouse, table)):
        check_names(columns)


def _check_types(warehouse: str, job: FileJob, owner: str) -> None:
    """Raises InvalidValueError if the job's table has a column of another type, and has rows or another
    owner."""
    table = OpenTable.newest(places.table_location(warehouse, job.into))
    if table is not None and table.schema.types:
        missing_columns(job, table, owner)


def _own_streams(spec: JobSpec) -> Sequence[StreamSpec]:
    """Returns the streams to create with the job."""
    match spec:
        case DynamicJobSpec():
            return spec.own_streams
        case FileJobSpec() if spec.volume is not None:
            name = Name(spec.name.schema, f"{spec.name.name}_stream")
            return [StreamSpec(name=name, volume=spec.volume, show_initial_rows=True)]
        case _:
            return ()


def _given_streams(spec: JobSpec) -> Sequence[Name]:
    """Returns the names of the existing streams to consume."""
    match spec:
        case StatementJobSpec():
            return spec.streams
        case FileJobSpec() if spec.stream is not None:
            return [spec.stream]
        case _:
            return ()


def _new_own_stream(catalog: Catalog, warehouse: str, spec: StreamSpec, existing: Job | None) -> Stream:
    namesake = catalog.streams.find(spec.name)
    if namesake is not None and not (existing is not None and existing.owns_stream and namesake.id in existing.stream_ids):
        raise AlreadyExistsError(
            f"The job's own stream would be called {spec.name}, which already exists.", "Drop it, or give it to the job."
        )
    return new_stream(catalog, warehouse, spec)


def _unused(catalog: Catalog, name: Name, existing: Job | None) -> Stream:
    """Returns the stream with that name. Raises ObjectInUseError if a job other than ``existing`` consumes
    it."""
    stream = catalog.streams.get(name)
    user = catalog.job_of(stream)
    if user is not None and not _is_same(user, existing):
        raise ObjectInUseError(
            f"The stream {stream.name} already serves the job {user.name}.", "Create another stream: streams are cheap."
        )
    return stream


def _check_options(spec: FileJobSpec | FileJob) -> None:
    check_sets(spec)
    if spec.on_move is OnMove.REKEY and spec.write is Write.APPEND:
        raise InvalidValueError("on_move=rekey cannot be combined with write=append.", "Leave out one of them.")
    if spec.where is not None:
        check_where(spec.where)


def _check_job_expectations(job: FileJob) -> None:
    check_expectations((*job.expect, *job.expect_warn), of_table(job).names)


def _remove(catalog: Catalog, transaction: Any, job: Job, *, keep: Sequence[str] = (), force: bool = False) -> None:
    """Removes a job and its own streams, except the ids in ``keep``, which the next job of that name
    consumes.

    Raises InvalidStateError as :func:`drop_job`.
    """
    streams = [catalog.streams.by_id(stream_id) for stream_id in job.stream_ids if stream_id not in keep]
    catalog.consumptions.forget(transaction, job, force=force)
    catalog.jobs.remove(transaction, job, replaced=bool(keep))
    for stream in filter(None, streams if job.owns_stream else ()):
        catalog.streams.remove(transaction, stream)
