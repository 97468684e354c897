"""The home's tables as a file of sources for dbt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from volstream.base.definitions import Job
from volstream.base.model.names import Name
from volstream.functions.schema import PROVENANCE
from volstream.ops.inspection.tables import table_names
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.schema import Schema

if TYPE_CHECKING:
    from volstream.home import Home

_HEADER = """\
# The tables of this home, as sources of dbt. Written by `volstream export --dbt`.
version: 2

"""

#: When a row was made, in tables of jobs.
_LOADED_AT = "_processed_at"

#: What the columns are that volstream adds.
_ADDED = {
    "_file_path": "The file whose row this is.",
    "_file_version": "The file's version.",
    "_group_key": "The set of files whose row this is.",
    "_refresh_id": "The refresh of the volume that found this version.",
    "_batch_id": "The batch that made the row.",
    _LOADED_AT: "When the row was created.",
}


def to_dbt(home: Home) -> tuple[str, int]:
    """Returns a ``sources.yml`` of the home's tables that exist, a source for each schema, and the number of tables.

    dbt-duckdb finds a table by ``external_location``; dbt-spark by its name, in the metastore of its Spark.

    Raises:
        DependencyError: a table's log cannot be read.
    """
    jobs = {job.into: job for job in home.catalog.jobs.list()}
    lines, count = list[str](), 0
    for schema, names in groupby(table_names(home), key=lambda name: name.schema):
        tables: list[str] = []
        for name in names:
            location = places.table_location(home.warehouse, name)
            columns = schema_at(location)
            if columns is not None:
                tables += _table(name, location, columns, jobs.get(name))
                count += 1
        if tables:
            lines += [f"  - name: {_text(schema)}\n", "    tables:\n", *tables]
    return "".join([_HEADER, "sources:\n" if count else "sources: []\n", *lines]), count


def _table(name: Name, location: str, columns: Schema, job: Job | None) -> Iterator[str]:
    made = job is not None and set(PROVENANCE.names) & set(columns.columns)
    yield f"      - name: {_text(name.name)}\n"
    if job is not None:
        yield f"        description: {_text(job.comment or f'Written by the job {job.name} of volstream.')}\n"
    yield "        config:\n"
    yield "          meta:\n"
    quoted = location.replace("'", "''")
    external = f"delta_scan('{quoted}')"
    yield f"            external_location: {_text(external)}\n"
    if made:
        yield f"          loaded_at_field: {_LOADED_AT}\n"
    yield "        columns:\n"
    for column in columns.columns:
        yield f"          - name: {_text(column)}\n"
        yield f"            data_type: {_text(columns.sql_type(column))}\n"
        if made and column in _ADDED:
            yield f"            description: {_text(_ADDED[column])}\n"


def _text(value: str) -> str:
    """Returns a text as a YAML scalar: JSON's strings are YAML's, too."""
    return json.dumps(value, ensure_ascii=False)
