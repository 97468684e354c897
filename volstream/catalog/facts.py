"""The catalog's facts as relations for SQL: failures, batches, refreshes, rejected messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import FromClause, Select, select

from volstream.base.model.names import Name
from volstream.base.model.work import FailureState
from volstream.catalog.database import Database
from volstream.catalog.tables import batches, code_versions, failures, job_counts, jobs, refreshes, rejected, volumes

#: Columns that people know by another name.
_SHOWN_AS = {"commit_version": "refresh_id"}

#: Rows in memory at a time.
_CHUNK = 1000


def _facts(owner: FromClause, of: FromClause, key: str, columns: str) -> Select[Any]:
    """Selects facts; the first two columns are the name of the job or volume that ``key`` names."""
    shown = (of.c[name].label(_SHOWN_AS.get(name, name)) for name in columns.split())
    return select(owner.c.schema_name, owner.c.name, *shown).select_from(of.outerjoin(owner, of.c[key] == owner.c.id))


#: By name: the kind of object that the facts concern, and the query, whose first two columns are the object's name.
FACTS: Mapping[str, tuple[str, Select[Any]]] = {
    "failures": (
        "job",
        _facts(
            jobs,
            failures,
            "job_id",
            "path file_version commit_version state kind message traceback attempts next_try batch_id failed_on",
        ).where(failures.c.state != FailureState.PENDING),
    ),
    "batches": (
        "job",
        _facts(
            jobs,
            batches,
            "job_id",
            "id state files replaced removals moves bytes attempts succeeded failed rows seconds created_on committed_on code",
        ),
    ),
    "code_versions": ("job", _facts(jobs, code_versions, "job_id", "number digest function returns environment made_by made_on")),
    "counts": ("job", _facts(jobs, job_counts, "job_id", "name day number")),
    "refreshes": ("volume", _facts(volumes, refreshes, "volume_id", "number cause inserted updated deleted bytes committed_on")),
    "rejected": ("volume", _facts(volumes, rejected, "volume_id", "subject reason count first_seen last_seen")),
}


def types(name: str) -> Mapping[str, type]:
    """Returns the columns of a relation in :data:`FACTS`, each with its Python type."""
    of, query = FACTS[name]
    own = list(query.selected_columns)[2:]
    return {of: str, **{column.name: column.type.python_type for column in own}}


def rows(database: Database, name: str) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yields the rows of a relation in chunks."""
    of, query = FACTS[name]
    own = list(types(name))[1:]
    with database.reading() as transaction:
        result = transaction.execute(query.execution_options(yield_per=_CHUNK))
        for part in result.partitions():
            yield [
                {of: None if owner is None else str(Name(schema, owner)), **dict(zip(own, row, strict=True))}
                for schema, owner, *row in part
            ]
