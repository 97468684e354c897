"""Finds the environment in which a job's function runs, and brings it to workers elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from volstream.functions.environments import EnvironmentStore
from volstream.functions.source import FunctionSource

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.jobs.services import JobServices


def resolve_environment(path: str | None, directory: Path | None) -> str | None:
    """Returns the absolute path of what defines an environment; None, or an empty path: the function has none.

    Args:
        directory: what the path is relative to; None: the working directory.
    """
    return os.path.abspath((directory or Path.cwd()) / os.path.expanduser(path)) if path else None


def with_environment(source: FunctionSource, path: str | None, folder: Path) -> FunctionSource:
    """Returns a function in the environment at ``path``, which is made if it is missing; None: in volstream's own.

    Args:
        folder: where environments are made.

    Raises:
        As :meth:`EnvironmentStore.at`.
    """
    if path is None:
        return source
    return replace(source, environment=EnvironmentStore(folder).at(path))


def ship(services: JobServices, session: SparkSession, source: FunctionSource) -> FunctionSource:
    """Returns a function whose environment the session's workers have.

    On a Spark that others started, they get a copy; except of a folder, which they must see under the same path.
    """
    environment = source.environment
    if environment is None or not services.settings.spark_remote:
        return source
    packed = EnvironmentStore(services.settings.environments_directory).packed(environment)
    if packed is None:
        return source
    return replace(source, environment=replace(environment, archive=services.gateway.bring(session, packed)))
