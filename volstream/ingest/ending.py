"""Ends the filling of a table by volstream, before the table is dropped."""

from __future__ import annotations

from volstream.base.definitions import Source, SourceKind
from volstream.base.processes import new_owner
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.catalog.leases import of_source
from volstream.errors import ObjectInUseError

#: Between two looks at whether the reader has ended.
_LOOK_SECONDS = 0.1

#: The reader sees within a second that its source is gone, and then ends what it does.
_END_SECONDS = 30.0


def end(catalog: Catalog, source: Source) -> None:
    """Removes a source from the catalog, and waits until no process writes its table, which can then be deleted.

    Raises:
        ObjectInUseError: a stream, and thereby maybe a dynamic table, reads it; or its reader does not end.
    """
    for stream in catalog.streams.list():
        if stream.source_kind is SourceKind.TABLE and stream.source_name == source.name:
            raise ObjectInUseError(
                f"The stream {stream.name} reads the table {source.name}.",
                "Drop the stream, or the dynamic table that owns it, first.",
            )
    with catalog.database.transaction() as transaction:
        catalog.sources.remove(transaction, source)
    name, mine = of_source(source.id), new_owner()
    waits = Stop()
    for _ in range(int(_END_SECONDS / _LOOK_SECONDS)):
        other = catalog.leases.acquire(name, mine, f"dropping source {source.name}", _END_SECONDS)
        if other is None:
            catalog.leases.release(name, mine)
            catalog.tails.remove(source.name)
            return
        waits.wait(_LOOK_SECONDS)
    raise ObjectInUseError(f"Source {source.name} is still being read.", f"Run DROP TABLE {source.name} again later.")
