"""The ledger of a job: its files without rows, so that a file of which nothing is recorded is known to be missing.

A small table beside the result tables. A batch in which every file has rows, or failed, writes nothing to it. Entries are never
wrong to have: what counts is that of the file's current version, if the file has no rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.delta import direct, upkeep
from volstream.delta.direct import RowChanges
from volstream.delta.log import DeltaLog
from volstream.delta.marker import Marker

if TYPE_CHECKING:
    from volstream.jobs.staged import Staged

KEY = "path"

SCHEMA = pa.schema([(name, pa.string()) for name in (KEY, "version", "batch")])


def location_of(warehouse: str, job_id: str) -> str:
    """Returns where a job's ledger is, if it has one."""
    return f"{warehouse}/_ledgers/{job_id}"


def record(location: str, batch_id: str, marker: Marker, staged: Staged) -> None:
    """Records the files of a batch that succeeded without a row, before the batch is committed. Does nothing if there are none,
    or if only Spark could write a table there.

    Raises:
        DependencyError: the ledger cannot be written.
    """
    empty = staged.without_rows()
    if not empty.num_rows:
        return
    log = DeltaLog(location)
    if not log.exists() and not direct.create(location, SCHEMA, {upkeep.UPKEEP: "on"}):
        return
    rows = pa.table([*empty.columns, pa.array([batch_id] * empty.num_rows, pa.string())], schema=SCHEMA)
    direct.commit(location, marker, RowChanges([rows], SCHEMA, KEY, empty[KEY].to_pylist()))
    if upkeep.is_due(location, 1):
        upkeep.compact(location, KEY)


def is_kept(location: str) -> bool:
    """True if files without rows are known: if there are none recorded, there were none."""
    return direct.is_possible(location)
