"""Jobs that load files as rows: file jobs with a built-in function. Needs no Arrow. What does not belong here: finding their
columns (``load_columns``)."""

from __future__ import annotations

from collections.abc import Mapping

from volstream.base.definitions import FileJob
from volstream.base.model.names import Name
from volstream.functions.loading.options import LOADER


def default_name(into: str) -> str:
    """Returns the default name of a job that loads a table. Raises InvalidValueError."""
    table = Name.parse(into)
    return str(Name(table.schema, f"load_{table.name}"))


def loads(job: FileJob) -> bool:
    """True if a job loads files as rows, rather than running a user's function."""
    return job.function == LOADER


def arguments_of(job: FileJob) -> Mapping[str, str]:
    """Returns the arguments of a job's function; for a job that loads, including the table's columns."""
    return {**job.arguments, "columns": job.returns} if loads(job) else job.arguments
