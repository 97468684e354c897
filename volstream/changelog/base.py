"""The protocol by which change data enters volstream. Its properties are those of Spark 4.2's ``Changelog`` interface."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

#: The columns that every changelog has besides its data columns.
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"

#: SQL of a row's time where only its version is known.
NO_TIME = "CAST(NULL AS TIMESTAMP)"

#: Kinds of changes whose image is what was there before.
OLD_KINDS = ("update_preimage", "delete")


class Deduplication(StrEnum):
    """What a reader wants to be spared of: nothing, rows that were only rewritten, or all but the net change of each row."""

    NONE = "none"
    DROP_CARRYOVERS = "dropCarryovers"
    NET_CHANGES = "netChanges"


class Changelog(Protocol):
    """The changes of one table. Text in, text out: a scan is SQL that the engine runs when a reader asks for rows.

    Attributes:
        name: for people.
        columns: the data columns, in order.
        contains_carryover_rows: a scan may hold a delete and an insert of a row that a commit only rewrote.
        contains_intermediate_changes: a scan may hold several changes of one row.
        represents_update_as_delete_and_insert: an update is a delete and an insert of one row in one commit; else it is
            an ``update_preimage`` and an ``update_postimage``.
        row_id: SQL of the values that identify a row; empty where nothing does.
        row_version: SQL of the commit version that last wrote the row's content, or of what leads to it.
        row_time: SQL of when that commit was made; NULL: the commit's version leads to it.
        compared: data columns whose difference is a change of content.
    """

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def contains_carryover_rows(self) -> bool: ...

    @property
    def contains_intermediate_changes(self) -> bool: ...

    @property
    def represents_update_as_delete_and_insert(self) -> bool: ...

    @property
    def row_id(self) -> Sequence[str]: ...

    @property
    def row_version(self) -> str: ...

    @property
    def row_time(self) -> str: ...

    @property
    def compared(self) -> Sequence[str]: ...

    def scan(self, first: int, last: int) -> str:
        """SQL: the changes of versions ``first`` to ``last``, both included.

        Columns: the data columns, ``_change_type`` (``insert``, ``delete``, ``update_preimage``, ``update_postimage``),
        ``_commit_version``, ``_commit_timestamp``, and what ``row_id``, ``row_version`` and ``row_time``
        refer to.
        """
        ...


def quoted(name: str) -> str:
    """A column's name as SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def struct_of(columns: Sequence[str]) -> str:
    """SQL: a struct of data columns."""
    return f"struct({', '.join(map(quoted, columns))})"
