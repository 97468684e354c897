"""Object stores by URI scheme: the table of backends, imported late. A provider's store is in its folder.

Not here: the interface of a store (``base``) and its implementations (one file per backend).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from volstream.base import plugins
from volstream.base.definitions.objects import PROVIDERS
from volstream.base.model.paths import file_uri, local_path, scheme_of, without_secrets
from volstream.base.plugins import Group
from volstream.errors import InvalidValueError
from volstream.files.providers.access import Access
from volstream.files.providers.base import BucketPlace, provider_by

if TYPE_CHECKING:
    from volstream.files.storage.base import ObjectStore

__all__ = ["normalise_location", "open_store", "place_of_reports"]

_BACKENDS = {"file": "volstream.files.storage.local:LocalStore"}


def open_store(location: str, access: Access | None = None) -> ObjectStore:
    """Returns the store at ``location``: a URI, or a plain path for a local directory. Does no I/O.

    Args:
        access: access to a bucket. By default, the provider's own settings apply (environment, instance).

    Raises:
        InvalidValueError: the location is malformed, or its scheme is not supported.
        DependencyError: a package that the store needs is not installed, or a plug-in is broken.
    """
    normal = normalise_location(location)
    scheme = scheme_of(normal)
    provider = provider_by(scheme)
    if provider is not None:
        return provider.open_store(normal, access or Access(scheme))
    if scheme not in _BACKENDS:
        return cast("ObjectStore", plugins.call(Group.STORES, scheme, normal))
    module, _, name = _BACKENDS[scheme].partition(":")
    return cast("ObjectStore", getattr(importlib.import_module(module), name)(normal))


def normalise_location(text: str) -> str:
    """Returns the canonical spelling of a location, which the catalog stores and compares. Idempotent.

    A plain path (relative to the current directory, with ``~``, or absolute) or a ``file:`` URI becomes an
    absolute, percent-encoded ``file:///...``. Other URIs only lose trailing slashes. The prefix of a bucket
    is taken literally.

    Raises:
        InvalidValueError: the location is malformed, or its scheme is not supported.
    """
    if scheme_of(text) == "file":
        return file_uri(local_path(text) if text else text)
    scheme, name = _scheme(text), text.partition("://")[2].rstrip("/")
    if not name:
        raise InvalidValueError(f"{text!r} is not a location.", f"Write {scheme}://name.")
    normal = f"{scheme}://{name}"
    if provider_by(scheme) is not None:
        BucketPlace.of(normal)
    return normal


def place_of_reports(uri: str, location: str) -> BucketPlace:
    """Returns the place of a bucket's inventory report, or of an inventory's folder.

    Args:
        location: of a volume in the reported bucket.

    Raises:
        InvalidValueError: the place is not in a bucket at the same provider, or the provider's reports are
            not supported.
    """
    place = BucketPlace.of(normalise_location(uri)) if provider_by(_scheme(uri)) is not None else None
    if place is None or place.scheme != scheme_of(location):
        raise InvalidValueError(
            f"{without_secrets(uri)} cannot be an inventory of {location}.",
            "Inventories are of buckets: give one in a bucket at the same provider.",
        )
    if not place.provider.writes_reports:
        raise InvalidValueError(f"Inventories of {place.scheme}:// are not read.", "Leave it out: the daemon lists the bucket.")
    return place


def _scheme(location: str) -> str:
    """Returns the scheme of a location. Raises InvalidValueError if no store supports it."""
    scheme = scheme_of(location)
    provider = provider_by(scheme)
    if provider is not None:
        return provider.scheme
    if scheme not in _BACKENDS and not plugins.has(Group.STORES, scheme):
        schemes = sorted({*_BACKENDS, *PROVIDERS}) + sorted({*plugins.names(Group.STORES), *plugins.names(Group.PROVIDERS)})
        raise InvalidValueError(
            f"{without_secrets(location)!r}: locations with the scheme {scheme!r} are not supported.",
            f"Supported: {', '.join(f'{name}://' for name in schemes)} and plain paths.",
        )
    return scheme
