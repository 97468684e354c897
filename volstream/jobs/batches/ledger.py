"""A job's stores in the warehouse beside its table, and the ledger of its files without rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.tables.delta import direct, upkeep
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import UPKEEP, Marker
from volstream.tables.delta.places import can_create, is_table

if TYPE_CHECKING:
    from volstream.jobs.batches.staged import Staged

# A job's stores in the warehouse, beside its table.
#
# Each store is a folder below the warehouse with a folder for each job, named by the job's id: renaming a job
# touches nothing. Operations on a whole job iterate over :data:`STORES`:
#
# ========================= ==================================== ==============================
# a table                              files
# ========================= ==================================== ==============================
# backup, restore           copied with the job's table          left out
# drop                      removed                              removed
# the daemon, once a day    removes what dropped jobs left       removes what dropped jobs left
# verify                    checks for damage                    does not check
# verify --fix, heal        removes a damaged one                does not check
# ========================= ==================================== ==============================
#
# A job's files in a volume are in ``outputs``. Plans belong to the job's stream (``plan``).


@dataclass(frozen=True)
class Store:
    """A kind of folder that jobs have.

    Attributes:
        folder: below the warehouse.
        what: for messages, such as "The list of files without rows of job j cannot be backed up".
        is_table: a Delta table, whose rows record the job's work. Otherwise files that the job can do
            without.
    """

    folder: str
    what: str
    is_table: bool

    def of(self, warehouse: str, job_id: str) -> str:
        """Returns the location of a job's folder, which may not exist."""
        return f"{warehouse}/{self.folder}/{job_id}"


#: Files that were processed without a row; see :mod:`volstream.jobs.batches.ledger`.
LEDGER = Store("_ledgers", "list of files without rows", is_table=True)

#: The output of functions; see :mod:`volstream.jobs.batches.logs`.
LOGS = Store("_logs", "output", is_table=False)

#: The kept values of steps; see :mod:`volstream.jobs.batches.step_values`.
STEPS = Store("_steps", "kept values of steps", is_table=False)

STORES = (LEDGER, LOGS, STEPS)


# A job's ledger lists its files without rows, so that a file with neither rows nor an entry is known to be
# missing.
#
# It is a small table beside the result tables. A batch writes nothing to it if each of its files has rows or
# failed. The exception is a file that had no rows before: its entry must not excuse rows that are lost later.

KEY = "path"

SCHEMA = pa.schema([(name, pa.string()) for name in (KEY, "version", "batch")])


def record(location: str, batch_id: str, marker: Marker, staged: Staged) -> None:
    """Records the files of a batch that succeeded without a row, and removes entries of files that now have
    rows.

    Called before the batch is committed. Does nothing if there is nothing to change, or if only Spark could
    create a table there.

    Raises:
        DependencyError: the ledger cannot be written.
    """
    if not is_kept(location):
        return
    empty = staged.without_rows()
    exists = is_table(location)
    replaced = [*empty[KEY].to_pylist()]
    if exists:
        entries = direct.rows_of(location, KEY, staged.replaced_paths(), [KEY])
        replaced += [] if entries is None else entries[KEY].to_pylist()
    if not replaced or not (exists or direct.create(location, SCHEMA, {UPKEEP: "on"})):
        return
    rows = pa.table([*empty.columns, pa.array([batch_id] * empty.num_rows, pa.string())], schema=SCHEMA)
    direct.commit(location, marker, RowChanges([rows], SCHEMA, KEY, {*replaced}))
    if upkeep.is_due(location, 1):
        upkeep.compact(location, KEY)
        if upkeep.is_old(location, 1):
            upkeep.clean(location, may_go=lambda *_: True)


def is_kept(location: str) -> bool:
    """Returns whether files without rows are recorded. If so, no record means that there were none."""
    return can_create(location)
