"""``daemon``."""

from __future__ import annotations

import os
import sys

import click

from volstream.base.definitions.objects import DEFAULT_VIRTUAL_CLUSTER


@click.command("daemon")
@click.option("--virtual-cluster", default=DEFAULT_VIRTUAL_CLUSTER, show_default=True, help="Serve the volumes of this cluster.")
@click.option(
    "--http-port", type=click.IntRange(0, 65535), help="Port of the console, /healthz, /readyz and /metrics; 0: any free one."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
@click.option("--home", metavar="DIR", help="The home directory.  [env: VOLSTREAM_HOME]")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", help="Format of the log on stderr.")
def daemon_command(virtual_cluster: str, http_port: int | None, log_level: str, home: str | None, format_: str) -> None:
    """Keep directory tables up to date and run due jobs, until SIGTERM."""
    from volstream.base import config, log, tracing
    from volstream.base.privacy import keep_private
    from volstream.base.threads import Stop, stop_on_signals
    from volstream.server.daemon.service import Daemon

    log.configure(log_level, json=format_ == "json")
    tracing.configure()
    overrides = {} if http_port is None else {"http_port": http_port}
    stop = Stop()
    settings = config.load(home, **overrides).for_cluster(virtual_cluster)
    keep_private(settings)
    daemon = Daemon(settings, virtual_cluster, stop)
    with stop_on_signals(stop, second=daemon.kill):
        try:
            daemon.run()
        finally:
            tracing.end()
    # Threads that did not finish in time wait for Spark, which has stopped by now; they must not keep the process alive.
    sys.stderr.flush()
    os._exit(0)
