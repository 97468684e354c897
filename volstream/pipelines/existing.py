"""The definitions of what a home has. Reads the catalog, and the logs of tables; no Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from volstream.home import Home
from volstream.model.names import Name
from volstream.model.objects import (
    Connection,
    DynamicJob,
    FeedKind,
    FeedTable,
    FileJob,
    Function,
    Job,
    SourceKind,
    StatementJob,
    Stream,
    Trigger,
    TriggerKind,
    Volume,
)
from volstream.model.units import format_duration
from volstream.pipelines.keys import BOOKKEEPING, defaults, exact_size
from volstream.pipelines.model import ADDED, CODE, Definition, Kind

if TYPE_CHECKING:
    from volstream.delta.log import Schema


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
    connections = {one.id: one for one in catalog.connections.list()}
    streams = {one.id: one for one in catalog.streams.list()}
    found = [_definition(Kind.CONNECTION, one.name, _connection(one)) for one in connections.values()]
    found += [
        _definition(Kind.VOLUME, one.name, _volume(one, connections.get(one.connection_id or "")))
        for one in catalog.volumes.list()
    ]
    found += [_definition(Kind.FUNCTION, one.name, _function(one)) for one in catalog.functions.list()]
    found += [_definition(Kind.SOURCE, one.name, _source(one)) for one in catalog.feeds.list() if _is_defined(one)]
    found += [_definition(Kind.STREAM, one.name, _stream(one)) for one in streams.values() if one.id not in owned]
    for job in jobs:
        kind = Kind.DYNAMIC_TABLE if isinstance(job, DynamicJob) else Kind.JOB
        found.append(_definition(kind, job.name, _job(job, streams.get(job.stream_id))))
    return [*found, *_tables(home, jobs, tables)]


def data_tables(home: Home) -> Sequence[str]:
    """Returns what a home has and a file cannot define, because it is its data: tables of uploaded files, immutable items."""
    return [str(one.name) for one in home.catalog.feeds.list() if not _is_defined(one)]


def _is_defined(feed: FeedTable) -> bool:
    return feed.kind is not FeedKind.FILES and not feed.immutable


def _definition(kind: Kind, name: Name, values: dict[str, Any]) -> Definition:
    return Definition(kind, name, {**defaults(kind), **values})


def _connection(one: Connection) -> dict[str, Any]:
    keys = ("type", "region", "endpoint", "role_arn", "credentials", "comment")
    return {key: getattr(one, key) for key in keys}


def _volume(one: Volume, connection: Connection | None) -> dict[str, Any]:
    keys = ("location", "queue_name", "virtual_cluster", "recursive", "max_removals", "comment")
    return {
        **{key: getattr(one, key) for key in keys},
        "connection": None if connection is None else str(connection.name),
        "queue_type": one.queue_type.value,
        "pattern": tuple(one.patterns),
        "ignore": tuple(one.ignores),
    }


def _function(one: Function) -> dict[str, Any]:
    return {"function": one.location, "returns": one.returns, "of_items": one.of_items, "comment": one.comment}


def _source(one: FeedTable) -> dict[str, Any]:
    seconds = one.retention_seconds
    found: dict[str, Any] = {
        "kind": one.kind.value,
        "primary_key": one.primary_key,
        "retention_policy": None if seconds is None else format_duration(seconds),
        "comment": one.comment,
    }
    if one.kind is FeedKind.KAFKA:
        found |= {key: one.options[key] for key in ("topic", "format", "properties")}
        found["brokers"] = tuple(one.options["brokers"])
    return found


def _stream(one: Stream) -> dict[str, Any]:
    on = "on_volume" if one.source_kind is SourceKind.VOLUME else "on_table"
    return {on: str(one.source_name), "mode": one.mode.value, "identity": tuple(one.identity), "comment": one.comment}


def _job(one: Job, stream: Stream | None) -> dict[str, Any]:
    found: dict[str, Any] = {**_trigger(one.trigger), "comment": one.comment}
    if isinstance(one, DynamicJob):
        return found | {"query": one.query.strip()}
    found["alert"] = None if one.alert is None else tuple(one.alert)
    match one:
        case StatementJob():
            return found | {"statement": one.statement.strip(), CODE: None}
        case FileJob():
            return found | _file_job(one, stream)
        case _:
            raise AssertionError(one)


def _file_job(one: FileJob, stream: Stream | None) -> dict[str, Any]:
    from volstream.jobs.load import loads

    source = {}
    if stream is not None:
        source = {"on_volume": str(stream.source_name)} if one.owns_stream else {"stream": str(stream.name)}
    if loads(one):
        what: dict[str, Any] = {"load": _load(one), CODE: None}
    else:
        returns = None if one.declared else one.returns
        what = {"function": one.function, "returns": returns, "arg": dict(one.arguments), CODE: one.fingerprint}
    return {
        **source,
        **what,
        "into": str(one.into),
        "where": one.where,
        "write": one.write.value,
        "on_move": one.on_move.value,
        "retries": one.retries,
        "pause_after": one.pause_after,
        "timeout": None if one.timeout_seconds is None else format_duration(one.timeout_seconds),
        "isolate": one.isolate,
        "max_files": one.max_files,
        "max_bytes": None if one.max_bytes is None else exact_size(one.max_bytes),
    }


def _load(job: FileJob) -> dict[str, Any]:
    import pyarrow as pa

    from volstream.functions.schema import of_job, to_ddl
    from volstream.loading.options import RESCUED, LoadOptions

    said = LoadOptions.of(job.arguments)
    own = [one for one in of_job(job) if one.name != RESCUED]
    return {
        "format": None if said.format is None else said.format.value,
        "header": said.header,
        "delimiter": said.delimiter,
        "encoding": said.encoding,
        "schema": to_ddl(pa.schema(own)) if own else None,
        "new_columns": said.new_columns.value,
    }


def _trigger(trigger: Trigger) -> dict[str, Any]:
    return {
        "on_change": trigger.kind is TriggerKind.ON_CHANGE,
        "every": None if trigger.every is None else format_duration(trigger.every),
        "cron": trigger.cron,
    }


def _tables(home: Home, jobs: Sequence[Job], wanted: Collection[Name] | None) -> Iterator[Definition]:
    if wanted is not None and not wanted:
        return
    from volstream.delta import folders
    from volstream.delta.log import DeltaLog

    kept_elsewhere = {job.name for job in jobs if isinstance(job, DynamicJob)}
    kept_elsewhere |= {feed.name for feed in home.catalog.feeds.list()}
    writers: dict[Name, list[FileJob]] = {}
    for job in jobs:
        if isinstance(job, FileJob):
            writers.setdefault(job.into, []).append(job)
    for name in _names(home) if wanted is None else wanted:
        schema = None if name in kept_elsewhere else DeltaLog(folders.table_location(home.warehouse, name)).schema()
        if schema is None:
            continue
        added = _added(writers.get(name, ()))
        if wanted is not None or not _is_result(schema, added):
            yield _definition(Kind.TABLE, name, {**_table(schema), ADDED: added})


def _names(home: Home) -> Sequence[Name]:
    from volstream.delta import folders

    return sorted({*folders.own_tables(home.warehouse), *map(Name.parse, home.catalog.links.all())})


def _added(writers: Sequence[FileJob]) -> tuple[str, ...]:
    """Returns the columns, in lower case, that jobs add to the table that they write."""
    from volstream.functions.schema import of_job

    return tuple(sorted({column.lower() for job in writers for column in of_job(job).names}))


def _is_result(schema: Schema, added: Collection[str]) -> bool:
    """True if a table has nothing that the jobs which write it would not give it."""
    from volstream.functions.schema import PROVENANCE
    from volstream.streams.source import tracked

    others = {column.lower() for column in schema.columns} - {*added, *PROVENANCE.names}
    return bool(added) and not (others or tracked(schema) or schema.primary_key or schema.partitions)


def _table(schema: Schema) -> dict[str, Any]:
    from volstream.delta.tracking import PROPERTIES as TRACKING
    from volstream.pipelines.columns import columns_text
    from volstream.streams.source import tracked

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
