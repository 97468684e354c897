"""``session.changes`` and ``CHANGES FROM``: changes of tables and directories, in the format of Spark's ``read.changes``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.changes.changelog import process
from volstream.changes.changelog.base import Changelog, Deduplication
from volstream.changes.streams.definitions import check_tracked, identifying
from volstream.changes.streams.source import TableSource, tracked
from volstream.changes.streams.volume_source import VolumeSource
from volstream.errors import InvalidValueError, NotFoundError
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.schema import Schema


def query(
    catalog: Catalog,
    warehouse: str,
    of: Name,
    first: int | datetime,
    last: int | datetime | None,
    mode: str,
    *,
    compute_updates: bool,
    identity: Sequence[str] = (),
    directory: bool = False,
) -> str:
    """Returns SQL for the changes between two versions or times, both included. Raises as :meth:`volstream.Session.changes`.

    Args:
        identity: columns that identify a row; empty: Delta's row ids identify rows.
        directory: ``of`` is the name of a volume, whose directory table is used.
    """
    deduplication = next((option for option in Deduplication if option.lower() == mode.lower()), None)
    if deduplication is None:
        allowed = ", ".join(option.value for option in Deduplication)
        raise InvalidValueError(f"deduplicationMode cannot be {mode!r}.", f"Choose one of {allowed}.")
    source: VolumeSource | TableSource
    if directory:
        if identity:
            raise InvalidValueError("The rows of a directory are files, identified by path: no other identity is possible.")
        source, what = VolumeSource(catalog, warehouse, catalog.volumes.get(of).id), f"directory of volume {of}"
    else:
        source, what = TableSource(of, places.table_location(warehouse, of), warehouse), f"table {of}"
    head = source.head()
    if head is None:
        raise NotFoundError(f"There is no {what}.")
    if isinstance(first, datetime):
        first = _from(source, what, first)
    elif first != head[0] + 1:  # after the newest version, the range is empty
        first = source.resolve(what, first, None)
    if isinstance(last, datetime):
        last = source.resolve(what, None, last)
    else:
        last = head[0] if last is None else source.resolve(what, last, None)
    empty = last == head[0] < first
    if empty:
        first = last
    if last < first:
        raise InvalidValueError(f"The range ends at version {last}, before it begins at version {first}.")
    changelog: Changelog
    if isinstance(source, VolumeSource):
        changelog = source.changelog(first, last)
    else:
        schema = _tracked(source, first, last)
        keyed = replace(source, key=tuple(schema.ids_of(identifying(of, schema, identity))))
        changelog = keyed.every_change(first, last, net=deduplication is Deduplication.NET_CHANGES)
    text = process.read(changelog, first, last, deduplication, compute_updates=compute_updates)
    return f"SELECT * FROM ({text}) LIMIT 0" if empty else text


def _tracked(source: TableSource, first: int, last: int) -> Schema:
    """Returns the columns at the last version.

    Raises:
        InvalidStateError: the table's changes are not tracked.
        InvalidValueError: changes are tracked now, but were not at one of the versions.
    """
    after, now = schema_at(source.location, last), schema_at(source.location)
    assert after is not None, "the version is in the log"
    check_tracked(source.name, now or after)
    if not all(schema is not None and tracked(schema) for schema in (schema_at(source.location, first), after)):
        since = source.tracked_since(min(first, last))
        raise InvalidValueError(
            f"The changes of table {source.name} have been tracked since version {since}.",
            f"Give FROM VERSION {since}, or a later one.",
        )
    return after


def _from(source: VolumeSource | TableSource, what: str, moment: datetime) -> int:
    """Returns the first version at or after a time. Raises InvalidValueError if that is in the future or before the history."""
    at = source.resolve(what, None, moment)
    try:
        return source.resolve(what, None, moment - timedelta(microseconds=1)) + 1
    except InvalidValueError:  # the history begins at this time
        return at
