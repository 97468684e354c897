"""The base of the collections: looking up objects by name, and objects as handles that do things."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from volstream.base.definitions import Connection, Function, Job, Source, Stream, Volume
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name
from volstream.catalog.definitions import Definitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.home import Home

T = TypeVar("T", bound=Connection | Volume | Stream | Job | Function | Source)


class Handle(Generic[T]):
    """An object of a home: it has the attributes of its definition as it is now, and the methods of its collection that take a
    name, as in ``session.jobs["sizes"].run()``.
    """

    def __init__(self, collection: Collection[T], name: Name) -> None:
        self.name = name
        self._collection = collection

    @property
    def definition(self) -> T:
        """Its present definition. Raises NotFoundError."""
        return self._collection.find(self.name)

    @property
    def df(self) -> DataFrame:
        """Its rows: the files of a volume, the changes of a stream, the table of a job. Reading moves no offset."""
        return self._collection.frame(self.name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute in self._collection.of_one():
            return partial(getattr(self._collection, attribute), self.name)
        definition = self.definition
        return getattr(definition if hasattr(definition, attribute) else self._collection.get(self.name), attribute)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._collection.of_one(), *dir(self.definition)})

    def __repr__(self) -> str:
        return f"<{self._collection.kind} {self.name}>"


@checked
class Collection(Generic[T]):
    """The objects of one kind. ``len``, ``in`` and iteration are by name; ``[name]`` is a :class:`Handle`."""

    #: Runs a query; set by the session.
    query: Callable[[str], DataFrame]

    def __init__(self, home: Home, definitions: Definitions[T]) -> None:
        self._home = home
        self._definitions = definitions

    @property
    def kind(self) -> str:
        """The noun of its objects."""
        return self._definitions.kind

    def find(self, name: str) -> T:
        """Returns the definition called ``name``. Raises NotFoundError."""
        self._home.check_open()
        return self._definitions.get(Name.parse(name))

    def get(self, name: str) -> T:
        """Returns the object called ``name``. Raises NotFoundError."""
        return self.find(name)

    def list(self) -> Sequence[T]:
        """Returns all of them, ordered by name."""
        self._home.check_open()
        return self._definitions.list()

    def frame(self, name: str) -> DataFrame:
        """Returns the rows of an object. Raises NotFoundError, SqlError."""
        return self.query(f"SELECT * FROM {self._relation(self.find(name))}")

    def _relation(self, definition: T) -> str:
        """Returns what SQL calls an object's rows."""
        return definition.name.qualified

    @classmethod
    def of_one(cls) -> frozenset[str]:
        """Returns the names of the methods about one object."""
        own = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
        return frozenset(name for name, method in own.items() if _takes_a_name(method)) - {"find", "get", "create", "frame"}

    def __getitem__(self, name: str) -> Handle[T]:
        return Handle(self, self.find(name).name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._definitions.find(Name.parse(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter([str(one.name) for one in self.list()])

    def __len__(self) -> int:
        return len(self.list())

    def __repr__(self) -> str:
        names = [*self]
        return f"<{len(names)} {self.kind}s: {', '.join(names)}>" if names else f"<no {self.kind}s>"


def _takes_a_name(method: object) -> bool:
    code = getattr(getattr(method, "__wrapped__", method), "__code__", None)
    return code is not None and code.co_varnames[1:2] == ("name",)
