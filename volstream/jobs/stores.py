"""What a job keeps in the warehouse beside its table.

Each store is a folder below the warehouse, in which each job has its own, named by the job's id: renaming a job touches nothing.
Whatever treats a job as a whole goes through :data:`STORES`:

========================= ==================================== ==============================
                          a table                              files
========================= ==================================== ==============================
backup, restore           copied with the job's table          left out
drop                      removed                              removed
the daemon, once a day    removes what dropped jobs left       removes what dropped jobs left
verify                    looks for damage                     does not look
verify --fix, heal        removes a damaged one                does not look
========================= ==================================== ==============================

What does not belong here: a job's files in a volume (``outputs``), and its plans, which are its stream's (``plan``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Store:
    """A kind of folder that jobs have.

    Attributes:
        folder: below the warehouse.
        what: for messages, such as "The list of files without rows of job j cannot be backed up".
        is_table: a Delta table, whose rows are part of what the job has done; else files that it can do without.
    """

    folder: str
    what: str
    is_table: bool

    def of(self, warehouse: str, job_id: str) -> str:
        """Returns where a job's own is, if it has one."""
        return f"{warehouse}/{self.folder}/{job_id}"


#: Files that were processed without a row: see :mod:`volstream.jobs.ledger`.
LEDGER = Store("_ledgers", "list of files without rows", is_table=True)

#: What functions print: see :mod:`volstream.jobs.logs`.
LOGS = Store("_logs", "output", is_table=False)

STORES = (LEDGER, LOGS)
