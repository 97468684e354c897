"""Writes definitions as a file that reads back as the same definitions. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from volstream.api.pipelines.columns import columns_text
from volstream.api.pipelines.definitions import ADDED, BOOKKEEPING, CODE, KEYS, Definition, Kind, defaults, written
from volstream.api.pipelines.plan import in_order
from volstream.api.pipelines.read import default_queue, escaped, is_secret
from volstream.base.definitions import (
    Connection,
    DefinableSource,
    DynamicJob,
    FileJob,
    Job,
    LoadKeys,
    QueueType,
    Source,
    SourceType,
    StatementJob,
    Stream,
    Volume,
)
from volstream.base.model.names import Name
from volstream.base.privacy import has_references
from volstream.functions.schema import PROVENANCE
from volstream.home import Home
from volstream.ops.inspection.tables import table_names
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.schema import Schema

# The definitions of what a home has. Reads the catalog, and the logs of tables; no Spark.


def existing(home: Home, tables: Collection[Name] | None = ()) -> Sequence[Definition]:
    """Returns the definitions of a home's objects. Streams that belong to jobs are parts of these jobs.

    Args:
        tables: the tables to look at, which takes a read of their logs; None: all that are not results of
            jobs.
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
    """Returns what a home has and a file cannot define, because it is its data: tables of uploaded files,
    immutable items."""
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

    source: dict[str, Any] = {}
    if stream is not None:
        source = {"volume": stream.source_name} if job.owns_stream else {"stream": stream.name}
    if job.loads:
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


_BARE = re.compile(r"[A-Za-z0-9_-]+")

_HEADER = """\
# The objects of this home, for `volstream apply`. Written by `volstream export`.
"""


def to_toml(
    definitions: Sequence[Definition],
    left_out: Sequence[str] = (),
    folder: Path | None = None,
    without_files: Sequence[Definition] = (),
) -> str:
    """Returns a file with definitions, in the order of dependence, without values that are defaults.

    Args:
        left_out: names of what is not defined in the file, for a comment.
        folder: the file's; paths of code below it are relative. None: all paths are absolute.
        without_files: those whose code no file has; they are left out, with a comment.
    """
    text = _HEADER
    if left_out:
        text += f"# Left out, because they consist of data only: {', '.join(left_out)}.\n"
    if without_files:
        text += f"# {no_file(without_files)}\n"
    out = {file.identity for file in without_files}
    kept = [definition for definition in definitions if definition.identity not in out]
    return text + "".join(f"\n{_object(definition, folder)}" for definition in in_order(kept))


def no_file(definitions: Sequence[Definition]) -> str:
    """Returns why jobs and functions are left out whose code no file has."""
    names = ", ".join(definition.title for definition in definitions)
    return f"Left out, because their code is in the catalog and not in a file: {names}. Name a file: --function FILE.py:FUNC."


def _object(definition: Definition, folder: Path | None) -> str:
    lines = [f"[{definition.kind.value}.{_key(str(definition.name))}]"]
    for key, value in _said(definition):
        if key in ("function", "environment") and folder is not None:
            value = value.removeprefix(f"{folder}/")
        if isinstance(value, Mapping) and key != "load":
            lines += [f"{key}.{_key(name)} = {_value(text)}" for name, text in value.items()]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _said(definition: Definition) -> Iterator[tuple[str, Any]]:
    """Yields the keys that say more than the defaults."""
    usual = defaults(definition.kind)
    if definition.kind is Kind.VOLUME:
        usual["queue_type"] = _usual_queue(definition)
    for key, value in definition.values.items():
        if key in (CODE, ADDED) or value == usual[key]:
            continue
        value = written(definition.kind, key, value)
        if key in ("properties", "queue_properties"):
            value = {name: _reference(name, said) for name, said in value.items()}
        if definition.kind is Kind.SOURCE and key == "format" and value == "json":
            continue
        yield key, value


def _usual_queue(definition: Definition) -> QueueType:
    return default_queue(str(definition.name), definition.values["location"], {**definition.values, "queue_type": None})


class _Reference(str):
    """Text with a reference, which is written as it is."""


def _reference(name: str, value: str) -> str:
    return _Reference(value) if is_secret(name) and has_references(value) else value


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _quoted(text)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case _Reference():
            return _quoted(value)
        case str():
            return _text(escaped(value))
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(val)}" for key, val in value.items()) + " }" if value else "{}"
        case tuple() | list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise AssertionError(f"{value!r} is not a value of a definition")


def _text(text: str) -> str:
    """Returns text of several lines as it is, if TOML lets it, else quoted."""
    plain = "\n" in text and all(character in "\n\t" or character.isprintable() for character in text)
    return f"'''\n{text}'''" if plain and "''" not in text and not text.endswith("'") else _quoted(text)


def _quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(char) or (char if char.isprintable() else _code(char)) for char in text) + '"'


def _code(character: str) -> str:
    point = ord(character)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


# The home's tables as a file of sources for dbt.

_DBT_HEADER = """\
# The tables of this home, as sources of dbt. Written by `volstream export --dbt`.
version: 2

"""

#: When a row was made, in tables of jobs.
_LOADED_AT = "_processed_at"

#: What the columns are that volstream adds.
_ADDED = {
    "_file_path": "The file whose row this is.",
    "_file_version": "The file's version.",
    "_group_key": "The set of files whose row this is.",
    "_refresh_id": "The refresh of the volume that found this version.",
    "_batch_id": "The batch that made the row.",
    _LOADED_AT: "When the row was created.",
}


def to_dbt(home: Home) -> tuple[str, int]:
    """Returns a ``sources.yml`` of the home's tables that exist, a source for each schema, and the number of
    tables.

    dbt-duckdb finds a table by ``external_location``; dbt-spark by its name, in the metastore of its Spark.

    Raises:
        DependencyError: a table's log cannot be read.
    """
    jobs = {job.into: job for job in home.catalog.jobs.list()}
    lines, count = list[str](), 0
    for schema, names in groupby(table_names(home), key=lambda name: name.schema):
        tables: list[str] = []
        for name in names:
            location = places.table_location(home.warehouse, name)
            columns = schema_at(location)
            if columns is not None:
                tables += _dbt_table(name, location, columns, jobs.get(name))
                count += 1
        if tables:
            lines += [f"  - name: {_yaml_text(schema)}\n", "    tables:\n", *tables]
    return "".join([_DBT_HEADER, "sources:\n" if count else "sources: []\n", *lines]), count


def _dbt_table(name: Name, location: str, columns: Schema, job: Job | None) -> Iterator[str]:
    made = job is not None and set(PROVENANCE.names) & set(columns.columns)
    yield f"      - name: {_yaml_text(name.name)}\n"
    if job is not None:
        yield f"        description: {_yaml_text(job.comment or f'Written by the job {job.name} of volstream.')}\n"
    yield "        config:\n"
    yield "          meta:\n"
    quoted = location.replace("'", "''")
    external = f"delta_scan('{quoted}')"
    yield f"            external_location: {_yaml_text(external)}\n"
    if made:
        yield f"          loaded_at_field: {_LOADED_AT}\n"
    yield "        columns:\n"
    for column in columns.columns:
        yield f"          - name: {_yaml_text(column)}\n"
        yield f"            data_type: {_yaml_text(columns.sql_type(column))}\n"
        if made and column in _ADDED:
            yield f"            description: {_yaml_text(_ADDED[column])}\n"


def _yaml_text(value: str) -> str:
    """Returns a text as a YAML scalar: JSON's strings are YAML's, too."""
    return json.dumps(value, ensure_ascii=False)
