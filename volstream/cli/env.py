"""``env list``, ``env rm``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from volstream.base.model.text import counted
from volstream.base.model.units import format_size
from volstream.cli.options import common
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.group("env")
def env_command() -> None:
    """Show or remove the environments in which functions have packages of their own."""


@env_command.command("list")
@common
def env_list_command(session: Session, output: Output) -> None:
    """List the environments that were made, with their size and the jobs that use them."""
    from volstream.ops.inspection.details import values

    made = session.environments.list()
    lines = [
        {
            "id": one.id,
            "source": one.source or "(not finished)",
            "made_on": one.made_on,
            "size": format_size(one.size),
            "jobs": ", ".join(one.jobs),
        }
        for one in made
    ]
    output.table(lines, ["id", "source", "made_on", "size", "jobs"], "No environments.", everything=[*map(values, made)])


@env_command.command("rm")
@click.argument("id", required=False)
@click.option("--unused", is_flag=True, help="Remove all that no job uses.")
@click.option("--force", is_flag=True, help="Remove it although a job uses it. The next run creates it again.")
@common
def env_rm_command(session: Session, output: Output, id: str | None, unused: bool, force: bool) -> None:
    """Remove the environment ID, or all that no job uses."""
    if (id is None) != unused:
        raise click.UsageError("Give the id of an environment, or --unused.")
    if id is None:
        removed = session.environments.remove_unused()
        output.result({"removed": removed}, f"Removed {counted(len(removed), 'environment')}.")
        return
    session.environments.remove(id, force=force)
    output.result({"removed": [id]}, f"Removed {id}.")
