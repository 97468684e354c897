"""Tables of a home: which there are, and columns, rows and history of one. No Spark."""

from __future__ import annotations

import base64
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import DynamicJob, Job, SourceKind
from volstream.base.model.names import Name
from volstream.base.model.pictures import media_type
from volstream.errors import NotFoundError, VolstreamError
from volstream.functions.types.convert import python_values
from volstream.ops.inspection.details import arrived_rows
from volstream.tables.delta import folders
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.rows import sample

if TYPE_CHECKING:
    from volstream.jobs.home import Home

#: Commits of a table's history that are shown.
_COMMITS = 20

#: Rows of a sample, and characters of a value in it.
_ROWS, _MAX_VALUE = 20, 300

#: Bytes of a picture in a row that is shown; of a larger one, as of other binary values, only the size.
_MAX_PICTURE = 16 << 10

#: Tables that are listed.
_MAX_TABLES = 1000


#: What is shown of a table whose log was not read.
_NO_EXTENT = dict.fromkeys(("rows", "bytes", "written_on", "note"))


def table_names(home: Home, limit: int = _MAX_TABLES) -> list[Name]:
    """Returns the names of the home's tables: those of jobs and sources, and others in the warehouse. Opens none."""
    catalog = home.catalog
    filled = {*(job.into for job in catalog.jobs.list()), *(source.name for source in catalog.sources.list())}
    return sorted({*filled, *catalog.tails.list(), *_found(home)})[:limit]


def list_tables(home: Home, limit: int = _MAX_TABLES, *, extents: bool = True) -> list[dict[str, Any]]:
    """Returns the tables of the home by name, with what fills them and how large they are.

    Args:
        extents: read each table's log for its size, which in an object store takes a while.
    """
    jobs = {job.into: job for job in home.catalog.jobs.list()}
    sources = {source.name: source for source in home.catalog.sources.list()}
    return [
        {
            "table": str(name),
            "job": str(jobs[name].name) if name in jobs else None,
            "filled_by": _filled_by(jobs.get(name)) or (f"source, {sources[name].kind}" if name in sources else None),
            **(_extent(DeltaLog(folders.table_location(home.warehouse, name))) if extents else _NO_EXTENT),
        }
        for name in table_names(home, limit)
    ]


def _extent(log: DeltaLog) -> dict[str, Any]:
    """Returns the rows, the bytes and the last write of a table; ``note``: why they are not known."""
    try:
        extent = log.extent()
    except VolstreamError as error:
        return {**_NO_EXTENT, "note": error.message}
    return {**_NO_EXTENT, "note": "not created yet"} if extent is None else {**vars(extent), "note": None}


def described_table(home: Home, text: str) -> dict[str, Any]:
    """Returns columns, size, newest commits, a few rows, and the readers of a table.

    Raises:
        NotFoundError: there is no such table.
        DependencyError: its log cannot be read.
    """
    name = Name.parse(text)
    location = folders.table_location(home.warehouse, name)
    log = DeltaLog(location)
    version, schema = log.latest_version(), log.schema()
    job = next((job for job in home.catalog.jobs.list() if job.into == name), None)
    if version is None or schema is None:
        if job is not None:
            raise NotFoundError(
                f"The table {name} does not exist yet.", f"The job {job.name} creates it with its first batch."
            )
        near = folders.like_one(home.warehouse, name)
        raise NotFoundError(f"There is no table {name}.", near.rstrip())
    streams = [stream for stream in home.catalog.streams.list() if stream.source_kind is SourceKind.TABLE]
    commits = log.commits_after(max(-1, version - _COMMITS))
    return {
        "table": str(name),
        "location": location,
        "version": version,
        **_extent(log),
        "not_committed": _arrived(home, name),
        "job": None if job is None else str(job.name),
        "primary_key": list(schema.primary_key),
        "columns": [{"column": column, "type": schema.sql_type(column)} for column in schema.types],
        "streams": [str(stream.name) for stream in streams if stream.source_name == name],
        "history": [
            {
                "version": commit.version,
                "time": commit.timestamp,
                "operation": commit.operation,
                "rows": commit.rows,
                "batch": commit.metadata.get("batch"),
            }
            for commit in reversed(commits)
        ],
        "sample": sample_of(home, location, version),
    }


def sample_of(home: Home, location: str, version: int, equals: tuple[str, str] | None = None) -> dict[str, Any]:
    """Returns ``columns`` and a few ``rows`` of a table, with long values cut; an ``error`` if they cannot be read.

    Args:
        equals: a column and the text that it must have.
    """
    try:
        rows = sample(location, version, _ROWS, equals, home.gateway.session)
    except VolstreamError as error:
        return {"columns": [], "rows": [], "error": error.message}
    return {"columns": rows.column_names, "rows": _cut(rows), "error": None}


def _cut(rows: pa.Table) -> list[dict[str, Any]]:
    columns = zip(*(python_values(column) for column in rows.columns), strict=True)
    return [{name: _cell(value) for name, value in zip(rows.column_names, row, strict=True)} for row in columns]


class Thumbnail(str):
    """A small picture of a row, as a URL with its content."""


def _cell(value: Any) -> Any:
    if isinstance(value, bytes) and len(value) <= _MAX_PICTURE and (kind := media_type(value)) is not None:
        return Thumbnail(f"data:{kind};base64,{base64.b64encode(value).decode()}")
    if isinstance(value, list | dict | tuple):
        text = str(value)
        return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ..."
    if isinstance(value, str) and len(value) > _MAX_VALUE:
        return cut(value[:_MAX_VALUE], len(value))
    return sized(len(value)) if isinstance(value, bytes) else value


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
    return [
        *islice(folders.own_tables(home.warehouse), _MAX_TABLES),
        *home.catalog.links.list(),
    ]
