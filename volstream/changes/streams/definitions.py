"""Creates, replaces, moves and drops streams. Needs no Spark: offsets come from the log."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from volstream.base.definitions import SourceKind, Stream, StreamSpec
from volstream.base.model.names import RESERVED_COLUMNS, Name
from volstream.base.model.text import like
from volstream.base.model.units import in_utc
from volstream.catalog import Catalog
from volstream.changes.streams.sources import ChangeSource, TableSource, VolumeSource, source_of, tracked
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, NotFoundError, ObjectInUseError
from volstream.files.volumes.access import job_emptying_shared
from volstream.tables.delta import places
from volstream.tables.delta.opened import OpenTable, schema_at
from volstream.tables.delta.places import is_table
from volstream.tables.delta.schema import Schema


def create_stream(
    catalog: Catalog, warehouse: str, spec: StreamSpec, *, or_replace: bool = False, if_not_exists: bool = False
) -> Stream:
    """Creates a stream on a volume or a table.

    Raises:
        NotFoundError: the volume or table does not exist.
        InvalidStateError: the table's changes are not tracked.
        AlreadyExistsError: a stream or table has this name.
        ObjectInUseError: a job consumes the stream to replace, or a job removes the volume's files.
        StreamBusyError: a statement consumes the stream, or its process died doing so.
        InvalidValueError: the point in time is outside the directory's history.
    """
    existing = catalog.streams.resolve_existing(spec.name, or_replace=or_replace, if_not_exists=if_not_exists)
    if existing is not None and if_not_exists:
        return existing
    if is_table(places.table_location(warehouse, spec.name)):
        raise AlreadyExistsError(f"There is already a table {spec.name}.", "Choose another name.")
    stream = new_stream(catalog, warehouse, spec)
    volume = catalog.volumes.by_id(stream.source_id) if stream.source_kind is SourceKind.VOLUME else None
    if volume is not None and (emptying := job_emptying_shared(catalog, volume)) is not None:
        raise ObjectInUseError(
            f"The job {emptying.name} takes files of the volume {volume.name}, or of one that overlaps it, away when it has "
            "loaded them: a stream would miss some, or see them as deleted.",
            f"Let it keep them: volstream alter-job {emptying.name} --after-load keep.",
        )
    if existing is not None:
        _check_unused(catalog, existing)
    with catalog.database.transaction() as transaction:
        if existing is not None:
            catalog.consumptions.check_closed(transaction, existing)
            catalog.streams.remove(transaction, existing, replaced=True)
        catalog.streams.add(transaction, stream)
    return stream


def new_stream(catalog: Catalog, warehouse: str, spec: StreamSpec) -> Stream:
    """Returns a stream for a spec, without storing it. Raises like :func:`create_stream`."""
    if (spec.volume is None) == (spec.table is None):
        raise InvalidValueError("A stream is on a volume or on a table.")
    if spec.at_version is not None and spec.at_timestamp is not None:
        raise InvalidValueError("A stream starts at a version or at a time, not both.")
    if spec.table is not None:
        return _on_table(warehouse, spec, spec.table)
    assert spec.volume is not None, "one of the two is given"
    volume = catalog.volumes.get(spec.volume)
    if spec.identity:
        raise InvalidValueError("The rows of a volume are files, identified by path: no other identity is possible.")
    source = VolumeSource(catalog, warehouse, volume.id)
    head = source.head()
    listed = volume.last_listing is not None or (head is not None and head[0] > 0)
    offset: int | None
    if spec.at_version is not None or spec.at_timestamp is not None:
        if head is None:
            raise InvalidValueError(f"The volume {volume.name} has no history yet.", f"Run: volstream refresh {volume.name}.")
        offset = source.resolve(f"directory of volume {volume.name}", spec.at_version, _utc(spec.at_timestamp))
    else:
        offset = head[0] if head is not None and listed else None
    table_id = head[1] if head is not None and offset is not None else None
    return _stream(spec, SourceKind.VOLUME, volume.id, volume.name, table_id, offset)


def _on_table(warehouse: str, spec: StreamSpec, name: Name) -> Stream:
    location = places.table_location(warehouse, name)
    table = OpenTable.newest(location)
    if table is None:
        raise NotFoundError(
            f"There is no table {name}.",
            f"{places.like_one(warehouse, name)}Streams are on tables of the home's warehouse and on volumes.",
        )
    schema = table.schema
    check_tracked(name, schema)
    reserved = RESERVED_COLUMNS & {column.lower() for column in schema.columns}
    if reserved:
        raise InvalidValueError(
            f"The table {name} has a column {min(reserved)}, whose name is reserved for streams.", "Rename the column."
        )
    identity = identifying(name, schema, spec.identity) or schema.primary_key
    offset = table.version
    if spec.at_version is not None or spec.at_timestamp is not None:
        offset = TableSource(name, location, warehouse).resolve(f"table {name}", spec.at_version, _utc(spec.at_timestamp))
        then = schema_at(location, offset)
        if then is None or not tracked(then):
            raise InvalidValueError(
                f"The changes of table {name} were not tracked yet at version {offset}.",
                "Give a later version or time, or omit it: the stream then starts now.",
            )
    return _stream(spec, SourceKind.TABLE, str(name), name, table.id, offset, identity, schema.ids_of(identity))


def _stream(
    spec: StreamSpec,
    kind: SourceKind,
    source_id: str,
    source_name: Name,
    table_id: str | None,
    offset: int | None,
    identity: Sequence[str] = (),
    identity_ids: Sequence[str] = (),
) -> Stream:
    return Stream(
        id=str(uuid.uuid4()),
        name=spec.name,
        source_kind=kind,
        source_id=source_id,
        source_name=source_name,
        table_id=table_id,
        mode=spec.mode,
        offset=offset,
        initial=spec.show_initial_rows and offset is not None,
        began_after=None if spec.show_initial_rows else offset,
        sequence=0,
        comment=spec.comment,
        created_on=datetime.now(UTC),
        identity=tuple(identity),
        identity_ids=tuple(identity_ids),
    )


def identifying(name: Name, schema: Schema, identity: Sequence[str]) -> Sequence[str]:
    """Returns the identifying columns as the table spells them. Raises InvalidValueError if one is
    missing."""
    columns = {column.lower(): column for column in schema.columns}
    for column in identity:
        if column.lower() not in columns:
            near = like(column, schema.columns)
            raise InvalidValueError(f"The table {name} has no column {column!r} to identify rows.", near.rstrip())
    return [columns[column.lower()] for column in identity]


def check_tracked(name: Name, schema: Schema) -> None:
    """Raises InvalidStateError, with the statement to run, if a table's changes are not tracked."""
    if not tracked(schema):
        raise InvalidStateError(
            f"The changes of table {name} are not tracked.",
            f"Run: ALTER TABLE {name} SET PROPERTIES ('change_tracking' = 'true').",
        )


def move_stream(catalog: Catalog, warehouse: str, name: Name, version: int | None, timestamp: datetime | None) -> Stream:
    """Sets a stream's offset to a point in time. Raises like :func:`create_stream`, and StreamBusyError."""
    stream = catalog.streams.get(name)
    source = _source(catalog, warehouse, stream)
    offset = source.resolve(f"{stream.source_kind} {stream.source_name}", version, _utc(timestamp))
    head = source.head()
    assert head is not None, "it has a history"
    return catalog.consumptions.move(stream, offset, head[1])


def advance_stream(catalog: Catalog, warehouse: str, name: Name, version: int | None) -> Stream:
    """Discards a stream's changes up to a version, or all of them. Raises like :func:`move_stream`."""
    stream = catalog.streams.get(name)
    head = _source(catalog, warehouse, stream).head()
    if head is None:
        return stream
    if version is not None and (version > head[0] or (stream.offset is not None and version < stream.offset)):
        raise InvalidValueError(
            f"The stream {name} is at version {stream.offset} and can be advanced up to {head[0]}, not to {version}.",
            "To go back, run: volstream reset-stream.",
        )
    return catalog.consumptions.move(stream, head[0] if version is None else version, head[1])


def drop_stream(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a stream. Returns False if it does not exist and ``if_exists`` is set.

    Raises:
        ObjectInUseError: a job consumes the stream.
        StreamBusyError: a statement consumes it, or its process died doing so.
    """
    stream = catalog.streams.find(name) if if_exists else catalog.streams.get(name)
    if stream is None:
        return False
    _check_unused(catalog, stream)
    with catalog.database.transaction() as transaction:
        catalog.consumptions.check_closed(transaction, stream)
        catalog.streams.remove(transaction, stream)
    return True


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else in_utc(moment)


def _source(catalog: Catalog, warehouse: str, stream: Stream) -> ChangeSource:
    if stream.source_kind is SourceKind.VOLUME and catalog.volumes.by_id(stream.source_id) is None:
        raise InvalidStateError(f"The stream {stream.name} is stale: its volume was dropped.", "Drop or replace it.")
    return source_of(catalog, warehouse, stream)


def _check_unused(catalog: Catalog, stream: Stream) -> None:
    job = catalog.job_of(stream)
    if job is not None:
        raise ObjectInUseError(f"The job {job.name} consumes the stream {stream.name}.", "Drop the job first.")
