"""The tables of a home, and a table's columns, rows and history. No Spark."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import DynamicJob, Job, SourceKind
from volstream.base.model.names import Name
from volstream.base.model.paths import media_type, printable
from volstream.base.model.text import counted
from volstream.errors import NotFoundError, VolstreamError
from volstream.functions.output import FILE
from volstream.functions.types.convert import python_values
from volstream.ops.inspection.details import arrived_rows, volume_of
from volstream.tables.delta import places
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.lookup import sample_rows
from volstream.tables.delta.opened import OpenTable

if TYPE_CHECKING:
    from volstream.changes.directory.reconcile import ComparedDirectory
    from volstream.home import Home
    from volstream.jobs.proof.verify import Verification

#: The type FILE in SQL.
_FILE_STRUCT = "STRUCT<volume: STRING, relative_path: STRING, size: BIGINT, etag: STRING, content_type: STRING>"

#: Maximum number of files shown of a list in a row.
_MAX_FILES = 6

#: Number of commits shown of a table's history.
_COMMITS = 20

#: Number of rows in a sample, and maximum characters of a value in it.
_ROWS, _MAX_VALUE = 20, 300

#: Maximum bytes of a picture that is shown in a row. Larger pictures, and other binary values, are replaced
#: by their size.
_MAX_PICTURE = 16 << 10

#: Maximum number of listed tables.
_MAX_TABLES = 1000


@dataclass(frozen=True)
class ListedTable:
    """A table, with its source and its size. ``note``: why the size is unknown."""

    table: str
    job: str | None
    filled_by: str | None
    rows: int | None = None
    bytes: int | None = None
    written_on: datetime | None = None
    note: str | None = None


@dataclass(frozen=True)
class ListedColumn:
    """A column, with its SQL type, and the bounds of its values from file statistics. None if unknown."""

    column: str
    type: str
    least: Any = None
    most: Any = None
    nulls: int | None = None


@dataclass(frozen=True)
class ListedCommit:
    """A commit of a table.

    ``rows``: None if unknown; ``batch``: None for others' commits; ``bytes``: the table's size then.
    """

    version: int
    time: datetime
    operation: str
    rows: int | None
    batch: str | None
    bytes: int | None


@dataclass(frozen=True)
class Sample:
    """A few rows of a table, with long values cut. ``error``: why they cannot be read."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    error: str | None = None


@dataclass(frozen=True)
class DescribedTable:
    """Columns, size, newest commits, a few rows, and the readers of a table.

    Attributes:
        note: why the size is unknown.
        not_committed: number of arrived rows, or None if unknown.
        volume: the volume that its job reads.
    """

    table: str
    location: str
    version: int
    rows: int | None
    bytes: int | None
    written_on: datetime | None
    note: str | None
    not_committed: int | None
    job: str | None
    volume: str | None
    primary_key: Sequence[str]
    columns: Sequence[ListedColumn]
    streams: Sequence[str]
    history: Sequence[ListedCommit]
    sample: Sample


def table_names(home: Home, limit: int = _MAX_TABLES) -> list[Name]:
    """Returns the names of the home's tables: those of jobs and sources, and others in the warehouse. Opens
    none."""
    catalog = home.catalog
    filled = {*(job.into for job in catalog.jobs.list()), *(source.name for source in catalog.sources.list())}
    return sorted({*filled, *catalog.tails.list(), *_found(home)})[:limit]


def list_tables(home: Home, limit: int = _MAX_TABLES, *, extents: bool = True, like: str = "") -> list[ListedTable]:
    """Returns the tables of the home by name, with their sources and sizes.

    Args:
        extents: read each table's log for its size, which takes a while in an object store.
        like: part of the names.
    """
    jobs = {job.into: job for job in home.catalog.jobs.list()}
    sources = {source.name: source for source in home.catalog.sources.list()}
    return [
        ListedTable(
            str(name),
            str(jobs[name].name) if name in jobs else None,
            _filled_by(jobs.get(name)) or (f"source, {sources[name].kind}" if name in sources else None),
            **(_extent(DeltaLog(places.table_location(home.warehouse, name))) if extents else {}),
        )
        for name in [name for name in table_names(home) if like in name][:limit]
    ]


_UNKNOWN = dict.fromkeys(("rows", "bytes", "written_on"))


def _extent(log: DeltaLog) -> dict[str, Any]:
    """Returns the rows, the bytes and the last write of a table, or a ``note`` on why they are unknown."""
    try:
        extent = log.extent()
    except VolstreamError as error:
        return {**_UNKNOWN, "note": error.message}
    return {**_UNKNOWN, "note": "not created yet"} if extent is None else {**vars(extent), "note": None}


def missing(home: Home, name: Name) -> NotFoundError:
    """Returns the error for a table that does not exist."""
    job = home.catalog.maker_of(name)
    if job is not None:
        return NotFoundError(f"The table {name} does not exist yet.", f"The job {job.name} creates it with its first batch.")
    return NotFoundError(f"There is no table {name}.", places.like_one(home.warehouse, name).rstrip())


def _job_into(home: Home, name: Name) -> Job | None:
    return home.catalog.jobs.first(into_schema=name.schema, into_name=name.name)


def described_table(home: Home, text: str) -> DescribedTable:
    """Returns all details of a table.

    Raises:
        NotFoundError: there is no such table.
        DependencyError: its log cannot be read.
    """
    name = Name.parse(text)
    location = places.table_location(home.warehouse, name)
    log, job, table = DeltaLog(location), _job_into(home, name), OpenTable.newest(location)
    if table is None:
        raise missing(home, name)
    version, schema = table.version, table.schema
    streams = [stream for stream in home.catalog.streams.list() if stream.source_kind is SourceKind.TABLE]
    bounds = {column: {**vars(b), "least": _cell(b.least), "most": _cell(b.most)} for column, b in table.bounds().items()}
    commits, sizes = log.commits_after(max(-1, version - _COMMITS)), log.sizes(_COMMITS)
    return DescribedTable(
        table=str(name),
        location=location,
        version=version,
        **_extent(log),
        not_committed=_arrived(home, name),
        job=None if job is None else str(job.name),
        volume=None if job is None else volume_of(home, job),
        primary_key=list(schema.primary_key),
        columns=[
            ListedColumn(column, schema.sql_type(column).replace(_FILE_STRUCT, "FILE"), **bounds.get(column, {}))
            for column in schema.types
        ],
        streams=[str(stream.name) for stream in streams if stream.source_name == name],
        history=[
            ListedCommit(
                commit.version,
                commit.timestamp,
                commit.operation,
                commit.rows,
                commit.metadata.get("batch"),
                sizes.get(commit.version),
            )
            for commit in reversed(commits)
        ],
        sample=sample_of(home, location, version),
    )


def sample_of(home: Home, location: str, version: int, equals: tuple[str, str] | None = None) -> Sample:
    """Returns a few rows of a table.

    Args:
        equals: a column and its required text.
    """
    try:
        rows = sample_rows(location, version, _ROWS, equals, home.gateway.session)
    except VolstreamError as error:
        return Sample([], [], error.message)
    return Sample(rows.column_names, _cut(rows))


def _cut(rows: pa.Table) -> list[dict[str, Any]]:
    columns = zip(*(python_values(column) for column in rows.columns), strict=True)
    return [{name: _cell(value) for name, value in zip(rows.column_names, row, strict=True)} for row in columns]


class Thumbnail(str):
    """A small picture in a row, as a URL with its content."""


class OutputFile(dict[str, Any]):
    """A value of a FILE column."""


def _cell(value: Any) -> Any:
    if _is_file(value):
        return OutputFile(value)
    if isinstance(value, list) and value and all(map(_is_file, value)):
        return [OutputFile(file) for file in value[:_MAX_FILES]]
    if isinstance(value, bytes) and len(value) <= _MAX_PICTURE and (kind := media_type(value)) is not None:
        return Thumbnail(f"data:{kind};base64,{base64.b64encode(value).decode()}")
    if isinstance(value, list | dict | tuple):
        text = str(value)
        return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ..."
    if isinstance(value, str) and len(value) > _MAX_VALUE:
        return cut(value[:_MAX_VALUE], len(value))
    return sized(len(value)) if isinstance(value, bytes) else value


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and [*value] == FILE.names


def cut(beginning: str, size: int) -> str:
    """Returns the beginning of a text, with the length of the whole."""
    return f"{beginning} ... ({size} characters)"


def sized(size: int) -> str:
    """Returns the size of a binary value, which is shown in its place."""
    return f"({size} bytes)"


def _arrived(home: Home, name: Name) -> int | None:
    try:
        return arrived_rows(home, name)
    except VolstreamError:  # the table's note tells the reason
        return None


def _filled_by(job: Job | None) -> str | None:
    if job is None:
        return None
    return f"dynamic table, {job.name}" if isinstance(job, DynamicJob) else f"job {job.name}"


def _found(home: Home) -> list[Name]:
    return [*islice(places.own_tables(home.warehouse), _MAX_TABLES), *home.catalog.links.list()]


# The results of ``verify``, as text and as a document: for the command line, the console and programs.


def document(job: str, found: Verification) -> Mapping[str, Any]:
    """Returns the whole result, for JSON."""
    return {
        "job": job,
        "files": found.files,
        "rows": found.rows,
        "failing": found.failing,
        "waiting": found.waiting,
        "wrong": {str(problem): number for problem, number in found.wrong.items()},
        "examples": [{"path": path, "problem": problem} for path, problem in found.examples],
        "foreign_commits": [vars(commit) for commit in found.commits],
        "seen_from": found.seen_from,
        "pathless": found.pathless,
        "outputs": None if found.outputs is None else found.outputs.count,
        "unnamed": None if found.outputs is None else found.outputs.unnamed,
        "unproven": found.unproven,
        "damages": [str(damage) for damage in found.damages],
        "fixed": found.fixed,
    }


def examples(found: Verification | ComparedDirectory) -> Sequence[str]:
    """Returns a line for each named file, and one for the rest."""
    remaining = found.count - len(found.examples)
    named = [f"  {kind:<9} {printable(path)}" for path, kind in found.examples]
    return [*named, f"  and {remaining:,} more"] if remaining > 0 else named


def lines(job: str, found: Verification) -> Sequence[str]:
    """Returns the result in lines, the summary first."""
    damages = "; ".join(map(str, found.damages))
    if damages and found.fixed is None:
        return [f"The table was not compared: {damages}."]
    compared = f"{counted(found.files, found.unit)} compared with a table of {counted(found.rows, 'row')}"
    if found.wrong:
        report = [f"{compared}: {found.kinds}.", *examples(found)]
    else:
        unknown = found.failing or found.unproven or found.pathless or not found.is_proven
        report = [f"{compared}: {'no differences in these' if unknown else 'no differences'}."]
    if found.failing:
        report.append(f"Failed, waiting or held back: {found.failing:,}. See: volstream list failures --job {job}")
    if found.pathless:
        report.append(
            f"{counted(found.pathless, 'row')} without the path of a file, written by another writer: delete them with SQL."
        )
    if found.commits and (found.count or found.appends):
        named = ", ".join(f"{commit.version} ({commit.operation})" for commit in found.commits[:5])
        others = f" and {len(found.commits) - 5} more" if len(found.commits) > 5 else ""
        report.append(f"Other writers changed rows in {counted(len(found.commits), 'version')}: {named}{others}.")
        if any(commit.unseen for commit in found.commits):
            report.append("Some of them dropped columns, or files that show which rows they changed have been deleted.")
    if found.seen_from is not None:
        report.append(f"What other writers changed before version {found.seen_from} is no longer known: the log was cleaned up.")
    if (outputs := found.outputs) is not None:
        report.append(f"{counted(outputs.count, 'output')} compared with their volume.")
        if outputs.unnamed:
            named = ", ".join(map(printable, outputs.examples[:5])) + (" ..." if outputs.unnamed > 5 else "")
            report.append(f"The job's folder there also has {counted(outputs.unnamed, 'file')} that no row names: {named}.")
    if found.unproven:
        report.append(f"{counted(found.unproven, found.unit)} without rows: the function may have returned none.")
    if found.waiting:
        report.append(f"Not compared: {counted(found.waiting, 'file')} that the next run processes.")
    if damages:
        report.append(f"Removed from the table, because they were damaged: {damages}.")
    if found.fixed is not None and found.count:
        report.append(f"Repaired: {found.fixed:,} of {found.count:,}.")
    return report
