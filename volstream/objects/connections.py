"""Storage connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from volstream.model.arguments import checked, takes
from volstream.model.names import Name
from volstream.model.objects import Connection
from volstream.objects.base import Collection
from volstream.volumes import connections
from volstream.volumes.access import policies

if TYPE_CHECKING:
    from volstream.home import Home


@checked
class Connections(Collection[Connection]):
    """Storage connections."""

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.connections)

    @takes(connections.create_connection, without=("catalog", "name", "type_"))
    def create(self, name: str, type: str, **options: Any) -> Connection:  # SQL's word for it
        """Creates a connection; see :func:`volstream.volumes.connections.create_connection` for the options."""
        return connections.create_connection(self._home.catalog, Name.parse(name), type, **options)

    @takes(connections.create_connection, without=("catalog", "name", "type_", "if_not_exists"))
    def alter(self, name: str, **changes: Any) -> Connection:
        """Changes a connection: options of :meth:`create` except the type. Raises NotFoundError, InvalidValueError."""
        return connections.alter_connection(self._home.catalog, Name.parse(name), **changes)

    def policies(self, name: str) -> dict[str, Any]:
        """Returns the policies to set at the provider; see :func:`volstream.volumes.access.policies`. Raises NotFoundError."""
        return policies(self.get(name), self._home.catalog)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a connection; returns False if it does not exist and ``if_exists`` is set. Raises ObjectInUseError."""
        return connections.drop_connection(self._home.catalog, Name.parse(name), if_exists=if_exists)
