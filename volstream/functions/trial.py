"""Tries a function on a few local files in this process, exactly as a job would run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volstream.errors import InvalidValueError
from volstream.functions.bounds import Bounds
from volstream.functions.call import Caller, call_each
from volstream.functions.file import File, FileSet
from volstream.functions.inferred import Inference, InferredColumns
from volstream.functions.outcomes import FileOutcome, FileTask, OutcomeCodec
from volstream.functions.output import OutputTarget, OutputWriter
from volstream.functions.pickled import function_attributes, resolved
from volstream.functions.printing import ImmediateOutput
from volstream.functions.rows import ArrowRows, NotRowsError, RowRequirements
from volstream.functions.schema import from_ddl, of_function
from volstream.model.files import FileInfo
from volstream.model.work import FailureKind
from volstream.storage import normalise_location, open_store


@dataclass(frozen=True)
class Trial:
    """The result of trying a function.

    Attributes:
        outcomes: of each path, in order; values that do not fit declared columns are failures, as in a job.
        inferred: the columns, if they are not declared and there were rows.
        unfit: why undeclared columns cannot be inferred from the rows.
    """

    outcomes: Sequence[FileOutcome]
    inferred: InferredColumns | None = None
    unfit: InvalidValueError | None = None


def try_function(
    function: str | Callable[..., Any],
    paths: Sequence[str],
    returns: str | None,
    arguments: Mapping[str, str],
    timeout_seconds: float | None,
    *,
    as_set: bool = False,
) -> Trial:
    """Calls a function on local files. Its output goes to standard error. Files that it returns are not written.

    Args:
        as_set: call it once, on all files as a set.

    Raises:
        FunctionLoadError: the function cannot be imported.
        InvalidValueError: the function's annotation does not describe rows.
    """
    _, source = resolved(function_attributes(function), Path.cwd())
    schema = from_ddl(returns) if returns is not None else of_function(source.load())
    files: list[tuple[FileTask, File]] = []
    for path in paths:
        folder, _, name = os.path.abspath(path).rpartition("/")
        store = open_store(normalise_location(folder or "/"))
        info = store.head(name)
        if info is None:
            raise InvalidValueError(f"{path} is not a readable file.")
        files.append((FileTask(info, 0), File(store, info)))
    expected = RowRequirements(schema, Bounds())
    prints = ImmediateOutput(sys.stderr)
    caller = Caller(source, arguments, timeout_seconds, prints, expected, sets=as_set, outputs=OutputTarget())
    size = caller.batch_size or 1
    given: Sequence[tuple[FileTask, File | FileSet]] = [_set_of(files)] if as_set else files
    groups = [given[start : start + size] for start in range(0, len(given), size)]
    outcomes = [outcome for group in groups for outcome in call_each(caller, group)]
    trial = _inferred(outcomes) if schema is None else Trial(outcomes)
    for outcome in outcomes:
        if schema is not None:
            OutcomeCodec(schema).check(outcome)
        if isinstance(outcome.rows, ArrowRows):
            outcome.rows = outcome.rows.to_pylist()
    if trial.inferred is not None:
        _show_outputs(outcomes, OutputWriter(trial.inferred.columns, OutputTarget()))
    return trial


def _show_outputs(outcomes: Sequence[FileOutcome], write: OutputWriter) -> None:
    """Replaces files in rows, of which only now is known that they are files, by what a job would store."""
    for outcome in outcomes:
        try:
            outcome.rows, _ = write(outcome.rows)
        except NotRowsError as error:
            outcome.kind, outcome.message, outcome.rows = FailureKind.WRONG_RESULT, str(error), ()


def _set_of(files: Sequence[tuple[FileTask, File]]) -> tuple[FileTask, FileSet]:
    """Returns files as one set."""
    ordered = sorted(files, key=lambda pair: pair[1].relative_path)
    infos = [task.info for task, _ in ordered]
    whole = FileInfo("set", sum(info.size for info in infos), max(info.last_modified_time for info in infos), "")
    return FileTask(whole, 0, infos), FileSet("set", [file for _, file in ordered])


def _inferred(outcomes: Sequence[FileOutcome]) -> Trial:
    """Returns outcomes with the columns inferred from their rows, if there are any."""
    inference = Inference()
    try:
        for outcome in outcomes:
            inference.add(outcome.task.info.relative_path, outcome.rows)
        return Trial(outcomes, inference.result() if inference.files else None)
    except InvalidValueError as error:
        return Trial(outcomes, unfit=error)
