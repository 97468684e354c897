"""Finds tables by name in the metastore that Spark is configured with, and links them.

A link in the catalog maps the name to the table's location; everything that works by location, such as logs and commits, then
does not need the metastore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.delta import folders
from volstream.delta.log import DeltaLog
from volstream.model.names import Name
from volstream.spark.errors import map_spark_errors

if TYPE_CHECKING:
    from volstream.config import Settings
    from volstream.home import Home


def locate(home: Home, name: Name) -> str:
    """Returns the table's actual or future location. Asks Spark if the warehouse lacks the table and Spark has a metastore."""
    location = folders.table_location(home.warehouse, name)
    if DeltaLog(location).exists() or not _is_configured(home.settings):
        return location
    from pyspark.errors import AnalysisException

    with map_spark_errors():
        try:
            [detail] = home.spark.sql(f"DESCRIBE DETAIL {name.qualified}").select("format", "location").collect()
        except AnalysisException:
            return location
    if detail["format"] != "delta":
        return location
    place: str = detail["location"].removeprefix("file:")
    home.catalog.links.put(name, f"/{place.lstrip('/')}" if place != detail["location"] else place)
    return folders.table_location(home.warehouse, name)


def _is_configured(settings: Settings) -> bool:
    conf = settings.spark_conf
    hive = conf.get("spark.sql.catalogImplementation") == "hive"
    return bool(settings.spark_remote) or hive or any(key.startswith("spark.sql.catalog.") for key in conf)
