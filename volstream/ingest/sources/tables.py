"""Creates the tables of sources, without a JVM, and finds and drops them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import Source, SourceType
from volstream.base.model.names import Name, check_table
from volstream.errors import AlreadyExistsError, InvalidStateError
from volstream.ingest.ending import end
from volstream.tables.delta import direct, places
from volstream.tables.delta.places import can_create, is_table
from volstream.tables.delta.schema import PRIMARY_KEY

if TYPE_CHECKING:
    from volstream.jobs.home import Home

#: Table properties that keep every version.
KEPT = {"delta.logRetentionDuration": "interval 36500 days", "delta.deletedFileRetentionDuration": "interval 36500 days"}

#: Columns of a table of events: when an event was received, how it was given, its JSON text, its bytes.
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


def drop(home: Home, source: Source) -> None:
    """Drops a source with its table.

    Raises:
        ObjectInUseError: a stream, and thereby maybe a dynamic table, reads it; or its reader does not end.
    """
    end(home.catalog, source)
    places.remove(places.table_location(home.warehouse, source.name))


def check_free(home: Home, name: Name) -> None:
    """Raises AlreadyExistsError if a table or a stream has the name; InvalidValueError if no table can have it."""
    check_table(name)
    if home.catalog.streams.find(name) is not None or is_table(places.table_location(home.warehouse, name)):
        raise AlreadyExistsError(f"There is already a table or stream {name}.", "Choose another name.")


def create(home: Home, source: Source, columns: pa.Schema) -> None:
    """Creates an empty table for a source, and stores its definition. Its changes are tracked.

    Raises:
        AlreadyExistsError: the name is taken, by a source, a table or a stream.
        InvalidStateError: only Spark can create tables in the warehouse.
    """
    # By the settings, so that a rehearsal in another folder has the same message.
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
