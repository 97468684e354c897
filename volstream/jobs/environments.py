"""Finds the environment in which a job's function runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from volstream.environments.store import EnvironmentStore
from volstream.functions.source import FunctionSource


def located(path: str | None, directory: Path | None) -> str | None:
    """Returns the absolute path of what defines an environment; None, or an empty path: the function has none.

    Args:
        directory: what the path is relative to; None: the working directory.
    """
    return os.path.abspath((directory or Path.cwd()) / os.path.expanduser(path)) if path else None


def equipped(source: FunctionSource, path: str | None, folder: Path | None) -> FunctionSource:
    """Returns a function in the environment at ``path``, which is made if it is missing; None: in volstream's own.

    Args:
        folder: where environments are made; None: none is needed.

    Raises:
        As :meth:`EnvironmentStore.at`.
    """
    if path is None:
        return source
    assert folder is not None, "only jobs of a home have environments"
    return replace(source, environment=EnvironmentStore(folder).at(path))
