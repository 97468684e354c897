"""Completes names of objects in the shell: from the catalog alone, quickly, and silently if anything is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from volstream.catalog.definitions import Definitions

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(kind: str | None = None) -> Completer:
    """Returns a completer of names.

    Args:
        kind: of these objects; None: of those that the command's argument KIND says.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del param
        try:
            names = _names(ctx.params.get("home"), kind or ctx.params.get("kind", ""))
        except Exception:  # noqa: BLE001  # a shell has no place for errors: it then completes nothing
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _names(home: Any, kind: str) -> Sequence[str]:
    from volstream.base import config
    from volstream.catalog import Catalog

    settings = config.load(home)
    if not settings.is_made:
        return []
    catalog = Catalog(settings.database_url)
    collections: Mapping[str, Definitions[Any]] = {
        "connection": catalog.connections,
        "volume": catalog.volumes,
        "stream": catalog.streams,
        "job": catalog.jobs,
        "function": catalog.functions,
        "source": catalog.sources,
    }
    try:
        return [str(definition.name) for definition in collections[kind].list()]
    finally:
        catalog.close()
