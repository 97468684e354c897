"""``create-connection``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import ConnectionOptions
from volstream.base.definitions.options import to_create
from volstream.cli.options import creating_home, described
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("create-connection")
@click.argument("name")
@described(to_create(ConnectionOptions))
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
@creating_home
def create_connection_command(session: Session, output: Output, name: str, given: dict[str, Any], if_not_exists: bool) -> None:
    """Define how to reach a store, and with which credentials.

    Keys are never given here: they come from the environment, a profile, or volstream.toml.
    """
    connection = session.connections.create(name, given.pop("type"), if_not_exists=if_not_exists, **given)
    output.result(connection, f"Connection {connection.name}, external id {connection.external_id}.")
