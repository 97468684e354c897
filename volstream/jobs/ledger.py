"""The ledger of a job: its files without rows, so that a file with neither rows nor an entry is known to be missing.

A small table beside the result tables. A batch in which every file has rows, or failed, writes nothing to it, unless one of these
files had no rows before: an entry must not excuse rows that are lost later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.tables.delta import direct, upkeep
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import UPKEEP, Marker
from volstream.tables.delta.places import can_create, is_table

if TYPE_CHECKING:
    from volstream.jobs.staged import Staged

KEY = "path"

SCHEMA = pa.schema([(name, pa.string()) for name in (KEY, "version", "batch")])


def record(location: str, batch_id: str, marker: Marker, staged: Staged) -> None:
    """Records the files of a batch that succeeded without a row, before the batch is committed, and forgets those that have rows
    now. Does nothing if there are none of either, or if only Spark could write a table there.

    Raises:
        DependencyError: the ledger cannot be written.
    """
    if not is_kept(location):
        return
    empty = staged.without_rows()
    exists = is_table(location)
    gone = [*empty[KEY].to_pylist()]
    if exists:
        entries = direct.rows_of(location, KEY, staged.replaced_paths(), [KEY])
        gone += [] if entries is None else entries[KEY].to_pylist()
    if not gone or not (exists or direct.create(location, SCHEMA, {UPKEEP: "on"})):
        return
    rows = pa.table([*empty.columns, pa.array([batch_id] * empty.num_rows, pa.string())], schema=SCHEMA)
    direct.commit(location, marker, RowChanges([rows], SCHEMA, KEY, {*gone}))
    if upkeep.is_due(location, 1):
        upkeep.compact(location, KEY)
        if upkeep.is_old(location, 1):
            upkeep.clean(location, may_go=lambda *_: True)


def is_kept(location: str) -> bool:
    """True if files without rows are known: if there are none recorded, there were none."""
    return can_create(location)
