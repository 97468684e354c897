"""Python functions on values, which SQL statements call by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from volstream.base.definitions.options import Option
from volstream.base.model.names import Name


@dataclass(frozen=True, kw_only=True)
class FunctionDefinition:
    """What a user says of a function."""

    function: Annotated[str, Option("Where its code is.", metavar="FILE.py:FUNC|pkg.mod:FUNC")]
    returns: Annotated[str, Option("The SQL type of its value.", metavar="TYPE")]
    of_items: Annotated[bool, Option("It takes an item of a keyed table as a dict, and returns one; in SQL both are JSON.")] = (
        False
    )
    comment: Annotated[str | None, Option()] = None


@dataclass(frozen=True, kw_only=True)
class Function(FunctionDefinition):
    """A function as the catalog has it: ``function`` is ``/abs/file.py:func`` or ``pkg.mod:func``.

    Attributes:
        search_path: folder from which ``pkg.mod`` is imported if it is not installed; None: installed.
        pickled: a function that no file has (``functions/pickled.py``); ``function`` is then its name.
    """

    id: str
    name: Name
    search_path: str | None
    created_on: datetime
    pickled: bytes | None = field(default=None, repr=False)
