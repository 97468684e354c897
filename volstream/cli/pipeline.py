"""Pipelines as code: ``apply``, ``diff``, ``export``, ``graph``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from volstream.api.pipelines.definitions import PipelinePlan, Verb
from volstream.base.model.text import counted
from volstream.cli.options import common, creating_home, interactive, with_picture_formats
from volstream.cli.output import Output
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError

if TYPE_CHECKING:
    from volstream.api.session import Session

#: Exit code of ``diff --exit-code`` if there are changes.
CHANGES = 6

#: The name of the file that an export to a folder writes.
_EXPORTED = "pipeline.toml"

_PATH = click.Path(path_type=Path)

_PROFILE = click.option(
    "--profile", metavar="NAME", envvar="VOLSTREAM_PROFILE", help="The profile of variables.  [env: VOLSTREAM_PROFILE]"
)

_PRUNE = click.option(
    "--prune", is_flag=True, help="Drop objects that the files do not define. Tables and sources stay, because they hold data."
)


@click.command("apply")
@click.argument("path", type=_PATH, metavar="FILE.toml|DIR")
@_PROFILE
@click.option("--dry-run", is_flag=True, help="Check everything and show what would be done; change nothing.")
@_PRUNE
@click.option(
    "--check/--no-check", "contact", default=True, show_default=True, help="Contact buckets and queues of volumes first."
)
@click.option("--yes", is_flag=True, help="Do not ask before dropping.")
@creating_home
def apply_command(
    session: Session, output: Output, path: Path, profile: str | None, dry_run: bool, prune: bool, contact: bool, yes: bool
) -> None:
    """Create and alter objects so that the home has what FILE.toml, or the files of DIR, say.

    Everything is checked before anything changes. Applying again changes nothing.
    """
    from volstream.api.pipelines.apply import carry_out, check_plan, plan_of
    from volstream.api.pipelines.plan import done_line, finished_line, plan_values

    plan = plan_of(session, path, profile, prune=prune)
    check_plan(session, plan, contact=contact)
    if dry_run:
        _show(output, plan)
        return
    if plan.count(Verb.DROP) and not yes:
        _confirm(output, plan)

    def say(line: str) -> None:
        if not output.as_json:
            output.message(line)

    carry_out(session, plan, lambda action: say(done_line(action)) if action.verb is not Verb.KEEP else None)
    output.result(plan_values(plan), finished_line(plan))


@click.command("diff")
@click.argument("path", type=_PATH, metavar="FILE.toml|DIR")
@_PROFILE
@_PRUNE
@click.option("--exit-code", is_flag=True, help=f"Exit with {CHANGES} if there are differences.")
@creating_home
def diff_command(session: Session, output: Output, path: Path, profile: str | None, prune: bool, exit_code: bool) -> None:
    """Show what apply would change. Reads files and catalog only."""
    from volstream.api.pipelines.apply import plan_of

    plan = plan_of(session, path, profile, prune=prune)
    _show(output, plan)
    if exit_code and plan.changes:
        raise click.exceptions.Exit(CHANGES)


@click.command("export")
@click.argument("target", type=click.Path(path_type=Path, allow_dash=True), default="-", metavar="[FILE|DIR|-]")
@click.option("--dbt", is_flag=True, help="Write the home's tables as sources of dbt, in YAML, instead.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@common
def export_command(session: Session, output: Output, target: Path, dbt: bool, force: bool) -> None:
    """Write the home's objects as a file for apply. Without a target, or with -, to standard output.

    The file contains no secrets: connections and topics refer to theirs.
    """
    if dbt:
        from volstream.api.pipelines.export import to_dbt

        file = _file(target, "sources.yml", force)
        text, tables = to_dbt(session.home)
        _write(output, file, text, "yaml", {"tables": tables}, counted(tables, "table"))
        return
    from volstream.api.pipelines.export import data_tables, existing, no_file, to_toml, without_files

    exported, left_out, no_files = existing(session.home, None), data_tables(session.home), without_files(session.home)
    file = _file(target, _EXPORTED, force)
    text = to_toml(exported, left_out, None if file is None else file.parent.resolve(), no_files)
    objects = len(exported) - len(no_files)
    _write(output, file, text, "toml", {"objects": objects}, counted(objects, "object"))
    if no_files and not output.as_json:
        output.message(no_file(no_files))
    if left_out and not output.as_json:
        output.message(f"Left out, because they consist of data only: {', '.join(left_out)}.")


def _file(target: Path, usual: str, force: bool) -> Path | None:
    """Returns the file to write: ``usual`` in a folder; None: standard output."""
    if str(target) == "-":
        return None
    endings = {".yml", ".yaml"} if usual.endswith(".yml") else {Path(usual).suffix}
    with _writing(target):
        file = target if target.suffix in endings and not target.is_dir() else target / usual
        if file.exists() and not force:
            raise AlreadyExistsError(f"The file {file} exists.", "Overwrite it with --force, or give another name.")
    return file


def _write(output: Output, file: Path | None, text: str, language: str, numbers: dict[str, int], what: str) -> None:
    if file is None:
        output.result({language: text}, text.rstrip("\n"))
        return
    with _writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    output.result({"file": str(file), **numbers}, f"{what} written to {file}.")


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidValueError(f"{file} cannot be written: {error.strerror}.", "Give another file or folder.") from None


@click.command("graph")
@with_picture_formats
def graph_command(session: Session, output: Output, form: str) -> None:
    """Show where data comes from and goes to: volumes, streams, jobs, tables, sources, functions."""
    from volstream.ops.inspection.lineage import as_dot, as_mermaid, as_text, lineage

    graph = lineage(session.home)
    draw = {"dot": as_dot, "mermaid": as_mermaid}.get(form, as_text)
    if not graph.nodes and not output.as_json:
        output.message("The home has no objects.")
        return
    output.result(graph.values(), draw(graph))


def _show(output: Output, plan: PipelinePlan) -> None:
    from volstream.api.pipelines.plan import plan_lines, plan_summary, plan_values

    output.result(plan_values(plan), "\n".join([*plan_lines(plan), plan_summary(plan)]))


def _confirm(output: Output, plan: PipelinePlan) -> None:
    dropped = [action.definition.title for action in plan.actions if action.verb is Verb.DROP]
    if not interactive():
        raise InvalidStateError(
            f"{counted(len(dropped), 'object')} would be dropped: {', '.join(dropped)}.", "Confirm with --yes."
        )
    output.message(f"Will be dropped: {', '.join(dropped)}.")
    click.confirm("Continue?", abort=True, err=True)
