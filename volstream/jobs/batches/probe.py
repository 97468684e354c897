"""A self-check for workers of an external Spark. Imports only what such a worker has."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from volstream.base.processes import user_name
from volstream.files.providers.base import provider_by
from volstream.tables.delta.places import try_writing
from volstream.tables.delta.warehouse import register_options


def check(warehouse: str, options: Mapping[str, str], folders: Sequence[str], schemes: Sequence[str]) -> str:
    """Runs in a worker. Returns its result as JSON."""
    host, user, problems = socket.gethostname(), user_name(), list[str]()
    if options:
        register_options(warehouse, options)
    try:
        try_writing(warehouse)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # the same for each slot
        problems.append(f"user {user} on {host} cannot write to the warehouse {warehouse}: {why}.")
    for folder in folders:
        try:
            os.scandir(folder).close()
        except OSError as error:
            problems.append(f"user {user} on {host} cannot read the volume {folder}: {error.strerror}.")
    problems += [
        f"the Python of {host} lacks {provider.package}, for volumes in {provider.scheme}://."
        for provider in map(provider_by, schemes)
        if provider is not None and _lacks(provider.package)
    ]
    return json.dumps({"host": host, "user": user, "python": platform.python_version(), "problems": problems})


def _lacks(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # a parent package is missing
        return True
