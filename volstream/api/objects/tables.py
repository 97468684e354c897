"""The tables of a home, for reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from volstream.base.model.arguments import checked
from volstream.base.model.names import Name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.home import Home
    from volstream.ops.inspection.tables import DescribedTable, ListedCommit


class Table:
    """A table of a home."""

    def __init__(self, tables: Tables, name: Name) -> None:
        self.name = name
        self._tables = tables

    @property
    def df(self) -> DataFrame:
        """Its rows."""
        return self._tables.query(f"SELECT * FROM {self.name.qualified}")

    def describe(self) -> DescribedTable:
        """Returns its columns, size, newest commits and a few rows. Raises NotFoundError, DependencyError."""
        return self._tables.get(self.name)

    def history(self) -> Sequence[ListedCommit]:
        """Returns its newest commits, newest first. Raises as :meth:`describe`."""
        return self.describe().history

    def __repr__(self) -> str:
        return f"<table {self.name}>"


@checked
class Tables:
    """The tables of a home: of jobs, of sources, and others in the warehouse.

    Args:
        query: runs a query.
    """

    def __init__(self, home: Home, query: Callable[[str], DataFrame]) -> None:
        self.query = query
        self._home = home

    def get(self, name: str) -> DescribedTable:
        """Returns all about a table. Raises NotFoundError; DependencyError if its log cannot be read."""
        from volstream.ops.inspection.tables import described_table  # it imports Arrow

        return described_table(self._home, name)

    def list(self) -> Sequence[Name]:
        """Returns the names of up to 1,000 tables, in order."""
        from volstream.ops.inspection.tables import table_names

        return table_names(self._home)

    def __getitem__(self, name: str) -> Table:
        from volstream.ops.inspection.tables import missing
        from volstream.tables.delta import places
        from volstream.tables.delta.places import is_table

        parsed = Name.parse(name)
        if not is_table(places.table_location(self._home.warehouse, parsed)):
            raise missing(self._home, parsed)
        return Table(self, parsed)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and Name.parse(name) in self.list()

    def __iter__(self) -> Iterator[str]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __repr__(self) -> str:
        names = self.list()
        return f"<{len(names)} tables: {', '.join(names)}>" if names else "<no tables>"
