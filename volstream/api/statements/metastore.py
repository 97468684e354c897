"""Finds tables by name in the metastore that Spark is configured with, and links them; reads the metastore's
entries.

A link in the catalog maps the name to the table's location; everything that works by location, such as logs
and commits, then does not need the metastore. What does not belong here: entries for the home's own tables
(``registration``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.model.text import counted, first_line
from volstream.base.processes import new_owner
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import REGISTRATION, lease
from volstream.errors import DependencyError, EngineError, InvalidStateError, SqlError, VolstreamError
from volstream.spark.errors import as_sql_errors, condition_of, map_spark_errors
from volstream.sql.names import SESSION_CATALOG
from volstream.sql.text import literal, quote_column
from volstream.tables.delta import places
from volstream.tables.delta.log import actions
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.places import is_table, reached

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
    """Returns the table's actual or future location.

    Asks Spark if the warehouse lacks the table and Spark has a metastore.
    """
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
    """Raises SqlError if a Hive metastore has the schema elsewhere: tables would be made there, and could be
    another home's."""
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


# Registers the home's tables in the metastore of the setting ``metastore``: an entry for each, with its name
# and location.
#
# The catalog keeps what is registered: whether there is anything to do is known without Spark. What does not
# belong here: finding tables that a metastore has, and reading its entries (``metastore``).

_log = get("metastore")

#: At most this many of the tables that cannot be registered are named.
_NAMED = 3


def register(home: Home, *, check: bool = False) -> None:
    """Registers new tables, and removes the entries of dropped ones. Uses Spark only if there are any.

    An entry that leads elsewhere stays. What fails is recorded for ``status``; the next call tries it again.

    Args:
        check: look at all entries, and make those again that others have dropped.

    Raises:
        DependencyError: the engine, the warehouse or the metastore is not available.
        InvalidStateError: some tables cannot be registered; all others are.
    """
    metastore, conditions = home.settings.metastore, home.catalog.conditions
    if not metastore:
        return
    before = conditions.cause(ConditionKind.METASTORE, metastore)
    new, gone = _differences(home, metastore, check)
    if new or gone:
        purpose, seconds = "registering tables", home.settings.lease_seconds
        with lease(home.catalog.leases, REGISTRATION, new_owner(), purpose, seconds) as other:
            if other is not None:
                return
            try:
                _change(home, metastore, new, gone)
            except EngineError:  # a problem of its own
                raise
            except VolstreamError as error:
                conditions.note(ConditionKind.METASTORE, metastore, error.message)
                raise
    if before is not None:
        conditions.note(ConditionKind.METASTORE, metastore, None)


def register_after_work(home: Home) -> None:
    """Does :func:`register` if this process has used Spark. Errors do not fail the work: the next call tries
    again."""
    if home.settings.metastore and home.gateway.attached:
        with suppress(VolstreamError):
            register(home)


def _differences(home: Home, metastore: str, check: bool) -> tuple[Mapping[Name, str], Mapping[Name, str]]:
    """Returns the tables that are not registered, or all to check, and those registered that are gone, with
    their locations."""
    registered, warehouse = home.catalog.registrations.list(metastore=metastore), home.warehouse
    with reached(warehouse):
        present = {name: places.own_location(warehouse, name) for name in places.own_tables(warehouse)}
        new = {
            name: location
            for name, location in present.items()
            if (check or registered.get(name) != location) and is_table(location)
        }
        gone = {name: location for name, location in registered.items() if present.get(name) != location}
        if gone:
            places.check_there(warehouse)
    return new, gone


def _change(home: Home, metastore: str, new: Mapping[Name, str], gone: Mapping[Name, str]) -> None:
    """Removes the entries of tables that are gone, and makes those of new ones. Raises as
    :func:`register`."""
    if not is_configured(home.settings):
        raise InvalidStateError(
            "Tables cannot be registered: Spark has no metastore.",
            "Configure one by spark_conf, or empty the setting `metastore`.",
        )
    problems, taken = [], False
    with home.gateway.fresh() as spark:
        try:
            with as_sql_errors():
                spark.sql(f"SHOW NAMESPACES IN {quote_column(metastore)}").collect()
        except SqlError as error:
            raise DependencyError(f"The metastore {metastore} does not answer: {error.brief}") from error
        for change, tables in ((_remove, gone), (_add, new)):
            for name, location in tables.items():
                try:
                    with as_sql_errors():
                        change(home, metastore, spark, name, location)
                except (InvalidStateError, SqlError) as error:
                    problems.append(f"{name}: {first_line(error.message)}")
                    taken |= isinstance(error, InvalidStateError)
    if problems:
        more = f" And {len(problems) - _NAMED} more." if len(problems) > _NAMED else ""
        raise InvalidStateError(
            f"{counted(len(problems), 'table')} not registered. {' '.join(problems[:_NAMED])}{more}",
            "If the metastore has another table of the same name, drop one of the two." if taken else "",
        )


def _remove(home: Home, metastore: str, spark: SparkSession, name: Name, location: str) -> None:
    """Removes a table's entry, unless it leads elsewhere by now, or Spark made it and would delete files with
    it."""
    entry = entry_of(spark, metastore, name)
    if entry is not None and entry.location == location and not entry.managed:
        spark.sql(f"DROP TABLE IF EXISTS {quote_column(metastore)}.{name.qualified}").collect()
        _log.info("entry_removed", metastore=metastore, table=str(name))
    home.catalog.registrations.remove(name, metastore=metastore)


def _add(home: Home, metastore: str, spark: SparkSession, name: Name, location: str) -> None:
    """Makes a table's entry. Raises InvalidStateError if its name has one that leads elsewhere."""
    entry = entry_of(spark, metastore, name)
    if entry is None:
        if not is_table(location):  # dropped meanwhile
            return
        catalog = quote_column(metastore)
        # Where statements create tables of this schema (``bind``).
        own = f"LOCATION {literal(f'{home.warehouse}/tables/{name.schema}')}" if metastore == SESSION_CATALOG else ""
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {catalog}.{quote_column(name.schema)} {own}").collect()
        place = f"USING DELTA LOCATION {literal(location)}"
        spark.sql(f"CREATE TABLE IF NOT EXISTS {catalog}.{name.qualified} {place}").collect()
        if _is_empty(location):  # dropped just now: Delta made an empty one in its place
            spark.sql(f"DROP TABLE IF EXISTS {catalog}.{name.qualified}").collect()
            places.remove(location)
            return
        _log.info("table_registered", metastore=metastore, table=str(name))
        entry = entry_of(spark, metastore, name)
    if entry is None or entry.location != location:
        home.catalog.registrations.remove(name, metastore=metastore)
        found = "does not have it" if entry is None else f"has another one in {entry.location or 'a view'}"
        raise InvalidStateError(f"The metastore {found}.")
    home.catalog.registrations.put(name, location, metastore=metastore)


def _is_empty(location: str) -> bool:
    """True if a table has a single version, without columns, which no job and no other statement makes."""
    [metadata] = (action["metaData"] for action in actions(location, 0, '"metaData"'))
    return newest_version(location) == 0 and not json.loads(metadata["schemaString"])["fields"]
