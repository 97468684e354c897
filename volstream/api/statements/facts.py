"""The catalog's facts as SQL relations: ``SELECT * FROM volstream.failures``.

Each statement reads them from the catalog and writes them to files for Spark: there may be many rows, and Spark may be on
another host.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.catalog import facts
from volstream.functions.types.kinds import BY_PYTHON
from volstream.tables.delta import folders

if TYPE_CHECKING:
    from volstream.base.model.names import Name
    from volstream.jobs.home import Home

#: The schema of these relations; an existing table of the same name takes precedence.
SCHEMA = "volstream"


def is_fact(name: Name) -> bool:
    """True if the catalog provides the relation with this name."""
    return name.schema == SCHEMA and name.name in facts.FACTS


def write(home: Home, name: Name) -> str:
    """Writes a relation's rows to a folder of Parquet files; returns its location."""
    location = f"{home.warehouse}/{folders.STAGING}/facts-{uuid.uuid4().hex}"
    schema = pa.schema([(column, BY_PYTHON[kind]) for column, kind in facts.types(name.name).items()])
    with folders.written(location, schema) as file:
        for some in facts.rows(home.catalog.database, name.name):
            file.write_table(pa.Table.from_pylist(list(some), schema=schema))
    return location
