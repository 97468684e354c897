"""``explain-file``: why a file has, or has not, its rows."""

from __future__ import annotations

from typing import Any

import click

from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.session import Session


@click.command("explain-file")
@click.argument("volume")
@click.argument("path", type=click.Path())
@common
def explain_file_command(session: Session, output: Output, volume: str, path: str) -> None:
    """Show the history of one file: refreshes, batches, failures, result rows."""
    from volstream.inspection.file_history import tell

    events = tell(session.home, volume, path)
    rows = [{"time": event.time, "what": event.what, "details": event.details} for event in events]
    shown = [{**row, "details": _line(event.details)} for row, event in zip(rows, events, strict=True)]
    output.table(shown, ["time", "what", "details"], "Nothing is known of it.", everything=rows)


def _line(details: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in details.items() if value is not None)
