"""``ingest-server``."""

from __future__ import annotations

import click


@click.command("ingest-server")
@click.option(
    "--listen", metavar="HOST:PORT", help="Where clients connect; default: the setting ingest_address, or 127.0.0.1:8643."
)
@click.option("--http-port", type=click.IntRange(0, 65535), default=0, help="Port of /healthz and /metrics; 0: any free one.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
@click.option("--home", metavar="DIR", help="The home directory.  [env: VOLSTREAM_HOME]")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", help="Format of the log on stderr.")
def ingest_server_command(listen: str | None, http_port: int, log_level: str, home: str | None, format_: str) -> None:
    """Serve real-time streams to clients without Java, until SIGTERM.

    Clients connect with volstream.connect("grpc://HOST:PORT", token=...). The token is in the file ingest.token of the home.
    """
    from volstream.base import config, log
    from volstream.base.privacy import keep_private
    from volstream.base.threads import Stop, stop_on_signals
    from volstream.server.daemon.ingest import serve

    log.configure(log_level, json=format_ == "json")
    settings = config.load(home)
    settings = settings.model_copy(update={"ingest_address": listen or settings.ingest_address or "127.0.0.1:8643"})
    keep_private(settings)
    stop = Stop()
    with stop_on_signals(stop):
        serve(settings, http_port, stop)
