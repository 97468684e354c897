"""The net changes of a range that holds few, computed in this process: the rules of :mod:`volstream.changelog.process`, without
Spark's second for each question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from volstream.changelog.base import OLD_KINDS
from volstream.delta import rows
from volstream.directory.table import COLUMNS, CONTENT, SCHEMA

#: Up to so many changed rows are few.
FEW = 20_000

_SCHEMA = pa.schema(
    [
        *(field.with_nullable(True) for field in SCHEMA),
        ("commit_version", pa.int64()),
        ("had", pa.bool_()),
        ("has", pa.bool_()),
    ]
)


def present(location: str, version: int, written: Mapping[int, int | None]) -> pa.Table:
    """The rows present at a version, all new, as :func:`changed` has them.

    Args:
        written: which version each refresh wrote.
    """
    found = rows.read(location, version, SCHEMA.append(pa.field("refresh_id", pa.int64())))
    versions = pa.array([written.get(refresh) for refresh in found["refresh_id"].to_pylist()], pa.int64())
    count = found.num_rows
    made = [versions, pa.array([False] * count), pa.array([True] * count)]
    return pa.table([*found.select(COLUMNS).columns, *made], schema=_SCHEMA)


def changed(location: str, first: int, last: int, *, append_only: bool) -> pa.Table:
    """The paths with a net change in versions ``first`` to ``last``, both included.

    Columns: the directory's, of the newest image (of a path that is gone, as it was before the range); ``commit_version``
    that made the last change; ``had`` and ``has``, whether there was a row before the range and is one after it.
    """
    feed = rows.changes(location, first, last).to_pylist()
    ends: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for row in sorted(feed, key=lambda row: (row["_commit_version"], row["_change_type"] not in OLD_KINDS)):
        oldest, _ = ends.get(row["relative_path"], (row, row))
        ends[row["relative_path"]] = (oldest, row)
    return pa.Table.from_pylist(list((_appended if append_only else _net)(ends)), schema=_SCHEMA)


def _net(ends: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for oldest, newest in ends.values():
        had, has = oldest["_change_type"] in OLD_KINDS, newest["_change_type"] not in OLD_KINDS
        same = had and has and all(oldest[name] == newest[name] for name in CONTENT)
        if same or not (had or has):  # rewritten without change of content, or come and gone inside the range
            continue
        image = newest if has else oldest
        yield {**image, "commit_version": newest["_commit_version"], "had": had, "has": has}


def _appended(ends: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for oldest, _ in ends.values():
        if oldest["_change_type"] == "insert":
            yield {**oldest, "commit_version": oldest["_commit_version"], "had": False, "has": True}
