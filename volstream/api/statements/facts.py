"""Facts as SQL relations: the catalog's, ``SELECT * FROM volstream.failures``, and what tables there are, as standard SQL has
them: ``information_schema.tables`` and ``information_schema.columns``.

Each statement reads them anew and writes them to files for Spark: there may be many rows, and Spark may be on another host.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.catalog import facts
from volstream.errors import DependencyError
from volstream.functions.types.kinds import BY_PYTHON
from volstream.ops.inspection.tables import table_names
from volstream.sql.names import SESSION_CATALOG
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at

if TYPE_CHECKING:
    from volstream.base.model.names import Name
    from volstream.home import Home

#: The schemas of these relations; an existing table of the same name takes precedence.
SCHEMA, STANDARD = "volstream", "information_schema"

_TABLE = {"table_catalog": str, "table_schema": str, "table_name": str}

#: The relations of standard SQL, by name, with their columns.
_STANDARD: Mapping[str, Mapping[str, type]] = {
    "tables": {**_TABLE, "table_type": str},
    "columns": {**_TABLE, "column_name": str, "ordinal_position": int, "is_nullable": str, "data_type": str, "comment": str},
}


def is_fact(name: Name) -> bool:
    """True if a relation with this name is provided here."""
    return name.name in {SCHEMA: facts.FACTS, STANDARD: _STANDARD}.get(name.schema, ())


def write(home: Home, name: Name) -> str:
    """Writes a relation's rows to a folder of Parquet files; returns its location."""
    location = f"{home.warehouse}/{places.STAGING}/facts-{uuid.uuid4().hex}"
    standard = name.schema == STANDARD
    types = _STANDARD[name.name] if standard else facts.types(name.name)
    rows: Iterable[Iterable[Mapping[str, Any]]]
    rows = _of_tables(home, name.name) if standard else facts.rows(home.catalog.database, name.name)
    schema = pa.schema([(column, BY_PYTHON[kind]) for column, kind in types.items()])
    with places.written(location, schema) as file:
        for some in rows:
            file.write_table(pa.Table.from_pylist(list(some), schema=schema))
    return location


def _of_tables(home: Home, relation: str) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yields the rows of a relation of standard SQL, table by table; those whose log cannot be read are left out."""
    for table in table_names(home):
        row: dict[str, Any] = {"table_catalog": SESSION_CATALOG, "table_schema": table.schema, "table_name": table.name}
        if relation == "tables":
            yield [{**row, "table_type": "BASE TABLE"}]
            continue
        found = None
        with suppress(DependencyError):
            found = schema_at(places.table_location(home.warehouse, table))
        if found is not None:
            yield [
                {
                    **row,
                    "column_name": field["name"],
                    "ordinal_position": at,
                    "is_nullable": "YES" if field["nullable"] else "NO",
                    "data_type": found.sql_type(field["name"]).upper(),
                    "comment": (field.get("metadata") or {}).get("comment"),
                }
                for at, field in enumerate(found.fields, 1)
            ]
