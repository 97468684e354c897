"""Run events for OpenLineage: what each batch of a job read and wrote. Its client is imported with the first event."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from volstream.base.config import environment

if TYPE_CHECKING:
    from volstream.home import Home
    from volstream.ops.openlineage.emitter import Emitter

#: Variables by which OpenLineage's client is configured.
_VARIABLES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT", "OPENLINEAGE__TRANSPORT__TYPE")


def start(home: Home) -> Emitter | None:
    """Sends the attempts of this process to OpenLineage, if it is configured: by the setting ``openlineage``, or as its client
    is elsewhere. Returns None otherwise; this takes microseconds."""
    if not home.settings.openlineage and not _configured_elsewhere():
        return None
    if (environment("OPENLINEAGE_DISABLED") or "").lower() == "true":
        return None
    from volstream.ops.openlineage.emitter import Emitter

    emitter = Emitter(home)
    home.catalog.consumptions.listeners.append(emitter)
    return emitter


def _configured_elsewhere() -> bool:
    files = ("openlineage.yml", os.path.expanduser("~/.openlineage/openlineage.yml"))
    configured = environment(*_VARIABLES) is not None or any(map(os.path.isfile, files))
    return configured and is_installed()


def is_installed() -> bool:
    """Returns whether OpenLineage's client is there."""
    try:
        return find_spec("openlineage.client") is not None
    except ModuleNotFoundError:
        return False
