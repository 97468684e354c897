"""All details of an object, for people and programs: its definition, and related information. Starts no JVM."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from volstream.base import privacy
from volstream.base.definitions import (
    Connection,
    DynamicJob,
    FileJob,
    Function,
    Job,
    QueueType,
    Source,
    SourceDefinition,
    SourceKind,
    Stream,
    Volume,
)
from volstream.base.definitions.forms import DURATION, SIZE
from volstream.base.definitions.options import keys
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, Failure
from volstream.catalog.alerts import Condition, ConditionKind
from volstream.errors import VolstreamError
from volstream.files.volumes import routing
from volstream.files.volumes.access import policies
from volstream.jobs.runs.lease import LastRuns, runs_of
from volstream.ops.inspection.runs import next_retry, outcome

if TYPE_CHECKING:
    from volstream.home import Home

Object = Connection | Volume | Stream | Job | Function | Source

#: Options whose stored values are not what people write.
_WRITTEN = {name: key for kind in (Volume, FileJob) for name, key in keys(kind).items() if key.form in (DURATION, SIZE)}


def values(definition: Any) -> dict[str, Any]:
    """Returns the attributes of a definition, with names as text."""
    attributes = {
        field.name: getattr(definition, field.name) for field in dataclasses.fields(definition) if field.name != "pickled"
    }
    if isinstance(definition, Job):  # all jobs have the same attributes here, so that programs need not tell them apart
        query = attributes.pop("query", None)
        every = {field.name: None for field in dataclasses.fields(FileJob) if field.name != "pickled"}
        attributes = {**every, "statement": query, "dynamic": isinstance(definition, DynamicJob), **attributes}
    return {key: _plain(value) for key, value in attributes.items()}


def as_written(key: str, value: Any) -> Any:
    """Returns an attribute's value as people write it: durations and sizes with their units, others as they are."""
    return _WRITTEN[key].write(value) if key in _WRITTEN else value


def _plain(value: Any) -> Any:
    if isinstance(value, Name):
        return str(value)
    return round(value, 3) if isinstance(value, float) else value


def shown(home: Home, objects: Sequence[Object]) -> list[dict[str, Any]]:
    """Returns the attributes of objects that a list shows."""
    jobs = [item for item in objects if isinstance(item, Job)]
    open_runs = runs_of(home.catalog, jobs) if jobs else None
    unread = home.catalog.conditions.of(ConditionKind.SOURCE) if any(isinstance(item, Source) for item in objects) else {}
    return [_shown(home, item, open_runs, unread) for item in objects]


def _shown(home: Home, item: Object, open_runs: LastRuns | None, unread: Mapping[str, Condition]) -> dict[str, Any]:
    attributes = values(item)
    match item:
        case Job():
            assert open_runs is not None, "there is a job"
            attributes["trigger"] = str(item.trigger)
            attributes["last_outcome"] = outcome(item, open_runs)
        case Stream():
            attributes |= _state(home, item)
        case Source():
            wrong = unread.get(item.id)
            attributes |= {"error": wrong and wrong.cause, "error_on": wrong and wrong.since}
            attributes["retention"] = keys(SourceDefinition)["retention_policy"].write(attributes.pop("retention_policy"))
            attributes["versions"] = ", ".join(sorted(attributes["options"].get("versions", {}), key=int)) or None
        case _:
            pass
    return attributes


def described(home: Home, item: Object) -> dict[str, Any]:
    """Returns all details of an object."""
    return {**shown(home, [item])[0], **_more(home, item)}


def described_batch(home: Home, batch: Batch, failures: Iterable[Failure]) -> dict[str, Any]:
    """Returns all details of a batch, with the messages of its failed files by path."""
    plan = home.catalog.reports.plan(batch.plan_id)
    job = home.catalog.jobs.by_id(batch.job_id) if batch.job_id else None
    return {
        **values(batch),
        "files_per_second": batch.rate,
        "job": str(job.name) if job else None,
        "failures": {failure.path: failure.message for failure in failures},
        "plan": None if plan is None else values(plan),
    }


def _events_url(home: Home, volume: Volume) -> str:
    """Returns where senders post events of a volume, with their token."""
    settings = home.settings
    token = routing.token_of(privacy.token_of(settings), volume)
    return f"{privacy.address_of(settings, settings.http_port)}/volumes/{quote(str(volume.name))}/events?token={token}"


def _state(home: Home, stream: Stream) -> dict[str, Any]:
    try:
        home.reader.pin(stream)
        unread: bool | None = home.reader.has_data(stream)
        return {"has_data": unread, "stale": None, "stale_after": home.reader.stale_after(stream)}
    except VolstreamError as error:
        return {"has_data": None, "stale": error.message, "stale_after": None}


def _more(home: Home, item: Object) -> dict[str, Any]:
    catalog = home.catalog
    match item:
        case Connection():
            users = catalog.volumes.list(connection_id=item.id)
            return {"volumes": [str(volume.name) for volume in users], **policies(item, catalog)}
        case Volume():
            last = catalog.refreshes.last(item.id)
            return {
                **({"events_url": _events_url(home, item)} if item.queue_type is QueueType.WEBHOOK else {}),
                "files": catalog.refreshes.file_count(item.id),
                "rejected": catalog.refreshes.rejected_count(item.id),
                "completeness": next(map(values, catalog.refreshes.reconciles(item.id)), None),
                "last_refresh": None if last is None else values(last),
                "streams": [str(stream.name) for stream in catalog.streams.list(source_id=item.id)],
            }
        case Stream():
            job = catalog.job_of(item)
            if item.source_kind is SourceKind.TABLE:
                return {"job": str(job.name) if job else None}
            behind = home.reader.lag(item) or (None, None)
            return {"unread": behind[0], "unread_bytes": behind[1], "job": str(job.name) if job else None}
        case Job():
            streams = [str(stream.name) for stream in map(catalog.streams.by_id, item.stream_ids) if stream]
            return {
                "stream": next(iter(streams), None),
                "streams": streams,
                "failures": catalog.failures.counts(item.id),
                "next_retry": next_retry(home, item),
                "totals": catalog.reports.totals(item.id),
                "counted": catalog.reports.counted(item.id),
                **described_code(home, item),
                "source": _source(item),
            }
        case Function():
            return {"source": _source(item)}
        case Source():
            return _rows(home, item)
        case _:
            return {}


def volume_of(home: Home, job: Job) -> str | None:
    """Returns the name of the volume that a job reads, if it still exists."""
    volume = home.catalog.volume_of(job)
    return None if volume is None else str(volume.name)


def arrived_rows(home: Home, name: Name) -> int:
    """Returns about how many rows have arrived for a table and are not committed. Raises DependencyError."""
    from volstream.tables.delta import places  # late, here and below: most commands need no tables
    from volstream.tables.tails.tail import TailedTable

    tailed = TailedTable.open(places.table_location(home.warehouse, name))
    return 0 if tailed is None else sum(file.rows for file in tailed.tail.files(tailed.moved))


def _rows(home: Home, source: Source) -> dict[str, Any]:
    """Returns how many rows a source's table has, and how many more have arrived."""
    from volstream.tables.delta import places
    from volstream.tables.delta.opened import OpenTable

    location = places.table_location(home.warehouse, source.name)
    table = OpenTable.newest(location)
    readers = [str(stream.name) for stream in home.catalog.streams.list(source_id=str(source.name))]
    return {
        "location": location,
        "rows": None if table is None else table.rows,
        "not_committed": arrived_rows(home, source.name),
        "streams": readers,
    }


def described_code(home: Home, job: Job) -> dict[str, Any]:
    """Returns ``code``, a sentence on which code made the job's rows, and ``code_versions``: the versions, the newest first, with
    the number of files that have their rows. Both are None if it runs a statement; the versions, if they cannot be counted."""
    from volstream.jobs.rules.code import counts, said_of_code  # late: most commands need no tables

    if not isinstance(job, FileJob):
        return {"code": None, "code_versions": None}
    try:
        found = counts(home, job, exact=False)
    except VolstreamError as error:
        return {"code": error.message, "code_versions": None}
    where = "" if job.pickled is None else "in the catalog, because the function has no file; "
    said = "not used yet" if found is None else said_of_code(job, found) or "made all rows"
    files, current = ({}, None) if found is None else (found.files, found.current)
    versions = [
        {
            "number": one.number,
            "files": files.get(one.number, 0),
            "current": one.number == current,
            "made_on": one.made_on,
            "made_by": one.made_by,
            "function": one.function,
        }
        for one in reversed(home.catalog.codes.versions(job.id) if found is None else found.versions)
    ]
    return {"code": where + said, "code_versions": versions}


def _source(definition: Job | Function) -> str | None:
    """Returns the source of a function that has no file; None: it has one."""
    from volstream.functions.pickled import source_of

    if not isinstance(definition, FileJob | Function) or definition.pickled is None:
        return None
    try:
        return source_of(definition.pickled).text or "(unknown: Python read the program from standard input)"
    except VolstreamError as error:
        return error.message
