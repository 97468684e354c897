"""Compares a job's table with its volume, file by file, without calling the function.

A file's outcome is known from its rows, which carry its path and version, from its failure or, if it gave no
row, from the job's ledger. Files that have changed since their delivery, or whose plan is unfinished, are
left to the next run and not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.config import Settings
from volstream.base.definitions import FileJob, Write
from volstream.base.model.names import Name
from volstream.base.model.paths import Selection
from volstream.base.model.text import by_kind, counted
from volstream.base.model.work import Plan
from volstream.catalog import Catalog
from volstream.changes.streams.read import Range
from volstream.errors import InvalidValueError
from volstream.functions.output import STAGING
from volstream.functions.schema import key_column
from volstream.jobs.batches import ledger
from volstream.jobs.batches.ledger import LEDGER
from volstream.jobs.batches.outputs import EXAMPLES, files_listed, finish, output_store, target_of
from volstream.jobs.batches.results import OwnCommits
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import computing, relation
from volstream.sql.text import literal, table_at
from volstream.tables.delta import places
from volstream.tables.delta.damage import Bounds, Damage, ForeignCommit, History, foreign_changes
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.places import is_table
from volstream.tables.delta.writer import compile_if_large

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.jobs.runs.services import JobServices


class Problem(StrEnum):
    """A problem with a file's rows.

    ``MISSING``: the file has no outcome. ``OUTDATED``: its rows are of another version. ``DOUBLED``: it has
    rows of several batches or versions. ``FOREIGN``: another writer changed its rows. ``OUTPUT``: a file that
    its rows name is missing, or was changed by another writer. ``STRAY``: it has rows but does not exist.
    """

    MISSING = "missing"
    OUTDATED = "outdated"
    DOUBLED = "doubled"
    FOREIGN = "foreign"
    OUTPUT = "output"
    STRAY = "stray"


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Attributes:
        files: number of files, or sets, compared.
        rows: number of rows in the table.
        failing: how many of these files failed, wait or are held, so that the table need not have them.
        waiting: files that the next run processes or removes. They were not compared.
        wrong: number of files by problem, without zeros.
        examples: some of these files, with their problems.
        commits: commits of other writers that changed rows since the last successful verification.
        seen_from: the first version of the table whose foreign changes could be checked, or None for all
            versions.
        appends: the table is a log of versions. Only missing versions are found, not changes by others.
        pathless: rows without a file's path.
        outputs: the files that the function made, or None if they were not compared.
        unproven: files without rows that may be right: the job has no ledger, because only Spark can write to
            its warehouse.
        damages: unreadable parts of the table. If it was not fixed, nothing was compared.
        fixed: number of wrong files that were repaired, or None if nothing was changed.
        unit: the unit of the function's calls: ``file`` or ``set``.
    """

    files: int = 0
    rows: int = 0
    failing: int = 0
    waiting: int = 0
    wrong: Mapping[Problem, int] = field(default_factory=dict)
    examples: Sequence[tuple[str, Problem]] = ()
    commits: Sequence[ForeignCommit] = ()
    seen_from: int | None = None
    appends: bool = False
    pathless: int = 0
    outputs: ComparedOutputs | None = None
    unproven: int = 0
    damages: Sequence[Damage] = ()
    fixed: int | None = None
    unit: str = "file"

    @property
    def count(self) -> int:
        """Number of wrong files."""
        return sum(self.wrong.values())

    @property
    def kinds(self) -> str:
        """The numbers of wrong files, such as ``2 missing, 1 stray``."""
        return by_kind(self.wrong)

    @property
    def text(self) -> str:
        """The problems, as a part of a sentence, such as ``3 files: 2 missing, 1 stray``."""
        files = f"{counted(self.count, self.unit)}: {self.kinds}" if self.wrong else ""
        pathless = f"{counted(self.pathless, 'row')} without the path of a file" if self.pathless else ""
        return "; ".join(filter(None, [*map(str, self.damages), files, pathless]))

    @property
    def is_right(self) -> bool:
        """True if nothing is wrong, or everything was repaired."""
        unread = self.damages and self.fixed is None
        return self.count <= (self.fixed or 0) and not (self.pathless or unread)

    @property
    def is_proven(self) -> bool:
        """True if all changes by other writers were compared or repaired."""
        all_compared = not (self.failing or self.waiting or self.appends)
        return self.is_right and (all_compared or not self.commits)


@dataclass(frozen=True)
class TableComparison:
    """A verification with the data for a repair.

    Attributes:
        version: of the table when it was compared.
        files: rows of a plan, lazily: the compared files, and removals of strays.
        problems: rows ``path`` and ``problem`` of the wrong files, lazily.
    """

    found: Verification
    version: int
    files: DataFrame
    problems: DataFrame

    def repair(self) -> DataFrame:
        """Returns the rows of a plan that repairs wrong files, lazily."""
        return self.files.join(self.problems.selectExpr("path AS relative_path"), "relative_path", "left_semi")


def compared(
    services: JobServices,
    session: SparkSession,
    job: FileJob,
    covered: Range,
    unfinished: Plan | None,
    folder: str,
    outputs: ComparedOutputs | None,
    *,
    recreated: bool = False,
) -> TableComparison:
    """Compares the delivered files with the table.

    Args:
        covered: from the version up to which files were delivered, to the newest.
        unfinished: an open plan, whose files are not compared.
        folder: for intermediate results. The caller removes it after a repair.
        outputs: of the job, if they are compared.
        recreated: the directory may have been re-created, so its versions do not tell where the stream began.
    """
    stream, location, key = services.stream(job), services.results.location_of(job), key_column(job)
    version = newest_version(location)
    compile_if_large(session, location)
    history, since = History(0), -1
    if version is not None:
        known = job.verified_version
        since = -1 if known is None or known > version else known
        history = foreign_changes(location, key, since, version, OwnCommits(services.catalog, job), f"{folder}/touched")
    gone = history.first > since + 1
    if gone and isinstance(now := services.catalog.jobs.by_id(job.id), FileJob):
        # Unless a run verified the versions that it deleted.
        gone = now.verified_version is None or now.verified_version < history.first - 1
    _planned(session, unfinished).createOrReplaceTempView("volstream_planned")
    delivered = services.planner.delivered_files(session, job, covered)
    recorded = _recorded(location, version, key)
    touched = session.sql("SELECT '' AS key, 0L AS version LIMIT 0")
    if history.commits:
        touched = session.read.schema("key STRING, version BIGINT").parquet(f"{folder}/touched")
    if history.unseen is not None:
        touched = touched.union(session.sql(f"SELECT {key}, {history.unseen}L FROM {recorded}"))
    for number, bounds in history.lost.items():
        touched = touched.union(session.sql(f"SELECT {key}, {number}L FROM {recorded} WHERE {_within(bounds)}"))
    touched.createOrReplaceTempView("volstream_touched")
    if stream.began_after is not None:
        began = f"commit_version > {stream.began_after}"
        if recreated:
            began = f"last_modified_time > {_moment(stream.created_on)}"
        delivered.createOrReplaceTempView("volstream_all")
        delivered = session.sql(
            f"SELECT * FROM volstream_all WHERE {began} OR relative_path IN (SELECT {key} FROM {recorded}) "
            "OR relative_path IN (SELECT key FROM volstream_touched)"
        )
    delivered.createOrReplaceTempView("volstream_delivered")
    files = session.sql(_without("volstream_delivered", "volstream_planned"))
    files.createOrReplaceTempView("volstream_files")
    if version is not None and job.write is Write.UPSERT:
        strays = services.planner.stray_files(session, job, covered, location)
        strays.createOrReplaceTempView("volstream_strays")
        # After a reset of the stream there may be rows of files that the next run delivers again.
        services.planner.present_files(session, job, covered).createOrReplaceTempView("volstream_present")
        strays = session.sql(_without(f"({_without('volstream_strays', 'volstream_planned')})", "volstream_present"))
    else:
        strays = files.limit(0)
    with map_spark_errors():
        problems = _outcomes(services, session, job, recorded, history, [] if outputs is None else outputs.lost)
        problems = problems.union(strays.selectExpr("relative_path AS path", f"'{Problem.STRAY}' AS problem"))
        problems.write.mode("overwrite").parquet(f"{folder}/problems")
        numbers = session.sql(
            "SELECT (SELECT count(*) FROM volstream_files) AS files, r.*, "
            f"{_waiting(services, session, job, covered, unfinished)} AS waiting "
            f"FROM (SELECT count(*) AS rows, count_if({key} IS NULL) AS pathless FROM {recorded}) r"
        ).toArrow()
    compared_files, rows, pathless, waiting = (numbers[name][0].as_py() for name in numbers.column_names)
    found = places.dataset(f"{folder}/problems", pa.schema([("path", pa.string()), ("problem", pa.string())]))
    kinds = found.to_table(columns=["problem"]).group_by("problem").aggregate([("problem", "count")])
    wrong = dict(zip(map(str, kinds["problem"].to_pylist()), kinds["problem_count"].to_pylist(), strict=True))
    unproven, failing = wrong.pop(_UNPROVEN, 0), wrong.pop(_FAILING, 0)
    named = found.filter(~pc.field("problem").isin([_UNPROVEN, _FAILING])).head(EXAMPLES).to_pylist()
    verification = Verification(
        files=compared_files,
        rows=rows,
        failing=failing,
        waiting=waiting,
        wrong={Problem(name): number for name, number in sorted(wrong.items())},
        examples=[(row["path"], Problem(row["problem"])) for row in named],
        commits=history.commits,
        seen_from=history.first if gone else None,
        appends=job.write is Write.APPEND,
        pathless=pathless,
        outputs=outputs,
        unproven=unproven,
        unit=job.unit,
    )
    problems = session.read.schema("path STRING, problem STRING").parquet(f"{folder}/problems")
    return TableComparison(
        verification, version or 0, files.unionByName(strays), problems.where(f"problem NOT IN ('{_UNPROVEN}', '{_FAILING}')")
    )


#: Outcomes that are not problems: files without rows where no ledger is kept, and failures.
_UNPROVEN, _FAILING = "unproven", "failing"


def _outcomes(
    services: JobServices, session: SparkSession, job: FileJob, recorded: str, history: History, lost: Collection[str]
) -> DataFrame:
    """Returns ``path`` and ``problem`` of the files in ``volstream_files`` that are wrong, or not known to be
    right.

    Args:
        recorded: SQL for the rows of the table.
        lost: the files with wrong outputs.
    """
    key, ledger_location = key_column(job), LEDGER.of(services.warehouse, job.id)
    failing = services.catalog.failures.active(job.id)
    relations: dict[str, pa.Table] = {
        "volstream_failing": pa.table(
            {"path": [failure.path for failure in failing], "version": [failure.file_version for failure in failing]},
            schema=pa.schema([("path", pa.string()), ("version", pa.string())]),
        ),
        "volstream_own": pa.table(
            {"batch": list(history.own), "wrote": list(history.own.values())},
            schema=pa.schema([("batch", pa.string()), ("wrote", pa.int64())]),
        ),
        "volstream_lost": pa.table({"path": pa.array(sorted(lost), pa.string())}),
    }
    for name, rows in relations.items():
        relation(session, rows).createOrReplaceTempView(name)
    touched = "SELECT key, max(version) AS version FROM volstream_touched GROUP BY key"
    empty = "SELECT '' AS path, '' AS version, '' AS batch LIMIT 0"
    if is_table(ledger_location):
        empty = f"SELECT path, version, batch FROM {table_at(ledger_location)}"
    by_version = job.write is Write.APPEND
    rows = (
        f"SELECT {key} AS path, min(_file_version) AS low, max(_file_version) AS high, min(_batch_id) AS first, "
        f"max(_batch_id) AS last FROM {recorded} "
        f"GROUP BY {key}{', _file_version' if by_version else ''}"
    )
    changed_since = "t.version > coalesce(o.wrote, -1)"
    absent = Problem.MISSING if ledger.is_kept(ledger_location) else _UNPROVEN
    # The first true condition decides. f: the file, r: its rows, b: its failure, e: its entry in the ledger.
    cases = [("b.path IS NOT NULL", _FAILING), ("r.path IS NULL AND e.path IS NULL", absent)]
    if not by_version:
        # A failing file still has the rows of its former version.
        kept_rows = f"r.path IS NOT NULL AND {changed_since} AND (r.low = f.version OR b.path IS NOT NULL)"
        cases = [
            ("r.low <> r.high OR r.first <> r.last", Problem.DOUBLED),
            (kept_rows, Problem.FOREIGN),
            *cases,
            ("r.path IS NOT NULL AND r.low <> f.version", Problem.OUTDATED),
            (changed_since, Problem.FOREIGN),
            ("l.path IS NOT NULL", Problem.OUTPUT),
        ]
    return session.sql(
        "SELECT path, problem FROM (SELECT f.relative_path AS path, "
        f"CASE {' '.join(f'WHEN {condition} THEN {literal(name)}' for condition, name in cases)} END AS problem "
        "FROM (SELECT relative_path, coalesce(version_id, etag) AS version FROM volstream_files) f "
        f"LEFT JOIN ({rows}) r ON r.path = f.relative_path{' AND r.low = f.version' if by_version else ''} "
        "LEFT JOIN volstream_failing b ON b.path = f.relative_path AND b.version = f.version "
        f"LEFT JOIN ({empty}) e ON e.path = f.relative_path AND e.version = f.version "
        "LEFT JOIN volstream_lost l ON l.path = f.relative_path "
        f"LEFT JOIN ({touched}) t ON t.key = f.relative_path "
        "LEFT JOIN volstream_own o ON o.batch = coalesce(r.last, e.batch)) WHERE problem IS NOT NULL"
    )


def _recorded(location: str, version: int | None, key: str) -> str:
    """Returns SQL for the rows of the table at a version, or for no rows without a version."""
    if version is None:
        return f"(SELECT '' AS {key}, '' AS _file_version, '' AS _batch_id LIMIT 0)"
    return f"{table_at(location)} VERSION AS OF {version}"


def _within(bounds: Sequence[Bounds]) -> str:
    """Returns SQL for rows that may belong to a file of the volume with rows in a data file with any of these
    bounds."""
    return " OR ".join(
        " AND ".join(
            ["true"]
            + [f"{name} >= {literal(low)}" for name, (low, _) in file.items() if low is not None]
            + [f"{name} <= {literal(high)}" for name, (_, high) in file.items() if high is not None]
        )
        for file in bounds
    )


def _moment(time: datetime) -> str:
    return f"TIMESTAMP {literal(time.isoformat())}"


def _planned(session: SparkSession, unfinished: Plan | None) -> DataFrame:
    """Returns the paths of a plan's files, as ``relative_path``."""
    if unfinished is None:
        return session.sql("SELECT '' AS relative_path LIMIT 0")
    files = session.read.schema("relative_path STRING, old_path STRING").parquet(unfinished.location)
    return files.select("relative_path").union(files.where("old_path IS NOT NULL").select("old_path"))


def _without(files: str, others: str) -> str:
    """Returns SQL for files whose paths are not among others."""
    return f"SELECT f.* FROM {files} f LEFT ANTI JOIN {others} o ON o.relative_path = f.relative_path"


def _waiting(services: JobServices, session: SparkSession, job: FileJob, covered: Range, unfinished: Plan | None) -> str:
    """Returns SQL for the number of files that were added, changed or removed since the delivery, or are in
    an unfinished plan."""
    if unfinished is not None:
        return str(unfinished.files)
    if covered.from_version is None or covered.to_version <= covered.from_version:
        return "0"
    then, now = services.planner.directories(covered)
    where = "true" if job.group_by is not None else job.where or "true"
    present = session.sql(now).where(computing(session, where))
    present.where(f"refresh_id > {covered.from_version}").createOrReplaceTempView("volstream_waiting")
    return (
        "(SELECT count(*) FROM volstream_waiting) + "
        f"(SELECT count(*) FROM ({then}) o LEFT ANTI JOIN ({now}) n ON n.relative_path = o.relative_path)"
    )


# The files that a job's function made, compared with their volume.


@dataclass(frozen=True)
class ComparedOutputs:
    """The result of comparing the volume of a job's outputs with the outputs that its table's rows name.

    Attributes:
        count: number of outputs that rows name.
        lost: files whose rows name an output that is missing, or that another writer changed.
        unnamed: number of files in the job's folder of the volume that no row names.
        examples: some of their paths.
    """

    count: int
    lost: Collection[str]
    unnamed: int
    examples: Sequence[str]


def compared_outputs(catalog: Catalog, settings: Settings, job: FileJob) -> ComparedOutputs:
    """Lists the volume of a job's outputs.

    The caller holds the job's lease. All outputs of the table are in memory.

    Raises:
        InvalidValueError: the job makes no files.
        NotFoundError: the volume was dropped.
        StorageError: the listing failed.
    """
    if job.outputs_to is None:
        raise InvalidValueError(f"The job {job.name} makes no files.", "Leave out --outputs.")
    finish(catalog, settings, str(job.into))
    volume = catalog.volumes.get(Name.parse(job.outputs_to))
    missing = {output.path: output for output in catalog.outputs.live(str(job.into)) if output.volume_id == volume.id}
    count, unnamed = len(missing), 0
    lost, examples = set[str](), list[str]()
    store, target = output_store(volume, catalog, settings), target_of(job)
    for file in files_listed(store.list(target.prefix, Selection(ignores=(STAGING,)))):
        output = missing.pop(file.relative_path, None)
        if output is None:
            unnamed += 1
            examples += [file.relative_path] if unnamed <= EXAMPLES else []
        elif output.etag != file.etag:
            lost.add(output.source)
    lost |= {output.source for output in missing.values()}
    return ComparedOutputs(count, lost, unnamed, examples)
