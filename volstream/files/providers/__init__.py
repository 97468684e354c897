"""The providers of buckets: a folder each beside this file, or a package of its own.

What does not belong here: what a provider is (``base``), the table of their names (``base.model.providers``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from volstream.base import plugins
from volstream.base.definitions.objects import PROVIDERS
from volstream.base.model.paths import scheme_of
from volstream.base.plugins import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volstream.files.providers.base import Provider

__all__ = ["own", "provider_by", "provider_of"]

_ALIASES = {alias: scheme for scheme, words in PROVIDERS.items() for alias in words.aliases}

#: Schemes without a provider, for which no plug-in is looked for.
_NONE = ("file", "memory", "hdfs", "viewfs")


def provider_of(location: str) -> Provider | None:
    """Returns the provider of a location; None if it has none, such as a directory. Imports no provider's packages."""
    return provider_by(scheme_of(location))


def provider_by(scheme: str) -> Provider | None:
    """Returns the provider of locations with this scheme, or of connections of this type. See :func:`provider_of`."""
    words = PROVIDERS.get(_ALIASES.get(scheme, scheme))
    if words is not None:
        return cast("Provider", importlib.import_module(words.folder).PROVIDER)
    if scheme in _NONE or not plugins.has(Group.PROVIDERS, scheme):
        return None
    return cast("Provider", plugins.call(Group.PROVIDERS, scheme))


def own() -> Iterator[Provider]:
    """Yields volstream's own providers."""
    return filter(None, map(provider_by, PROVIDERS))
