"""Files as rows: ``load``."""

from __future__ import annotations

from typing import Any

import click

from volstream.cli.complete import names_of
from volstream.cli.options import choice, common, existing
from volstream.cli.output import Output
from volstream.cli.trigger import says, triggers
from volstream.inspection import details
from volstream.loading.options import FileFormat, NewColumns
from volstream.model.objects import FileJob
from volstream.session import Session


@click.command("load")
@click.argument("volume", shell_complete=names_of("volume"))
@click.option("--into", required=True, metavar="TABLE")
@click.option("--name", metavar="JOB", help="The job's name; by default load_TABLE.")
@click.option(
    "--file-format", "format", type=choice(FileFormat), help="Of all files; by default of each by its extension."
)
@click.option("--delimiter", metavar="CHARACTER", help="Between the values of csv files; tab for tabs.")
@click.option("--no-header", is_flag=True, help="The first row of csv files has values, not names.")
@click.option("--encoding", default="utf-8", show_default=True, help="Of csv and json files.")
@click.option("--schema", metavar="DDL", help="The table's columns; by default those of a sample of the files.")
@click.option(
    "--new-columns",
    type=choice(NewColumns),
    default=NewColumns.ADD.value,
    show_default=True,
    help="Columns that the table lacks: add them, rescue their values, or fail the file.",
)
@triggers
@click.option("--where", metavar="SQL", help='Take only files that satisfy this, such as "size < 1000000".')
@click.option("--comment")
@existing
@common
def load_command(
    session: Session, output: Output, volume: str, into: str, name: str | None, no_header: bool, **options: Any
) -> None:
    """Load the files of VOLUME, csv, json or parquet, as rows of a table, and keep the table up to date."""
    from volstream.jobs.load import default_name  # late: reads schemas with Arrow

    job = session.jobs.load(name or default_name(into), volume, into, header=not no_header, **options)
    assert isinstance(job, FileJob), "a job that loads is one of files"
    output.result(details.values(job), f"Job {job.name} -> table {job.into} ({job.returns}); runs {says(job.trigger)}.")
