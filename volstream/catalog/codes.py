"""Versions of the code of jobs, and which batches ran which, for as long as rows of a batch may live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Connection as Transaction
from sqlalchemy import bindparam, delete, func, insert, select, update

from volstream.base.definitions import Job
from volstream.base.model.work import Batch, groups
from volstream.catalog.database import MAX_BOUND, Database
from volstream.catalog.definitions import check_current
from volstream.catalog.rows import to_row
from volstream.catalog.tables import batches, code_versions, forgotten_batches


@dataclass(frozen=True, kw_only=True)
class CodeVersion:
    """What made rows of a job: its code, and all that the rows depend on besides the files.

    Attributes:
        number: from 1, in the order of first use; 0: not used yet.
        digest: of the function's code, its arguments, its columns and its environment; versions of a job differ in it.
        source: text of the modules, by path; None: the code is installed, or too long to be kept.
        made_by, made_on: who ran it first, and when.
    """

    job_id: str
    number: int = 0
    digest: str
    function: str
    arguments: Mapping[str, str]
    returns: str
    environment: str | None
    source: Mapping[str, str] | None
    made_by: str
    made_on: datetime


@dataclass(frozen=True)
class BatchCode:
    """The version of code that a batch ran.

    Attributes:
        carried: versions of the rows that followed moved files into the batch, by path, where they differ; None: unknown.
    """

    code: int | None
    carried: Mapping[str, int | None]

    def of(self, path: str) -> int | None:
        """Returns the version that made the rows of a file; None: unknown."""
        return self.carried.get(path, self.code)


_NUMBER = select(code_versions.c.number).where(
    code_versions.c.job_id == bindparam("job"), code_versions.c.digest == bindparam("digest")
)


class Codes:
    """Rows of ``code_versions``, and the versions in ``batches`` and ``forgotten_batches``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def versions(self, job_id: str) -> Sequence[CodeVersion]:
        """Returns the versions of a job's code, in the order of their numbers."""
        query = select(code_versions).where(code_versions.c.job_id == job_id).order_by(code_versions.c.number)
        return self._database.all(query, CodeVersion)

    def number_of(self, job: Job, version: CodeVersion) -> int:
        """Returns the number of a version of a job's code, which is recorded if it is new. Raises JobChangedError if the job was
        altered or dropped since it was read."""
        present = self._database.value(_NUMBER, job=version.job_id, digest=version.digest)
        if present is not None:
            return int(present)
        with self._database.transaction() as transaction:
            check_current(transaction, job)
            last = select(func.max(code_versions.c.number)).where(code_versions.c.job_id == version.job_id)
            number = int(transaction.execute(last).scalar() or 0) + 1
            used = replace(version, number=number, made_on=datetime.now(UTC))
            transaction.execute(insert(code_versions).values(to_row(used)))
        return number

    def of_batches(self, ids: Iterable[str]) -> Mapping[str, BatchCode]:
        """Returns what batches ran, by their id; without those that are unknown."""
        found: dict[str, BatchCode] = {}
        for some in groups(sorted({*ids}), MAX_BOUND):
            for table in (batches, forgotten_batches):
                rows = self._database.rows(
                    select(table.c.id, table.c.code, table.c.carried).where(table.c.id.in_(some), table.c.code.is_not(None))
                )
                found |= {row.id: BatchCode(int(row.code), row.carried or {}) for row in rows}
        return found

    def note_carried(self, batch: Batch, carried: Mapping[str, int | None]) -> None:
        """Records, before a batch is committed, the versions of rows that follow moved files in it."""
        self._database.write(update(batches).where(batches.c.id == batch.id).values(carried=dict(carried)))

    def forgotten(self, job_id: str) -> Sequence[str]:
        """Returns the batches of a job that are kept only for their code."""
        known = select(forgotten_batches.c.id).where(forgotten_batches.c.job_id == job_id)
        return [row.id for row in self._database.rows(known)]

    def forget(self, ids: Iterable[str]) -> None:
        """Deletes what is known of these batches, which have no rows left."""
        for some in groups(ids, MAX_BOUND):
            self._database.write(delete(forgotten_batches).where(forgotten_batches.c.id.in_(some)))


def keep(transaction: Transaction, ids: Sequence[str]) -> None:
    """Keeps what is known of the code of batches that are about to be deleted."""
    columns = ("id", "job_id", "code", "carried")
    known = select(*(batches.c[name] for name in columns)).where(
        batches.c.id.in_(ids), batches.c.code.is_not(None), batches.c.job_id.is_not(None)
    )
    transaction.execute(insert(forgotten_batches).from_select(columns, known))
