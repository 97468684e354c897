"""Changes by row tracking: Delta's row ids identify rows, and each row has the version that wrote it.

There are two ways. One reads the files that each commit added and removed. Delta cannot read all of them by one schema if columns
were renamed or got another type in between: then the difference of two snapshots remains, which reads both completely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from volstream.changes.changelog.base import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    NO_TIME,
    SEVERAL_ROWS,
    quoted,
    struct_of,
)
from volstream.sql.text import literal, table_at
from volstream.tables.delta.writer import KIND, TIME, VERSION, excerpt


@dataclass(frozen=True)
class TrackedChanges:
    """Changes of the table at ``location`` from the files that its commits added and removed, without any processing.

    Attributes:
        warehouse: where an excerpt of the table is put.
        key: columns that identify a row instead of its row id.
    """

    location: str
    columns: Sequence[str]
    compared: Sequence[str]
    warehouse: str
    key: Sequence[str] = ()

    contains_carryover_rows = True
    contains_intermediate_changes = True
    represents_update_as_delete_and_insert = True
    stored_id = ("__row_id",)
    row_version = "__row_version"
    row_time = NO_TIME

    @property
    def row_id(self) -> Sequence[str]:
        """The key's columns, or the row id."""
        return [quoted(name) for name in self.key] or ["__row_id"]

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.base.Changelog`. Makes an excerpt of the table, which Spark then reads."""
        columns = ", ".join(map(quoted, self.columns))
        return (
            f"SELECT {columns}, _metadata.row_id AS __row_id, _metadata.row_commit_version AS __row_version, "
            f"{KIND} AS {CHANGE_TYPE}, {VERSION} AS {COMMIT_VERSION}, timestamp_millis({TIME}) AS {COMMIT_TIMESTAMP} "
            f"FROM {excerpt(self.location, first, last, self.warehouse)}"
        )


@dataclass(frozen=True)
class SnapshotDifference:
    """Changes of the table at ``location`` between two of its versions.

    Attributes:
        older: SQL for each data column in terms of the older version's columns.
        key: columns that identify a row instead of its row id.
    """

    location: str
    columns: Sequence[str]
    compared: Sequence[str]
    older: Mapping[str, str]
    key: Sequence[str] = ()

    contains_carryover_rows = False
    contains_intermediate_changes = False
    represents_update_as_delete_and_insert = False
    stored_id = ()
    row_version = "__row_version"
    row_time = NO_TIME

    @property
    def row_id(self) -> Sequence[str]:
        """The key's columns, or the row id."""
        return [quoted(name) for name in self.key] or ["__row_id"]

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.base.Changelog`. An image's commit version is the one that wrote it."""
        same = " AND ".join(f"l.row.{quoted(name)} <=> r.row.{quoted(name)}" for name in self.key) or "l.id = r.id"
        pair = (
            f"CASE WHEN l.id IS NULL THEN array({self._image('insert', 'r')}) "
            f"WHEN r.id IS NULL THEN array({self._image('delete', 'l')}) "
            f"ELSE array({self._image('update_preimage', 'l')}, {self._image('update_postimage', 'r')}) END"
        )
        columns = ", ".join(f"row.{quoted(name)} AS {quoted(name)}" for name in self.columns)
        return (
            f"SELECT {columns}, id AS __row_id, wrote AS __row_version, kind AS {CHANGE_TYPE}, wrote AS {COMMIT_VERSION}, "
            f"CAST(NULL AS TIMESTAMP) AS {COMMIT_TIMESTAMP} FROM (SELECT inline({pair}) "
            f"FROM ({self._snapshot(first - 1, self.older)}) l FULL OUTER JOIN ({self._snapshot(last, {})}) r "
            f"ON {same} WHERE l.id IS NULL OR r.id IS NULL OR l.wrote <> r.wrote)"
        )

    def _snapshot(self, version: int, values: Mapping[str, str]) -> str:
        selected = ", ".join(f"{values.get(name, quoted(name))} AS {quoted(name)}" for name in self.columns)
        if version < 0:  # before the table was created
            return f"SELECT * FROM ({self._snapshot(0, values)}) LIMIT 0"
        rows = (
            f"SELECT {selected}, _metadata.row_id AS __id, _metadata.row_commit_version AS __wrote "
            f"FROM {table_at(self.location)} VERSION AS OF {version}"
        )
        unique = ""
        if self.key:
            rows = f"SELECT *, count(*) OVER (PARTITION BY {', '.join(self.row_id)}) AS __rows FROM ({rows})"
            unique = f" WHERE assert_true(__rows = 1, {literal(SEVERAL_ROWS)}) IS NULL"
        return f"SELECT {struct_of(self.columns)} AS row, __id AS id, __wrote AS wrote FROM ({rows}){unique}"

    @staticmethod
    def _image(kind: str, side: str) -> str:
        return f"named_struct('kind', '{kind}', 'row', {side}.row, 'id', {side}.id, 'wrote', {side}.wrote)"
