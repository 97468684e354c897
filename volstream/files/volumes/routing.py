"""Assigns events about a bucket's objects to the volumes that the catalog has now."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from volstream.base.definitions import Volume
from volstream.base.model.hints import Hint, ObjectHint
from volstream.catalog import Catalog
from volstream.catalog.definitions import DefinitionCache
from volstream.files.volumes.route import RoutedHints, Router


class Routing:
    """Divides hints among all volumes of a catalog. Reads the catalog first, so that an event for a volume that another process
    has just created does not count as a stray. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._volumes = DefinitionCache(catalog.volumes)
        self._router = Router(())
        self._lock = threading.Lock()

    def follow(self) -> Router:
        """Reads what has changed. Raises CatalogError."""
        with self._lock:
            before = self._volumes.all
            self._volumes.follow()
            if self._volumes.all is not before:
                self._router = Router(self._volumes.all.values())
            return self._router

    def has_neighbours(self, volume: Volume) -> bool:
        """See :meth:`Router.has_neighbours`; as of when something was followed or divided last."""
        return self._router.has_neighbours(volume)

    def route(self, volume: Volume, hints: Sequence[Hint | ObjectHint]) -> RoutedHints:
        """See :meth:`Router.route`. Raises CatalogError."""
        are_objects = any(isinstance(hint, ObjectHint) for hint in hints)
        return (self.follow() if are_objects else self._router).route(volume, hints)
