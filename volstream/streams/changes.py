"""``session.changes``: the changes of a table as Spark's ``read.changes`` shows them, for every tracked table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.changelog import process
from volstream.changelog.base import Deduplication
from volstream.delta import folders
from volstream.delta.log import DeltaLog
from volstream.errors import InvalidValueError, NotFoundError
from volstream.model.names import Name
from volstream.streams.definitions import check_tracked, resolve_version
from volstream.streams.source import TableSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


def changes(
    spark: SparkSession, warehouse: str, name: Name, first: int, last: int | None, mode: str, *, compute_updates: bool
) -> DataFrame:
    """The changes of versions ``first`` to ``last``, both included. Raises as :meth:`volstream.Session.changes`."""
    try:
        deduplication = Deduplication(mode)
    except ValueError:
        allowed = ", ".join(one.value for one in Deduplication)
        raise InvalidValueError(f"deduplicationMode cannot be {mode!r}.", f"Choose one of {allowed}.") from None
    location = folders.table_location(warehouse, name)
    log = DeltaLog(location)
    head = log.head()
    if head is None:
        raise NotFoundError(f"There is no table {name}.")
    first = resolve_version(log, f"table {name}", first, None)
    last = head[0] if last is None else resolve_version(log, f"table {name}", last, None)
    if last < first:
        raise InvalidValueError(f"A range cannot go from version {first} to {last}.")
    for version in {first, last}:
        schema = log.schema(version)
        assert schema is not None, "the version is in the log"
        check_tracked(name, schema)
    changelog = TableSource(name, location).every_change(first, last)
    return spark.sql(process.read(changelog, first, last, deduplication, compute_updates=compute_updates))
