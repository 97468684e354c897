"""Process-wide registry of warehouses: the options of their object stores, and the catalogs that they belong
to.

Imports no Arrow, because every command uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from volstream.base.model.names import Name

# Process-wide options of warehouses' object stores. Imports nothing, because every command uses it.

_known: dict[str, dict[str, str]] = {}


def register_options(warehouse: str, options: Mapping[str, str]) -> None:
    """Registers options, named as in deltalake's ``storage_options``, for everything in the warehouse."""
    _known[warehouse] = dict(options)


def options_of(location: str) -> dict[str, str]:
    """Returns the options of the warehouse that contains a location. Empty without a registered warehouse."""
    for warehouse, options in _known.items():
        if location == warehouse or location.startswith(f"{warehouse}/"):
            return options
    return {}


# The catalogs of warehouses, registered per process. Does not import Arrow, so that opening a home stays
# fast.

#: By warehouse not yet checked by this process: returns the expected content of the file that identifies its
#: catalog.
unclaimed_warehouses: dict[str, Callable[[], Mapping[str, str]]] = {}

#: By warehouse: returns the locations of tables outside of it, by name.
warehouse_links: dict[str, Callable[[], Mapping[Name, str]]] = {}


def warehouse_belongs_to(
    warehouse: str, identity: Callable[[], str], home: str, linked: Callable[[], Mapping[Name, str]]
) -> None:
    """Registers a warehouse's catalog. From then on this process refuses tables if the warehouse belongs to
    another catalog.

    Args:
        identity: returns the catalog's identity. Called when the first table is located.
        home: the home's name, as users know it.
        linked: returns the locations of tables outside of the warehouse, by name.
    """
    warehouse_links[warehouse] = linked
    unclaimed_warehouses[warehouse] = lambda: {"catalog": identity(), "home": home}
