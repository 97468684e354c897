"""Creates the tables of sources without a JVM, drops them, expires their events and appends to them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from volstream.base.definitions import Source, SourceKind, SourceType
from volstream.base.log import get
from volstream.base.model.names import Name, check_table
from volstream.base.processes import new_owner
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.catalog.leases import of_source
from volstream.errors import AlreadyExistsError, DependencyError, InvalidStateError, ObjectInUseError, TailFullError
from volstream.home import Home
from volstream.ingest.local import LocalTable, commit
from volstream.spark.errors import map_spark_errors
from volstream.sql.text import literal, table_at
from volstream.tables.delta import direct, places
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import can_create, is_table
from volstream.tables.delta.schema import PRIMARY_KEY
from volstream.tables.delta.writer import with_retries
from volstream.tables.tails.writer import Flush

#: Table properties that retain every version.
KEPT = {"delta.logRetentionDuration": "interval 36500 days", "delta.deletedFileRetentionDuration": "interval 36500 days"}

#: Columns of a table of events: the time of receipt, the format, the JSON text, the bytes.
EVENT_COLUMNS = pa.schema(
    [
        pa.field("arrived_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("format", pa.string(), nullable=False),
        pa.field("event", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)


def new_source(
    name: Name,
    kind: SourceType,
    *,
    primary_key: str | None = None,
    retention: int | None = None,
    immutable: bool = False,
    options: Mapping[str, Any] | None = None,
    comment: str | None = None,
) -> Source:
    """Returns a definition, without storing it."""
    return Source(
        id=str(uuid.uuid4()),
        name=name,
        kind=kind,
        primary_key=primary_key,
        retention_policy=retention,
        immutable=immutable,
        options=options or {},
        comment=comment,
        created_on=datetime.now(UTC),
    )


def drop_source(home: Home, source: Source) -> None:
    """Drops a source with its table.

    Raises:
        ObjectInUseError: a stream, possibly of a dynamic table, reads it; or its reader does not end.
    """
    end_source(home.catalog, source)
    places.remove(places.table_location(home.warehouse, source.name))


def check_free(home: Home, name: Name) -> None:
    """Raises AlreadyExistsError if a table or stream has the name, InvalidValueError for an invalid name."""
    check_table(name)
    if home.catalog.streams.find(name) is not None or is_table(places.table_location(home.warehouse, name)):
        raise AlreadyExistsError(f"There is already a table or stream {name}.", "Choose another name.")


def create_source_table(home: Home, source: Source, columns: pa.Schema) -> None:
    """Creates an empty table with change tracking for a source, and stores the source's definition.

    Raises:
        AlreadyExistsError: a source, a table or a stream has the name.
        InvalidStateError: only Spark can create tables in the warehouse.
    """
    # The path from the settings, so that a rehearsal in another folder has the same message.
    if not can_create(home.settings.warehouse_path):
        raise InvalidStateError(
            f"The warehouse {home.settings.warehouse_path} is in a store where only Spark creates tables.",
            "Keep sources in a home whose warehouse is a folder or in S3.",
        )
    check_free(home, source.name)
    location = places.table_location(home.warehouse, source.name)
    with home.catalog.database.transaction() as transaction:
        home.catalog.sources.add(transaction, source)
        key = {} if source.primary_key is None else {PRIMARY_KEY: json.dumps([source.primary_key])}
        key |= KEPT if source.immutable else {}
        direct.create(location, columns, key, tracked=True)


# Stops volstream from filling a table before the table is dropped.

#: Seconds between two checks whether the reader has ended.
_POLL_SECONDS = 0.1

#: Seconds to wait for the reader. It notices within a second that its source was removed, and then stops.
_END_SECONDS = 30.0


def end_source(catalog: Catalog, source: Source) -> None:
    """Removes a source from the catalog. On return, no process writes its table, which can be deleted.

    Raises:
        ObjectInUseError: a stream, possibly of a dynamic table, reads it; or its reader does not end.
    """
    for stream in catalog.streams.list():
        if stream.source_kind is SourceKind.TABLE and stream.source_name == source.name:
            raise ObjectInUseError(
                f"The stream {stream.name} reads the table {source.name}.",
                "Drop the stream, or the dynamic table that owns it, first.",
            )
    with catalog.database.transaction() as transaction:
        catalog.sources.remove(transaction, source)
    name, owner = of_source(source.id), new_owner()
    pause = Stop()
    for _ in range(int(_END_SECONDS / _POLL_SECONDS)):
        other = catalog.leases.acquire(name, owner, f"dropping source {source.name}", _END_SECONDS)
        if other is None:
            catalog.leases.release(name, owner)
            catalog.tails.remove(source.name)
            return
        pause.wait(_POLL_SECONDS)
    raise ObjectInUseError(f"Source {source.name} is still being read.", f"Run DROP TABLE {source.name} again later.")


# Deletes events past their stream's retention.

_ARRIVED = EVENT_COLUMNS.names[0]


def expire_events(home: Home, source: Source) -> bool:
    """Deletes a source's expired committed events. Returns False, without starting Spark, if none expired.

    Raises:
        VolstreamError: the events cannot be deleted now.
    """
    location = places.table_location(home.warehouse, source.name)
    if source.retention_policy is None:
        return False
    limit = datetime.now(UTC) - timedelta(seconds=source.retention_policy)
    table = OpenTable.newest(location)
    arrived = None if table is None else table.bounds().get(_ARRIVED)
    oldest = None if arrived is None else arrived.least
    if not isinstance(oldest, datetime) or oldest >= limit:
        return False
    with map_spark_errors(), home.gateway.pooled() as session:
        statement = f"DELETE FROM {table_at(location)} WHERE {_ARRIVED} < TIMESTAMP {literal(limit.isoformat())}"
        with_retries(lambda: session.sql(statement).collect())
    return True


# Appends rows to the tail of a source's table. They are durable on return.

_log = get("sources")

#: Maximum rows in a flush.
_ROWS = 50_000


@dataclass
class _Sender:
    """Numbers the flushes of one thread at a time, because flushes of two threads may arrive in any order."""

    stream_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 0


class Appender:
    """Writes to one table. Thread-safe: concurrent appends are written together."""

    def __init__(self, home: Home, name: Name, table: LocalTable) -> None:
        self._home = home
        self._name = name
        self._table = table
        # as many as there were concurrent threads: the tail stores the last number of each
        self._idle: list[_Sender] = []

    def append(self, rows: pa.Table) -> None:
        """Appends rows with their operations (column ``OPERATION``), in order. Commits a full tail first.

        Raises:
            VolstreamError: the rows cannot be written. If there are more than 50,000, some may have been.
        """
        try:
            sender = self._idle.pop()
        except IndexError:
            sender = _Sender()
        try:
            for start in range(0, rows.num_rows, _ROWS):
                sender.sequence += 1
                self._append(Flush(sender.stream_id, sender.sequence, rows.slice(start, _ROWS)))
        finally:
            self._idle.append(sender)

    def _append(self, flush: Flush) -> None:
        try:
            self._table.append([flush])
            return
        except TailFullError:
            commit(self._home.catalog, self._name, self._table.location, lambda: self._home.gateway)
        except DependencyError as error:  # an error after the commit does not tell that the rows have arrived
            _log.info("append_repeated", table=str(self._name), cause=str(error))
        self._table.append([flush])  # does nothing if they have arrived
