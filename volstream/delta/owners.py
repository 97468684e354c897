"""The catalogs of warehouses, as processes register them. Needs no Arrow, so that opening a home stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping

#: Returns what a warehouse says about its catalog, by the warehouses that this process has not looked at for it.
unclaimed: dict[str, Callable[[], Mapping[str, str]]] = {}

#: Returns the locations of the tables outside of a warehouse by their names.
links: dict[str, Callable[[], Mapping[str, str]]] = {}


def belongs_to(warehouse: str, identity: Callable[[], str], home: str, linked: Callable[[], Mapping[str, str]]) -> None:
    """Registers the catalog of a warehouse, from which this process then takes no table if it belongs to another one.

    Args:
        identity: returns the catalog's identity; called when the first table is located.
        home: what people know it by.
        linked: returns the locations of tables that are elsewhere, by their names.
    """
    links[warehouse] = linked
    unclaimed[warehouse] = lambda: {"catalog": identity(), "home": home}
