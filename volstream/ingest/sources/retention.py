"""Deletes events that are older than their stream's retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from volstream.base.definitions import Source
from volstream.ingest.sources.tables import EVENT_COLUMNS
from volstream.spark.errors import map_spark_errors
from volstream.sql.text import literal, table_at
from volstream.tables.delta import places
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.writer import with_retries

if TYPE_CHECKING:
    from volstream.jobs.home import Home

_ARRIVED = EVENT_COLUMNS.names[0]


def expire(home: Home, source: Source) -> bool:
    """Deletes committed events of a source that are too old; returns False, without Spark, if there are none.

    Raises:
        VolstreamError: they cannot be deleted now.
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
