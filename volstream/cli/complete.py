"""Completes names of objects in the shell: from the catalog alone, quickly, and silently if anything is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def names_of(kind: str | None = None) -> Completer:
    """Returns a completer of names.

    Args:
        kind: of these objects; None: of those that the command's argument KIND says.
    """

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
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
    try:
        return [str(definition.name) for definition in catalog.by_kind[kind].list()]
    finally:
        catalog.close()
