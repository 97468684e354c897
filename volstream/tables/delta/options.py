"""Process-wide options of warehouses' object stores. Imports nothing, because every command uses it."""

from __future__ import annotations

from collections.abc import Mapping

_known: dict[str, dict[str, str]] = {}


def register(warehouse: str, options: Mapping[str, str]) -> None:
    """Registers options, named as in deltalake's ``storage_options``, for everything in the warehouse."""
    _known[warehouse] = dict(options)


def options_of(location: str) -> dict[str, str]:
    """Returns the options of the warehouse that contains a location; empty if there are none."""
    for warehouse, options in _known.items():
        if location == warehouse or location.startswith(f"{warehouse}/"):
            return options
    return {}
