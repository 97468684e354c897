"""``init``, ``status``, ``engine`` and ``daemon``: a home as a whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import FileJob
from volstream.base.model.text import counted
from volstream.base.model.units import format_age
from volstream.cli.options import DURATION, common, creating_home
from volstream.cli.output import Output, done_of
from volstream.errors import JavaError, VolstreamError

if TYPE_CHECKING:
    from volstream.api.session import Session

_TOML = """\
# Settings of this home; each can also be set by an environment variable VOLSTREAM_<NAME>.
# Durations read 30s, 5m, 1h; sizes 64MiB, 2GiB.
#
# catalog_url = "postgresql://user@host/database"   # default: SQLite in this folder
# warehouse = "/data/volstream"                     # default: the folder warehouse beside this file; or s3://bucket/prefix
# driver_memory = "2GiB"
# http_port = 8642
# listing_seconds = "1h"
# time_zone = "UTC"
#
# [warehouse_options]                               # of a warehouse in S3
# AWS_REGION = "eu-west-1"
#
# Overrides the settings above for volstream daemon --virtual-cluster GPU.
# [virtual_clusters.GPU]
# spark_remote = "sc://gpu.example.com:15002"
#
# on_failure = ["ops"]                              # also on_pause, on_stale, on_problem; try it: volstream alert test ops
# [receivers.ops]
# webhook = "${env:SLACK_WEBHOOK}"                  # or command = "..."
#
# [credentials.my_connection]                       # of a connection created with --credentials static
# access_key_id = "..."
# access_key_secret = "..."
"""


#: So many jobs at most are looked at for rows made by older code.
_FEW_JOBS = 50

#: So many objects of a kind are shown, unless all are asked for.
_SHOWN = 50

#: What a listing corrected in the directory, in the order of ``status``.
_LISTED = ("added_by_listing", "removed_by_listing", "late_events")


@click.command("init")
@creating_home
def init_command(session: Session, output: Output) -> None:
    """Create the home with its catalog and settings file, check Java, and fetch the engine's jars once."""
    from volstream.base.privacy import make_directory
    from volstream.spark.jvm import install

    settings = session.home.settings
    make_directory(settings.home)
    file = settings.home / "volstream.toml"
    if not file.exists():
        file.touch(mode=0o600)  # it may contain keys later
        file.write_text(_TOML, encoding="utf-8")
    session.volumes.list()  # creates the catalog
    missing = ""
    try:
        install.find_java()
        install.fetch_missing(settings, output.message)
    except JavaError as error:
        missing = str(error)
    value = {"home": str(settings.home), "catalog": session.home.catalog.database.describe(), "engine": missing or "ready"}
    text = f"Home {settings.home} is ready."
    if missing:
        text += f"\nThe engine is not ready: {missing} Commands that run no SQL and no functions work without it."
    text += "\nNext: volstream create-volume NAME DIRECTORY"
    output.result(value, text)


@click.command("status")
@click.option("--all", "everything", is_flag=True, help=f"Show all objects, not only {_SHOWN} of each kind.")
@click.option(
    "--watch", "every", type=DURATION, is_flag=False, flag_value="2s", metavar="2s", help="Show it again and again, until Ctrl-C."
)
@common
def status_command(session: Session, output: Output, everything: bool, every: float | None) -> None:
    """Show engine, volumes, streams and jobs, and what needs attention. Starts nothing."""
    from volstream.ops.inspection.status import status

    overview = status(session.home)
    with suppress(KeyboardInterrupt) if every is not None else nullcontext():
        while True:
            _show_status(session, output, overview, everything)
            if every is None:
                return
            time.sleep(every)
            try:
                overview = status(session.home)
            except VolstreamError as error:  # the catalog may be back at the next look
                output.message(str(error))
                continue
            if not output.as_json:
                click.clear()


def _show_status(session: Session, output: Output, overview: Mapping[str, Any], everything: bool) -> None:
    from volstream.ops.inspection.status import problems
    from volstream.spark.jvm.address import RemoteAddress

    wrong = problems(overview, {})
    if output.as_json:
        output.result({**overview, "problems": wrong}, None)
        return
    engine = overview["engine"]
    if session.home.settings.spark_remote:
        running = f"elsewhere: {RemoteAddress(session.home.settings.spark_remote).server}"
    elif engine:
        running = f"{engine.state}, {engine.kind}, pid {engine.pid}, up {format_age(engine.up_seconds)}"
    else:
        running = "not running"
    output.details({"home": overview["home"], "engine": running})
    troubled = {(problem.kind, problem.name) for problem in wrong}

    def show(kind: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        shown = rows
        if len(rows) > _SHOWN and not everything:
            shown = sorted(rows, key=lambda row: (kind, row[kind]) not in troubled)[:_SHOWN]
        output.table(shown, [kind, *columns], f"No {kind}s.", words=True, fit=True)
        if len(shown) < len(rows):
            output.part(f"... and {counted(len(rows) - len(shown), f'more {kind}')}: volstream status --all")

    show("volume", ["files", "note", "last_listing", "queue", "rejected", *_LISTED], overview["volumes"])
    show("stream", ["source", "has_data", "unread", "offset", "note"], overview["streams"])
    jobs = [
        {**job, "state": "running" if job["running"] else job["state"], "done": done_of(job), "trigger": job["schedule"]}
        for job in overview["jobs"]
    ]
    show("job", ["state", "done", "failed", "waiting_since", "last_run", "outcome", "skipped", "trigger"], jobs)
    if overview["tables"]:  # others have no rows that arrive one by one
        show("table", ["not_committed", "note"], overview["tables"])
    lines = [*(problem.line for problem in wrong), *_older_code(session, len(overview["jobs"]))]
    if lines:
        output.part("\n".join(["Needs attention:", *lines]))


def _older_code(session: Session, number: int) -> list[str]:
    """Returns which jobs have rows made by older code, of few jobs: for one whose code has changed, its table is read."""
    from volstream.jobs.rules.version import may_have_older

    home = session.home
    if number > _FEW_JOBS or "://" in home.warehouse:
        return []
    jobs = [job for job in home.catalog.jobs.list() if isinstance(job, FileJob)]
    lines = []
    for job in jobs:
        with suppress(VolstreamError):  # another line says what is wrong
            if may_have_older(home.catalog, home.settings, job):
                from volstream.jobs.rules.code import describe_code, older  # they import Arrow

                found = older(home, job)
                said = None if found is None else describe_code(job, found)
                lines += [] if said is None else [f"▲ job {job.name}: {said}"]
    return lines
