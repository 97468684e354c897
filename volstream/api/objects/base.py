"""The base of the collections: looking up objects by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from volstream.base.definitions import Connection, Function, Job, Source, Stream, Volume
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name
from volstream.catalog.definitions import Definitions

if TYPE_CHECKING:
    from volstream.jobs.home import Home

T = TypeVar("T", bound=Connection | Volume | Stream | Job | Function | Source)


@checked
class Collection(Generic[T]):
    """The objects of one kind."""

    def __init__(self, home: Home, definitions: Definitions[T]) -> None:
        self._home = home
        self._definitions = definitions

    def get(self, name: str) -> T:
        """Returns the object called ``name``. Raises NotFoundError."""
        return self._definitions.get(Name.parse(name))

    def list(self) -> Sequence[T]:
        """Returns all of them, ordered by name."""
        return self._definitions.list()
