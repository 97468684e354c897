"""What the object stores of warehouses have to be told, for the whole process. Imports nothing, since every command says it."""

from __future__ import annotations

from collections.abc import Mapping

_known: dict[str, dict[str, str]] = {}


def know(warehouse: str, options: Mapping[str, str]) -> None:
    """From now on what is in the warehouse is reached with these options, named as deltalake's ``storage_options``."""
    _known[warehouse] = dict(options)


def options_of(location: str) -> dict[str, str]:
    """Those of the warehouse that a location is in; none for what is elsewhere."""
    for warehouse, options in _known.items():
        if location == warehouse or location.startswith(f"{warehouse}/"):
            return options
    return {}
