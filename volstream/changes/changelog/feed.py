"""The change feed that Delta stores with a table: its cost depends on the changes, not on the table's size.

It has every image, but neither row ids nor the version that wrote an old image. It is therefore sufficient if a key
identifies rows, or if only inserted rows are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from volstream.changes.changelog.base import CHANGE_TYPE, COMMIT_VERSION, META, NO_TIME, OLD_KINDS, quoted
from volstream.sql.text import literal, table_at


@dataclass(frozen=True)
class Former:
    """The change feed of an earlier part of a range of versions, when columns had other names or types.

    Attributes:
        last: the last version of the part.
        values: SQL for each data column of the range in terms of the part's columns.
    """

    feed: ChangeFeed
    last: int
    values: Mapping[str, str]


@dataclass(frozen=True)
class ChangeFeed:
    """Changes of the table at ``location``, from its change feed.

    Attributes:
        key: columns that identify a row; empty if there are none.
        values_before: SQL for each data column in terms of the columns of the version before the range.
        left_out: versions without their changes.
        former: earlier parts of the range.
    """

    location: str
    columns: Sequence[str]
    compared: Sequence[str]
    key: Sequence[str] = ()
    values_before: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    former: Sequence[Former] = ()

    row_version = "__row_version"
    row_time = NO_TIME

    contains_carryover_rows = False
    contains_intermediate_changes = True
    represents_update_as_delete_and_insert = False
    stored_id = ()

    @property
    def row_id(self) -> Sequence[str]:
        """The key's columns."""
        return [quoted(name) for name in self.key]

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.base.Changelog`."""
        scans = []
        for part in self.former:
            values = ", ".join(f"{part.values[name]} AS {quoted(name)}" for name in self.columns)
            scans.append(f"SELECT {values}, __row_version, {META} FROM ({part.feed.scan(first, part.last)})")
            first = part.last + 1
        return " UNION ALL ".join([*scans, self._scan(first, last)])

    def _scan(self, first: int, last: int) -> str:
        columns = ", ".join(map(quoted, self.columns))
        feed = f"table_changes_by_path({literal(self.location)}, {first}, {last})"
        if self.left_out:
            feed = f"(SELECT * FROM {feed} WHERE {COMMIT_VERSION} NOT IN ({', '.join(map(str, self.left_out))}))"
        if not self.key or first == 0:
            return f"SELECT {columns}, {self._version('CAST(NULL AS BIGINT)')}, {META} FROM {feed}"
        # An old image from before the range was written by the version that the row had then.
        keys = ", ".join(f"{self.values_before[name]} AS {quoted(name)}" for name in self.key)
        before = (
            f"SELECT {keys}, _metadata.row_commit_version AS __before FROM {table_at(self.location)} VERSION AS OF {first - 1}"
        )
        on = " AND ".join(f"f.{name} <=> b.{name}" for name in self.row_id)
        shown = ", ".join(f"f.{quoted(name)}" for name in self.columns)
        return f"SELECT {shown}, {self._version('__before')}, {META} FROM {feed} f LEFT JOIN ({before}) b ON {on}"

    def _version(self, old: str) -> str:
        old_kinds = ", ".join(map(literal, OLD_KINDS))
        return f"CASE WHEN {CHANGE_TYPE} IN ({old_kinds}) THEN {old} ELSE {COMMIT_VERSION} END AS __row_version"
