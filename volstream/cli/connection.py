"""``create-connection``."""

from __future__ import annotations

from typing import Any

import click

from volstream.cli.options import founding
from volstream.cli.output import Output
from volstream.session import Session


@click.command("create-connection")
@click.argument("name")
@click.option("--type", "type_", required=True, type=click.Choice(["local", "oss", "s3"]))
@click.option("--region")
@click.option("--endpoint", metavar="URL")
@click.option("--role-arn", metavar="ARN")
@click.option("--credentials", metavar="env|profile:NAME|static", default="env", show_default=True)
@click.option("--comment")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if it exists.")
@founding
def create_connection_command(session: Session, output: Output, name: str, type_: str, **options: Any) -> None:
    """Define how to reach a store, and with which credentials.

    Keys are never given here: they come from the environment, a profile, or volstream.toml.
    """
    connection = session.connections.create(name, type_, **options)
    output.result(connection, f"Connection {connection.name}, external id {connection.external_id}.")
