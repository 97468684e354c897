"""Tries a function on a few local files in this process, exactly as a job would run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from volstream.errors import InvalidValueError
from volstream.functions.bounds import Bounds
from volstream.functions.call import Caller
from volstream.functions.file import File
from volstream.functions.outcomes import FileOutcome, FileTask, OutcomeCodec
from volstream.functions.printing import Shown
from volstream.functions.rows import ArrowRows, Expected
from volstream.functions.schema import from_ddl, of_function
from volstream.functions.source import absolute, find
from volstream.storage import normalise_location, open_store


def try_function(
    function: str,
    paths: Sequence[str],
    returns: str | None,
    arguments: Mapping[str, str],
    timeout_seconds: float | None,
) -> Sequence[FileOutcome]:
    """Calls a function on local files. Its output goes to standard error.

    Returns:
        The outcome of each path, in order; values that do not fit the declared columns are failures, as in a job.

    Raises:
        FunctionLoadError: the function cannot be imported.
        InvalidValueError: its columns are not declared.
    """
    source = find(absolute(function, Path.cwd()), os.getcwd())
    schema = from_ddl(returns) if returns is not None else of_function(source.load())
    if schema is None:
        raise InvalidValueError(
            f"The columns that {function} returns are not declared.",
            'Give --returns "label STRING, score DOUBLE", or annotate the function with a dataclass.',
        )
    files: list[tuple[FileTask, File]] = []
    for path in paths:
        folder, _, name = os.path.abspath(path).rpartition("/")
        store = open_store(normalise_location(folder or "/"))
        info = store.head(name)
        if info is None:
            raise InvalidValueError(f"{path} is not a readable file.")
        files.append((FileTask(info, 0), File(store, info)))
    expected, codec = Expected(schema, Bounds()), OutcomeCodec(schema)
    caller = Caller(source, arguments, timeout_seconds, Shown(sys.stderr), expected)
    size = caller.batch_size or 1
    outcomes = [one for start in range(0, len(files), size) for one in caller(files[start : start + size])]
    for outcome in outcomes:
        codec.check(outcome)
        if isinstance(outcome.rows, ArrowRows):
            outcome.rows = outcome.rows.to_pylist()
    return outcomes
