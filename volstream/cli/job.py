"""Jobs: ``create-job``, ``alter-job``, ``run-job``, ``replay``, ``pause``, ``resume``, ``logs``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import FileJob, FileJobSpec, JobState, Trigger, TriggerKind
from volstream.base.definitions.options import to_alter, to_create
from volstream.base.model.paths import printable
from volstream.base.model.text import counted, ended, one_line
from volstream.base.model.units import about, format_duration, format_size, local
from volstream.base.model.work import PERMANENT, FailureState, shown_counts
from volstream.base.threads import Stop
from volstream.cli.options import Made, common, described, existing, names_of, watched
from volstream.cli.output import Output
from volstream.errors import FilesFailedError, InterruptedByUserError

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.jobs.batches.logs import LogLine
    from volstream.jobs.runs.lease import RunReport
    from volstream.jobs.runs.run import Preview


@click.command("create-job")
@click.argument("name")
@described(to_create(FileJobSpec))
@existing
@common
def create_job_command(session: Session, output: Output, name: str, given: dict[str, Any], **existing: Any) -> None:
    """Run a Python function on every file of a volume or stream, and keep its results in a table."""
    from volstream.ops.inspection import details

    function, into = given.pop("function"), given.pop("into")
    made = Made(session, "job", name)
    job = session.jobs.create(name, function, into, tell=output.message, **existing, **given)
    assert isinstance(job, FileJob), "created with a function"
    output.result(details.values(job), made.said(job, created(job), {**given, "into": into}))


def created(job: FileJob) -> str:
    """Says which job was created."""
    return f"Job {job.name} -> table {job.into} ({job.returns}); runs {_occasion(job.trigger)}."


def _occasion(trigger: Trigger) -> str:
    match trigger.kind:
        case TriggerKind.ON_CHANGE:
            return "on change, under the daemon"
        case TriggerKind.EVERY:
            return f"every {format_duration(trigger.every or 0)}, under the daemon"
        case TriggerKind.CRON:
            return f"at {trigger.cron}, under the daemon"
        case _:
            return "on demand: volstream run-job"


@click.command("alter-job")
@click.argument("name", shell_complete=names_of("job"))
@described(to_alter(FileJobSpec), changes=True)
@click.option("--manual", is_flag=True, help="Run by run-job only.")
@common
def alter_job_command(session: Session, output: Output, name: str, given: dict[str, Any], manual: bool) -> None:
    """Change a job. Its position and its failures stay.

    --function and --returns also retry files that failed because of columns, size or imports. Give --function again to accept
    changed code.
    """
    from volstream.catalog.failures import FailureFilter
    from volstream.ops.inspection import details

    if manual:
        given["on_change"] = False
    before = session.jobs.get(name)
    job = session.jobs.alter(name, tell=output.message, **given)
    text = f"Job {job.name} changed."
    if isinstance(job, FileJob) and isinstance(before, FileJob) and job.returns != before.returns:
        text += f" Its columns: {job.returns}."
    if due := session.jobs.failure_count(name, FailureFilter((FailureState.RETRYING,), PERMANENT)):
        text += f" {counted(due, 'file')} that could not succeed before will be retried."
    if isinstance(job, FileJob) and isinstance(before, FileJob) and job.where != before.where:
        text += (
            f" The condition applies from now on. To process older files that it now includes: volstream replay {name}. "
            f"Rows of files that it now excludes stay in {job.into}."
        )
    if before.state is JobState.PAUSED and job.state is JobState.ACTIVE:
        text += " It is no longer paused."
    output.result(details.values(job), text)


_WAIT = click.option("--wait", is_flag=True, help="If the job is already running, wait for the end of that run.")


def _waiting(output: Output) -> Callable[[str], None]:
    """Returns what reports that a run waits for another one."""
    return lambda why: output.message(f"{why} Waiting for it to end.")


@click.command("run-job")
@click.argument("name", shell_complete=names_of("job"))
@click.option("--until-empty", is_flag=True, help="Continue while new changes arrive.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what a run would do and how long it would take.")
@_WAIT
@common
def run_job_command(session: Session, output: Output, name: str, until_empty: bool, plan_only: bool, wait: bool) -> None:
    """Process the unread changes of JOB and its due failures."""
    if plan_only:
        _show_plan(output, name, session.jobs.preview(name))
        return
    with watched(output) as (stop, observe):
        waits = _waiting(output) if wait else None
        session.home.take_over_session(name)
        report = session.jobs.run(name, until_empty=until_empty, waits=waits, stop=stop, observe=observe)
    _show_run(session, output, name, report, stop)


@click.command("replay")
@click.argument("job", shell_complete=names_of("job"))
@click.argument("paths", nargs=-1)
@click.option("--where", metavar="SQL", help='Only files for which this holds, such as "size < 1000000".')
@click.option("--stale", is_flag=True, help="Only files whose rows were made by older code.")
@_WAIT
@common
def replay_command(
    session: Session, output: Output, job: str, paths: tuple[str, ...], where: str | None, stale: bool, wait: bool
) -> None:
    """Process files of JOB again as they were delivered, all or those at PATHS, and replace their results."""
    waits = _waiting(output) if wait else None
    with watched(output) as (stop, observe):
        session.home.take_over_session(job)
        report = session.jobs.replay(job, where, paths=paths, stale=stale, waits=waits, stop=stop, observe=observe)
    _show_run(session, output, job, report, stop)


@click.command("clear-steps")
@click.argument("job", shell_complete=names_of("job"))
@common
def clear_steps_command(session: Session, output: Output, job: str) -> None:
    """Forget the kept values of the steps of JOB: the next call for each file computes all of them."""
    output.result(session.jobs.clear_steps(job), f"The kept values of job {job} are cleared.")


@click.command("pause")
@click.argument("job", shell_complete=names_of("job"))
@common
def pause_command(session: Session, output: Output, job: str) -> None:
    """Stop running JOB until it is resumed. It keeps its position."""
    output.result(session.jobs.pause(job), f"Job {job} is paused.")


@click.command("resume")
@click.argument("job", shell_complete=names_of("job"))
@common
def resume_command(session: Session, output: Output, job: str) -> None:
    """Resume a paused JOB."""
    output.result(session.jobs.resume(job), f"Job {job} is active.")


@click.command("logs")
@click.argument("job", shell_complete=names_of("job"))
@click.option("--lines", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Number of lines, the newest.")
@click.option("--file", "path", metavar="PATH", help="Only lines printed for this file.")
@click.option("--batch", metavar="ID", help="Only lines of this batch (see list batches).")
@common
def logs_command(session: Session, output: Output, job: str, lines: int, path: str | None, batch: str | None) -> None:
    """Show the last lines that the function of JOB printed and logged, by batch and file."""
    logged = session.jobs.logs(job, lines=lines, path=path, batch=batch)
    if not logged and not output.as_json:
        output.message("No output is kept" + (" for it." if path or batch else "."))
        return
    output.result(logged, "\n".join(_shown(logged)))


def _show_run(session: Session, output: Output, name: str, report: RunReport, stop: Stop) -> None:
    done = report.progress
    others = (
        (done.overtaken, "deleted or changed before their turn"),
        (done.later, "to be called later, as requested"),
        (done.held, "held back until complete or quiet"),
    )
    more = "".join(f", {number} {what}" for number, what in others if number)
    files = (
        f"{counted(done.processed, report.unit)} processed, {done.failed} failed, {done.removals} removed"
        f"{_moved(done.moves)}{more}; "
        if done.done_files or done.removals
        else ""
    )
    made = f"{counted(done.rows, 'row')} in {counted(done.batches, 'batch', 'batches')}."
    text = f"{files}{made}" if done.batches else "Nothing to do."
    if done.counted:
        text += f" Counted: {shown_counts(done.counted)}."
    if done.new_columns:
        text += f" New columns: {', '.join(done.new_columns)}."
    output.result(report.document, text)
    if done.code_changed and (said := session.jobs.describe_code(name)):
        output.message(f"The function's code has changed: {said}")
    if stop:
        raise InterruptedByUserError("Interrupted. Committed batches stay; the next run continues from there.")
    if done.failed:
        paused = f" The job paused itself: {ended(report.paused)}" if report.paused else ""
        raise FilesFailedError(
            f"{counted(done.failed, report.unit)} failed.{paused}", f"See: volstream list failures --job {name}"
        )


def _moved(moves: int) -> str:
    return f" ({moves} moved)" if moves else ""


def _show_plan(output: Output, name: str, preview: Preview) -> None:
    load = preview.load
    took = f"about {about(preview.seconds)}" if preview.seconds is not None else "duration unknown until a batch has run"
    text = (
        f"A run would process {counted(load.files, 'file')} ({format_size(load.bytes)}) and remove "
        f"{load.removals}{_moved(load.moves)}, in {counted(load.batches, 'batch', 'batches')}; {took}."
        if load.batches
        else "Nothing to do."
    )
    if preview.unfinished:
        text += f" {counted(preview.unfinished, 'batch', 'batches')} left over from an unfinished run."
    if preview.retries:
        text += f" {counted(preview.retries, 'failed file')} due for a retry."
    if not preview.listed:
        text += " The volume has never been listed; a run lists it first."
    values = {field.name: getattr(preview, field.name) for field in dataclasses.fields(preview)}
    output.result({"job": name, **vars(values.pop("load")), **values}, text)


def _shown(logged: Sequence[LogLine]) -> Iterator[str]:
    """Formats lines with time, file and stream, below their batch."""
    for batch, lines in groupby(logged, lambda line: line.batch):
        yield f"batch {batch}"
        for line in lines:
            text = line.text if line.stream is None else f"{line.stream}  {line.text}"
            yield one_line(f"{local(line.time)}  {_file(line.files)}  {text}")


def _file(files: Sequence[str]) -> str:
    """Formats the file of a call, or the first of several; the function's setup has none."""
    if not files:
        return "(set-up)"
    more = f" and {len(files) - 1} more of the same call" if len(files) > 1 else ""
    return f"{printable(files[0])}{more}"
