"""The statement that creates a table like one of the home: what SHOW CREATE TABLE shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from volstream.api.statements import metastore
from volstream.base.definitions import DynamicJob
from volstream.base.definitions.job import TriggerKind
from volstream.base.model.names import Name
from volstream.base.model.units import format_duration
from volstream.ops.inspection.tables import missing
from volstream.sql.text import literal, pairs, quote_column, quote_columns, table_at, type_of
from volstream.tables.delta.commits import PROPERTIES as TRACKING
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.ownership import OWNER
from volstream.tables.delta.schema import CHARACTERS, PRIMARY_KEY, definition_of

if TYPE_CHECKING:
    from volstream.home import Home

_CONSTRAINT = "delta.constraints."

#: Beginnings of properties that Delta or a job sets.
_SET_BY_ITSELF = (
    OWNER,
    PRIMARY_KEY,
    _CONSTRAINT,
    "delta.rowTracking.",
    "delta.columnMapping.maxColumnId",
    "delta.inCommitTimestampEnablement",
)


def created_dynamic_table(job: DynamicJob) -> str:
    """Returns the statement that creates a dynamic table."""
    match job.trigger.kind:
        case TriggerKind.EVERY:
            assert job.trigger.every is not None, "of this kind"
            refresh = f" REFRESH EVERY '{format_duration(job.trigger.every)}'"
        case TriggerKind.CRON:
            refresh = f" REFRESH SCHEDULE '{job.trigger.cron}'"
        case TriggerKind.ON_CHANGE:
            refresh = " REFRESH ON CHANGE"
        case _:
            refresh = ""
    comment = f" COMMENT {literal(job.comment)}" if job.comment else ""
    return f"CREATE DYNAMIC TABLE {job.name.qualified}{refresh}{comment} AS\n{job.query}"


def created_table(home: Home, name: Name) -> str:
    """Returns the statement that creates a table, and others for its constraints. Asks Spark for its clustering.

    Raises:
        NotFoundError: there is no such table.
    """
    location = metastore.locate(home, name)
    schema = schema_at(location)
    if schema is None:
        raise missing(home, name)
    [detail] = home.spark.sql(f"DESCRIBE DETAIL {table_at(location)}").collect()
    key = f"PRIMARY KEY ({quote_columns(schema.primary_key)})" if schema.primary_key else ""
    inside = ",\n".join(f"  {part}" for part in (*map(_column, schema.fields), key) if part)
    properties = {key: value for key, value in schema.properties.items() if not key.startswith(_SET_BY_ITSELF)}
    if TRACKING.items() <= properties.items():
        tracked = {"change_tracking": "true"}
        properties = tracked | {key: value for key, value in properties.items() if key not in TRACKING}
    clauses = [
        f"CREATE TABLE {name.qualified} (\n{inside}\n)",
        f"COMMENT {literal(detail['description'])}" if detail["description"] else "",
        f"PARTITIONED BY ({quote_columns(schema.partitions)})" if schema.partitions else "",
        f"CLUSTER BY ({quote_columns(detail['clusteringColumns'])})" if detail["clusteringColumns"] else "",
        f"TBLPROPERTIES ({pairs(properties)})" if properties else "",
    ]
    constraints = (
        f"ALTER TABLE {name.qualified} ADD CONSTRAINT {quote_column(key.removeprefix(_CONSTRAINT))} CHECK ({value})"
        for key, value in schema.properties.items()
        if key.startswith(_CONSTRAINT)
    )
    return ";\n".join(["\n".join(clause for clause in clauses if clause), *constraints])


def _column(field: Any) -> str:
    characters = (field.get("metadata") or {}).get(CHARACTERS, "")
    return definition_of(field, str(characters).upper() or type_of(field["type"]))
