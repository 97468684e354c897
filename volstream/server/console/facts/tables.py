"""Tables, and queries on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volstream.ops.inspection.tables import DescribedTable, ListedTable, described_table, list_tables, table_names
from volstream.server.console.facts import PageRequest
from volstream.server.console.queries import QueryResult

#: Tables that the page of queries names.
_MAX_NAMED = 50


@dataclass(frozen=True)
class TablesFacts:
    """The tables of the home, by name."""

    tables: Sequence[ListedTable]


@dataclass(frozen=True)
class SqlFacts:
    """A query, and those that one may want to run: names of tables, the newest queries, and examples.

    Attributes:
        result: None: it was not run, or failed.
        error: why it failed.
    """

    query: str
    tables: Sequence[str]
    recent: Sequence[str]
    examples: Sequence[str]
    engine: Mapping[str, Any]
    result: QueryResult | None = None
    error: Any = None


def tables(asked: PageRequest) -> TablesFacts:
    """The tables of the home, and what fills them."""
    return TablesFacts(list_tables(asked.home))


def table(asked: PageRequest) -> DescribedTable:
    """A table: columns, rows, newest commits, streams on it."""
    return described_table(asked.home, asked.names["table"])


def sql(asked: PageRequest) -> SqlFacts:
    """The box for a query. POST runs it."""
    names = [str(name) for name in table_names(asked.home, _MAX_NAMED)]
    examples = [
        "SELECT job, state, files, failed, rows, seconds FROM volstream.batches LIMIT 20",
        "SELECT * FROM volstream.failures LIMIT 20",
        "SHOW STREAMS",
        *(f"DESCRIBE HISTORY {name}" for name in names[:1]),
    ]
    engine = asked.probed().get("engine", {})
    return SqlFacts(asked.query.text("q") or "", names, list(asked.queries.recent), examples, engine)
