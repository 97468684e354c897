"""Storage connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from volstream.directory import definitions as volume_rules
from volstream.directory.access import policies
from volstream.model.names import Name
from volstream.model.objects import Connection
from volstream.objects.base import Objects

if TYPE_CHECKING:
    from volstream.session import Session


class Connections(Objects[Connection]):
    """Storage connections."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.connections)

    def create(self, name: str, type: str, **options: Any) -> Connection:  # SQL's word for it
        """Makes a connection; options as :func:`volstream.directory.definitions.create_connection` takes them."""
        return volume_rules.create_connection(self._session.catalog, Name.parse(name), type, **options)

    def policies(self, name: str) -> dict[str, Any]:
        """What to paste at the provider, as :func:`volstream.directory.access.policies` makes it. Raises NotFoundError."""
        return policies(self.get(name), self._session.catalog)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a connection; false where there was none and that is allowed. Raises ObjectInUseError."""
        return volume_rules.drop_connection(self._session.catalog, Name.parse(name), if_exists=if_exists)
