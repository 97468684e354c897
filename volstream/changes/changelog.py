"""Raw changes of tables, from Delta's change feed or row tracking, and their processing for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

from volstream.errors import InvalidValueError
from volstream.sql.text import literal, table_at
from volstream.tables.delta.writer import KIND, TIME, VERSION, excerpt

# The interface through which change data enters volstream, with the properties of Spark 4.2's ``Changelog``.

#: Columns of every changelog in addition to its data columns.
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"

META = f"{CHANGE_TYPE}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP}"

#: SQL for a row's time if only its version is known.
NO_TIME = "CAST(NULL AS TIMESTAMP)"

#: Change types whose image is the old row.
OLD_KINDS = ("update_preimage", "delete")


#: The error message if a key does not identify rows.
SEVERAL_ROWS = "Several rows of the table have the same key, which therefore does not identify rows."


class Deduplication(StrEnum):
    """Which changes to drop: none, rewrites of unchanged rows, or everything except each row's net change."""

    NONE = "none"
    DROP_CARRYOVERS = "dropCarryovers"
    NET_CHANGES = "netChanges"


class Changelog(Protocol):
    """The changes of one table. A scan is SQL text that the engine runs when rows are read.

    Attributes:
        columns: the data columns, in order.
        contains_carryover_rows: a scan may have a delete and an insert of a row that a commit only rewrote.
        contains_intermediate_changes: a scan may have several changes of one row.
        represents_update_as_delete_and_insert: an update is a delete and an insert of one row in one commit.
            Otherwise it is an ``update_preimage`` and an ``update_postimage``.
        row_id: SQL for the values that identify a row. Empty if nothing does.
        stored_id: SQL for the values that identify a row across a rewrite by a commit. Empty if nothing does.
        row_version: SQL for the commit version that last wrote the row's content, or for a value that leads
            to it.
        row_time: SQL for the time of that commit. NULL if the commit's version leads to it.
        compared: data columns that count as content: a change needs a difference in one of them.
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

        Columns: the data columns, ``_change_type`` (``insert``, ``delete``, ``update_preimage``,
        ``update_postimage``), ``_commit_version``, ``_commit_timestamp``, and all columns in ``row_id``,
        ``row_version`` and ``row_time``.
        """


def quoted(name: str) -> str:
    """Returns a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def struct_of(columns: Sequence[str]) -> str:
    """Returns SQL for a struct of data columns."""
    return f"struct({', '.join(map(quoted, columns))})"


@dataclass(frozen=True)
class _TableChangelog:
    """Changes of the table at ``location``, with defaults for its changelogs."""

    location: str
    columns: Sequence[str]
    compared: Sequence[str]

    contains_carryover_rows = False
    contains_intermediate_changes = True
    represents_update_as_delete_and_insert = False
    stored_id: ClassVar[Sequence[str]] = ()
    row_version = "__row_version"
    row_time = NO_TIME


# Delta's change feed of a table. Its cost depends on the changes, not on the table's size.
#
# It has every image, but neither row ids nor the version that wrote an old image. So it suffices if a key
# identifies rows, or if only inserted rows are needed.


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
class ChangeFeed(_TableChangelog):
    """Changes of the table at ``location``, from its change feed.

    Attributes:
        key: columns that identify a row. Empty without such columns.
        values_before: SQL for each data column in terms of the columns of the version before the range.
        left_out: versions whose changes are skipped.
        former: earlier parts of the range.
    """

    key: Sequence[str] = ()
    values_before: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    former: Sequence[Former] = ()

    @property
    def row_id(self) -> Sequence[str]:
        """The key's columns."""
        return [quoted(name) for name in self.key]

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.Changelog`."""
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
        # An old image from before the range has the version that the row had then.
        keys = ", ".join(f"{self.values_before[name]} AS {quoted(name)}" for name in self.key)
        before = (
            f"SELECT {keys}, _metadata.row_commit_version AS __before FROM {table_at(self.location)} VERSION AS OF {first - 1}"
        )
        on = " AND ".join(f"f.{name} <=> b.{name}" for name in self.row_id)
        selected = ", ".join(f"f.{quoted(name)}" for name in self.columns)
        return f"SELECT {selected}, {self._version('__before')}, {META} FROM {feed} f LEFT JOIN ({before}) b ON {on}"

    def _version(self, old: str) -> str:
        old_kinds = ", ".join(map(literal, OLD_KINDS))
        return f"CASE WHEN {CHANGE_TYPE} IN ({old_kinds}) THEN {old} ELSE {COMMIT_VERSION} END AS __row_version"


# Changes from row tracking: Delta's row ids identify rows, and each row has the version that wrote it.
#
# There are two ways. The first reads the files that each commit added and removed. If columns were renamed or
# changed type in between, Delta cannot read these files with one schema. The second way then compares two
# snapshots, which reads both completely.


@dataclass(frozen=True)
class TrackedChanges(_TableChangelog):
    """Unprocessed changes of the table at ``location``, from the files that its commits added and removed.

    Attributes:
        warehouse: where to put an excerpt of the table.
        key: columns that identify a row instead of its row id.
    """

    warehouse: str
    key: Sequence[str] = ()

    contains_carryover_rows = True
    represents_update_as_delete_and_insert = True
    stored_id = ("__row_id",)

    @property
    def row_id(self) -> Sequence[str]:
        """The key's columns, or the row id."""
        return [quoted(name) for name in self.key] or ["__row_id"]

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.Changelog`. Creates an excerpt of the table for Spark."""
        columns = ", ".join(map(quoted, self.columns))
        return (
            f"SELECT {columns}, _metadata.row_id AS __row_id, _metadata.row_commit_version AS __row_version, "
            f"{KIND} AS {CHANGE_TYPE}, {VERSION} AS {COMMIT_VERSION}, timestamp_millis({TIME}) AS {COMMIT_TIMESTAMP} "
            f"FROM {excerpt(self.location, first, last, self.warehouse)}"
        )


@dataclass(frozen=True)
class SnapshotDifference(_TableChangelog):
    """Changes of the table at ``location`` between two of its versions.

    Attributes:
        older: SQL for each data column in terms of the older version's columns.
        key: columns that identify a row instead of its row id.
    """

    older: Mapping[str, str]
    key: Sequence[str] = ()

    contains_intermediate_changes = False

    @property
    def row_id(self) -> Sequence[str]:
        """The key's columns, or the row id."""
        return [quoted(name) for name in self.key] or ["__row_id"]

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.Changelog`. The commit version is that of the image's
        writer."""
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


# Processing of changelogs for readers: drops rewrites of unchanged rows, detects updates, computes net
# changes. Shared by all changelogs. A changelog's flags show which steps can be skipped. Pure: returns SQL.

_OLD_KINDS = f"({', '.join(map(literal, OLD_KINDS))})"


def net_changes_query(changelog: Changelog, first: int, last: int) -> str:
    """Returns SQL with one row for each table row with a net change in versions ``first`` to ``last``, both
    included.

    Columns: ``old`` and ``new``, the row before and after the range, NULL if it did not exist. They are
    structs of ``data`` (a struct of the data columns), ``wrote`` and ``wrote_on`` (the row's version and
    time). Also ``version`` and ``time`` of the newest change, ``old_version`` and ``old_time`` of the oldest.
    """
    return _netted(changelog, changelog.scan(first, last), _same(changelog))


def _netted(changelog: Changelog, scan: str, same: str) -> str:
    return (
        f"SELECT * FROM (SELECT CASE WHEN oldest.kind IN {_OLD_KINDS} THEN oldest.image END AS old, "
        f"CASE WHEN newest.kind NOT IN {_OLD_KINDS} THEN newest.image END AS new, newest.version, newest.time, "
        "oldest.version AS old_version, oldest.time AS old_time, sum, oldest.digest AS old_digest, "
        f"newest.digest AS new_digest FROM ({_ends(changelog, scan)})) WHERE {_UNIQUE} "
        # Leaves out rows added and removed inside the range, and rows rewritten without a change of content.
        f"AND ((old IS NULL) <> (new IS NULL) OR (old IS NOT NULL AND new IS NOT NULL AND NOT ({same})))"
    )


def without_repeated(changes: str, content: Sequence[str]) -> str:
    """Returns SQL like :func:`net_changes_query`, without rows removed and added again with the same content,
    one for one.

    Args:
        content: the columns that make up the content. Their values must be comparable.
    """
    values = ", ".join(f"coalesce(new, old).data.{quoted(name)} AS c{number}" for number, name in enumerate(content))
    same = " AND ".join(f"old.data.{quoted(name)} <=> new.data.{quoted(name)}" for name in content)
    by = ", ".join(f"c{number}" for number in range(len(content)))
    return (
        f"SELECT old, new, version, time FROM (SELECT *, row_number() OVER (PARTITION BY {by}, came, went ORDER BY version) "
        f"AS place, least(count_if(came) OVER w, count_if(went) OVER w) AS repeated "
        f"FROM (SELECT old, new, version, time, old IS NULL AS came, new IS NULL AS went, {values} FROM ({changes})) "
        f"WINDOW w AS (PARTITION BY {by})) WHERE if(came OR went, place > repeated, NOT ({same}))"
    )


def appended_rows_query(changelog: Changelog, first: int, last: int) -> str:
    """Returns SQL like :func:`net_changes_query` for each row added in the range, with its first image, even
    if it changed later."""
    inserted = "SELECT CASE WHEN false THEN oldest.image END AS old, oldest.image AS new, oldest.version, oldest.time "
    if not changelog.row_id:  # every insert is a new row
        changes = f"SELECT {_change(changelog)} AS oldest FROM ({changelog.scan(first, last)})"
        return f"{inserted} FROM ({changes}) WHERE oldest.kind = 'insert'"
    # Rows restored by RESTORE were written before the range.
    return f"{inserted} FROM ({_ends(changelog, changelog.scan(first, last))}) WHERE oldest.kind = 'insert' " + (
        f"AND coalesce(oldest.image.wrote >= {first}, true)" if changelog.contains_carryover_rows else ""
    )


def changes_query(changelog: Changelog, first: int, last: int, deduplication: Deduplication, *, compute_updates: bool) -> str:
    """Returns SQL for the changes in the format of Spark's ``changes``: the data columns, change type,
    version and time.

    Raises:
        InvalidValueError: ``compute_updates`` without dropping rewrites of unchanged rows.
    """
    columns = [*map(quoted, changelog.columns), CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
    selected = ", ".join(columns)
    scan = changelog.scan(first, last)
    if deduplication is Deduplication.NONE:
        if compute_updates and changelog.contains_carryover_rows:
            raise InvalidValueError(
                "computeUpdates requires deduplicationMode dropCarryovers or netChanges: "
                "a rewritten row would look like an update."
            )
        if compute_updates and changelog.represents_update_as_delete_and_insert:
            return f"SELECT {selected} FROM ({_with_updates(changelog, scan)})"
        return f"SELECT {selected} FROM ({scan})"
    if deduplication is Deduplication.NET_CHANGES and changelog.contains_intermediate_changes:
        return _net_changes(changelog, first, last, compute_updates=compute_updates)
    if changelog.contains_carryover_rows:
        scan = _without_rewritten(changelog, scan)
    if not changelog.represents_update_as_delete_and_insert and not compute_updates:
        return f"SELECT {', '.join(columns[:-3])}, {_PLAIN_KIND} AS {CHANGE_TYPE}, {', '.join(columns[-2:])} FROM ({scan})"
    if changelog.represents_update_as_delete_and_insert and compute_updates:
        scan = _with_updates(changelog, scan)
    return f"SELECT {selected} FROM ({scan})"


_PLAIN_KIND = (
    f"CASE {CHANGE_TYPE} WHEN 'update_preimage' THEN 'delete' WHEN 'update_postimage' THEN 'insert' ELSE {CHANGE_TYPE} END"
)


_SAME_WRITING = "coalesce(old.wrote = new.wrote, false)"

#: The images of one row form a chain: each change begins with the image at which the previous one ended. So
#: the sum of their digests is the digest of the last image minus that of the first. Any other sum means that
#: several rows share an identity.
_UNIQUE = f"assert_true(sum = if(new IS NULL, 0, new_digest) - if(old IS NULL, 0, old_digest), {literal(SEVERAL_ROWS)}) IS NULL"


def _net_changes(changelog: Changelog, first: int, last: int, *, compute_updates: bool) -> str:
    before, after = ("update_preimage", "update_postimage") if compute_updates else ("delete", "insert")
    entries = (
        f"CASE WHEN old IS NULL THEN array({_entry('insert', 'new', 'version', 'time')}) "
        f"WHEN new IS NULL THEN array({_entry('delete', 'old', 'version', 'time')}) "
        f"ELSE array({_entry(before, 'old', 'old_version', 'old_time')}, {_entry(after, 'new', 'version', 'time')}) END"
    )
    columns = ", ".join(f"c.data.{quoted(name)} AS {quoted(name)}" for name in changelog.columns)
    scan = changelog.scan(first, last)
    if changelog.contains_carryover_rows:  # the newest change of a row may be a mere rewrite
        scan = _without_rewritten(changelog, scan)
    return (
        f"SELECT {columns}, c.kind AS {CHANGE_TYPE}, c.version AS {COMMIT_VERSION}, c.time AS {COMMIT_TIMESTAMP} "
        f"FROM (SELECT inline({entries}) FROM ({_netted(changelog, scan, _SAME_WRITING)})) c"
    )


def _entry(kind: str, image: str, version: str, time: str) -> str:
    return f"named_struct('kind', '{kind}', 'data', {image}.data, 'version', {version}, 'time', {time})"


def _without_rewritten(changelog: Changelog, scan: str) -> str:
    """Returns SQL without the deletes and inserts of rows that a commit only rewrote: pairs of one stored row
    and version.

    Ignores other identities of rows: several rows may share them.
    """
    windowed = (
        f"SELECT *, {_COUNTS}, min({changelog.row_version}) OVER w AS __least, max({changelog.row_version}) OVER w AS __most "
        f"FROM ({scan}) WINDOW w AS (PARTITION BY {', '.join(changelog.stored_id)}, {COMMIT_VERSION})"
    )
    return (
        f"SELECT {_columns(changelog)}, {CHANGE_TYPE}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP} FROM ({windowed}) "
        f"WHERE NOT ({_PAIR} AND __least <=> __most)"
    )


def _with_updates(changelog: Changelog, scan: str) -> str:
    """Returns SQL that turns a delete and an insert of one row in one commit into an update."""
    kind = (
        f"CASE WHEN {_PAIR} AND {CHANGE_TYPE} = 'delete' THEN 'update_preimage' "
        f"WHEN {_PAIR} AND {CHANGE_TYPE} = 'insert' THEN 'update_postimage' ELSE {CHANGE_TYPE} END"
    )
    windowed = f"SELECT *, {_COUNTS} FROM ({scan}) WINDOW w AS (PARTITION BY {', '.join(changelog.row_id)}, {COMMIT_VERSION})"
    return f"SELECT {_columns(changelog)}, {kind} AS {CHANGE_TYPE}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP} FROM ({windowed})"


_COUNTS = f"count_if({CHANGE_TYPE} = 'delete') OVER w AS __deletes, count_if({CHANGE_TYPE} = 'insert') OVER w AS __inserts"
_PAIR = "__deletes = 1 AND __inserts = 1"


def _columns(changelog: Changelog) -> str:
    """Returns the columns of a scan, without the columns of the change."""
    data = list(map(quoted, changelog.columns))
    hidden = dict.fromkeys((*changelog.stored_id, *changelog.row_id, changelog.row_version))
    return ", ".join([*data, *(name for name in hidden if name not in data)])


def _same(changelog: Changelog) -> str:
    """Returns an SQL condition: ``old`` and ``new`` have the same content."""
    if set(changelog.columns) - set(changelog.compared):  # types without comparison: compare versions
        return _SAME_WRITING
    values = " AND ".join(f"old.data.{quoted(name)} <=> new.data.{quoted(name)}" for name in changelog.compared)
    return f"{_SAME_WRITING} OR ({values})"


def _ends(changelog: Changelog, scan: str) -> str:
    """Returns SQL for the oldest and newest change of each row, and the sum of its images' digests, old ones
    negative.

    Changes are ordered by version, old images before new ones. Net changes are only ordered by the latter:
    their versions are the versions that wrote the images, and a restored row has an older one.
    """
    new = f"{CHANGE_TYPE} NOT IN {_OLD_KINDS}"
    position = f"struct({COMMIT_VERSION}, {new})" if changelog.contains_intermediate_changes else new
    # a table may have a column of any name
    identity = [f"__id{number}" for number in range(len(changelog.row_id))]
    selected = ", ".join(f"{value} AS {name}" for value, name in zip(changelog.row_id, identity, strict=True))
    return (
        "SELECT min_by(change, place) AS oldest, max_by(change, place) AS newest, "
        f"sum(if(change.kind IN {_OLD_KINDS}, -change.digest, change.digest)) AS sum "
        f"FROM (SELECT {selected}, {_change(changelog)} AS change, {position} AS place FROM ({scan})) "
        f"GROUP BY {', '.join(identity)}"
    )


def _change(changelog: Changelog) -> str:
    image = f"struct({struct_of(changelog.columns)} AS data, {changelog.row_version} AS wrote, {changelog.row_time} AS wrote_on)"
    # 40 bits, so that sums of millions do not overflow.
    digest = f"shiftright(xxhash64({', '.join(['1', *map(quoted, changelog.compared)])}), 24)"
    return (
        f"struct({image} AS image, {CHANGE_TYPE} AS kind, {digest} AS digest, {COMMIT_VERSION} AS version, "
        f"{COMMIT_TIMESTAMP} AS time)"
    )
