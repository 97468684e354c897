"""SQL for the net changes of a directory table over a range of versions (streams.md, R-10 to R-13).

A directory table's rows are identified by ``relative_path``. The change feed gives every image; per path the oldest tells
what was there before the range, the newest what is there after it. Pure: text in, text out.
"""

from __future__ import annotations

from volstream.delta.writer import literal, table_at
from volstream.directory.table import COLUMNS, CONTENT

_IMAGE = f"struct({', '.join((*COLUMNS, 'refresh_id'))})"

#: Kinds of changes in a feed whose image is what was there before.
OLD_KINDS = ("update_preimage", "delete")
_OLD_KINDS = f"({', '.join(map(literal, OLD_KINDS))})"

#: What every relation below has: the image after the change, the one before it, and what wrote the first of these.
_NO_VERSION = "CAST(NULL AS BIGINT)"
_NO_TIME = "CAST(NULL AS TIMESTAMP)"


def net(location: str, first: int, last: int) -> str:
    """SQL: one row for each path with a net change in versions ``first`` to ``last``, both included.

    Columns: ``old`` and ``new``, structs of the directory's columns and ``refresh_id``, NULL where the path had no row
    before or has none after; ``version`` and ``time`` of the newest image.
    """
    same = " AND ".join(f"old.{name} <=> new.{name}" for name in CONTENT)
    return (
        f"SELECT * FROM (SELECT CASE WHEN oldest.kind IN {_OLD_KINDS} THEN oldest.image END AS old, "
        f"CASE WHEN newest.kind NOT IN {_OLD_KINDS} THEN newest.image END AS new, newest.version, newest.time "
        f"FROM ({_ends(location, first, last)})) "
        # Come and gone inside the range, or rewritten without change of content: nothing.
        f"WHERE (old IS NULL) <> (new IS NULL) OR (old IS NOT NULL AND new IS NOT NULL AND NOT ({same}))"
    )


def appended(location: str, first: int, last: int) -> str:
    """SQL, as :func:`net`: each path that was new in the range, as it was first written, whatever became of it."""
    return (
        "SELECT CAST(NULL AS STRUCT<relative_path: STRING>) AS old, oldest.image AS new, oldest.version, oldest.time "
        f"FROM ({_ends(location, first, last)}) WHERE oldest.kind = 'insert'"
    )


def present(location: str, version: int) -> str:
    """SQL, as :func:`net`: the rows present at ``version``, all new; what wrote them is known by ``refresh_id`` only."""
    return (
        f"SELECT CAST(NULL AS STRUCT<relative_path: STRING>) AS old, {_IMAGE} AS new, "
        f"{_NO_VERSION} AS version, {_NO_TIME} AS time FROM {table_at(location)} VERSION AS OF {version}"
    )


def stream_rows(changes: str, refreshes: str, *, both_images: bool) -> str:
    """SQL: what a stream shows: change type, version and time of each image's writing, the directory's columns.

    Args:
        changes: SQL of one of the functions above.
        refreshes: name of a view (``refresh_id``, ``version``, ``time``) that tells which version a refresh wrote.
        both_images: whether ``old`` images are shown; else every row is an INSERT.
    """
    inserted = _entry("INSERT", "new", "version", "time")
    if both_images:
        deleted = _entry("DELETE", "old", _NO_VERSION, _NO_TIME)
        before = _entry("UPDATE_BEFORE", "old", _NO_VERSION, _NO_TIME)
        after = _entry("UPDATE_AFTER", "new", "version", "time")
        entries = (
            f"CASE WHEN old IS NULL THEN array({inserted}) WHEN new IS NULL THEN array({deleted}) "
            f"ELSE array({before}, {after}) END"
        )
    else:
        entries = f"array({inserted})"
    columns = ", ".join(f"c.image.{name} AS {name}" for name in COLUMNS)
    return (
        "SELECT c.change_type AS __change_type, coalesce(c.version, r.version) AS __commit_version, "
        f"coalesce(c.time, r.time) AS __commit_timestamp, {columns} "
        f"FROM (SELECT inline({entries}) FROM ({changes})) c LEFT JOIN {refreshes} r ON r.refresh_id = c.image.refresh_id"
    )


def _ends(location: str, first: int, last: int) -> str:
    """SQL: the oldest and the newest change of each path, in the order (version, old image before new image)."""
    return (
        "SELECT min_by(change, place) AS oldest, max_by(change, place) AS newest FROM (SELECT relative_path, "
        f"struct({_IMAGE} AS image, _change_type AS kind, _commit_version AS version, _commit_timestamp AS time) AS change, "
        f"struct(_commit_version, _change_type NOT IN {_OLD_KINDS}) AS place "
        f"FROM table_changes_by_path({literal(location)}, {first}, {last})) GROUP BY relative_path"
    )


def _entry(change_type: str, image: str, version: str, time: str) -> str:
    return f"named_struct('change_type', '{change_type}', 'image', {image}, 'version', {version}, 'time', {time})"
