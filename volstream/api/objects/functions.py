"""Python functions callable from SQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from volstream.api.objects.base import Collection
from volstream.base.definitions import Function
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name

if TYPE_CHECKING:
    from volstream.home import Home


@checked
class Functions(Collection[Function]):
    """Python functions of values, which SQL statements call by name."""

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.functions)

    def create(
        self,
        name: str,
        function: str | Callable[..., Any],
        returns: str,
        *,
        comment: str | None = None,
        of_items: bool = False,
        or_replace: bool = False,
        if_not_exists: bool = False,
        directory: Path | None = None,
    ) -> Function:
        """Makes a function, ``file.py:func``, ``pkg.mod:func`` or itself, callable in statements.

        The code of a file or module is read for each statement that calls it. A function of a notebook or program is kept as it
        is now.

        Args:
            returns: the SQL type of its value.
            of_items: it takes an item of a keyed table as a dict, and returns one, or None; in SQL both are JSON (STRING).
            directory: where the file or module is looked for; None: the working directory.

        Raises:
            FunctionLoadError: it cannot be imported.
            InvalidValueError: ``returns`` is not a type; the function cannot be pickled.
            AlreadyExistsError: the name is taken.
        """
        from volstream.functions.sql import new_function

        existing = self._definitions.resolve_existing(Name.parse(name), or_replace=or_replace, if_not_exists=if_not_exists)
        if existing is not None and if_not_exists:
            return existing
        created = new_function(Name.parse(name), function, returns, comment, of_items=of_items, directory=directory)
        with self._home.catalog.database.transaction() as transaction:
            if existing is not None:
                self._definitions.remove(transaction, existing)
            self._definitions.add(transaction, created)
        return created

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a function; its file stays. Returns False if it does not exist and ``if_exists`` is set."""
        existing = self._definitions.find(Name.parse(name)) if if_exists else self.get(name)
        if existing is None:
            return False
        with self._home.catalog.database.transaction() as transaction:
            self._definitions.remove(transaction, existing)
        return True
