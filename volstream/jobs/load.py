"""Jobs that load files as rows: file jobs with a built-in function. What does not belong here: finding their columns
(``load_columns``)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from volstream.base.definitions import FileJob
from volstream.base.model.names import Name
from volstream.functions.loading.options import LOADER, RESCUED
from volstream.functions.schema import checked, from_ddl, to_ddl


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


def with_rescued(ddl: str) -> str:
    """Adds the column for rescued data to a user's columns. Raises InvalidValueError."""
    columns = from_ddl(ddl)
    own = [field for field in columns if field.name.lower() != RESCUED]
    return to_ddl(checked(pa.schema([*own, pa.field(RESCUED, pa.string())])))
