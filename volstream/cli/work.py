"""Commands that make something happen: refresh, run, retry, skip, pause, move offsets."""

from __future__ import annotations

import dataclasses
import importlib.abc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from volstream.catalog.failures import Wanted
from volstream.cli.options import NUMBER, TIMESTAMP, common, interactive, kinds, like
from volstream.cli.output import Output
from volstream.errors import FilesFailedError, InterruptedByUserError
from volstream.jobs.progress import Observer, Progress
from volstream.lifecycle.stop import Stop, stop_on_signals
from volstream.model.text import counted
from volstream.model.units import about, format_size
from volstream.model.work import FailureKind
from volstream.session import Session

if TYPE_CHECKING:
    from volstream.jobs.lease import RunReport
    from volstream.jobs.preview import Preview


@click.command("refresh")
@click.argument("volume")
@click.option("--subdirectory", default="", metavar="PATH", help="List only what is below PATH.")
@click.option("--accept-removals", is_flag=True, help="Apply removals beyond the volume's limit.")
@common
def refresh_command(session: Session, output: Output, volume: str, subdirectory: str, accept_removals: bool) -> None:
    """List VOLUME now and update its directory table."""
    _leave_pandas_out()
    stop = Stop()
    with stop_on_signals(stop, first=lambda: output.message("Stopping. Interrupt again to end at once.")):
        done = session.volumes.refresh(volume, subdirectory, accept_removals=accept_removals, stop=stop)
    found = done.reconciled
    value: dict[str, Any] = {
        "volume": volume,
        "inserted": done.inserted,
        "updated": done.updated,
        "deleted": done.deleted,
        "by_daemon": found is None,
        "held_removals": done.held,
    }
    text = f"{done.inserted} new, {done.updated} changed, {done.deleted} gone"
    if found is not None:
        value |= {
            "files": found.files,
            "bytes": found.bytes,
            "findings": found.findings,
            "unsettled": list(found.unsettled),
            "seconds": round(found.seconds, 3),
        }
        text = f"{counted(found.files, 'file')} ({format_size(found.bytes)}): {text}."
        if found.unsettled:
            text += f" {len(found.unsettled)} still being written: refresh again later."
        if found.findings - len(found.unsettled):
            text += f" {counted(found.findings - len(found.unsettled), 'name')} cannot be used; see volstream list rejected."
    if done.held:
        text += (
            f" {counted(done.held, 'removal')} held, because that is more than the volume's limit. If the files were deleted, "
            f"run: volstream refresh {volume} --accept-removals."
        )
    output.result(value, text)


def _leave_pandas_out() -> None:
    """Lets PyArrow take pandas for not installed in this process: it imports it to make any array of a list, half a second.

    PyArrow looks for it once, and has no setting for that.
    """
    import pyarrow as pa

    if "pandas" not in sys.modules:
        absent = _WithoutPandas()
        sys.meta_path.insert(0, absent)
        pa.array([0])
        sys.meta_path.remove(absent)


class _WithoutPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


@click.command("run-job")
@click.argument("name")
@click.option("--until-empty", is_flag=True, help="Continue while new changes arrive.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what a run would do and how long it would take.")
@common
def run_job_command(session: Session, output: Output, name: str, until_empty: bool, plan_only: bool) -> None:
    """Process the unread changes of JOB and its due failures."""
    if plan_only:
        _show_plan(output, name, session.jobs.preview(name))
        return
    with _watched(output) as (stop, observe):
        report = session.jobs.run(name, until_empty=until_empty, stop=stop, observe=observe)
    _show_run(output, name, report, stop)


@click.command("replay")
@click.argument("job")
@click.option("--where", metavar="SQL", help='Only files for which this holds, such as "size < 1000000".')
@common
def replay_command(session: Session, output: Output, job: str, where: str | None) -> None:
    """Process files of JOB again as they were delivered, and replace their results."""
    with _watched(output) as (stop, observe):
        report = session.jobs.replay(job, where, stop=stop, observe=observe)
    _show_run(output, job, report, stop)


def _show_run(output: Output, name: str, report: RunReport, stop: Stop) -> None:
    done = report.progress
    files = (
        f"{counted(done.processed, 'file')} processed, {done.failed} failed, {done.removals} removed"
        f"{_moved(done.moves)}{_overtaken(done.overtaken)}; "
        if done.done_files or done.removals
        else ""
    )
    made = f"{counted(done.rows, 'row')} in {counted(done.batches, 'batch', 'batches')}."
    text = f"{files}{made}" if done.batches else "Nothing to do."
    output.result({**vars(done), "recovered": report.recovered, "paused": report.paused}, text)
    if done.code_changed:
        output.message(
            f"The function's code has changed since the job was created. Run `volstream replay {name}` to process earlier files "
            f"with it, or `volstream alter-job {name} --function ...` to accept it without a replay."
        )
    if stop:
        raise InterruptedByUserError("Interrupted. What is committed stays; the next run continues from there.")
    if done.failed:
        paused = f" The job paused itself: {report.paused}." if report.paused else ""
        raise FilesFailedError(
            f"{counted(done.failed, 'file')} failed.{paused}", f"See: volstream list failures --job {name}"
        )


def _overtaken(files: int) -> str:
    return f", {files} deleted or changed before their turn" if files else ""


def _moved(moves: int) -> str:
    return f" ({moves} moved)" if moves else ""


def _show_plan(output: Output, name: str, preview: Preview) -> None:
    load = preview.load
    took = (
        f"about {about(preview.seconds)}" if preview.seconds is not None else "duration unknown until a batch has run"
    )
    text = (
        f"A run would process {counted(load.files, 'file')} ({format_size(load.bytes)}) and remove "
        f"{load.removals}{_moved(load.moves)}, in {counted(load.batches, 'batch', 'batches')}; {took}."
        if load.batches
        else "There is nothing to do."
    )
    if preview.unfinished:
        text += f" {counted(preview.unfinished, 'batch', 'batches')} left over from an unfinished run."
    if preview.retries:
        text += f" {counted(preview.retries, 'failed file')} due for a retry."
    if not preview.listed:
        text += " The volume has never been listed; a run lists it first."
    values = {field.name: getattr(preview, field.name) for field in dataclasses.fields(preview)}
    output.result({"job": name, **vars(values.pop("load")), **values}, text)


def _chosen(function: Callable[..., None]) -> Callable[..., None]:
    """Adds what says which failures of a job are meant: their paths, ``--all``, ``--kind``, ``--like``."""
    for option in (
        like("Files whose path is LIKE this, such as 'scans/%.pdf'."),
        kinds("Failures of this kind; may be repeated."),
        click.option("--all", "every", is_flag=True, help="All of them; for retry, all that are not skipped."),
        click.argument("paths", nargs=-1),
        click.argument("job"),
    ):
        function = option(function)
    return function


@click.command("retry")
@_chosen
@common
def retry_command(session: Session, output: Output, job: str, paths: tuple[str, ...], **sort: Any) -> None:
    """Retry failed files of JOB at its next run: the given ones, or all that are not skipped."""
    found = session.jobs.retry(job, paths or None, _wanted(paths, **sort))
    output.result({"job": job, "paths": found}, f"{counted(len(found), 'file')} due again at the next run.")


@click.command("skip")
@_chosen
@common
def skip_command(session: Session, output: Output, job: str, paths: tuple[str, ...], **sort: Any) -> None:
    """Give up on failed files of JOB. A newer version of one is processed all the same."""
    if not (paths or any(sort.values())):
        raise click.UsageError("Name the files, or say which: --all, --kind or --like.")
    found = session.jobs.skip(job, paths or None, _wanted(paths, **sort))
    output.result({"job": job, "paths": found}, f"{counted(len(found), 'file')} skipped.")


def _wanted(paths: Sequence[str], every: bool, kinds: Sequence[str], like: str | None) -> Wanted:
    if paths and (every or kinds or like):
        raise click.UsageError("Name the files, or say which by options, not both.")
    if every and (kinds or like):
        raise click.UsageError("--all leaves nothing to choose by --kind or --like.")
    return Wanted(kinds=[FailureKind(kind) for kind in kinds], like=like)


@click.command("pause")
@click.argument("job")
@common
def pause_command(session: Session, output: Output, job: str) -> None:
    """Stop running JOB until it is resumed. It keeps its position."""
    output.result(session.jobs.pause(job), f"Job {job} is paused.")


@click.command("resume")
@click.argument("job")
@common
def resume_command(session: Session, output: Output, job: str) -> None:
    """Resume a paused JOB."""
    output.result(session.jobs.resume(job), f"Job {job} is active.")


@click.command("reset-stream")
@click.argument("stream")
@click.option("--to-version", type=NUMBER, metavar="N")
@click.option("--to-timestamp", type=TIMESTAMP, metavar="TIME")
@common
def reset_stream_command(
    session: Session, output: Output, stream: str, to_version: int | None, to_timestamp: datetime | None
) -> None:
    """Move STREAM back to a point of its source's history. Later changes are delivered again."""
    moved = session.streams.reset(stream, to_version=to_version, to_timestamp=to_timestamp)
    output.result(moved, f"Stream {moved.name} is at version {moved.offset}.")


@click.command("advance-stream")
@click.argument("stream")
@click.option("--to-version", type=NUMBER, metavar="N")
@common
def advance_stream_command(session: Session, output: Output, stream: str, to_version: int | None) -> None:
    """Discard unread changes of STREAM, all or up to a version."""
    moved = session.streams.advance(stream, to_version=to_version)
    output.result(moved, f"Stream {moved.name} is at version {moved.offset}.")


@click.command("resolve")
@click.argument("stream")
@click.argument("outcome", type=click.Choice(["committed", "aborted"]))
@common
def resolve_command(session: Session, output: Output, stream: str, outcome: str) -> None:
    """Decide an attempt whose target table is gone, so that volstream cannot tell."""
    session.streams.resolve(stream, committed=outcome == "committed")
    output.result({"stream": stream, "outcome": outcome}, f"The open attempt of stream {stream} counts as {outcome}.")


@contextmanager
def _watched(output: Output) -> Iterator[tuple[Stop, Observer]]:
    """What a run is stopped by, and what shows how far it is."""
    stop = Stop()
    said = "Finishing the batch in hand. Interrupt again to end at once: the next run does that batch again."
    with stop_on_signals(stop, first=lambda: output.message(said)), _progress(output) as observe:
        yield stop, observe


@contextmanager
def _progress(output: Output) -> Iterator[Observer]:
    """A bar on a terminal: files, bytes, failures, rate, time left. Elsewhere nothing."""
    if output.as_json or not interactive():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    with Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("files", total=None, more="")

        def observe(progress: Progress) -> None:
            more = f"{format_size(progress.done_bytes)}  {progress.failed} failed"
            bar.update(task, total=progress.files, completed=progress.done_files, more=more)

        yield observe
