"""The catalog's facts as relations of SQL: ``SELECT * FROM volstream.failures``.

They are what the catalog has when the statement is read, written to a file that Spark reads: there may be many, and Spark may be
elsewhere.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.catalog import facts
from volstream.delta import folders

if TYPE_CHECKING:
    from volstream.home import Home
    from volstream.model.names import Name

#: The schema that these relations are in; a table of the same name that is really there goes before one of them.
SCHEMA = "volstream"

_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), datetime: pa.timestamp("us", tz="UTC")}


def is_fact(name: Name) -> bool:
    """Whether a relation of that name is told by the catalog."""
    return name.schema == SCHEMA and name.name in facts.FACTS


def write(home: Home, name: Name) -> str:
    """Writes the rows of a relation to a folder of Parquet files; where it is."""
    location = f"{home.warehouse}/_staging/facts-{uuid.uuid4().hex}"
    schema = pa.schema([(column, _TYPES[kind]) for column, kind in facts.types(name.name).items()])
    with folders.written(location, schema) as file:
        for some in facts.rows(home.catalog.database, name.name):
            file.write_table(pa.Table.from_pylist(list(some), schema=schema))
    return location
