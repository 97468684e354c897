"""Requirements of the engine for a warehouse in an object store: the connector's jars, and Spark's settings. Runs no Spark.

What does not belong here: what they are, which the warehouse's provider says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from volstream.base import config
from volstream.base.config import Settings
from volstream.base.model.text import counted
from volstream.files.providers import provider_of
from volstream.files.providers.base import Engine
from volstream.spark.jvm import jars
from volstream.spark.jvm.jars import Jar
from volstream.spark.jvm.java import Java


def jars_of(warehouse: str) -> tuple[Jar, ...]:
    """Returns the jars that an engine with this warehouse needs in addition to Delta's and pyspark's."""
    engine = _engine_of(warehouse)
    return () if engine is None else tuple(Jar(*(*name.split(":"), sha256)) for name, sha256 in engine.JARS.items())


def installed(settings: Settings) -> list[Path]:
    """Returns all jars that set-up fetches for this engine. Raises JavaError, with the remedy, if one is missing."""
    return [*jars.installed(config.cache_directory()), *of_warehouse(settings)]


def of_warehouse(settings: Settings) -> list[Path]:
    """Returns the jars of :func:`jars_of`. Raises JavaError as :func:`installed`."""
    provider = provider_of(settings.warehouse_path)
    remedy = jars.SET_UP if provider is None else f"Run: volstream setup --{provider.scheme}."
    return jars.installed(config.cache_directory(), jars_of(settings.warehouse_path), remedy)


def fetch_missing(settings: Settings, runtime: Java, say: Callable[[str], None]) -> None:
    """Fetches the jars of this engine that the cache lacks, unless the settings forbid it. Does nothing if there are none.

    Args:
        say: called first, because it takes a while.

    Raises:
        JavaError: the download failed, or is forbidden.
    """
    if not settings.fetch_jars:
        installed(settings)
        return
    cache, wanted = config.cache_directory(), (*jars.DELTA, *jars_of(settings.warehouse_path))
    missing = jars.missing_jars(cache, wanted)
    if missing:
        say(f"Fetching {counted(len(missing), 'jar')} of the engine into {cache / 'jars'}, once ...")
        jars.resolve(cache, runtime, wanted)


def properties(settings: Settings) -> dict[str, str]:
    """Returns Spark's settings for the warehouse's store; they may contain secrets."""
    engine = _engine_of(settings.warehouse_path)
    return {} if engine is None else engine.spark_settings(settings.warehouse_storage)


def _engine_of(warehouse: str) -> Engine | None:
    provider = provider_of(warehouse)
    return None if provider is None else provider.engine
