"""Real-time streams: rows written one by one, safe and queryable within the second, and committed in the background::

from volstream import connect
from volstream.ingest import RealtimeOperation, RowOperator

with connect(home="data") as connection:
    connection.cursor().execute("CREATE TABLE users (id STRING NOT NULL PRIMARY KEY, age INT)")
    with connection.get_realtime_stream(table="users", operate=RealtimeOperation.CDC) as stream:
        row = stream.create_row(RowOperator.UPSERT)
        row.set_value("id", "user1")
        row.set_value("age", 30)
        stream.apply(row)
"""

from __future__ import annotations

from volstream.ingest.options import (
    FlushMode,
    RealtimeOperation,
    RealtimeOptions,
    RealtimeOptionsBuilder,
    RetryStatus,
    RowOperator,
)
from volstream.ingest.stream import BufferFullError, RealtimeStream, Row, RowsNotSentError

__all__ = [
    "BufferFullError",
    "FlushMode",
    "RealtimeOperation",
    "RealtimeOptions",
    "RealtimeOptionsBuilder",
    "RealtimeStream",
    "RetryStatus",
    "Row",
    "RowOperator",
    "RowsNotSentError",
]
