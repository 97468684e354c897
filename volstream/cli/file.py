"""Single files: ``explain-file``, ``try``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from glob import glob
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions.job import FunctionOptions
from volstream.base.definitions.options import keys
from volstream.base.model.text import counted
from volstream.base.model.work import WAITING, shown_counts, total_counts
from volstream.cli.options import DURATION, PAIR, common, merged, names_of
from volstream.cli.output import Output, in_a_line
from volstream.errors import FilesFailedError, InvalidValueError, NotFoundError

if TYPE_CHECKING:
    from volstream.api.session import Session

#: So many files are named that failed for the reason of another.
_NAMED = 5

_ENVIRONMENT = keys(FunctionOptions)["environment"].option


@click.command("explain-file")
@click.argument("volume", shell_complete=names_of("volume"))
@click.argument("path", type=click.Path())
@common
def explain_file_command(session: Session, output: Output, volume: str, path: str) -> None:
    """Show the history of one file: refreshes, batches, failures, result rows."""
    from volstream.ops.inspection.file_history import tell

    events = tell(session.home, volume, path)
    rows = [{"time": event.time, "what": event.what, "details": event.details} for event in events]
    lines = [{**row, "details": in_a_line(event.details)} for row, event in zip(rows, events, strict=True)]
    output.table(lines, ["time", "what", "details"], "No history.", everything=rows)


@click.command("try")
@click.argument("function", metavar="FILE.py:FUNC|pkg.mod:FUNC")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--returns", metavar="DDL", help="Columns of the result; default: those declared, else inferred.")
@click.option("--arg", "arguments", type=PAIR, multiple=True, metavar="KEY=VALUE")
@click.option("--timeout", "timeout_seconds", type=DURATION, metavar="60s")
@click.option(
    "--environment", metavar=_ENVIRONMENT.metavar, help=f"{_ENVIRONMENT.help} It is created in the home if it is missing."
)
@click.option("--as-set", is_flag=True, help="Call it once, on all files as one set (jobs with --group-by).")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def try_command(
    function: str,
    paths: tuple[str, ...],
    returns: str | None,
    arguments: tuple[Mapping[str, str], ...],
    timeout_seconds: float | None,
    environment: str | None,
    as_set: bool,
    format_: str,
) -> None:
    """Run a function on a few files and show its rows or the traceback. Writes no rows.

    If the function declares no columns, the --returns inferred from its rows is shown.
    """
    from volstream.base import config
    from volstream.functions.environments import EnvironmentStore
    from volstream.functions.trial import try_function

    output = Output(format_ == "json")
    paths = tuple(found for path in paths for found in ([path] if os.path.exists(path) else sorted(glob(path)) or [path]))
    for path in paths:
        if os.path.isdir(path):
            raise InvalidValueError(f"{path} is a directory.", f"Give files: {path.rstrip('/')}/*")
        if not os.path.isfile(path):
            raise NotFoundError(f"There is no file {path}.", "Correct the path, or its pattern.")
    made = environment and EnvironmentStore(config.load().environments_directory).at(os.path.abspath(environment))
    trial = try_function(function, paths, returns, merged(arguments), timeout_seconds, environment=made or None, as_set=as_set)
    value: list[dict[str, Any]] = []
    for path, outcome in zip(["the set"] if as_set else paths, trial.outcomes, strict=True):
        value.append(
            {
                "path": path,
                "rows": outcome.rows,
                "error": outcome.kind,
                "message": outcome.message or None,
                "traceback": outcome.traceback,
                "counted": outcome.counted,
            }
        )
    rows = [{"file": result["path"], **row} for result in value for row in result["rows"]]
    if rows or output.as_json:
        output.table(rows, list(dict.fromkeys(name for row in rows for name in row)), "", everything=value)
    if not output.as_json:
        _tell(output, value)
        if sums := total_counts(*(outcome.counted for outcome in trial.outcomes)):
            output.message(f"Counted: {shown_counts(sums)}.")
        if trial.inferred is not None:
            output.message(f"Inferred: --returns {shlex.quote(trial.inferred.ddl)}{trial.inferred.caveat}")
    failed = sum(result["error"] not in (None, *WAITING) for result in value)
    if failed:
        tried = counted(len(value), "set" if as_set else "file")
        raise FilesFailedError(f"{failed} of {tried} failed.")
    if trial.unfit is not None:
        raise InvalidValueError(f"The columns cannot be inferred: {trial.unfit.message}", trial.unfit.remedy)


def _tell(output: Output, results: Sequence[dict[str, Any]]) -> None:
    """Prints what the table does not show: which files gave no rows, and which failed, one of each cause with its traceback."""
    from volstream.ops.inspection.details import group_id

    causes: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["error"] is not None:
            causes.setdefault(group_id(result["error"], result["message"] or "", result["path"]), []).append(result)
        elif not result["rows"]:
            output.message(f"{result['path']}: no rows")
    for first, *others in causes.values():
        output.message(f"{first['path']}: {first['error']}: {first['message']}")
        if first["traceback"]:
            output.message(first["traceback"].rstrip())
        if others:
            named = ", ".join(other["path"] for other in others[:_NAMED])
            output.message(
                f"The same with {counted(len(others), 'other file')}: {named}{', ...' if len(others) > _NAMED else ''}"
            )
