"""``console``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.errors import InvalidStateError

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("console")
@click.option("--print", "print_only", is_flag=True, help="Print the URL instead of opening it.")
@common
def console_command(session: Session, output: Output, print_only: bool) -> None:
    """Open the console of the home's daemon in a browser. The URL contains the home's token: do not share it."""
    from volstream.base.privacy import url_of, write_private
    from volstream.spark.engine.client import engine_status

    settings = session.home.settings
    status = engine_status(settings)
    port = status.http_port if status is not None and status.kind == "daemon" else 0
    if not port and settings.spark_remote:  # such a daemon does not own the home, in which others tell their port
        port = settings.http_port
    if not port:
        raise InvalidStateError(f"No daemon is running in {settings.home}.", "Start one: volstream daemon.")
    url = url_of(settings, port)
    if print_only or output.as_json:
        output.result({"url": url}, url)
        return
    import webbrowser
    from html import escape

    # Every user of the machine can read a browser's command line, so it names a file that leads to the URL.
    page = settings.run_directory / "console.html"
    write_private(page, f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">')
    if webbrowser.open(page.as_uri()):
        output.message("The console is open in your browser. If the page is empty, run: volstream console --print")
    else:
        output.result({"url": url}, f"No browser found. Open this URL in one:\n{url}")
