"""Finds which version of a job's code made which rows, by each row's batch id.

Versions themselves are in ``version``, their records in ``catalog.codes``, and the effect of other code in
``compare``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.base.definitions import FileJob, Write
from volstream.base.model.text import counted
from volstream.base.model.units import format_age
from volstream.catalog import Catalog
from volstream.catalog.reports import BatchCode, CodeVersion
from volstream.functions.schema import key_column
from volstream.jobs.batches import ledger
from volstream.jobs.batches.ledger import LEDGER
from volstream.jobs.rules.version import may_have_older, version_of
from volstream.tables.delta import places
from volstream.tables.delta.lookup import queried_rows, standard_literal, standard_name
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.places import is_table, mapped, open_table

if TYPE_CHECKING:
    from volstream.home import Home

#: The code of batches that history has deleted is kept for up to this many batches. Then the ones without
#: rows are searched for.
_MANY_FORGOTTEN = 20_000

#: A count that takes longer than the first is repeated after a commit only when this many times its duration
#: has passed.
_QUICK_SECONDS, _PATIENCE = 0.5, 20.0


@dataclass(frozen=True)
class CodeCounts:
    """The number of files whose rows each version of a job's code made.

    Attributes:
        table_version: the counted version of the table.
        current: version number that a run would use now. 0 if no run has used it yet.
        files: number of files by version, with files of unknown versions under None.
        versions: all versions, in order of their numbers.
    """

    table_version: int
    current: int
    files: Mapping[int | None, int]
    versions: Sequence[CodeVersion]

    @property
    def stale(self) -> int:
        """Number of files with rows of other versions than the current one."""
        return sum(count for number, count in self.files.items() if number not in (None, self.current))

    @property
    def total(self) -> int:
        """Number of files that have rows, or are known to have none."""
        return sum(self.files.values())

    @property
    def oldest(self) -> CodeVersion | None:
        """The oldest version that still has rows, other than the current one."""
        return next((each for each in self.versions if each.number != self.current and self.files.get(each.number)), None)


#: The last count of each table, by location: the versions of the table and the ledger, the numbers, the time
#: of the count, and its duration in seconds.
_counted: dict[str, tuple[tuple[int, int | None], Mapping[int | None, int], float, float]] = {}


def counts(home: Home, job: FileJob, *, exact: bool = True) -> CodeCounts | None:
    """Counts the files of a job by the code version that made their rows.

    Returns None if the job has no table, or its table is a log of all versions. Reads two columns of the
    table if it has changed since this process last counted it.
    Args:
        exact: if False, counts may be some commits old while a table changes often.

    Raises:
        DependencyError: the table cannot be read.
        FunctionLoadError: as :func:`version_of`.
    """
    location = places.table_location(home.warehouse, job.into)
    table_version = newest_version(location)
    if table_version is None or job.write is Write.APPEND:
        return None
    state = table_version, newest_version(LEDGER.of(home.warehouse, job.id))
    last = _counted.get(location)
    now = time.monotonic()
    if last is None or (last[0] != state and (exact or last[3] < _QUICK_SECONDS or now > last[2] + _PATIENCE * last[3])):
        files = _count(home.catalog, home.warehouse, job)
        last = _counted[location] = state, files, time.monotonic(), time.monotonic() - now
    versions = home.catalog.codes.versions(job.id)
    digest = version_of(home.settings, job).digest
    current = next((version.number for version in versions if version.digest == digest), 0)
    return CodeCounts(last[0][0], current, last[1], versions)


def older(home: Home, job: FileJob) -> CodeCounts | None:
    """Counts as :func:`counts`. Returns None if no rows were made by older code; usually without reading a
    table.

    Raises:
        As :func:`counts`.
    """
    if not may_have_older(home.catalog, home.settings, job):
        return None
    counted_files = counts(home, job, exact=False)
    return counted_files if counted_files is not None and counted_files.stale else None


def describe_code(job: FileJob, found: CodeCounts) -> str | None:
    """Returns a sentence on files with rows of older or unknown code and what to do, or None without such
    files."""
    unknown = found.files.get(None, 0)
    if found.stale and (oldest := found.oldest) is not None:
        age = format_age((datetime.now(UTC) - oldest.made_on).total_seconds())
        files = f"{found.stale:,} of {counted(found.total, job.unit)}"
        age_note = f"oldest: version {oldest.number}, {age} old"
        return f"{files} last processed by older code ({age_note}): volstream replay {job.name} --stale"
    return f"{counted(unknown, job.unit)} with rows of unknown code" if unknown else None


def stale_paths(home: Home, job: FileJob) -> Sequence[str]:
    """Returns the files, or the keys of sets, whose rows were made by other code than the current. All in
    memory.

    Raises:
        As :func:`counts`.
    """
    found = counts(home, job)
    if found is None or not found.stale:
        return []
    stale: set[str] = set()
    for location, key, batch in _tables(home.warehouse, job):
        codes = home.catalog.codes.of_batches(_batches(location, key, batch))
        others = {made_by for made_by, code in codes.items() if code.code != found.current or code.carried}
        for path, made_by in _rows(location, key, batch, others):
            if codes[made_by].of(path) not in (None, found.current):
                stale.add(path)
    return sorted(stale)


def prune(catalog: Catalog, warehouse: str, job: FileJob) -> None:
    """Deletes the code of batches that history has deleted, if no readable version of the table has their
    rows."""
    forgotten = catalog.codes.forgotten(job.id)
    if len(forgotten) < _MANY_FORGOTTEN:
        return
    batches_with_rows: set[str] = set()
    for location, key, batch in _tables(warehouse, job):
        with mapped(location):
            oldest = min(int(entry["version"]) for entry in open_table(location).history())
        # What the oldest version lacks was made later, or is also in the newest version.
        batches_with_rows |= {*_batches(location, key, batch), *_batches(location, key, batch, oldest)}
    catalog.codes.forget([identity for identity in forgotten if identity not in batches_with_rows])


def _count(catalog: Catalog, warehouse: str, job: FileJob) -> Mapping[int | None, int]:
    files = Counter[int | None]()
    for location, key, batch in _tables(warehouse, job):
        of_batch = _batches(location, key, batch)
        codes: Mapping[str, BatchCode] = catalog.codes.of_batches(of_batch)
        carrying = {made_by for made_by, code in codes.items() if code.carried}
        files.update(codes[made_by].of(path) for path, made_by in _rows(location, key, batch, carrying))
        for made_by, count in of_batch.items():
            if made_by not in carrying:
                files[codes[made_by].code if made_by in codes else None] += count
    return files


def _tables(warehouse: str, job: FileJob) -> Iterator[tuple[str, str, str]]:
    """Yields the tables with a job's files, each with its file column and batch column: the result table and
    the ledger."""
    yield places.table_location(warehouse, job.into), key_column(job), "_batch_id"
    ledger_at = LEDGER.of(warehouse, job.id)
    if is_table(ledger_at):
        yield ledger_at, ledger.KEY, "batch"


def _batches(location: str, key: str, batch: str, version: int | None = None) -> Mapping[str, int]:
    """Returns the number of files of each batch with rows in a version of a table, the newest by default."""
    query = f"SELECT {standard_name(batch)} AS b, count(DISTINCT {standard_name(key)}) AS n FROM rows GROUP BY 1"
    rows = queried_rows(location, query, version)
    return {str(b): int(n) for b, n in zip(rows["b"].to_pylist(), rows["n"].to_pylist(), strict=True) if b is not None}


def _rows(location: str, key: str, batch: str, of_batches: set[str]) -> Iterator[tuple[str, str]]:
    """Yields the files of some batches with rows in a table, each with its batch."""
    if not of_batches:
        return
    file, made_by = standard_name(key), standard_name(batch)
    where = f"{made_by} IN ({', '.join(map(standard_literal, sorted(of_batches)))})"
    rows = queried_rows(location, f"SELECT DISTINCT {file} AS k, {made_by} AS b FROM rows WHERE {where}")
    yield from zip(rows["k"].to_pylist(), rows["b"].to_pylist(), strict=True)
