"""Sources: ``run-source``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volstream.base.model.text import counted
from volstream.base.threads import Stop, stop_on_signals
from volstream.cli.options import common, names_of
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("run-source")
@click.argument("source", shell_complete=names_of("source"))
@common
def run_source_command(session: Session, output: Output, source: str) -> None:
    """Read what the topic of SOURCE has by now into its table, without a daemon."""
    stop = Stop()
    with stop_on_signals(stop, first=lambda: output.message("Stopping. Interrupt again to end at once.")):
        count = session.connector.poll(source, stop)
    output.result({"source": source, "messages": count}, f"{counted(count, 'message')} read into {source}.")
