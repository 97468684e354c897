"""``setup`` and ``completion``: volstream on this machine, without a home."""

from __future__ import annotations

from collections.abc import Callable

import click

from volstream.cli.output import Output
from volstream.files.providers.base import own


def _for_warehouses(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for each provider that keeps tables."""
    for provider in own():
        if provider.keeps_tables:
            said = f"Also for a warehouse in {provider.scheme.upper()}."
            command = click.option(f"--{provider.scheme}", is_flag=True, help=said)(command)
    return command


@click.command("setup")
@_for_warehouses
def setup_command(**warehouses: bool) -> None:
    """Prepare this machine's engine: find Java, fetch the jars, and make an archive of classes for a quick start.

    Commands fetch missing jars on demand; only this command makes the archive. Existing files are kept.
    """
    from volstream.base import config
    from volstream.spark.engine.setup import set_up

    output = Output(as_json=False)
    set_up(output.part, [scheme for scheme, asked in warehouses.items() if asked], config.load().jar_repository)


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and names of objects."""
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that can be chosen"
    Output(as_json=False).result(None, kind(root.command, {}, "volstream", "_VOLSTREAM_COMPLETE").source())
