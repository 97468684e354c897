"""Processing of changelogs for readers: drops rows that were only rewritten, detects updates, computes net changes.

Shared by all changelogs; a changelog's flags tell which steps can be skipped. Pure: SQL out.
"""

from __future__ import annotations

from collections.abc import Sequence

from volstream.changes.changelog.base import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    OLD_KINDS,
    SEVERAL_ROWS,
    Changelog,
    Deduplication,
    quoted,
    struct_of,
)
from volstream.errors import InvalidValueError
from volstream.sql.text import literal

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
        "oldest.version AS old_version, oldest.time AS old_time, sum, oldest.digest AS old_digest, "
        f"newest.digest AS new_digest FROM ({_ends(changelog, scan)})) WHERE {_UNIQUE} "
        # No rows for what was added and removed inside the range, or rewritten without change of content.
        f"AND ((old IS NULL) <> (new IS NULL) OR (old IS NOT NULL AND new IS NOT NULL AND NOT ({same})))"
    )


def without_repeated(changes: str, content: Sequence[str]) -> str:
    """Returns SQL like :func:`net`, without rows that went and came again with the same content, one for one.

    Args:
        content: the columns that are the content; their values can be compared.
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
            return f"SELECT {shown} FROM ({_with_updates(changelog, scan)})"
        return f"SELECT {shown} FROM ({scan})"
    if deduplication is Deduplication.NET_CHANGES and changelog.contains_intermediate_changes:
        return _net_changes(changelog, first, last, compute_updates=compute_updates)
    if changelog.contains_carryover_rows:
        scan = _without_rewritten(changelog, scan)
    if not changelog.represents_update_as_delete_and_insert and not compute_updates:
        return f"SELECT {', '.join(columns[:-3])}, {_PLAIN_KIND} AS {CHANGE_TYPE}, {', '.join(columns[-2:])} FROM ({scan})"
    if changelog.represents_update_as_delete_and_insert and compute_updates:
        scan = _with_updates(changelog, scan)
    return f"SELECT {shown} FROM ({scan})"


_PLAIN_KIND = (
    f"CASE {CHANGE_TYPE} WHEN 'update_preimage' THEN 'delete' WHEN 'update_postimage' THEN 'insert' ELSE {CHANGE_TYPE} END"
)


_SAME_WRITING = "coalesce(old.wrote = new.wrote, false)"

#: The images of one row form a chain: each change begins with the image that the last one ended with. So what remains of the
#: sum of their digests is the last image's less the first one's. Otherwise several rows share an identity.
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
    if changelog.contains_carryover_rows:  # the newest change of a row may be one that only rewrote it
        scan = _without_rewritten(changelog, scan)
    return (
        f"SELECT {columns}, c.kind AS {CHANGE_TYPE}, c.version AS {COMMIT_VERSION}, c.time AS {COMMIT_TIMESTAMP} "
        f"FROM (SELECT inline({entries}) FROM ({_net(changelog, scan, _SAME_WRITING)})) c"
    )


def _entry(kind: str, image: str, version: str, time: str) -> str:
    return f"named_struct('kind', '{kind}', 'data', {image}.data, 'version', {version}, 'time', {time})"


def _without_rewritten(changelog: Changelog, scan: str) -> str:
    """Returns SQL without the deletes and inserts of rows that a commit only rewrote: those of one stored row with one version.
    What else identifies rows does not matter: several may share it."""
    windowed = (
        f"SELECT *, {_COUNTS}, min({changelog.row_version}) OVER w AS __least, max({changelog.row_version}) OVER w AS __most "
        f"FROM ({scan}) WINDOW w AS (PARTITION BY {', '.join(changelog.stored_id)}, {COMMIT_VERSION})"
    )
    return (
        f"SELECT {_columns(changelog)}, {CHANGE_TYPE}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP} FROM ({windowed}) "
        f"WHERE NOT ({_PAIR} AND __least <=> __most)"
    )


def _with_updates(changelog: Changelog, scan: str) -> str:
    """Returns SQL in which a delete and an insert of one row in one commit are an update."""
    kind = (
        f"CASE WHEN {_PAIR} AND {CHANGE_TYPE} = 'delete' THEN 'update_preimage' "
        f"WHEN {_PAIR} AND {CHANGE_TYPE} = 'insert' THEN 'update_postimage' ELSE {CHANGE_TYPE} END"
    )
    windowed = f"SELECT *, {_COUNTS} FROM ({scan}) WINDOW w AS (PARTITION BY {', '.join(changelog.row_id)}, {COMMIT_VERSION})"
    return f"SELECT {_columns(changelog)}, {kind} AS {CHANGE_TYPE}, {COMMIT_VERSION}, {COMMIT_TIMESTAMP} FROM ({windowed})"


_COUNTS = f"count_if({CHANGE_TYPE} = 'delete') OVER w AS __deletes, count_if({CHANGE_TYPE} = 'insert') OVER w AS __inserts"
_PAIR = "__deletes = 1 AND __inserts = 1"


def _columns(changelog: Changelog) -> str:
    """Returns the columns of a scan, except those of the change."""
    data = list(map(quoted, changelog.columns))
    hidden = dict.fromkeys((*changelog.stored_id, *changelog.row_id, changelog.row_version))
    return ", ".join([*data, *(name for name in hidden if name not in data)])


def _same(changelog: Changelog) -> str:
    """Returns SQL that tells whether ``old`` and ``new`` have the same content."""
    if set(changelog.columns) - set(changelog.compared):  # for types that cannot be compared, only the version tells
        return _SAME_WRITING
    values = " AND ".join(f"old.data.{quoted(name)} <=> new.data.{quoted(name)}" for name in changelog.compared)
    return f"{_SAME_WRITING} OR ({values})"


def _ends(changelog: Changelog, scan: str) -> str:
    """Returns SQL for the oldest and newest change of each row, and the sum of its images' digests, old ones negative.

    Changes are ordered by version, then old image before new image. A changelog of net changes has no other order: its versions
    are those that wrote the images, and a restored row has an older one.
    """
    new = f"{CHANGE_TYPE} NOT IN {_OLD_KINDS}"
    place = f"struct({COMMIT_VERSION}, {new})" if changelog.contains_intermediate_changes else new
    identity = [f"__id{number}" for number in range(len(changelog.row_id))]  # a table may have a column of any name
    shown = ", ".join(f"{value} AS {name}" for value, name in zip(changelog.row_id, identity, strict=True))
    return (
        "SELECT min_by(change, place) AS oldest, max_by(change, place) AS newest, "
        f"sum(if(change.kind IN {_OLD_KINDS}, -change.digest, change.digest)) AS sum "
        f"FROM (SELECT {shown}, {_change(changelog)} AS change, {place} AS place FROM ({scan})) "
        f"GROUP BY {', '.join(identity)}"
    )


def _change(changelog: Changelog) -> str:
    image = f"struct({struct_of(changelog.columns)} AS data, {changelog.row_version} AS wrote, {changelog.row_time} AS wrote_on)"
    # 40 bits: the sum of millions does not overflow.
    digest = f"shiftright(xxhash64({', '.join(['1', *map(quoted, changelog.compared)])}), 24)"
    return (
        f"struct({image} AS image, {CHANGE_TYPE} AS kind, {digest} AS digest, {COMMIT_VERSION} AS version, "
        f"{COMMIT_TIMESTAMP} AS time)"
    )
