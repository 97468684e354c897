"""Python functions of values, which SQL statements call: what travels to the executors, and what is kept of one.

They are found, shipped and imported as per-file functions are (``functions``).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from volstream.errors import InvalidValueError
from volstream.functions.schema import from_ddl, to_ddl
from volstream.functions.source import FunctionSource, absolute, find
from volstream.model.names import Name
from volstream.model.objects import Function

#: The column of which a type is read.
_COLUMN = "value"


@dataclass(eq=False)
class ScalarCall:
    """A function of values as Spark calls it; pickled with each query, as source, and imported at its first call."""

    source: FunctionSource
    _function: Callable[..., Any] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "_function": None}

    def __call__(self, *arguments: Any) -> Any:
        """The function's value."""
        if self._function is None:
            self._function = self.source.load()
        with self.source.importable():
            return self._function(*arguments)


def call_of(function: Function) -> ScalarCall:
    """The function with its code as it is now. Raises FunctionLoadError where that is gone."""
    return ScalarCall(find(function.location, function.search_path))


def new_function(name: Name, location: str, returns: str, comment: str | None) -> Function:
    """A function that is to be kept; it is imported once, to see that it is there.

    Args:
        location: ``file.py:func`` or ``pkg.mod:func``, from the working directory.
        returns: a SQL type.

    Raises:
        FunctionLoadError: it cannot be imported.
        InvalidValueError: no such type.
    """
    resolved = absolute(location, Path.cwd())
    source = find(resolved, os.getcwd())
    source.load()
    return Function(
        id=str(uuid.uuid4()),
        name=name,
        location=resolved,
        search_path=source.root,
        returns=_type(returns),
        comment=comment,
        created_on=datetime.now(UTC),
    )


def _type(text: str) -> str:
    """A SQL type as Spark writes it."""
    try:
        schema = from_ddl(f"{_COLUMN} {text}\n")  # nothing that follows can be part of a comment
    except InvalidValueError:
        schema = None
    if schema is None or schema.names != [_COLUMN]:
        raise InvalidValueError(
            f"RETURNS {text!r} is not a type.", "Write for example STRING, DOUBLE or ARRAY<STRING>."
        )
    return to_ddl(schema).removeprefix(f"{_COLUMN} ")
