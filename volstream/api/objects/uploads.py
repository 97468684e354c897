"""Tables of uploaded files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volstream.base.model.arguments import checked
from volstream.base.model.names import Name
from volstream.home import Home
from volstream.ingest.sources import versions


@checked
class UploadedTable:
    """An immutable table of uploaded files, each of which is a version. Thread-safe.

    Attributes:
        name: the table's name, for SQL, which sees the newest version.
    """

    def __init__(self, home: Home, name: Name) -> None:
        self.name = str(name)
        self._home = home
        self._source_name = name
        self._reader = versions.VersionReader(home, name)

    @property
    def versions(self) -> Sequence[int]:
        """Its versions, ascending."""
        return versions.numbers(self._home.catalog.sources.get(self._source_name))

    def get(self, key: Any, version: int | None = None) -> Mapping[str, Any] | None:
        """Returns the row with a key, by column, or None.

        Args:
            key: a value of the key column's type.
            version: default: the newest.

        Raises:
            InvalidValueError: the table does not have the version.
        """
        return self._reader.get(key, version)

    def __repr__(self) -> str:
        return f"UploadedTable({self.name!r})"
