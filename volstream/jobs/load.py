"""Jobs that load files as rows: file jobs with a function of volstream's own. What does not belong here: finding their columns
(``load_columns``)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from volstream.definitions import FileJob
from volstream.functions.schema import checked, from_ddl, to_ddl
from volstream.loading.options import LOADER, RESCUED
from volstream.model.names import Name


def default_name(into: str) -> str:
    """Returns the name of a job that loads a table if the user gives none. Raises InvalidValueError."""
    table = Name.parse(into)
    return str(Name(table.schema, f"load_{table.name}"))


def loads(job: FileJob) -> bool:
    """True if a job loads files as rows, rather than running a user's function."""
    return job.function == LOADER


def arguments_of(job: FileJob) -> Mapping[str, str]:
    """Returns the arguments of a job's function, which for one that loads include the table's columns."""
    return {**job.arguments, "columns": job.returns} if loads(job) else job.arguments


def with_rescued(ddl: str) -> str:
    """Returns a user's columns with the one for rescued data. Raises InvalidValueError."""
    columns = from_ddl(ddl)
    own = [field for field in columns if field.name.lower() != RESCUED]
    return to_ddl(checked(pa.schema([*own, pa.field(RESCUED, pa.string())])))
