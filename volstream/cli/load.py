"""Files as rows: ``load``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import FileJob
from volstream.base.definitions.job import LOAD_OPTIONS, name_of_load
from volstream.cli.job import created
from volstream.cli.options import Made, common, described, existing, names_of
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("load")
@click.argument("volume", shell_complete=names_of("volume"))
@click.option("--into", required=True, metavar="TABLE")
@click.option("--name", metavar="JOB", help="The job's name; by default load_TABLE.")
@described(LOAD_OPTIONS)
@existing
@common
def load_command(
    session: Session, output: Output, volume: str, into: str, name: str | None, given: dict[str, Any], **existing: Any
) -> None:
    """Load the files of VOLUME, csv, json, parquet, avro or orc, as rows of a table, and keep the table up to date."""
    from volstream.ops.inspection import details

    name = name or name_of_load(into)
    made = Made(session, "job", name)
    job = session.jobs.load(name, volume, into, **existing, **given)
    assert isinstance(job, FileJob), "a job that loads is one of files"
    output.result(details.values(job), made.said(job, created(job), {**given, "volume": volume, "into": into}))
