"""Finds tables by name in the metastore that Spark is configured with, and links them; reads the metastore's entries.

A link in the catalog maps the name to the table's location; everything that works by location, such as logs and commits, then
does not need the metastore. What does not belong here: entries for the home's own tables (``registration``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from volstream.base.model.names import Name
from volstream.errors import SqlError
from volstream.spark.errors import condition_of, map_spark_errors
from volstream.sql.names import SESSION_CATALOG
from volstream.sql.tokens import literal, quote_column
from volstream.tables.delta import places
from volstream.tables.delta.places import is_table

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.base.config import Settings
    from volstream.home import Home


_IMPLEMENTATION = "spark.sql.catalogImplementation"


@dataclass(frozen=True)
class Entry:
    """A metastore's entry of a name.

    Attributes:
        location: where it leads; empty: it is a view.
        managed: the files are the metastore's, which deletes them with the entry.
    """

    location: str
    managed: bool


def locate(home: Home, name: Name) -> str:
    """Returns the table's actual or future location. Asks Spark if the warehouse lacks the table and Spark has a metastore."""
    location = places.table_location(home.warehouse, name)
    if is_table(location) or not is_configured(home.settings):
        return location
    from pyspark.errors import AnalysisException

    with map_spark_errors():
        try:
            [detail] = home.spark.sql(f"DESCRIBE DETAIL {name.qualified}").select("format", "location").collect()
        except AnalysisException:
            return location
    if detail["format"] != "delta":
        return location
    home.catalog.links.put(name, _path(detail["location"]))
    return places.table_location(home.warehouse, name)


def entry_of(spark: SparkSession, metastore: str, name: Name) -> Entry | None:
    """Returns the entry of a name; None: there is none. Reads no table: it may lead nowhere."""
    from pyspark.errors import AnalysisException

    pattern = re.sub(r"\W", ".", name.name)
    schema = f"{quote_column(metastore)}.{quote_column(name.schema)}"
    try:
        found = spark.sql(f"SHOW TABLE EXTENDED IN {schema} LIKE {literal(pattern)}").collect()
    except AnalysisException as error:
        if condition_of(error) == "SCHEMA_NOT_FOUND":
            return None
        raise
    for row in found:
        if row["tableName"].lower() == name.name and not row["isTemporary"]:
            values = dict(line.split(": ", 1) for line in row["information"].splitlines() if ": " in line)
            return Entry(_path(values.get("Location", "")), values.get("Type") == "MANAGED")
    return None


def is_taken(home: Home, spark: SparkSession, name: Name, location: str) -> bool:
    """True if tables are registered in Spark's own catalog, where the name of this table leads elsewhere."""
    if home.settings.metastore != SESSION_CATALOG or name in home.catalog.registrations.list(metastore=SESSION_CATALOG):
        return False
    entry = entry_of(spark, SESSION_CATALOG, name)
    return entry is not None and entry.location != location


def shares_schemas(settings: Settings) -> bool:
    """True if Spark's schemas are those of a Hive metastore, which other homes may use."""
    return bool(settings.spark_conf.get(_IMPLEMENTATION) == "hive")


def check_schema(home: Home, spark: SparkSession, schema: str) -> None:
    """Raises SqlError if a Hive metastore has the schema elsewhere: tables would be made there, and could be another home's."""
    if not shares_schemas(home.settings):
        return
    described = spark.sql(f"DESCRIBE SCHEMA {quote_column(schema)}").collect()
    [place] = (row["info_value"] for row in described if row["info_name"] == "Location")
    if _path(unquote(place)) != f"{home.warehouse}/tables/{schema}":  # a schema's is percent-encoded, a table's is not
        raise SqlError(
            f"The metastore has the schema {schema} in {place}, outside of this home's warehouse.",
            "Homes that share a metastore need schemas of their own: CREATE SCHEMA mine, and then mine.table.",
        )


def is_configured(settings: Settings) -> bool:
    """True if Spark has a metastore."""
    has_catalog = any(key.startswith("spark.sql.catalog.") for key in settings.spark_conf)
    return bool(settings.spark_remote) or shares_schemas(settings) or has_catalog


def _path(location: str) -> str:
    """Returns a local location as a path, another one unchanged."""
    path = location.removeprefix("file:")
    return location if path == location else f"/{path.lstrip('/')}"
