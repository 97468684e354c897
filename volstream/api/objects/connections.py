"""Storage connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from volstream.api.objects.base import Collection
from volstream.base.definitions import Connection, ConnectionOptions
from volstream.base.definitions.options import read, to_alter, to_create
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name
from volstream.files.volumes import definitions
from volstream.files.volumes.access import policies

if TYPE_CHECKING:
    from volstream.base.definitions.keywords import ConnectionKeywords
    from volstream.home import Home


@checked
class Connections(Collection[Connection]):
    """Storage connections."""

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.connections)

    @takes(to_create(ConnectionOptions, "type"))
    def create(
        self,
        name: str,
        type: str,  # SQL's word for it
        *,
        if_not_exists: bool = False,
        **options: Unpack[ConnectionKeywords],
    ) -> Connection:
        """Stores a connection and returns it; contacts nothing. Options are those of
        :class:`~volstream.base.definitions.ConnectionOptions`.

        Raises:
            InvalidValueError: an unknown credential source; an invalid region, endpoint or role.
            AlreadyExistsError: the name is taken.
        """
        values = ConnectionOptions(**read(ConnectionOptions, {"type": type, **options}))
        return definitions.create_connection(self._home.catalog, Name.parse(name), values, if_not_exists=if_not_exists)

    @takes(to_alter(ConnectionOptions), changes=True)
    def alter(self, name: str, **changes: Unpack[ConnectionKeywords]) -> Connection:
        """Changes a connection: options of :meth:`create` except the type. Returns it as it is then.

        Raises:
            NotFoundError: no such connection.
            InvalidValueError: as :meth:`create`.
        """
        values = read(ConnectionOptions, changes)
        return definitions.alter_connection(self._home.catalog, Name.parse(name), **values)

    def policies(self, name: str) -> dict[str, Any]:
        """Returns the policies to set at the provider; see ``files.volumes.access``. Raises NotFoundError."""
        return policies(self.get(name), self._home.catalog)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a connection; returns False if it does not exist and ``if_exists`` is set.

        Raises:
            NotFoundError: no such connection, without ``if_exists``.
            ObjectInUseError: a volume uses it.
        """
        return definitions.drop_connection(self._home.catalog, Name.parse(name), if_exists=if_exists)
