"""Tables of a home: which there are, and columns, rows and history of one. No Spark."""

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

#: The type FILE as SQL has it.
_FILE_STRUCT = "STRUCT<volume: STRING, relative_path: STRING, size: BIGINT, etag: STRING, content_type: STRING>"

#: Files of a list that a row shows.
_MAX_FILES = 6

#: Commits of a table's history that are shown.
_COMMITS = 20

#: Rows of a sample, and characters of a value in it.
_ROWS, _MAX_VALUE = 20, 300

#: Bytes of a picture in a row that is shown; of a larger one, as of other binary values, only the size.
_MAX_PICTURE = 16 << 10

#: Tables that are listed.
_MAX_TABLES = 1000


@dataclass(frozen=True)
class ListedTable:
    """A table, what fills it, and how large it is. ``note``: why that is not known."""

    table: str
    job: str | None
    filled_by: str | None
    rows: int | None = None
    bytes: int | None = None
    written_on: datetime | None = None
    note: str | None = None


@dataclass(frozen=True)
class ListedColumn:
    """A column, with its type in SQL, and bounds of its values from the statistics of the table's files. None: unknown."""

    column: str
    type: str
    least: Any = None
    most: Any = None
    nulls: int | None = None


@dataclass(frozen=True)
class ListedCommit:
    """A commit of a table. ``rows``: None: unknown; ``batch``: None: not by a job; ``bytes``: of the table then."""

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
        note: why the size is not known.
        not_committed: rows that have arrived; None: unknown.
        volume: the one that its job reads.
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
    """Returns the names of the home's tables: those of jobs and sources, and others in the warehouse. Opens none."""
    catalog = home.catalog
    filled = {*(job.into for job in catalog.jobs.list()), *(source.name for source in catalog.sources.list())}
    return sorted({*filled, *catalog.tails.list(), *_found(home)})[:limit]


def list_tables(home: Home, limit: int = _MAX_TABLES, *, extents: bool = True, like: str = "") -> list[ListedTable]:
    """Returns the tables of the home by name, with what fills them and how large they are.

    Args:
        extents: read each table's log for its size, which in an object store takes a while.
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
    """Returns the rows, the bytes and the last write of a table; ``note``: why they are not known."""
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
    """Returns all about a table.

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
    bounds = {column: {**vars(one), "least": _cell(one.least), "most": _cell(one.most)} for column, one in table.bounds().items()}
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
        equals: a column and the text that it must have.
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
    """A small picture of a row, as a URL with its content."""


class OutputFile(dict[str, Any]):
    """A value of a FILE column."""


def _cell(value: Any) -> Any:
    if _is_file(value):
        return OutputFile(value)
    if isinstance(value, list) and value and all(map(_is_file, value)):
        return [OutputFile(one) for one in value[:_MAX_FILES]]
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
    """Returns the beginning of a text with the length of the whole."""
    return f"{beginning} ... ({size} characters)"


def sized(size: int) -> str:
    """Returns the size of a binary value, shown in its place."""
    return f"({size} bytes)"


def _arrived(home: Home, name: Name) -> int | None:
    try:
        return arrived_rows(home, name)
    except VolstreamError:  # the table's note has the reason
        return None


def _filled_by(job: Job | None) -> str | None:
    if job is None:
        return None
    return f"dynamic table, {job.name}" if isinstance(job, DynamicJob) else f"job {job.name}"


def _found(home: Home) -> list[Name]:
    return [*islice(places.own_tables(home.warehouse), _MAX_TABLES), *home.catalog.links.list()]


# What ``verify`` found, in words and as a document: for the command line, the console and programs.


def document(job: str, found: Verification) -> Mapping[str, Any]:
    """Returns everything that was found, as JSON has it."""
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
    """Returns a line for each file that is named, and one for the rest."""
    more = found.count - len(found.examples)
    named = [f"  {kind:<9} {printable(path)}" for path, kind in found.examples]
    return [*named, f"  and {more:,} more"] if more > 0 else named


def lines(job: str, found: Verification) -> Sequence[str]:
    """Says what was found, the result first."""
    damages = "; ".join(map(str, found.damages))
    if damages and found.fixed is None:
        return [f"The table was not compared: {damages}."]
    compared = f"{counted(found.files, found.unit)} compared with a table of {counted(found.rows, 'row')}"
    if found.wrong:
        said = [f"{compared}: {found.kinds}.", *examples(found)]
    else:
        unknown = found.failing or found.unproven or found.pathless or not found.is_proven
        said = [f"{compared}: {'no differences in these' if unknown else 'no differences'}."]
    if found.failing:
        said.append(f"Failed, waiting or held back: {found.failing:,}. See: volstream list failures --job {job}")
    if found.pathless:
        said.append(
            f"{counted(found.pathless, 'row')} without the path of a file, written by another writer: delete them with SQL."
        )
    if found.commits and (found.count or found.appends):
        named = ", ".join(f"{commit.version} ({commit.operation})" for commit in found.commits[:5])
        others = f" and {len(found.commits) - 5} more" if len(found.commits) > 5 else ""
        said.append(f"Other writers changed rows in {counted(len(found.commits), 'version')}: {named}{others}.")
        if any(commit.unseen for commit in found.commits):
            said.append("Some of them dropped columns, or files that show which rows they changed have been deleted.")
    if found.seen_from is not None:
        said.append(f"What other writers changed before version {found.seen_from} is no longer known: the log was cleaned up.")
    if (made := found.outputs) is not None:
        said.append(f"{counted(made.count, 'output')} compared with their volume.")
        if made.unnamed:
            named = ", ".join(map(printable, made.examples[:5])) + (" ..." if made.unnamed > 5 else "")
            said.append(f"The job's folder there also has {counted(made.unnamed, 'file')} that no row names: {named}.")
    if found.unproven:
        said.append(f"{counted(found.unproven, found.unit)} without rows: the function may have returned none.")
    if found.waiting:
        said.append(f"Not compared: {counted(found.waiting, 'file')} that the next run processes.")
    if damages:
        said.append(f"Removed from the table, because they were damaged: {damages}.")
    if found.fixed is not None and found.count:
        said.append(f"Repaired: {found.fixed:,} of {found.count:,}.")
    return said
