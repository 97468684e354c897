"""``read-batch``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.spark.errors import map_spark_errors

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("read-batch")
@click.argument("id")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Maximum number of files, in the order of their paths.",
)
@common
def read_batch_command(session: Session, output: Output, id: str, limit: int) -> None:
    """Show the files of a batch, as they were processed (see list batches)."""
    files = session.batches.read(id).orderBy("relative_path").limit(limit)
    with map_spark_errors():
        rows = files.toArrow().to_pylist()
    output.table(rows, ["relative_path", "action", "size", "last_modified_time", "etag", "old_path"], "No files.")
