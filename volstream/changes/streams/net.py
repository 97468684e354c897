"""SQL for the rows of a stream over a range of versions (docs/streams.md). Pure: text in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from volstream.changes.changelog.base import NO_TIME, quoted, struct_of

_NO_VERSION = "CAST(NULL AS BIGINT)"


def present(rows: str, columns: Sequence[str], row_version: str, row_time: str = NO_TIME) -> str:
    """Returns SQL for existing rows, each as ``new``, in the format of :func:`volstream.changes.changelog.process.net`.

    Args:
        rows: a relation.
        row_version, row_time: SQL for the version that wrote a row and the time of that version.
    """
    image = f"struct({struct_of(columns)} AS data, {row_version} AS wrote, {row_time} AS wrote_on)"
    return (
        f"SELECT CASE WHEN false THEN {image} END AS old, {image} AS new, {_NO_VERSION} AS version, {NO_TIME} AS time "
        f"FROM {rows}"
    )


def nothing(rows: str, columns: Sequence[str]) -> str:
    """Returns SQL for no rows, with the columns of a stream on a relation. Reads no data."""
    shown = ", ".join(map(quoted, columns))
    return (
        f"SELECT CAST(NULL AS STRING) AS __change_type, {_NO_VERSION} AS __commit_version, "
        f"{NO_TIME} AS __commit_timestamp, {shown} FROM {rows} LIMIT 0"
    )


def stream_rows(changes: str, columns: Sequence[str], times: str | None, *, both_images: bool) -> str:
    """Returns SQL for a stream's rows: change type, version and time of each image, and the source's columns.

    Args:
        changes: SQL with the columns ``old``, ``new``, ``version``, ``time``.
        times: name of a view (``version``, ``time``) with the times of versions, NULL for a version that wrote no row; None:
            each image has its time.
        both_images: include ``old`` images; else every row is an INSERT.
    """
    inserted = _entry("INSERT", "new", "version", "time")
    if both_images:
        deleted = _entry("DELETE", "old", _NO_VERSION, NO_TIME)
        before = _entry("UPDATE_BEFORE", "old", _NO_VERSION, NO_TIME)
        after = _entry("UPDATE_AFTER", "new", "version", "time")
        entries = (
            f"CASE WHEN old IS NULL THEN array({inserted}) WHEN new IS NULL THEN array({deleted}) "
            f"ELSE array({before}, {after}) END"
        )
    else:
        entries = f"array({inserted})"
    shown = ", ".join(f"c.image.data.{quoted(name)} AS {quoted(name)}" for name in columns)
    own = "c.image.wrote_on, CASE WHEN c.version = c.image.wrote THEN c.time END"
    time, joined = (
        (own, "") if times is None else (f"r.time, {own}", f" LEFT JOIN {times} r ON r.version = c.image.wrote")
    )
    wrote = "c.image.wrote"
    if times is not None:
        wrote = f"CASE WHEN r.version IS NULL OR r.time IS NOT NULL THEN {wrote} END"
    return (
        f"SELECT c.change_type AS __change_type, {wrote} AS __commit_version, coalesce({time}) AS __commit_timestamp, "
        f"{shown} FROM (SELECT inline({entries}) FROM ({changes})) c{joined}"
    )


def _entry(change_type: str, image: str, version: str, time: str) -> str:
    return f"named_struct('change_type', '{change_type}', 'image', {image}, 'version', {version}, 'time', {time})"
