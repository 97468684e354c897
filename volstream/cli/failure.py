"""Failed files: ``retry``, ``skip``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from volstream.base.model.text import counted
from volstream.base.model.work import FailureKind
from volstream.cli.complete import names_of
from volstream.cli.options import common, kinds, like
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.catalog.failures import FailureFilter


def _chosen(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that select failures of a job: their paths, ``--all``, ``--kind``, ``--like``."""
    for option in (
        like("Files whose path is LIKE this, such as 'scans/%.pdf'."),
        kinds("Failures of this kind; may be repeated."),
        click.option("--all", "every", is_flag=True, help="All of them; for retry, all that are not skipped."),
        click.argument("paths", nargs=-1),
        click.argument("job", shell_complete=names_of("job")),
    ):
        function = option(function)
    return function


@click.command("retry")
@_chosen
@common
def retry_command(session: Session, output: Output, job: str, paths: tuple[str, ...], **sort: Any) -> None:
    """Retry failed files of JOB at its next run: the given ones, or all that are not skipped."""
    due = session.jobs.retry(job, paths or None, _wanted(paths, **sort))
    output.result({"job": job, "paths": due}, f"{counted(len(due), 'file')} due again at the next run.")


@click.command("skip")
@_chosen
@common
def skip_command(session: Session, output: Output, job: str, paths: tuple[str, ...], **sort: Any) -> None:
    """Give up on failed files of JOB. A newer version of one is processed all the same."""
    if not (paths or any(sort.values())):
        raise click.UsageError("Give the files, or select them with --all, --kind or --like.")
    skipped = session.jobs.skip(job, paths or None, _wanted(paths, **sort))
    output.result({"job": job, "paths": skipped}, f"{counted(len(skipped), 'file')} skipped.")


def _wanted(paths: Sequence[str], every: bool, kinds: Sequence[str], like: str | None) -> FailureFilter:
    from volstream.catalog.failures import FailureFilter

    if paths and (every or kinds or like):
        raise click.UsageError("Give the files or select them with options, not both.")
    if every and (kinds or like):
        raise click.UsageError("--all cannot be combined with --kind or --like.")
    return FailureFilter(kinds=[FailureKind(kind) for kind in kinds], like=like)
