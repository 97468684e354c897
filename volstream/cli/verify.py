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
from volstream.model.text import by_kind, counted
from volstream.model.units import format_size

if TYPE_CHECKING:
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
    from volstream.inspection.verification import examples

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
    lines = [f"{compared}: {by_kind(found.wrong) or 'all is right'}.", *examples(found)]
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
    from volstream.inspection.verification import document, lines

    if stop:
        raise InterruptedByUserError("Interrupted. Run it again.")
    output.result(document(job, found), "\n".join(lines(job, found)))
    if not found.is_right:
        fixed = found.fixed is not None
        raise FilesFailedError(
            f"The table is still wrong about {counted(found.count - (found.fixed or 0), 'file')}."
            if fixed
            else f"The table is wrong: {found.text}.",
            f"See: volstream list failures --job {job}" if fixed else f"Put it right: volstream verify {job} --fix",
        )
