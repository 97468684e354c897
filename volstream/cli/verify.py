"""Proof that tables are complete and right: ``verify``, ``heal``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import FileJob
from volstream.base.model.text import by_kind, counted, first_line
from volstream.base.model.units import format_size
from volstream.base.threads import Stop, stop_on_signals
from volstream.cli.options import common, names_of, watched
from volstream.cli.output import Output
from volstream.errors import FilesFailedError, InterruptedByUserError, VolstreamError

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.changes.directory.reconcile import ComparedDirectory
    from volstream.jobs.proof.verify import Verification
    from volstream.jobs.runs.lease import Observer


#: What the first interrupt is answered with.
_ENDING = "Finishing the current step. Interrupt again to end at once: what has not been repaired stays as it is."


@dataclass(frozen=True)
class _Report:
    """What was found about a job or a volume.

    Attributes:
        title: what was verified, such as ``job j``.
        error: what the command ends with: it is wrong, or could not be verified.
    """

    title: str
    value: Mapping[str, Any]
    lines: Sequence[str]
    error: VolstreamError | None = None

    @property
    def text(self) -> str:
        """What is printed of it among others."""
        first, *others = self.lines
        remedy = [self.error.remedy] if self.error is not None and self.error.remedy else []
        return "\n  ".join((f"{self.title}: {first}", *others, *remedy))


@click.command("verify")
@click.argument("job", shell_complete=names_of("job"), required=False)
@click.option(
    "--volume",
    metavar="VOLUME",
    shell_complete=names_of("volume"),
    help="Check the directory of VOLUME against a listing instead.",
)
@click.option("--all", "every", is_flag=True, help="Check the directories of all volumes, then the tables of all jobs.")
@click.option("--fix", is_flag=True, help="Process the wrong files again, and remove rows that belong to no file.")
@click.option("--outputs", is_flag=True, help="Also check that the output files are in their volume.")
@common
def verify_command(
    session: Session, output: Output, job: str | None, volume: str | None, every: bool, fix: bool, outputs: bool
) -> None:
    """Compare the table of JOB with the directory of its volume, file by file, without calling the function.

    The directory is as of the last refresh. Files that have changed since the last run are not compared. Exits with 5 if
    something is wrong and stays wrong. With --all, what cannot be checked does not stop the rest; jobs that run statements are
    left out.
    """
    if [job is None, volume is None, not every].count(False) != 1:
        raise click.UsageError("Name a job, or a volume with --volume, or use --all.")
    if volume is not None:
        if fix or outputs:
            raise click.UsageError(
                f"--fix and --outputs are for jobs. To bring the directory up to date: volstream refresh {volume}"
            )
        stop = Stop()
        with stop_on_signals(stop, first=lambda: output.message("Stopping. Interrupt again to end at once.")):
            compared = session.volumes.verify(volume, stop=stop)
        _show(output, _of_volume(volume, compared))
        return
    if job is None:
        _verify_all(session, output, fix=fix, outputs=outputs)
        return
    with _watched(output) as (stop, observe):
        found = session.jobs.verify(job, fix=fix, outputs=outputs, stop=stop, observe=observe)
    _show(output, _of_job(job, found))


@click.command("heal")
@click.argument("job", shell_complete=names_of("job"))
@common
def heal_command(session: Session, output: Output, job: str) -> None:
    """Repair JOB's table, even if it is damaged or the stream's history was lost.

    Compares the table with the directory of the volume, and processes only the files that differ.
    """
    with _watched(output) as (stop, observe):
        found = session.jobs.heal(job, stop=stop, observe=observe)
    _show(output, _of_job(job, found))


@contextmanager
def _watched(output: Output) -> Iterator[tuple[Stop, Observer]]:
    """Shows the progress of a block, which the stop ends early. Raises InterruptedByUserError if it did."""
    with watched(output, _ENDING) as (stop, observe):
        yield stop, observe
    if stop:
        raise InterruptedByUserError("Interrupted. Run it again.")


def _verify_all(session: Session, output: Output, *, fix: bool, outputs: bool) -> None:
    """Verifies volumes and jobs, and prints the report of each. Ends with exit code 5 if anything is wrong, else like the first
    that could not be verified."""
    reports = []
    with _watched(output) as (stop, observe):
        for report in _each(session, stop, observe, fix=fix, outputs=outputs):
            output.part(report.text)
            reports.append(report)
    value = {
        "volumes": [report.value for report in reports if "volume" in report.value],
        "jobs": [report.value for report in reports if "job" in report.value],
    }
    output.result(value, None if reports else "There is nothing to verify.")
    wrong = [report.title for report in reports if isinstance(report.error, FilesFailedError)]
    errors = {report.title: report.error for report in reports if report.error and report.title not in wrong}
    said = [f"Wrong: {', '.join(wrong)}."] if wrong else []
    said += [f"Not verified: {', '.join(errors)}."] if errors else []
    if wrong:
        raise FilesFailedError(" ".join(said))
    if errors:
        raise type(next(iter(errors.values())))(" ".join(said))


def _each(session: Session, stop: Stop, observe: Observer, *, fix: bool, outputs: bool) -> Iterator[_Report]:
    """Verifies the volumes, then the jobs, until ``stop`` is set; yields the report of each."""
    for volume in session.volumes.list():
        name = str(volume.name)
        try:
            yield _of_volume(name, session.volumes.verify(name, stop=stop))
        except InterruptedByUserError:
            return
        except VolstreamError as error:
            yield _unverified("volume", name, error)
    for job in session.jobs.list():
        if stop or not isinstance(job, FileJob):
            continue
        name, made = str(job.name), outputs and job.outputs_to is not None
        try:
            yield _of_job(name, session.jobs.verify(name, fix=fix, outputs=made, stop=stop, observe=observe))
        except VolstreamError as error:
            yield _unverified("job", name, error)


def _of_volume(volume: str, found: ComparedDirectory) -> _Report:
    from volstream.ops.inspection.tables import examples

    value = {
        "volume": volume,
        "files": found.files,
        "bytes": found.bytes,
        "wrong": {str(difference): number for difference, number in found.wrong.items()},
        "examples": [{"path": path, "difference": difference} for path, difference in found.examples],
        "late_events": found.late,
        "unusable": found.unusable,
    }
    compared = f"{counted(found.files, 'file')} ({format_size(found.bytes)}) compared with the directory"
    lines = [f"{compared}: {by_kind(found.wrong) or 'no differences'}.", *examples(found)]
    if found.late:
        lines.append(f"Late events: {found.late:,} (files so recent that their events may still arrive).")
    if found.unusable:
        lines.append(f"Not compared: {counted(found.unusable, 'name')} that cannot be rows, or are still being written.")
    error = None
    if found.wrong:
        error = FilesFailedError(
            f"The directory of {volume} differs from the store in {counted(found.count, 'file')}.",
            f"Repair it: volstream refresh {volume}",
        )
    return _Report(f"volume {volume}", value, lines, error)


def _of_job(job: str, found: Verification) -> _Report:
    from volstream.ops.inspection.tables import document, lines

    error = None
    if not (found.is_right or found.count or found.damages):
        error = FilesFailedError(f"The table is wrong: {found.text}.", "Delete these rows; --fix cannot.")
    elif not found.is_right:
        fixed = found.fixed is not None
        error = FilesFailedError(
            f"The table is still wrong for {counted(found.count - (found.fixed or 0), found.unit)}."
            if fixed
            else f"The table is wrong: {found.text}.",
            f"See: volstream list failures --job {job}" if fixed else f"Repair it: volstream verify {job} --fix",
        )
    return _Report(f"job {job}", document(job, found), lines(job, found), error)


def _unverified(kind: str, name: str, error: VolstreamError) -> _Report:
    said = {"type": type(error).__name__, "message": error.message, "remedy": error.remedy}
    return _Report(f"{kind} {name}", {kind: name, "error": said}, [first_line(error.message)], error)


def _show(output: Output, report: _Report) -> None:
    output.result(report.value, "\n".join(report.lines))
    if report.error is not None:
        raise report.error
