"""Small reads of Delta tables in this process: milliseconds, where a query of Spark costs a second of its machine.

For few rows only: what is read is held in memory. Uses the deltalake library, as ``delta.log`` does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from volstream.delta.log import mapped


def rows(location: str, version: int, columns: Sequence[str]) -> pa.Table:
    """All rows of a version. Raises DependencyError where the table cannot be read."""
    return _query(location, version, f"SELECT {', '.join(columns)} FROM t")


def rows_of(location: str, version: int, columns: Sequence[str], key: str, wanted: Sequence[str]) -> pa.Table:
    """The rows of a version whose column ``key`` has one of the values ``wanted``. Raises as :func:`rows`."""
    values = ", ".join(map(_literal, wanted))
    # The range lets files and pages be skipped, which a long list does not.
    within = f"{key} BETWEEN {_literal(min(wanted))} AND {_literal(max(wanted))}"
    return _query(location, version, f"SELECT {', '.join(columns)} FROM t WHERE {within} AND {key} IN ({values})")


def changes(location: str, first: int, last: int) -> pa.Table:
    """The change feed of versions ``first`` to ``last``, both included: the table's columns, ``_change_type``,
    ``_commit_version`` and more. Raises as :func:`rows`.
    """
    with mapped(location):
        return pa.table(DeltaTable(location).load_cdf(starting_version=first, ending_version=last).read_all())


def _query(location: str, version: int, statement: str) -> pa.Table:
    with mapped(location):
        table = DeltaTable(location, version=version)
        return pa.table(QueryBuilder().register("t", table).execute(statement).read_all())


def _literal(text: str) -> str:
    """A string literal of standard SQL, in which a backslash is a backslash."""
    return "'" + text.replace("'", "''") + "'"
