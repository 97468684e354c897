"""``create-*`` and ``alter-job``: definitions. No JVM is started."""

from __future__ import annotations

from typing import Any

import click

from volstream.catalog.failures import Wanted
from volstream.cli.options import DURATION, NUMBER, SIZE, TIMESTAMP, choice, common, existing, founding
from volstream.cli.output import Output
from volstream.model.objects import JobState, Mode, OnMove, QueueType, SourceKind, Stream, Trigger, TriggerKind, Write
from volstream.model.text import counted
from volstream.model.work import LASTING, FailureState
from volstream.session import Session


@click.command("create-connection")
@click.argument("name")
@click.option("--type", "type_", required=True, type=click.Choice(["local", "oss", "s3"]))
@click.option("--region")
@click.option("--endpoint", metavar="URL")
@click.option("--role-arn", metavar="ARN")
@click.option("--credentials", metavar="env|profile:NAME|static", default="env", show_default=True)
@click.option("--comment")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
@founding
def create_connection_command(session: Session, output: Output, name: str, type_: str, **options: Any) -> None:
    """Define how to reach a store, and with which credentials.

    Keys are never given here: they come from the environment, a profile, or volstream.toml.
    """
    connection = session.connections.create(name, type_, **options)
    output.result(connection, f"Connection {connection.name}, external id {connection.external_id}.")


@click.command("create-volume")
@click.argument("name")
@click.argument("location", type=click.Path())
@click.option("--connection", metavar="NAME")
@click.option("--queue-type", type=choice(QueueType), help="Where change events come from; the default suits LOCATION.")
@click.option("--queue-name")
@click.option(
    "--virtual-cluster", default="DEFAULT", show_default=True, help="The cluster whose daemon keeps the volume."
)
@click.option("--recursive/--no-recursive", default=True, show_default=True)
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Take only files that match, such as '*.jpg'; may be repeated.",
)
@click.option(
    "--ignore",
    "ignores",
    multiple=True,
    metavar="GLOB",
    help="Leave these out; default: .* *~ *.tmp *.part *.crdownload",
)
@click.option(
    "--max-removals",
    metavar="50%|N|all",
    help="Removals of one listing beyond which they are held; default: half of 100 files or more, all of 10 or more.",
)
@click.option("--comment")
@click.option("--check/--no-check", default=True, help="Check bucket and queue first.", show_default=True)
@existing
@founding
def create_volume_command(session: Session, output: Output, name: str, location: str, **options: Any) -> None:
    """Make a directory, s3://bucket/prefix or oss://bucket/prefix a volume.

    Its files are kept as a table and can be streamed.
    """
    if not options["ignores"]:
        del options["ignores"]
    if options["queue_type"] is not None:
        options["queue_type"] = QueueType(options["queue_type"])
    volume = session.volumes.create(name, location, **options)
    output.result(volume, f"Volume {volume.name} at {volume.location} (queue: {volume.queue_type}).")


@click.command("alter-volume")
@click.argument("name")
@click.option("--connection", metavar="NAME")
@click.option("--queue-type", type=choice(QueueType))
@click.option("--queue-name")
@click.option("--virtual-cluster", help="The cluster whose daemon keeps the volume.")
@click.option("--recursive/--no-recursive", default=None)
@click.option(
    "--pattern", "patterns", multiple=True, metavar="GLOB", help="Replaces all earlier ones; may be repeated."
)
@click.option("--all-files", is_flag=True, help="Drop the patterns.")
@click.option("--ignore", "ignores", multiple=True, metavar="GLOB", help="Replaces all earlier ones; may be repeated.")
@click.option("--max-removals", metavar="LIMIT", help="Removals of one listing beyond which they are held.")
@click.option("--comment")
@click.option("--check/--no-check", default=True, help="Check bucket and queue first.", show_default=True)
@common
def alter_volume_command(
    session: Session,
    output: Output,
    name: str,
    patterns: tuple[str, ...],
    all_files: bool,
    ignores: tuple[str, ...],
    check: bool,
    **options: Any,
) -> None:
    """Change a volume. Its directory, streams and jobs stay.

    Files that new patterns exclude are removed by the next full listing, with their rows. Files they include are new.
    """
    if patterns and all_files:
        raise click.UsageError("--pattern and --all-files exclude each other.")
    changes = {key: value for key, value in options.items() if value is not None}
    if "queue_type" in changes:
        changes["queue_type"] = QueueType(changes["queue_type"])
    if patterns or all_files:
        changes["patterns"] = patterns
    if ignores:
        changes["ignores"] = ignores
    volume = session.volumes.alter(name, check=check, **changes)
    output.result(volume, f"Volume {volume.name} changed. To apply it now: volstream refresh {volume.name}.")


@click.command("create-stream")
@click.argument("name")
@click.option("--on-volume", "volume", metavar="VOLUME")
@click.option("--on-table", "table", metavar="TABLE")
@click.option("--mode", type=choice(Mode), default=Mode.STANDARD.value, show_default=True)
@click.option("--show-initial-rows", is_flag=True, help="Start with the files or rows present.")
@click.option("--at-version", type=NUMBER, metavar="N", help="Start after this version of the source.")
@click.option("--at-timestamp", type=TIMESTAMP, metavar="TIME", help="Start after this time.")
@click.option(
    "--identity",
    multiple=True,
    metavar="COLUMN",
    help="Columns that identify a table's rows; default: its primary key.",
)
@click.option("--comment")
@existing
@common
def create_stream_command(
    session: Session, output: Output, name: str, volume: str | None, table: str | None, mode: str, **options: Any
) -> None:
    """Create a cursor over the changes of a volume's files or a table's rows."""
    if (volume is None) == (table is None):
        raise click.UsageError("Give --on-volume or --on-table.")
    stream = session.streams.create(name, volume, table=table, mode=Mode(mode), **options)
    where = f"{stream.source_kind} {stream.source_name}"
    output.result(stream, f"Stream {stream.name} on {where}: {_start(session, stream)}.")


@click.command("create-job")
@click.argument("name")
@click.option("--stream", metavar="STREAM", help="The stream whose files are processed.")
@click.option(
    "--on-volume", "volume", metavar="VOLUME", help="Create a stream for the job that starts with the files present."
)
@click.option("--function", required=True, metavar="FILE.py:FUNC|pkg.mod:FUNC")
@click.option("--into", required=True, metavar="TABLE")
@click.option("--returns", metavar="DDL", help="Columns of the result: 'label STRING, score DOUBLE'.")
@click.option("--on-change", is_flag=True, help="Run as soon as files change.")
@click.option("--every", type=DURATION, metavar="30s", help="Run periodically.")
@click.option("--cron", metavar="'*/5 * * * *'", help="Run on a schedule.")
@click.option("--where", metavar="SQL", help='Take only files that satisfy this, such as "size < 1000000".')
@click.option("--write", type=choice(Write), default=Write.UPSERT.value, show_default=True)
@click.option(
    "--on-move",
    type=choice(OnMove),
    default=OnMove.RERUN.value,
    show_default=True,
    help="When a file moves inside the volume: run the function, or let its rows follow.",
)
@click.option("--retries", type=NUMBER, default=3, show_default=True)
@click.option(
    "--pause-after",
    type=NUMBER,
    default=3,
    show_default=True,
    help="Pause after so many batches without a success; 0: never.",
)
@click.option("--timeout", "timeout_seconds", type=DURATION, metavar="60s", help="Limit per file.")
@click.option("--isolate", is_flag=True, help="Run each file in a child process that can be killed.")
@click.option("--max-files", type=NUMBER, metavar="N", help="Most files of a batch.")
@click.option("--max-bytes", type=SIZE, metavar="1GiB", help="Most bytes of a batch.")
@click.option("--arg", "arguments", multiple=True, metavar="KEY=VALUE", help="Passed to the function by name, as text.")
@click.option("--comment")
@existing
@common
def create_job_command(
    session: Session, output: Output, name: str, function: str, into: str, write: str, on_move: str, **options: Any
) -> None:
    """Run a Python function on every file of a stream, and keep its results in a table."""
    options["trigger"] = _trigger(options.pop("on_change"), options.pop("every"), options.pop("cron"))
    options["arguments"] = parse_arguments(options["arguments"])
    job = session.jobs.create(name, function, into, write=Write(write), on_move=OnMove(on_move), **options)
    output.result(job, f"Job {job.name} -> table {job.into} ({job.returns}); runs {_says(job.trigger)}.")


@click.command("alter-job")
@click.argument("name")
@click.option(
    "--function", metavar="FILE.py:FUNC|pkg.mod:FUNC", help="New function, or the same to accept changed code."
)
@click.option("--returns", metavar="DDL")
@click.option("--on-change", is_flag=True)
@click.option("--every", type=DURATION, metavar="30s")
@click.option("--cron", metavar="LINE")
@click.option("--manual", is_flag=True, help="Run by run-job only.")
@click.option("--where", metavar="SQL")
@click.option("--on-move", type=choice(OnMove))
@click.option("--retries", type=NUMBER)
@click.option("--pause-after", type=NUMBER)
@click.option("--timeout", "timeout_seconds", type=DURATION)
@click.option("--isolate/--no-isolate", default=None)
@click.option("--max-files", type=NUMBER)
@click.option("--max-bytes", type=SIZE)
@click.option("--arg", "arguments", multiple=True, metavar="KEY=VALUE")
@click.option("--comment")
@common
def alter_job_command(
    session: Session,
    output: Output,
    name: str,
    on_change: bool,
    every: float | None,
    cron: str | None,
    manual: bool,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """Change a job. Its position and its failures stay.

    --function and --returns also retry files that failed because of columns, size or imports.
    """
    before = session.jobs.get(name)
    changes = {key: value for key, value in options.items() if value is not None}
    if on_change or every is not None or cron is not None or manual:
        changes["trigger"] = _trigger(on_change, every, cron)
    if "on_move" in changes:
        changes["on_move"] = OnMove(changes["on_move"])
    if arguments:
        changes["arguments"] = parse_arguments(arguments)
    job = session.jobs.alter(name, **changes)
    text = f"Job {job.name} changed."
    if job.returns != before.returns:
        text += f" Its columns: {job.returns}."
    if due := session.jobs.failure_count(name, Wanted((FailureState.RETRYING,), LASTING)):
        text += f" {counted(due, 'file')} that could not succeed before will be retried."
    if job.where != before.where:
        text += (
            f" The condition applies from now on. To process older files that it now includes: volstream replay {name}. "
            f"Rows of files that it now excludes stay in {job.into}."
        )
    if before.state is JobState.PAUSED and job.state is JobState.ACTIVE:
        text += " It is no longer paused."
    output.result(job, text)


def _trigger(on_change: bool, every: float | None, cron: str | None) -> Trigger:
    if (on_change, every is not None, cron is not None).count(True) > 1:
        raise click.UsageError("--on-change, --every and --cron exclude each other.")
    if on_change:
        return Trigger(TriggerKind.ON_CHANGE)
    if every is not None:
        return Trigger(TriggerKind.EVERY, every=every)
    return Trigger(TriggerKind.CRON, cron=cron) if cron is not None else Trigger()


def _says(trigger: Trigger) -> str:
    match trigger.kind:
        case TriggerKind.ON_CHANGE:
            return "on change, under the daemon"
        case TriggerKind.EVERY:
            return f"every {trigger.every:g} s, under the daemon"
        case TriggerKind.CRON:
            return f"at {trigger.cron}, under the daemon"
        case _:
            return "when asked: volstream run-job"


def parse_arguments(pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE pairs as a mapping."""
    arguments: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE.", param_hint="'--arg'")
        arguments[key] = value
    return arguments


def _start(session: Session, stream: Stream) -> str:
    """Where a new stream begins, in words."""
    if stream.source_kind is SourceKind.TABLE:
        return (
            f"starts with the rows that are {'there' if stream.initial else f'written after version {stream.offset}'}"
        )
    files = session.home.catalog.refreshes.file_count(stream.source_id)
    if stream.offset is None:
        return "the volume was not listed yet, so every file will arrive"
    if stream.initial:
        return f"starts with the {files} files that are there"
    return f"starts after {files} files (version {stream.offset})"
