"""The interface through which change data enters volstream. Its properties are those of Spark 4.2's ``Changelog``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

#: Columns of every changelog in addition to its data columns.
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"

META = f"{CHANGE_TYPE}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP}"

#: SQL for a row's time if only its version is known.
NO_TIME = "CAST(NULL AS TIMESTAMP)"

#: Change types whose image is the old row.
OLD_KINDS = ("update_preimage", "delete")


#: The message if a key does not identify rows.
SEVERAL_ROWS = "Several rows of the table have the same key, which therefore does not identify rows."


class Deduplication(StrEnum):
    """Changes to leave out: none, rows that were only rewritten, or everything except each row's net change."""

    NONE = "none"
    DROP_CARRYOVERS = "dropCarryovers"
    NET_CHANGES = "netChanges"


class Changelog(Protocol):
    """The changes of one table. Text in, text out: a scan is SQL that the engine runs when rows are read.

    Attributes:
        columns: the data columns, in order.
        contains_carryover_rows: a scan may have a delete and an insert of a row that a commit only rewrote.
        contains_intermediate_changes: a scan may have several changes of one row.
        represents_update_as_delete_and_insert: an update is a delete and an insert of one row in one commit; else it is
            an ``update_preimage`` and an ``update_postimage``.
        row_id: SQL for the values that identify a row; empty if nothing does.
        stored_id: SQL for the values that identify a row that a commit may only have rewritten; empty if there are none.
        row_version: SQL for the commit version that last wrote the row's content, or a value that leads to it.
        row_time: SQL for the time of that commit; NULL: the commit's version leads to it.
        compared: data columns whose difference is a change of content.
    """

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
    def stored_id(self) -> Sequence[str]: ...

    @property
    def row_version(self) -> str: ...

    @property
    def row_time(self) -> str: ...

    @property
    def compared(self) -> Sequence[str]: ...

    def scan(self, first: int, last: int) -> str:
        """Returns SQL for the changes of versions ``first`` to ``last``, both included.

        Columns: the data columns, ``_change_type`` (``insert``, ``delete``, ``update_preimage``, ``update_postimage``),
        ``_commit_version``, ``_commit_timestamp``, and those that ``row_id``, ``row_version`` and ``row_time``
        refer to.
        """


def quoted(name: str) -> str:
    """Returns a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def struct_of(columns: Sequence[str]) -> str:
    """Returns SQL for a struct of data columns."""
    return f"struct({', '.join(map(quoted, columns))})"
