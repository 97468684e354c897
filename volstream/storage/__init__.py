"""Object stores by URI scheme: the one table of backends, imported late so that a missing extra costs nothing.

What does not belong here: what a store does (``base``), how one does it (the file beside this one named for it).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from volstream.errors import InvalidValueError
from volstream.model.locations import file_uri, local_path, scheme_of

if TYPE_CHECKING:
    from volstream.storage.base import ObjectStore

__all__ = ["normalise_location", "open_store"]

_BACKENDS = {
    "file": "volstream.storage.local:LocalStore",
    "memory": "volstream.storage.memory:MemoryStore",
}


def open_store(location: str) -> ObjectStore:
    """The store at ``location``: a URI, or a plain path for a local directory. Does no I/O.

    Raises:
        InvalidValueError: this version has no store for the location's scheme, or the location is not one.
    """
    module, _, name = _backend(location).partition(":")
    return cast("ObjectStore", getattr(importlib.import_module(module), name)(normalise_location(location)))


def normalise_location(text: str) -> str:
    """One spelling per location: what the catalog keeps and compares. Applying it twice changes nothing.

    A plain path (relative to the current directory, with ``~``, or absolute) or ``file:`` URI becomes an absolute,
    percent-encoded ``file:///...``; other URIs stay, without trailing slashes.

    Raises:
        InvalidValueError: this version has no store for the location's scheme, or the location is not one.
    """
    _backend(text)
    if scheme_of(text) == "file":
        return file_uri(local_path(text) if text else text)
    scheme, _, rest = text.partition("://")
    name = rest.rstrip("/")
    if not name:
        raise InvalidValueError(f"{text!r} names no location.", f"Write {scheme.lower()}://name.")
    return f"{scheme.lower()}://{name}"


def _backend(location: str) -> str:
    scheme = scheme_of(location)
    if scheme not in _BACKENDS:
        raise InvalidValueError(
            f"{location!r}: locations of the scheme {scheme!r} are not available in this version.",
            f"Available: {', '.join(f'{known}://' for known in sorted(_BACKENDS))} and plain paths.",
        )
    return _BACKENDS[scheme]
