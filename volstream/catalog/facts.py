"""The catalog's facts as relations for SQL: failures, batches, refreshes, rejected messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, select

from volstream.base.model.names import Name
from volstream.base.model.work import FailureState
from volstream.catalog.database import Database
from volstream.catalog.tables import batches, failures, jobs, refreshes, rejected, volumes

#: Rows in memory at a time.
_CHUNK = 1000


def _facts(owner: FromClause, of: FromClause, on: ColumnElement[bool], columns: Sequence[Any]) -> Select[Any]:
    """Selects facts; the first two columns are the name of their job or volume."""
    return select(owner.c.schema_name, owner.c.name, *columns).select_from(of.outerjoin(owner, on))


def _named(table: FromClause, *names: str) -> list[Any]:
    return [table.c[name] for name in names]


#: By name: the kind of object that the facts concern, and the query, whose first two columns are the object's name.
FACTS: Mapping[str, tuple[str, Select[Any]]] = {
    "failures": (
        "job",
        _facts(
            jobs,
            failures,
            failures.c.job_id == jobs.c.id,
            [
                failures.c.path,
                failures.c.file_version,
                failures.c.commit_version.label("refresh_id"),
                *_named(
                    failures,
                    "state",
                    "kind",
                    "message",
                    "traceback",
                    "attempts",
                    "next_try",
                    "batch_id",
                    "failed_on",
                ),
            ],
        ).where(failures.c.state != FailureState.PENDING),
    ),
    "batches": (
        "job",
        _facts(
            jobs,
            batches,
            batches.c.job_id == jobs.c.id,
            _named(
                batches,
                "id",
                "state",
                "files",
                "replaced",
                "removals",
                "moves",
                "bytes",
                "attempts",
                "succeeded",
                "failed",
                "rows",
                "seconds",
                "created_on",
                "committed_on",
            ),
        ),
    ),
    "refreshes": (
        "volume",
        _facts(
            volumes,
            refreshes,
            refreshes.c.volume_id == volumes.c.id,
            _named(
                refreshes,
                "number",
                "cause",
                "inserted",
                "updated",
                "deleted",
                "bytes",
                "committed_on",
            ),
        ),
    ),
    "rejected": (
        "volume",
        _facts(
            volumes,
            rejected,
            rejected.c.volume_id == volumes.c.id,
            _named(
                rejected,
                "subject",
                "reason",
                "count",
                "first_seen",
                "last_seen",
            ),
        ),
    ),
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
