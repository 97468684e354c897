"""Failed files in a terminal: by cause, a block for each file, as wide as the terminal. Pure."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from volstream.base.model.paths import printable
from volstream.base.model.text import counted, frames, one_line
from volstream.base.model.work import FailureKind, FailureState
from volstream.cli.options import common, kinds, like, names_of
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session
    from volstream.catalog.failures import FailureFilter


def by_cause(failures: Sequence[Mapping[str, Any]], width: int, most: int | None) -> str:
    """Returns failures for people, the most frequent cause first.

    Args:
        most: files of a cause that are named; None: all.
        failures: see :func:`volstream.ops.inspection.details.explained`.
        width: of the terminal; names and commands are not broken.
    """
    from volstream.ops.inspection.details import group_id

    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in failures:
        groups.setdefault((failure["job"], group_id(failure["kind"], failure["message"], failure["path"])), []).append(failure)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    return "\n\n".join("\n".join(_lines(group, width, most)) for group in ordered)


def _lines(group: Sequence[Mapping[str, Any]], width: int, most: int | None) -> Iterator[str]:
    from volstream.ops.inspection.details import common_message

    first, why = group[0], common_message((failure["message"], failure["path"]) for failure in group)
    yield from _wrapped(f"{counted(len(group), first['unit'])} of job {first['job']}: {why}", width, "")
    if places := [f"{printable(path)}:{line} in {name}" for path, line, name in frames(first["traceback"])]:
        yield f"  at {', which reached '.join(places)}; all of the traceback: --format json"
    remedy = first["remedy"]
    if len(group) > 1:
        path, retry = shlex.quote(first["path"]), f"volstream retry {first['job']}"
        if first["state"] != FailureState.SKIPPED:
            remedy = remedy.replace(f"{retry} {path}", retry)
        for before in (f"{retry} ", f"skip {first['job']} ", "--file "):
            remedy = remedy.replace(f"{before}{path}", f"{before}PATH")
    yield from _wrapped(remedy, width, "  ")
    # One more is named rather than counted.
    named = group if most is None or len(group) <= most + 1 else group[:most]
    for failure in named:
        yield f"    {printable(failure['path'])}"
        said = f"{failure['state']} ({failure['kind']}), {counted(failure['attempts'], 'failed attempt')}: {failure['next']}"
        yield from _wrapped(said, width, "        ")
    if len(named) < len(group):
        yield f"    and {len(group) - len(named):,} more: volstream list failures --job {first['job']} --all"


#: A command in a sentence, which stays on one line so that it can be copied.
_COMMAND = re.compile(r"volstream [a-z-]+( [^;]*?)?(?=;|\.? ?$|\. [A-Z])")


def _wrapped(text: str, width: int, indent: str) -> Sequence[str]:
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), one_line(text))
    lines = textwrap.wrap(
        whole,
        max(40, width),
        initial_indent=indent,
        subsequent_indent=indent or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


# Failed files: ``retry``, ``skip``.


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
