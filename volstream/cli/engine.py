"""``engine status``, ``engine stop``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volstream.base.model.units import format_age
from volstream.cli.options import creating_home
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.group("engine")
def engine_command() -> None:
    """Show or stop the Spark process that the commands of a home share."""


@engine_command.command("status")
@creating_home
def engine_status_command(session: Session, output: Output) -> None:
    """Show whether the home's engine runs."""
    from volstream.spark.engine.client import engine_status
    from volstream.spark.jvm.address import RemoteAddress

    status, settings = engine_status(session.home.settings), session.home.settings
    if status:
        text = f"{status.state}: {status.kind} engine, pid {status.pid}, JVM {status.jvm_pid}, up {format_age(status.up_seconds)}"
    elif settings.spark_remote:
        server = RemoteAddress(settings.spark_remote).server
        text = f"The home uses the Spark server {server}. To check it: volstream doctor --cluster"
    else:
        text = "No engine runs; the first command that needs Spark starts one."
    output.result(status, text)


@engine_command.command("stop")
@click.option("--now", is_flag=True, help="Do not wait for its clients.")
@creating_home
def engine_stop_command(session: Session, output: Output, now: bool) -> None:
    """Stop the background engine once its clients are done."""
    from volstream.spark.engine.client import stop_engine

    ended = stop_engine(session.home.settings, at_once=now)
    output.result({"stopped": ended}, "The engine is stopped." if ended else "No engine is running.")
