"""Tables with a tail in statements: reads include arrived rows, and writes that depend on arrived rows commit them first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

from volstream.base.model.names import Name
from volstream.base.processes import new_owner
from volstream.catalog.leases import lease, of_columns
from volstream.errors import InvalidStateError, ObjectInUseError
from volstream.spark.frames import Views, relation
from volstream.sql.names import Reference
from volstream.tables.delta import places
from volstream.tables.tails.tail import TailedTable, tail_exists
from volstream.tables.tails.writer import TailWriter, commit_tail

if TYPE_CHECKING:
    from volstream.home import Home
    from volstream.sql.statement import SparkStatement

#: Statements that read their relations.
_READING = (
    *("SELECT", "WITH", "FROM", "VALUES", "(", "TABLE", "EXPLAIN", "SET", "CACHE"),
    *("INSERT", "MERGE", "UPDATE", "DELETE", "CREATE", "REPLACE"),
)

#: Statements that change existing rows or columns.
_CHANGING = ("UPDATE", "DELETE", "MERGE", "TRUNCATE", "ALTER", "RESTORE", "REPLACE")


def query(views: Views, statement: SparkStatement, reference: Reference, location: str) -> str | None:
    """Returns SQL for a table's rows including arrived ones; None: the statement reads the table itself.

    The statement contains arrived rows if they are few: Spark would need half a second to find the tail's newest version.

    Args:
        views: of the statement.
        reference: where the statement names the table.
        location: of the table.

    Raises:
        DependencyError: the table or its tail cannot be read.
    """
    if not tail_exists(location) or not _reads(statement, reference):
        return None
    tailed = TailedTable.open(location)
    if tailed is None or not tailed.has_unmoved:
        return None
    few = tailed.few_unmoved()
    return tailed.query(None if few is None else f"SELECT * FROM {views.show(relation(views.spark, few))}")


def commit_before(home: Home, statement: SparkStatement) -> None:
    """Commits the arrived rows of the table that a statement changes or clones, if the statement must see them.

    A statement that only adds rows to tables without a key need not see them.

    Raises:
        InvalidStateError: the table is immutable.
        VolstreamError: the commit failed; the statement must not run.
    """
    words = statement.words
    if (cloned := statement.cloned) is not None:
        _commit(home, cloned.name)
    replaces = any(after in ("WHERE", "USING", "ON") for word, after in pairwise(words) if word == "REPLACE")
    for name in _changed(statement):
        source = home.catalog.sources.find(name)
        if source is not None and source.immutable and words[0] != "ALTER":
            raise InvalidStateError(
                f"The table {name} is immutable.", "Create its next version: session.source.create_table(..., immutable=True)."
            )
        _commit(home, name, only_with_key=words[:2] == ["INSERT", "INTO"] and not replaces)


@contextmanager
def settled(home: Home, statement: SparkStatement) -> Iterator[None]:
    """Commits rows as :func:`commit_before`, and then runs the block with the statement. If that may change the columns of a
    table, first ends the table's open real-time streams, whose rows would no longer fit; none can begin before the block ends.

    Raises:
        ObjectInUseError: another session is changing the columns.
        InvalidStateError, VolstreamError: as :func:`commit_before`; or the streams cannot be ended.
    """
    name = next(iter(_changed(statement)), None) if _changes_columns(statement) else None
    location = "" if name is None else places.table_location(home.warehouse, name)
    if not location or not tail_exists(location):
        commit_before(home, statement)
        yield
        return
    purpose = f"changing the columns of {name}"
    with lease(home.catalog.leases, of_columns(location), new_owner(), purpose, home.settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError(f"Another session is changing the columns of {name}.", "Try again later.")
        TailWriter(location).end_streams()
        commit_before(home, statement)
        yield


def _changes_columns(statement: SparkStatement) -> bool:
    if statement.begins("ALTER", "TABLE"):
        return bool({"ADD", "RENAME", "DROP", "TYPE", "REPLACE", "NOT"} & {*statement.words})
    return statement.words[:1] in (["RESTORE"], ["REPLACE"]) or statement.begins("CREATE", "OR", "REPLACE", "TABLE")


def _commit(home: Home, name: Name, *, only_with_key: bool = False) -> None:
    location = places.table_location(home.warehouse, name)
    tailed = TailedTable.open(location)
    if tailed is not None and tailed.has_unmoved and (tailed.key or not only_with_key):
        commit_tail(location, lambda: home.gateway)


def _changed(statement: SparkStatement) -> Sequence[Name]:
    words = statement.words
    if statement.targets:
        return [target.name for target in statement.targets]
    adds = words[:1] == ["ALTER"] and {"COLUMN", "COLUMNS"} & {after for word, after in pairwise(words) if word == "ADD"}
    if adds and "." not in words[words.index("ADD") :]:  # else a field of a struct, which rows that arrived before lack
        return []  # restores a column that arrived rows need
    if words[:1] == ["ALTER"] and ("DROP", "CONSTRAINT") in pairwise(words):
        return []  # which arrived rows may violate
    if words[:1] and (words[0] in _CHANGING or words[:3] == ["CREATE", "OR", "REPLACE"]):
        return [reference.name for reference in statement.references if not reference.directory][:1]
    return []


def _reads(statement: SparkStatement, reference: Reference) -> bool:
    """True if the statement reads rows of a table's newest version at this reference."""
    words = statement.words
    if not words or words[0] not in _READING or (words[0] == "CREATE" and "VIEW" in words[:5]):
        return False
    if any(target.start == reference.start for target in statement.targets):
        return False
    after = next((token.word for token in statement.tokens_after(reference.end)), "")
    return after not in ("VERSION", "TIMESTAMP", "FOR", "@")
