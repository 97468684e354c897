"""Feeds mutated inputs to all that reads text: statements, messages, durations, names, patterns, settings, commands, ...

No input may end in a traceback, hang, or end a command with an exit code that is not documented. Inputs follow from the seed.
"""

from __future__ import annotations

import sys

import click

from tests.fuzz.shares import run


@click.command(help=__doc__)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--inputs", type=int, default=1_000_000, show_default=True)
@click.option("--processes", type=int, default=2, show_default=True)
def main(seed: int, inputs: int, processes: int) -> None:
    found = run(seed, inputs, processes)
    click.echo(", ".join(f"{count} {target}" for target, count in sorted(found.items())))
    sys.exit(1 if found["findings"] else 0)


if __name__ == "__main__":
    main()
