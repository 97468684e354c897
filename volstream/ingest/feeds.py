"""The tables that volstream fills: who does it, and how that ends."""

from __future__ import annotations

from volstream.catalog import Catalog
from volstream.catalog.leases import of_source
from volstream.definitions import FeedTable, SourceKind
from volstream.errors import ObjectInUseError
from volstream.lifecycle.identity import new_owner
from volstream.lifecycle.stop import Stop

#: Between two looks at whether the reader has ended.
_LOOK_SECONDS = 0.1

#: The reader sees within a second that its source is gone, and then ends what it does.
_END_SECONDS = 30.0


def end(catalog: Catalog, feed: FeedTable) -> None:
    """Forgets a source, and waits until nobody writes its table any more, which can then be deleted.

    Raises:
        ObjectInUseError: a stream, and thereby maybe a dynamic table, reads it; or its reader does not end.
    """
    for stream in catalog.streams.list():
        if stream.source_kind is SourceKind.TABLE and stream.source_name == feed.name:
            raise ObjectInUseError(
                f"The stream {stream.name} reads the table {feed.name}.",
                "Drop the stream, or the dynamic table that has it, first.",
            )
    with catalog.database.transaction() as transaction:
        catalog.feeds.remove(transaction, feed)
    name, mine = of_source(feed.id), new_owner()
    waits = Stop()
    for _ in range(int(_END_SECONDS / _LOOK_SECONDS)):
        other = catalog.leases.acquire(name, mine, f"dropping source {feed.name}", _END_SECONDS)
        if other is None:
            catalog.leases.release(name, mine)
            catalog.tails.remove(feed.name)
            return
        waits.wait(_LOOK_SECONDS)
    raise ObjectInUseError(f"Source {feed.name} is still being read.", f"Run DROP TABLE {feed.name} again later.")
