"""Proof that a table is complete and right: ``verify``, ``heal``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volstream.cli.complete import names_of
from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.cli.progress import watched
from volstream.errors import FilesFailedError, InterruptedByUserError
from volstream.lifecycle.stop import Stop, stop_on_signals
from volstream.model.files import printable
from volstream.model.text import by_kind, counted
from volstream.model.units import format_size

if TYPE_CHECKING:
    from volstream.directory.verify import ComparedDirectory
    from volstream.jobs.verify import Verification
    from volstream.session import Session


@click.command("verify")
@click.argument("job", shell_complete=names_of("job"), required=False)
@click.option(
    "--volume",
    metavar="VOLUME",
    shell_complete=names_of("volume"),
    help="Check the directory of VOLUME against a listing instead.",
)
@click.option("--fix", is_flag=True, help="Process what is wrong again, and remove rows that no file explains.")
@click.option("--outputs", is_flag=True, help="Also check that the output files are in their volume.")
@common
def verify_command(
    session: Session, output: Output, job: str | None, volume: str | None, fix: bool, outputs: bool
) -> None:
    """Compare the table of JOB with the directory of its volume, file by file, without calling the function.

    The directory is as of the last refresh. Files that have changed since the last run are not compared. Exits with 5 if
    something is wrong and stays wrong.
    """
    if (job is None) == (volume is None):
        raise click.UsageError("Name a job, or a volume with --volume.")
    if job is None:
        if fix or outputs:
            raise click.UsageError(
                f"--fix and --outputs are for jobs. To bring the directory up to date: volstream refresh {volume}"
            )
        _verify_volume(session, output, str(volume))
        return
    with watched(output) as (stop, observe):
        found = session.jobs.verify(job, fix=fix, outputs=outputs, stop=stop, observe=observe)
    _show(output, job, found, stop)


def _verify_volume(session: Session, output: Output, volume: str) -> None:
    stop = Stop()
    with stop_on_signals(stop, first=lambda: output.message("Stopping. Interrupt again to end at once.")):
        found = session.volumes.verify(volume, stop=stop)
    value = {
        "volume": volume,
        "files": found.files,
        "bytes": found.bytes,
        "wrong": {str(difference): number for difference, number in found.wrong.items()},
        "examples": [{"path": path, "difference": difference} for path, difference in found.examples],
        "late": found.late,
        "unusable": found.unusable,
    }
    compared = f"{counted(found.files, 'file')} ({format_size(found.bytes)}) compared with the directory"
    lines = [f"{compared}: {by_kind(found.wrong) or 'all is right'}.", *_examples(found)]
    if found.late:
        lines.append(f"So recent that their events may still be under way: {found.late:,}.")
    if found.unusable:
        lines.append(
            f"Not compared: {counted(found.unusable, 'name')} that cannot be rows, or are still being written."
        )
    output.result(value, "\n".join(lines))
    if found.wrong:
        raise FilesFailedError(
            f"The directory of {volume} is wrong about {counted(found.count, 'file')}.",
            f"Put it right: volstream refresh {volume}",
        )


@click.command("heal")
@click.argument("job", shell_complete=names_of("job"))
@common
def heal_command(session: Session, output: Output, job: str) -> None:
    """Make the table of JOB right again, whatever became of it or of the stream's history.

    Compares the table with the directory of the volume, and processes only the files that differ.
    """
    with watched(output) as (stop, observe):
        found = session.jobs.heal(job, stop=stop, observe=observe)
    _show(output, job, found, stop)


def _show(output: Output, job: str, found: Verification, stop: Stop) -> None:
    if stop:
        raise InterruptedByUserError("Interrupted. Run it again.")
    value = {
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
        "fixed": found.fixed,
    }
    output.result(value, "\n".join(_lines(job, found)))
    if not found.is_right:
        fixed = found.fixed is not None
        raise FilesFailedError(
            f"The table is still wrong about {counted(found.count - (found.fixed or 0), 'file')}."
            if fixed
            else f"The table is wrong: {found.text}.",
            f"See: volstream list failures --job {job}" if fixed else f"Put it right: volstream verify {job} --fix",
        )


def _examples(found: Verification | ComparedDirectory) -> list[str]:
    """Returns a line for each file that is named, and one for the rest."""
    more = found.count - len(found.examples)
    named = [f"  {kind:<9} {printable(path)}" for path, kind in found.examples]
    return [*named, f"  and {more:,} more"] if more > 0 else named


def _lines(job: str, found: Verification) -> list[str]:
    compared = f"{counted(found.files, 'file')} compared with a table of {counted(found.rows, 'row')}"
    if found.wrong:
        lines = [f"{compared}: {found.kinds}.", *_examples(found)]
    else:
        unknown = found.failing or found.unproven or found.pathless or not found.is_proven
        lines = [f"{compared}: {'nothing is wrong with these' if unknown else 'all is right'}."]
    if found.failing:
        lines.append(f"Of these, {found.failing:,} failed, wait or are held: volstream list failures --job {job}")
    if found.pathless:
        lines.append(
            f"{counted(found.pathless, 'row')} without the path of a file: another writer's, to be deleted by hand."
        )
    if found.commits and (found.count or found.has_unseen):
        named = ", ".join(f"{commit.version} ({commit.operation})" for commit in found.commits[:5])
        others = f" and {len(found.commits) - 5} more" if len(found.commits) > 5 else ""
        lines.append(f"Other writers changed rows in {counted(len(found.commits), 'version')}: {named}{others}.")
        if found.has_unseen:
            lines.append(f"Which rows is no longer known of all of these. To be sure: volstream replay {job}")
    if found.seen_from is not None:
        lines.append(
            f"What other writers changed before version {found.seen_from} is no longer known: the log was cleaned up."
        )
    if (made := found.outputs) is not None:
        lines.append(f"{counted(made.count, 'output')} compared with their volume.")
        if made.unnamed:
            named = ", ".join(map(printable, made.examples[:5])) + (" ..." if made.unnamed > 5 else "")
            lines.append(f"The job's folder there also has {counted(made.unnamed, 'file')} that no row names: {named}.")
    if found.unproven:
        lines.append(f"{counted(found.unproven, 'file')} without rows: whether they have none is not known here.")
    if found.waiting:
        lines.append(f"Not compared: {counted(found.waiting, 'file')} for the next run.")
    if found.fixed is not None and found.count:
        lines.append(f"Put right: {found.fixed:,} of {found.count:,}.")
    return lines
