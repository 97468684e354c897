"""``logs``: what a job's function printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

import click

from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.model.files import printable
from volstream.model.text import one_line
from volstream.session import Session

if TYPE_CHECKING:
    from volstream.jobs.logs import LogLine


@click.command("logs")
@click.argument("job")
@click.option(
    "--lines", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="How many of the last lines."
)
@click.option("--file", "path", metavar="PATH", help="Only lines printed for this file.")
@click.option("--batch", metavar="ID", help="Only lines of this batch (see list batches).")
@common
def logs_command(session: Session, output: Output, job: str, lines: int, path: str | None, batch: str | None) -> None:
    """Show the last lines that the function of JOB printed and logged, by batch and file."""
    found = session.jobs.logs(job, lines=lines, path=path, batch=batch)
    if not found and not output.as_json:
        output.message("No output is kept" + (" for it." if path or batch else "."))
        return
    output.result(found, "\n".join(_shown(found)))


def _shown(found: Sequence[LogLine]) -> Iterator[str]:
    """Lines with time, file and stream, below their batch."""
    for batch, lines in groupby(found, lambda line: line.batch):
        yield f"batch {batch}"
        for line in lines:
            text = line.text if line.stream is None else f"{line.stream}  {line.text}"
            yield one_line(f"{_local(line.time)}  {_file(line.files)}  {text}")


def _local(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _file(files: Sequence[str]) -> str:
    """The file of a call, or the first of several; a set-up has none."""
    if not files:
        return "(set-up)"
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{printable(files[0])}{more}"
