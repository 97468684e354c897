"""``doctor``: checks the home and a volume, and says how to fix problems."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

import click

from volstream.base.model.text import visible
from volstream.cli.options import creating_home, names_of
from volstream.cli.output import Output
from volstream.errors import DependencyError

if TYPE_CHECKING:
    from volstream.api.session import Session

_SIGNS = {"ok": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "-"}


@click.command("doctor")
@click.argument("volume", required=False, shell_complete=names_of("volume"))
@click.option(
    "--canary",
    is_flag=True,
    help="Write an object into VOLUME, time its way into the directory, and delete it. The volume's jobs see it.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Ask the server of spark_remote, and run a small task in each of its slots: settings, Python, access to files.",
)
@creating_home
def doctor_command(session: Session, output: Output, volume: str | None, canary: bool, cluster: bool) -> None:
    """Check the home and what VOLUME needs: credentials, bucket, queue, wiring, daemon. Starts no Spark."""
    from volstream.base.model.work import CheckState
    from volstream.ops.inspection.doctor import examine, examine_cluster

    if canary and volume is None:
        raise click.UsageError("--canary needs a volume.")
    checks = []
    for check in chain(examine(session.home, volume, canary=canary), examine_cluster(session.home) if cluster else ()):
        checks.append(check)
        if not output.as_json:
            said = "\n".join([check.said, *([check.fix] if check.fix else [])]).replace("\n", f"\n{'':20}")
            click.echo(visible(f"{_SIGNS[check.state]:5} {check.what:13} {said}"))
    if output.as_json:
        output.result([dataclasses.asdict(check) for check in checks], None)
    counts = Counter(check.state for check in checks)
    if counts[CheckState.FAILED]:
        raise DependencyError(f"{counts[CheckState.FAILED]} of {len(checks)} checks failed.")
