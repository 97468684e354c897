"""SQL of what a stream shows of a range of versions (streams.md, R-10 to R-13). Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from volstream.changelog.base import quoted, struct_of
from volstream.delta.writer import table_at

_NO_VERSION = "CAST(NULL AS BIGINT)"
_NO_TIME = "CAST(NULL AS TIMESTAMP)"


def present(location: str, version: int, columns: Sequence[str], row_version: str) -> str:
    """SQL: the rows present at ``version``, all of them ``new``, as :func:`volstream.changelog.process.net` has them."""
    image = f"struct({struct_of(columns)} AS data, {row_version} AS wrote)"
    return (
        f"SELECT CASE WHEN false THEN {image} END AS old, {image} AS new, {_NO_VERSION} AS version, {_NO_TIME} AS time "
        f"FROM {table_at(location)} VERSION AS OF {version}"
    )


def nothing(location: str, version: int, columns: Sequence[str]) -> str:
    """SQL: no rows, with the columns that a stream shows. Reads nothing."""
    shown = ", ".join(map(quoted, columns))
    return (
        f"SELECT CAST(NULL AS STRING) AS __change_type, {_NO_VERSION} AS __commit_version, "
        f"{_NO_TIME} AS __commit_timestamp, {shown} FROM {table_at(location)} VERSION AS OF {version} LIMIT 0"
    )


def stream_rows(changes: str, versions: str, columns: Sequence[str], version: str, *, both_images: bool) -> str:
    """SQL: what a stream shows: change type, version and time of each image's writing, the source's columns.

    Args:
        changes: SQL with the columns ``old``, ``new``, ``version``, ``time``.
        versions: name of a view (``wrote``, ``version``, ``time``) that tells which version wrote an image.
        version: SQL of an image's version, from ``c`` and ``r`` (see :class:`~volstream.streams.source.Source`).
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
    shown = ", ".join(f"c.image.data.{quoted(name)} AS {quoted(name)}" for name in columns)
    time = f"coalesce(r.time, CASE WHEN c.version = {version} THEN c.time END)"
    return (
        f"SELECT c.change_type AS __change_type, {version} AS __commit_version, {time} AS __commit_timestamp, {shown} "
        f"FROM (SELECT inline({entries}) FROM ({changes})) c LEFT JOIN {versions} r ON r.wrote = c.image.wrote"
    )


def _entry(change_type: str, image: str, version: str, time: str) -> str:
    return f"named_struct('change_type', '{change_type}', 'image', {image}, 'version', {version}, 'time', {time})"
