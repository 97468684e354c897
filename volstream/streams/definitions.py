"""Making, replacing, moving and dropping streams. No Spark: offsets come from the log."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from volstream.catalog import Catalog
from volstream.delta.log import DeltaLog
from volstream.directory import table
from volstream.directory.definitions import exclusive
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, ObjectInUseError, StreamBusyError
from volstream.model.names import Name
from volstream.model.objects import Stream, StreamSpec, Volume


def create_stream(
    catalog: Catalog, warehouse: str, spec: StreamSpec, *, or_replace: bool = False, if_not_exists: bool = False
) -> Stream:
    """Makes a stream on a volume.

    Raises:
        NotFoundError: no such volume.
        AlreadyExistsError: the name is taken, by a stream or a table.
        ObjectInUseError: the stream to replace serves a job.
        InvalidValueError: a point in time that the directory's history does not hold.
    """
    exclusive(or_replace=or_replace, if_not_exists=if_not_exists)
    existing = catalog.streams.find(spec.name)
    if existing is not None and if_not_exists:
        return existing
    if existing is not None and not or_replace:
        raise AlreadyExistsError(
            f"There is already a stream {spec.name}.", "Use --or-replace or --if-not-exists, or another name."
        )
    if DeltaLog(f"{warehouse}/tables/{spec.name.schema}/{spec.name.name}").exists():
        raise AlreadyExistsError(f"There is already a table {spec.name}.", "Choose another name.")
    stream = new_stream(catalog, warehouse, spec)
    if existing is not None:
        _check_unused(catalog, existing)
    with catalog.database.transaction() as transaction:
        if existing is not None:
            catalog.streams.remove(transaction, existing)
        catalog.streams.add(transaction, stream)
    return stream


def new_stream(catalog: Catalog, warehouse: str, spec: StreamSpec) -> Stream:
    """The stream of a spec, not yet stored. Raises as :func:`create_stream`."""
    volume = catalog.volumes.get(spec.volume)
    if spec.at_version is not None and spec.at_timestamp is not None:
        raise InvalidValueError("A stream starts at a version or at a time, not both.")
    log = DeltaLog(table.location(warehouse, volume.id))
    head = log.head()
    listed = volume.reconciled_on is not None or (head is not None and head[0] > 0)
    offset: int | None
    if spec.at_version is not None or spec.at_timestamp is not None:
        offset = resolve_version(log, volume, spec.at_version, spec.at_timestamp)
    else:
        offset = head[0] if head is not None and listed else None
    return Stream(
        id=str(uuid.uuid4()), name=spec.name, source_kind="volume", source_id=volume.id, source_name=volume.name,
        table_id=head[1] if head is not None and offset is not None else None, mode=spec.mode, offset=offset,
        initial=spec.show_initial_rows and offset is not None, sequence=0, comment=spec.comment,
        created_on=datetime.now(UTC),
    )  # fmt: skip


def resolve_version(log: DeltaLog, volume: Volume, version: int | None, timestamp: datetime | None) -> int:
    """The newest version at or before a point in time, of those the directory's log holds.

    Raises:
        InvalidValueError: there is no such version: it is in the future, or older than the kept history.
    """
    commits = log.commits_after(-1)
    if not commits:
        raise InvalidValueError(
            f"The volume {volume.name} has no history yet.", f"Run: volstream refresh {volume.name}."
        )
    first, last = commits[0], commits[-1]
    if version is not None:
        if not first.version <= version <= last.version:
            raise InvalidValueError(
                f"The directory of volume {volume.name} has no version {version}.",
                f"Its history goes from {first.version} to {last.version}.",
            )
        return version
    assert timestamp is not None, "one of the two is given"
    if timestamp > datetime.now(UTC):
        raise InvalidValueError(f"{timestamp.isoformat()} is in the future.")
    if timestamp < first.timestamp:
        raise InvalidValueError(
            f"The directory of volume {volume.name} has no history before {first.timestamp.isoformat()}.",
            "Give a later time, or a version.",
        )
    return max(commit.version for commit in commits if commit.timestamp <= timestamp)


def move_stream(
    catalog: Catalog, warehouse: str, name: Name, version: int | None, timestamp: datetime | None
) -> Stream:
    """Sets a stream's offset to a point in time. Raises as :func:`create_stream`, and StreamBusyError."""
    stream = catalog.streams.get(name)
    volume = _source(catalog, stream)
    log = DeltaLog(table.location(warehouse, volume.id))
    offset = resolve_version(log, volume, version, timestamp)
    _check_idle(catalog, stream)
    _move_job(catalog, stream)
    return catalog.streams.change(stream, offset=offset, initial=False, table_id=log.table_id())


def advance_stream(catalog: Catalog, warehouse: str, name: Name, version: int | None) -> Stream:
    """Discards what a stream holds, up to a version or all of it. Raises as :func:`move_stream`."""
    stream = catalog.streams.get(name)
    log = DeltaLog(table.location(warehouse, _source(catalog, stream).id))
    head = log.head()
    if head is None:
        return stream
    if version is not None and (version > head[0] or (stream.offset is not None and version < stream.offset)):
        raise InvalidValueError(
            f"The stream {name} is at version {stream.offset} and can be advanced up to {head[0]}, not to {version}.",
            "To go back, run: volstream reset-stream.",
        )
    _check_idle(catalog, stream)
    _move_job(catalog, stream)
    return catalog.streams.change(
        stream, offset=head[0] if version is None else version, initial=False, table_id=head[1]
    )


def drop_stream(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a stream; false where there was none and ``if_exists`` allows it.

    Raises:
        ObjectInUseError: a job consumes it.
    """
    stream = catalog.streams.find(name) if if_exists else catalog.streams.get(name)
    if stream is None:
        return False
    _check_unused(catalog, stream)
    with catalog.database.transaction() as transaction:
        catalog.streams.remove(transaction, stream)
    return True


def _source(catalog: Catalog, stream: Stream) -> Volume:
    volume = catalog.volumes.by_id(stream.source_id)
    if volume is None:
        raise InvalidStateError(f"The stream {stream.name} is stale: its volume was dropped.", "Drop or replace it.")
    return volume


def _move_job(catalog: Catalog, stream: Stream) -> None:
    """A range that comes again, or never, to the stream's job: its table may have rows of paths that are new to it."""
    job = catalog.jobs.first(stream_id=stream.id)
    if job is not None:
        catalog.jobs.change(job, clean=False)


def _check_unused(catalog: Catalog, stream: Stream) -> None:
    job = catalog.jobs.first(stream_id=stream.id)
    if job is not None:
        raise ObjectInUseError(f"The job {job.name} consumes the stream {stream.name}.", "Drop the job first.")


def _check_idle(catalog: Catalog, stream: Stream) -> None:
    plan = catalog.consumptions.open_plan(stream.id)
    if plan is not None:
        raise StreamBusyError(
            f"The stream {stream.name} is being consumed: plan {plan.id} is open since {plan.created_on:%F %T}.",
            "Run its job to the end first.",
        )
