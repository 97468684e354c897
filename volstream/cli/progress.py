"""Follows a run: shows its progress on a terminal, and handles the signals that end it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from volstream.base.model.units import format_size
from volstream.base.threads import Stop, stop_on_signals
from volstream.cli.options import interactive
from volstream.cli.output import Output
from volstream.jobs.runs.lease import Observer, Progress


@contextmanager
def watched(
    output: Output, said: str = "Finishing the current batch. Interrupt again to end at once: the next run repeats that batch."
) -> Iterator[tuple[Stop, Observer]]:
    """Yields a stop signal for a run, and an observer that shows its progress.

    Args:
        said: what the first signal is answered with.
    """
    stop = Stop()
    with stop_on_signals(stop, first=lambda: output.message(said)), _progress(output) as observe:
        yield stop, observe


@contextmanager
def _progress(output: Output) -> Iterator[Observer]:
    """Shows a progress bar on a terminal: files, bytes, failures, rate, time left. Elsewhere nothing."""
    if output.as_json or not interactive():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
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
        redirect_stdout=sys.stdout.isatty(),  # above the bar; into a pipe it goes as it is
    ) as bar:
        task = bar.add_task("files", total=None, more="")

        def observe(progress: Progress) -> None:
            more = f"{format_size(progress.done_bytes)}  {progress.failed} failed"
            bar.update(task, total=progress.files, completed=progress.done_files, more=more)

        yield observe
