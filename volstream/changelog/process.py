"""Processing of changelogs for readers: drops rows that were only rewritten, detects updates, computes net changes.

Shared by all changelogs; a changelog's flags tell which steps can be skipped. Pure: SQL out.
"""

from __future__ import annotations

from volstream.changelog.base import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    OLD_KINDS,
    Changelog,
    Deduplication,
    quoted,
    struct_of,
)
from volstream.errors import InvalidValueError
from volstream.sqltext import literal

_OLD_KINDS = f"({', '.join(map(literal, OLD_KINDS))})"


def net(changelog: Changelog, first: int, last: int) -> str:
    """Returns SQL with one row for each table row with a net change in versions ``first`` to ``last``, both included.

    Columns: ``old`` and ``new``, the row before and after the range, NULL if it did not exist: structs of ``data``, a struct
    of the data columns, and of ``wrote`` and ``wrote_on``, the row's version and time; ``version`` and ``time`` of the newest
    change; ``old_version`` and ``old_time`` of the oldest.
    """
    return _net(changelog, changelog.scan(first, last), _same(changelog))


def _net(changelog: Changelog, scan: str, same: str) -> str:
    return (
        f"SELECT * FROM (SELECT CASE WHEN oldest.kind IN {_OLD_KINDS} THEN oldest.image END AS old, "
        f"CASE WHEN newest.kind NOT IN {_OLD_KINDS} THEN newest.image END AS new, newest.version, newest.time, "
        f"oldest.version AS old_version, oldest.time AS old_time, balance FROM ({_ends(changelog, scan)})) "
        # No rows for what was added and removed inside the range, or rewritten without change of content.
        f"WHERE ((old IS NULL) <> (new IS NULL) OR (old IS NOT NULL AND new IS NOT NULL AND NOT ({same}))) "
        f"AND {_UNIQUE}"
    )


def appended(changelog: Changelog, first: int, last: int) -> str:
    """Returns SQL like :func:`net` for each row added in the range, with its first image, even if it was changed later."""
    inserted = "SELECT CASE WHEN false THEN oldest.image END AS old, oldest.image AS new, oldest.version, oldest.time "
    if not changelog.row_id:  # every insert is a new row
        changes = f"SELECT {_change(changelog)} AS oldest FROM ({changelog.scan(first, last)})"
        return f"{inserted} FROM ({changes}) WHERE oldest.kind = 'insert'"
    # Rows restored by RESTORE were written before the range.
    return f"{inserted} FROM ({_ends(changelog, changelog.scan(first, last))}) WHERE oldest.kind = 'insert' " + (
        f"AND coalesce(oldest.image.wrote >= {first}, true)" if changelog.contains_carryover_rows else ""
    )


def read(changelog: Changelog, first: int, last: int, deduplication: Deduplication, *, compute_updates: bool) -> str:
    """Returns SQL for the changes in the format of Spark's ``changes``: the data columns, change type, version and time.

    Raises:
        InvalidValueError: ``compute_updates`` without dropping rows that were only rewritten.
    """
    columns = [*map(quoted, changelog.columns), CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP]
    shown = ", ".join(columns)
    scan = changelog.scan(first, last)
    if deduplication is Deduplication.NONE:
        if compute_updates and changelog.contains_carryover_rows:
            raise InvalidValueError(
                "computeUpdates requires deduplicationMode dropCarryovers or netChanges: "
                "a row that was only rewritten would look like an update."
            )
        if compute_updates and changelog.represents_update_as_delete_and_insert:
            return f"SELECT {shown} FROM ({_paired(changelog, scan, drop=False)})"
        return f"SELECT {shown} FROM ({scan})"
    if deduplication is Deduplication.NET_CHANGES and changelog.contains_intermediate_changes:
        return _net_changes(changelog, first, last, compute_updates=compute_updates)
    pairs = changelog.represents_update_as_delete_and_insert and compute_updates
    if not (changelog.contains_carryover_rows or pairs):
        return f"SELECT {shown} FROM ({scan})"
    kept = _paired(changelog, scan, drop=changelog.contains_carryover_rows, tell=pairs)
    return f"SELECT {shown} FROM ({kept})"


_SAME_WRITING = "coalesce(old.wrote = new.wrote, false)"

#: A row must be inserted once more than deleted, unless it existed before. Otherwise several rows share an identity.
_UNIQUE = (
    "assert_true(balance = CAST(new IS NOT NULL AS INT) - CAST(old IS NOT NULL AS INT), "
    "'Several rows of the table have the same key, which therefore does not identify rows.') IS NULL"
)


def _net_changes(changelog: Changelog, first: int, last: int, *, compute_updates: bool) -> str:
    before, after = ("update_preimage", "update_postimage") if compute_updates else ("delete", "insert")
    entries = (
        f"CASE WHEN old IS NULL THEN array({_entry('insert', 'new', 'version', 'time')}) "
        f"WHEN new IS NULL THEN array({_entry('delete', 'old', 'version', 'time')}) "
        f"ELSE array({_entry(before, 'old', 'old_version', 'old_time')}, {_entry(after, 'new', 'version', 'time')}) END"
    )
    columns = ", ".join(f"c.data.{quoted(name)} AS {quoted(name)}" for name in changelog.columns)
    scan = changelog.scan(first, last)
    if changelog.contains_carryover_rows:  # the newest change of a row may be one that only rewrote it
        scan = _paired(changelog, scan, drop=True, tell=False)
    return (
        f"SELECT {columns}, c.kind AS {CHANGE_TYPE}, c.version AS {COMMIT_VERSION}, c.time AS {COMMIT_TIMESTAMP} "
        f"FROM (SELECT inline({entries}) FROM ({_net(changelog, scan, _SAME_WRITING)})) c"
    )


def _entry(kind: str, image: str, version: str, time: str) -> str:
    return f"named_struct('kind', '{kind}', 'data', {image}.data, 'version', {version}, 'time', {time})"


def _paired(changelog: Changelog, scan: str, *, drop: bool, tell: bool = True) -> str:
    """Returns SQL that pairs deletes and inserts of one row in one commit. With the same row version it was only rewritten
    (``drop`` it); with different ones it was updated (``tell`` so)."""
    pair = "__deletes = 1 AND __inserts = 1"
    kind = (
        f"CASE WHEN {pair} AND {CHANGE_TYPE} = 'delete' THEN 'update_preimage' "
        f"WHEN {pair} AND {CHANGE_TYPE} = 'insert' THEN 'update_postimage' ELSE {CHANGE_TYPE} END"
    )
    windowed = (
        f"SELECT *, count_if({CHANGE_TYPE} = 'delete') OVER w AS __deletes, "
        f"count_if({CHANGE_TYPE} = 'insert') OVER w AS __inserts, "
        f"min({changelog.row_version}) OVER w AS __least, max({changelog.row_version}) OVER w AS __most FROM ({scan}) "
        f"WINDOW w AS (PARTITION BY {', '.join(changelog.row_id)}, {COMMIT_VERSION})"
    )
    data = list(map(quoted, changelog.columns))
    hidden = [name for name in (*changelog.row_id, changelog.row_version) if name not in data]
    columns = ", ".join([*data, *hidden, f"{kind if tell else CHANGE_TYPE} AS {CHANGE_TYPE}"])
    rewritten = f" WHERE NOT ({pair} AND __least <=> __most)" if drop else ""
    return f"SELECT {columns}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP} FROM ({windowed}){rewritten}"


def _same(changelog: Changelog) -> str:
    """Returns SQL that tells whether ``old`` and ``new`` have the same content."""
    left_out = set(changelog.columns) - set(changelog.compared)
    values = " AND ".join(f"old.data.{quoted(name)} <=> new.data.{quoted(name)}" for name in changelog.compared)
    if left_out and changelog.contains_carryover_rows:  # for types that cannot be compared, only the version tells
        return _SAME_WRITING
    return f"{_SAME_WRITING} OR ({values or 'false'})"


def _ends(changelog: Changelog, scan: str) -> str:
    """Returns SQL for the oldest and newest change of each row, ordered by version, then old image before new image."""
    return (
        "SELECT min_by(change, place) AS oldest, max_by(change, place) AS newest, "
        f"count_if(change.kind NOT IN {_OLD_KINDS}) - count_if(change.kind IN {_OLD_KINDS}) AS balance "
        f"FROM (SELECT *, {_change(changelog)} "
        f"AS change, struct({COMMIT_VERSION}, {CHANGE_TYPE} NOT IN {_OLD_KINDS}) AS place "
        f"FROM ({scan})) GROUP BY {', '.join(changelog.row_id)}"
    )


def _change(changelog: Changelog) -> str:
    image = (
        f"struct({struct_of(changelog.columns)} AS data, {changelog.row_version} AS wrote, "
        f"{changelog.row_time} AS wrote_on)"
    )
    return f"struct({image} AS image, {CHANGE_TYPE} AS kind, {COMMIT_VERSION} AS version, {COMMIT_TIMESTAMP} AS time)"
