"""The definitions of what a home has. Reads the catalog, and the logs of tables; no Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from volstream.api.pipelines.keys import BOOKKEEPING, KEYS, defaults
from volstream.api.pipelines.model import ADDED, CODE, Definition, Kind
from volstream.base.definitions import (
    Connection,
    DefinableSource,
    DynamicJob,
    FileJob,
    Job,
    LoadKeys,
    Source,
    SourceType,
    StatementJob,
    Stream,
    Volume,
)
from volstream.base.model.names import Name
from volstream.home import Home

if TYPE_CHECKING:
    from volstream.tables.delta.schema import Schema


def existing(home: Home, tables: Collection[Name] | None = ()) -> Sequence[Definition]:
    """Returns the definitions of a home's objects. Streams that belong to jobs are parts of these jobs.

    Args:
        tables: the tables to look at, which takes a read of their logs; None: all that are not results of jobs.
    """
    if not home.settings.is_made:
        return []
    catalog = home.catalog
    jobs = catalog.jobs.list()
    owned = {identity for job in jobs if job.owns_stream for identity in job.stream_ids}
    connections = {connection.id: connection for connection in catalog.connections.list()}
    streams = {stream.id: stream for stream in catalog.streams.list()}
    return [
        *(_definition(Kind.CONNECTION, one, _values(Kind.CONNECTION, one)) for one in connections.values()),
        *(
            _definition(Kind.VOLUME, one, _volume(one, connections.get(one.connection_id or "")))
            for one in catalog.volumes.list()
        ),
        *(_definition(Kind.FUNCTION, one, _values(Kind.FUNCTION, one)) for one in catalog.functions.list()),
        *(_definition(Kind.SOURCE, one, _source(one)) for one in catalog.sources.list() if _is_defined(one)),
        *(_definition(Kind.STREAM, one, _stream(one)) for one in streams.values() if one.id not in owned),
        *(_definition(_kind(job), job, _job(job, streams.get(job.stream_id))) for job in jobs),
        *_tables(home, jobs, tables),
    ]


def without_files(home: Home) -> Sequence[Definition]:
    """Returns the jobs and functions whose code the catalog keeps, which a file cannot define."""
    return [
        *(_definition(Kind.FUNCTION, one, {}) for one in home.catalog.functions.list() if one.pickled is not None),
        *(
            _definition(Kind.JOB, one, {})
            for one in home.catalog.jobs.list()
            if isinstance(one, FileJob) and one.pickled is not None
        ),
    ]


def data_tables(home: Home) -> Sequence[str]:
    """Returns what a home has and a file cannot define, because it is its data: tables of uploaded files, immutable items."""
    return [str(source.name) for source in home.catalog.sources.list() if not _is_defined(source)]


def _is_defined(source: Source) -> bool:
    return source.kind is not SourceType.FILES and not source.immutable


def _definition(kind: Kind, stored: Any, values: dict[str, Any]) -> Definition:
    return Definition(kind, stored.name, {**defaults(kind), **values})


def _kind(job: Job) -> Kind:
    return Kind.DYNAMIC_TABLE if isinstance(job, DynamicJob) else Kind.JOB


def _values(kind: Kind, stored: Any) -> dict[str, Any]:
    """Returns the options that an object has itself."""
    return {key: getattr(stored, key) for key in KEYS[kind] if hasattr(stored, key)}


def _volume(volume: Volume, connection: Connection | None) -> dict[str, Any]:
    return {**_values(Kind.VOLUME, volume), "connection": None if connection is None else connection.name}


def _source(source: Source) -> dict[str, Any]:
    values = {**_values(Kind.SOURCE, source), "kind": DefinableSource(source.kind)}
    if source.kind is SourceType.KAFKA:
        values |= {key: source.options[key] for key in ("topic", "format", "properties")}
        values["brokers"] = tuple(source.options["brokers"])
    return values


def _stream(stream: Stream) -> dict[str, Any]:
    return {**_values(Kind.STREAM, stream), stream.source_kind.value: stream.source_name}


def _job(job: Job, stream: Stream | None) -> dict[str, Any]:
    if isinstance(job, DynamicJob):
        return {**_values(Kind.DYNAMIC_TABLE, job), "query": job.query.strip()}
    values = _values(Kind.JOB, job)
    if isinstance(job, StatementJob):
        return {**values, "into": None, "statement": job.statement.strip(), CODE: None}
    assert isinstance(job, FileJob), "there is no other kind"
    return {**values, **_file_job(job, stream)}


def _file_job(job: FileJob, stream: Stream | None) -> dict[str, Any]:
    from volstream.jobs.rules.load import loads

    source: dict[str, Any] = {}
    if stream is not None:
        source = {"volume": stream.source_name} if job.owns_stream else {"stream": stream.name}
    if loads(job):
        return {**source, "load": _load(job), "function": None, "returns": None, "arguments": {}, CODE: None}
    return {**source, "returns": None if job.declared else job.returns, CODE: job.fingerprint}


def _load(job: FileJob) -> LoadKeys:
    import pyarrow as pa

    from volstream.functions.loading.options import RESCUED, LoadOptions
    from volstream.functions.schema import of_job, to_ddl

    own = [column for column in of_job(job) if column.name != RESCUED]
    options = vars(LoadOptions.of(job.arguments))
    return LoadKeys(**{**options, "schema": to_ddl(pa.schema(own)) if own else None})


def _tables(home: Home, jobs: Sequence[Job], wanted: Collection[Name] | None) -> Iterator[Definition]:
    if wanted is not None and not wanted:
        return
    from volstream.tables.delta import places
    from volstream.tables.delta.opened import schema_at

    kept_elsewhere = {job.name for job in jobs if isinstance(job, DynamicJob)}
    kept_elsewhere |= {source.name for source in home.catalog.sources.list()}
    writers: dict[Name, list[FileJob]] = {}
    for job in jobs:
        if isinstance(job, FileJob):
            writers.setdefault(job.into, []).append(job)
    for name in _names(home) if wanted is None else wanted:
        schema = None if name in kept_elsewhere else schema_at(places.table_location(home.warehouse, name))
        if schema is None:
            continue
        added = _added(writers.get(name, ()))
        if wanted is not None or name not in writers or not _is_result(schema, added):
            yield Definition(Kind.TABLE, name, {**defaults(Kind.TABLE), **_table(schema), ADDED: added})


def _names(home: Home) -> Sequence[Name]:
    from volstream.tables.delta import places

    return sorted({*places.own_tables(home.warehouse), *home.catalog.links.list()})


def _added(writers: Sequence[FileJob]) -> tuple[str, ...]:
    """Returns the columns, in lower case, that jobs add to the table that they write, or have added."""
    from volstream.functions.schema import PROVENANCE, PROVENANCE_OF_SETS, of_job

    added = {column.lower() for job in writers for column in of_job(job).names}
    return tuple(sorted({*added, *PROVENANCE.names, *PROVENANCE_OF_SETS.names}))


def _is_result(schema: Schema, added: Collection[str]) -> bool:
    """True if a table has nothing that the jobs which write it would not give it."""
    from volstream.changes.streams.sources import tracked

    others = {column.lower() for column in schema.columns}.difference(added)
    return not (others or tracked(schema) or schema.primary_key or schema.partitions)


def _table(schema: Schema) -> dict[str, Any]:
    from volstream.api.pipelines.columns import columns_text
    from volstream.changes.streams.sources import tracked
    from volstream.tables.delta.commits import PROPERTIES as TRACKING

    properties = {
        key: value
        for key, value in sorted(schema.properties.items())
        if key not in (*TRACKING, "delta.enableDeletionVectors")
        and not key.startswith((*BOOKKEEPING, "delta.feature.", "delta.min"))
    }
    if tracked(schema):
        properties["change_tracking"] = "true"
    return {
        "columns": columns_text(schema),
        "primary_key": tuple(schema.primary_key),
        "partitioned_by": tuple(schema.partitions),
        "properties": properties,
    }
