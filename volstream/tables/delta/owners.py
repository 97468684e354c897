"""The catalogs of warehouses, registered per process. Does not import Arrow, so that opening a home stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from volstream.base.model.names import Name

#: By warehouses that this process has not checked yet: returns what the warehouse's file must say about its catalog.
unclaimed: dict[str, Callable[[], Mapping[str, str]]] = {}

#: By warehouse: returns the locations of tables outside of it, by name.
links: dict[str, Callable[[], Mapping[Name, str]]] = {}


def belongs_to(warehouse: str, identity: Callable[[], str], home: str, linked: Callable[[], Mapping[Name, str]]) -> None:
    """Registers a warehouse's catalog; this process then uses no table from a warehouse that belongs to another catalog.

    Args:
        identity: returns the catalog's identity; called when the first table is located.
        home: the name by which users know the catalog.
        linked: returns the locations of tables outside of the warehouse, by name.
    """
    links[warehouse] = linked
    unclaimed[warehouse] = lambda: {"catalog": identity(), "home": home}
