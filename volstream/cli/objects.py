"""``list``, ``describe`` and ``drop``: what there is. No JVM is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from volstream.catalog.failures import ACTIVE
from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.errors import VolstreamError
from volstream.model.objects import Connection, Job, Stream, Volume
from volstream.model.work import FailureState
from volstream.session import Session

#: Kind -> the columns that a list shows; JSON has all.
_COLUMNS: Mapping[str, Sequence[str]] = {
    "connections": ("name", "type", "region", "endpoint", "comment"),
    "volumes": ("name", "location", "queue_type", "reconciled_on", "comment"),
    "streams": ("name", "source_name", "mode", "offset", "initial", "comment"),
    "jobs": ("name", "function", "into", "trigger", "state", "last_outcome"),
    "batches": (
        "id", "job", "state", "files", "removals", "moves", "succeeded", "failed", "rows", "seconds", "created_on",
    ),
    "failures": ("job", "path", "state", "kind", "attempts", "next", "why", "remedy"),
    "rejected": ("volume", "subject", "reason", "count", "last_seen"),
}  # fmt: skip

_STATES = [state.value for state in ACTIVE]

_KINDS = ("connection", "volume", "stream", "job")


@click.command("list")
@click.argument("kind", type=click.Choice([*_COLUMNS]))
@click.option("--job", metavar="NAME", help="Batches or failures of this job only.")
@click.option(
    "--state", "states", type=click.Choice(_STATES), multiple=True, help="Failures in this state only; may be repeated."
)
@click.option("--volume", metavar="NAME", help="Rejected messages of this volume only.")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="Batches, failures or rejected messages."
)
@common
def list_command(
    session: Session, output: Output, kind: str, job: str | None, states: tuple[str, ...], volume: str | None, limit: int
) -> None:  # fmt: skip
    """List what there is of a KIND."""
    if kind == "failures":
        rows = _failures(session, job, [FailureState(state) for state in states] or ACTIVE, limit)
    else:
        rows = _rows(session, kind, job, volume, limit)
    output.table(rows, _COLUMNS[kind], f"No {kind}.")


@click.command("describe")
@click.argument("kind", type=click.Choice([*_KINDS, "batch"]))
@click.argument("name")
@common
def describe_command(session: Session, output: Output, kind: str, name: str) -> None:
    """Show everything about one object."""
    output.details(_described(session, kind, name))


@click.command("drop")
@click.argument("kind", type=click.Choice([*_KINDS]))
@click.argument("name")
@click.option("--if-exists", is_flag=True, help="Do nothing where there is none.")
@common
def drop_command(session: Session, output: Output, kind: str, name: str, if_exists: bool) -> None:
    """Drop an object. Files and result tables stay."""
    dropped = getattr(session, f"{kind}s").drop(name, if_exists=if_exists)
    text = f"The {kind} {name} is dropped." if dropped else f"There is no {kind} {name}."
    output.result({"kind": kind, "name": name, "dropped": dropped}, text)


def _rows(session: Session, kind: str, job: str | None, volume: str | None, limit: int) -> list[dict[str, Any]]:
    match kind:
        case "batches":
            job_names = {one.id: str(one.name) for one in session.jobs.list()}
            found = session.batches.list(job, limit=limit)
            return [{**_values(batch), "job": job_names.get(batch.job_id)} for batch in found]
        case "rejected":
            volume_names = {one.id: str(one.name) for one in session.volumes.list()}
            volume_id = session.volumes.get(volume).id if volume else None
            rejected = session.catalog.refreshes.rejected(volume_id, limit)
            return [{**_values(one), "volume": volume_names.get(one.volume_id)} for one in rejected]
        case _:
            return [_shown(one) for one in getattr(session, kind).list()]


def _failures(session: Session, job: str | None, states: Sequence[FailureState], limit: int) -> list[dict[str, Any]]:
    from volstream.jobs.advice import remedy, what_next

    jobs = {one.id: one for one in session.jobs.list()}
    volumes = {one.id: str(one.name) for one in session.volumes.list()}
    of_stream = {one.id: volumes.get(one.source_id) for one in session.streams.list()}
    now = datetime.now(UTC)
    return [
        {
            **_values(one), "job": str(jobs[one.job_id].name),
            "next": what_next(one, jobs[one.job_id], now),
            "why": one.message.strip().partition("\n")[0],
            "remedy": remedy(one, jobs[one.job_id], of_stream.get(jobs[one.job_id].stream_id)),
        }
        for one in session.jobs.failures(job, states=states, limit=limit)
        if one.job_id in jobs
    ]  # fmt: skip


def _described(session: Session, kind: str, name: str) -> dict[str, Any]:
    if kind == "batch":
        batch = session.batches.get(name)
        plan = session.catalog.consumptions.plan(batch.plan_id)
        job = session.catalog.jobs.by_id(batch.job_id)
        return {
            **_values(batch),
            "files_per_second": batch.rate,
            "job": str(job.name) if job else None,
            "failures": {failure.path: failure.message for failure in session.batches.failures(name)},
            "plan": None if plan is None else _values(plan),
        }
    one = getattr(session, f"{kind}s").get(name)
    return {**_shown(one), **_more(session, one)}


def _more(session: Session, one: Connection | Volume | Stream | Job) -> dict[str, Any]:
    """What an object's definition does not say."""
    match one:
        case Volume():
            last = session.catalog.refreshes.last(one.id)
            return {
                "files": session.catalog.refreshes.file_count(one.id),
                "rejected": session.catalog.refreshes.rejected_count(one.id),
                "last_refresh": None if last is None else _values(last),
                "streams": [str(stream.name) for stream in session.catalog.streams.list(source_id=one.id)],
            }
        case Stream():
            job = session.catalog.jobs.first(stream_id=one.id)
            try:
                unread: bool | None = session.reader.has_data(one)
                stale = None
            except VolstreamError as error:
                unread, stale = None, error.message
            return {"has_data": unread, "stale": stale, "job": str(job.name) if job else None}
        case Job():
            stream = session.catalog.streams.by_id(one.stream_id)
            return {
                "stream": str(stream.name) if stream else None,
                "failures": session.catalog.failures.counts(one.id),
                "next_retry": session.catalog.failures.next_due(one.id),
                "totals": session.catalog.consumptions.totals(one.id),
                "code": _code(one),
            }
        case _:
            return {}


def _code(job: Job) -> str:
    from volstream.jobs.functions import find

    try:
        same = find(job.function, job.search_path).fingerprint == job.fingerprint
    except VolstreamError as error:
        return error.message
    if same:
        return "as when the job was made"
    return f"changed since; new files run with it, old results stay until: volstream replay {job.name}"


def _shown(one: Any) -> dict[str, Any]:
    values = _values(one)
    if isinstance(one, Job):
        trigger = one.trigger
        detail = trigger.cron or (f"{trigger.every:g}s" if trigger.every else "")
        values["trigger"] = f"{trigger.kind} {detail}".strip()
    return values


def _values(one: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(one, field.name)) for field in dataclasses.fields(one)}


def _plain(value: Any) -> Any:
    from volstream.model.names import Name

    return str(value) if isinstance(value, Name) else value
