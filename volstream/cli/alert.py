"""``alert``: the receivers of alerts."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from volstream.cli.options import common
from volstream.cli.output import Output
from volstream.errors import NotFoundError

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.group("alert")
def alert_command() -> None:
    """Try the receivers of alerts."""


@alert_command.command("test")
@click.argument("receiver")
@common
def test_command(session: Session, output: Output, receiver: str) -> None:
    """Send a test alert to RECEIVER of volstream.toml, and wait until it is accepted."""
    from volstream.ops import receivers
    from volstream.ops.alerts import Alert, AlertEvent, Subject

    settings = session.home.settings
    receivers.check(settings)
    chosen = settings.receivers.get(receiver)
    if chosen is None:
        names = ", ".join(settings.receivers)
        raise NotFoundError(
            f"There is no receiver {receiver}.",
            f"Receivers: {names}." if names else f"Write [receivers.{receiver}] into volstream.toml.",
        )
    alert = Alert(AlertEvent.TEST, Subject("home", ""), False, "This is a test. Alerts arrive.", "No action is needed.")
    payload = alert.payload(str(settings.home), socket.gethostname(), datetime.now(UTC), None)
    receivers.deliver(chosen, payload)
    output.result(payload, f"The receiver {receiver} accepted a test alert:\n{payload['text']}")
