"""Tries a function on a few local files exactly as a job would run it, in this process or in an
environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind, groups
from volstream.errors import InvalidValueError
from volstream.files.storage.local import LocalStore
from volstream.functions.call import Caller, Work, call_each
from volstream.functions.child import ChildWorker
from volstream.functions.declared import declared_by
from volstream.functions.outcomes import FileOutcome, FileTask, check
from volstream.functions.output import OutputTarget, OutputWriter
from volstream.functions.pickled import function_attributes, has_steps, resolved
from volstream.functions.printing import ImmediateOutput
from volstream.functions.processes import Environment
from volstream.functions.rows import ArrowRows, Bounds, NotRowsError, RowRequirements
from volstream.functions.schema import Inference, InferredColumns, check_names, from_ddl
from volstream.functions.steps import StepTarget
from volstream.functions.worker import Fetcher


@dataclass(frozen=True)
class Trial:
    """The result of trying a function.

    Attributes:
        outcomes: of each path, in order. Values that do not fit declared columns are failures, as in a job.
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
    environment: Environment | None = None,
    as_set: bool = False,
) -> Trial:
    """Calls a function on local files, in this process or in an environment.

    The function's output goes to standard error. Files that it returns are not written.

    Args:
        as_set: call it once, with all files as a set.

    Raises:
        FunctionLoadError: the function cannot be imported.
        InvalidValueError: the function's annotation does not describe rows.
    """
    _, source = resolved(function_attributes(function), Path.cwd())
    source = replace(source, environment=environment)
    schema = from_ddl(returns, given=True) if returns is not None else declared_by(source, arguments, columns=True)
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    store = LocalStore(folder)
    infos = [_info(store, folder, path) for path in paths]
    tasks = [_set_of(infos)] if as_set else [FileTask(info, 0) for info in infos]
    steps = StepTarget() if has_steps(source) else None
    if environment is not None:
        work = Work(source, arguments, store, schema, timeout_seconds, sets=as_set, outputs=OutputTarget(), steps=steps)
        return _try_in_child(work, tasks)
    expected = RowRequirements(schema, Bounds())
    prints = ImmediateOutput(sys.stderr)
    with closing(Fetcher(store)) as fetcher:
        files = [*zip(tasks, fetcher.files(tasks), strict=True)]
    with source.folder():
        caller = Caller(source, arguments, timeout_seconds, prints, expected, sets=as_set, outputs=OutputTarget(), steps=steps)
        outcomes = [outcome for group in groups(files, caller.batch_size or 1) for outcome in call_each(caller, group)]
    for outcome in outcomes if schema is not None else ():
        check(outcome, schema)
    return _stored_trial(outcomes, schema)


def _stored_trial(outcomes: Sequence[FileOutcome], schema: pa.Schema | None) -> Trial:
    """Returns a trial with rows as Python values, as a job would store them. The columns are inferred if not
    given."""
    trial = _inferred(outcomes) if schema is None else Trial(outcomes)
    for outcome in trial.outcomes:
        if isinstance(outcome.rows, ArrowRows):
            outcome.rows = outcome.rows.to_pylist()
    if trial.inferred is not None:
        _replace_outputs(trial.outcomes, OutputWriter(trial.inferred.columns, OutputTarget()))
        for outcome in trial.outcomes:
            check(outcome, trial.inferred.columns)
    return trial


def _replace_outputs(outcomes: Sequence[FileOutcome], write: OutputWriter) -> None:
    """Replaces files in rows by stored values, once the columns are known."""
    for outcome in outcomes:
        try:
            outcome.rows = write.rows(outcome.rows)
        except NotRowsError as error:
            outcome.kind, outcome.message, outcome.rows = FailureKind.WRONG_RESULT, str(error), ()


def _info(store: LocalStore, folder: str, path: str) -> FileInfo:
    info = store.head(os.path.relpath(os.path.abspath(path), folder))
    if info is None:
        raise InvalidValueError(f"{path} is not a readable file.")
    return info


def _set_of(infos: Sequence[FileInfo]) -> FileTask:
    """Returns files as one set."""
    whole = FileInfo("set", sum(info.size for info in infos), max(info.last_modified_time for info in infos), "")
    return FileTask(whole, 0, sorted(infos, key=lambda info: info.relative_path))


def _try_in_child(work: Work, tasks: Sequence[FileTask]) -> Trial:
    """Tries a function in a child process."""
    outcomes: list[FileOutcome] = []
    with closing(ChildWorker(work)) as worker:
        for group in groups(tasks, worker.batch_size):
            outcomes += call_each(worker.call, group)
            for printed in (printed for outcome in outcomes[-len(group) :] for printed in outcome.printed):
                sys.stderr.writelines(f"{line.text}\n" for line in printed.lines)
    return _stored_trial(outcomes, work.schema)


def _inferred(outcomes: Sequence[FileOutcome]) -> Trial:
    """Returns outcomes with the columns inferred from their rows, if there are any."""
    inference = Inference()
    try:
        for outcome in outcomes:
            path = outcome.task.info.relative_path
            if outcome.types is None:
                inference.add(path, outcome.rows)
            else:
                inference.add_types(path, outcome.types)
        inferred = inference.result() if inference.files else None
        check_names(inferred.columns if inferred else ())
        return Trial(outcomes, inferred)
    except InvalidValueError as error:
        return Trial(outcomes, unfit=error)
