"""``init``, ``status``, ``engine`` and ``daemon``: a home as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from volstream.cli.options import common, founding
from volstream.cli.output import Output, age
from volstream.engine.control import engine_status
from volstream.errors import JavaError, VolstreamError
from volstream.inspection.details import arrived_rows
from volstream.lifecycle.privacy import make_directory
from volstream.model.names import Name
from volstream.model.objects import QueueType
from volstream.session import Session

T = TypeVar("T")

_TOML = """\
# Settings of this home; every one can also be given as an environment variable VOLSTREAM_<NAME>.
# Durations read 30s, 5m, 1h; sizes 64MiB, 2GiB.
#
# catalog_url = "postgresql://user@host/database"   # default: SQLite in this folder
# warehouse = "/data/volstream"                     # default: the folder warehouse beside this file; or s3://bucket/prefix
# driver_memory = "2GiB"
# http_port = 8642
# reconcile_seconds = "1h"
# time_zone = "UTC"
#
# [warehouse_options]                               # of a warehouse in S3
# AWS_REGION = "eu-west-1"
#
# Overrides the settings above for volstream daemon --virtual-cluster GPU.
# [virtual_clusters.GPU]
# spark_remote = "sc://gpu.example.com:15002"
#
# [credentials.my_connection]                       # of a connection created with --credentials static
# access_key_id = "..."
# access_key_secret = "..."
"""


@click.command("init")
@founding
def init_command(session: Session, output: Output) -> None:
    """Create the home with its catalog and settings file, check Java, and fetch the engine's jars once."""
    from volstream.jvm import connectors, java

    settings = session.home.settings
    make_directory(settings.home)
    file = settings.home / "volstream.toml"
    if not file.exists():
        file.touch(mode=0o600)  # it may contain keys later
        file.write_text(_TOML, encoding="utf-8")
    session.volumes.list()  # creates the catalog
    missing = ""
    try:
        connectors.fetch_missing(settings, java.find(), output.message)
    except JavaError as error:
        missing = str(error)
    value = {
        "home": str(settings.home),
        "catalog": session.home.catalog.database.describe(),
        "engine": missing or "ready",
    }
    text = f"Home {settings.home} is ready."
    if missing:
        text += f"\nThe engine is not: {missing} What needs no SQL and no function works without it."
    text += "\nNext: volstream create-volume NAME DIRECTORY"
    output.result(value, text)


@click.command("status")
@common
def status_command(session: Session, output: Output) -> None:
    """Show engine, volumes, streams and jobs. Starts nothing."""
    status = engine_status(session.home.settings)
    home = str(session.home.settings.home)
    volumes = [_volume(session, volume) for volume in session.volumes.list()]
    streams = [_stream(session, stream) for stream in session.streams.list()]
    jobs = [_job(session, job) for job in session.jobs.list()]
    tables = [_table(session, name, reason) for name, reason in session.home.catalog.tails.troubles().items()]
    if output.as_json:
        found = {"home": home, "engine": status, "volumes": volumes, "streams": streams, "jobs": jobs, "tables": tables}
        output.result(found, "")
        return
    running = (
        f"{status.state}, {status.kind}, pid {status.pid}, up {age(status.up_seconds)}" if status else "not running"
    )
    output.details({"home": home, "engine": running})
    output.table(
        volumes,
        ["volume", "files", "queue", "reconciled", "missing", "phantom", "late", "rejected", "note"],
        "No volumes.",
    )
    output.table(streams, ["stream", "source", "offset", "has_data", "unread", "note"], "No streams.")
    output.table(jobs, ["job", "state", "trigger", "waiting", "failed", "last run", "outcome"], "No jobs.")
    if tables:  # others have no rows that arrive one by one
        output.table(tables, ["table", "not_committed", "note"], "")


def _volume(session: Session, volume: Any) -> dict[str, Any]:
    found = next(iter(session.home.catalog.refreshes.reconciles(volume.id)), None)
    # Without a queue, listings find all changes, and none of them was missed.
    missed = found if volume.queue_type not in (QueueType.NONE, QueueType.POLL) else None
    return {
        "volume": str(volume.name),
        "location": volume.location,
        "queue": volume.queue_type,
        "files": session.home.catalog.refreshes.file_count(volume.id),
        "reconciled": volume.reconciled_on,
        "listed": found and found.listed,
        "missing": missed and missed.missing,
        "changed": missed and missed.changed,
        "phantom": missed and missed.phantom,
        "late": missed and missed.late,
        "rejected": session.home.catalog.refreshes.rejected_count(volume.id),
        "held_removals": volume.held_removals,
        "note": volume.trouble or (f"{volume.held_removals} removals are held" if volume.held_removals else None),
    }


def _stream(session: Session, stream: Any) -> dict[str, Any]:
    unread, note = _or_note(lambda: session.home.reader.has_data(stream))
    rows, size = (session.home.reader.lag(stream) or (None, None)) if unread else (0, 0)
    return {
        "stream": str(stream.name),
        "source": f"{stream.source_kind} {stream.source_name}",
        "offset": stream.offset,
        "unread": rows,
        "unread_bytes": size,
        "has_data": unread,
        "note": note,
    }


def _job(session: Session, job: Any) -> dict[str, Any]:
    counts = session.home.catalog.failures.counts(job.id)
    return {
        "job": str(job.name),
        "state": job.state,
        "reason": job.state_reason,
        "trigger": job.trigger.kind,
        "waiting": session.home.catalog.consumptions.waiting(job.id).files,
        "failed": sum(counts.values()),
        "failures": counts,
        "last run": job.last_started,
        "outcome": job.last_outcome,
        "next retry": session.home.catalog.failures.next_due(job.id),
    }


def _table(session: Session, name: Name, trouble: str | None) -> dict[str, Any]:
    arrived, note = _or_note(lambda: arrived_rows(session.home, name))
    return {"table": str(name), "not_committed": arrived, "note": trouble or note}


def _or_note(question: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return question(), None
    except VolstreamError as error:
        return None, error.message
