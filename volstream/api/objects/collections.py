"""The collections of a home's objects: connections, functions, environments, streams and tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from volstream.base.definitions import Connection, ConnectionOptions, FileJob, Function, Job, Source, Stream, StreamSpec, Volume
from volstream.base.definitions.objects import FunctionDefinition, StreamOptions
from volstream.base.definitions.options import keys, read, to_alter, to_create
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name
from volstream.base.model.text import to_json
from volstream.base.model.work import ENDS, DefinitionVersion, PlanKind
from volstream.catalog.definitions import Definitions
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, ObjectInUseError
from volstream.files.volumes import definitions
from volstream.files.volumes.access import policies
from volstream.functions.environments import EnvironmentStore, MadeEnvironment
from volstream.home import Home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.api.objects.open_stream import OpenStream
    from volstream.base.definitions.keywords import ConnectionKeywords, StreamKeywords
    from volstream.ops.inspection.tables import DescribedTable, ListedCommit


@dataclass(frozen=True)
class DefinitionChange:
    """A change of an object's definition.

    Attributes:
        id: identifies the definition after the change, for :meth:`Collection.revert`.
        saved_by: the user and the machine.
        what: ``created``, ``changed``, ``replaced`` or ``dropped``.
        changes: values before and after, by option.
    """

    id: int
    saved_on: datetime
    saved_by: str
    what: str
    changes: Mapping[str, tuple[Any, Any]]

    @property
    def text(self) -> str:
        """The change, such as ``retries 3 -> 0``. A new object's options have no earlier value."""
        shown = [
            f"{option} {'' if self.what == 'created' else f'{_shown(before)} -> '}{_shown(after)}"
            for option, (before, after) in self.changes.items()
        ]
        return ", ".join(shown)


def _shown(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else to_json(value)


# The base of the collections: finds objects by name, and returns them as handles with methods.

T = TypeVar("T", bound=Connection | Volume | Stream | Job | Function | Source)


class Handle(Generic[T]):
    """An object of a home. It has the attributes of its current definition, and those methods of its
    collection that take a name, as in ``session.jobs["sizes"].run()``.
    """

    def __init__(self, collection: Collection[T], name: Name) -> None:
        self.name = name
        self._collection = collection

    @property
    def definition(self) -> T:
        """Its current definition. Raises NotFoundError."""
        return self._collection.find(self.name)

    @property
    def df(self) -> DataFrame:
        """Its rows: the files of a volume, the changes of a stream, the table of a job. Reading moves no
        offset."""
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
        """Returns all definitions, ordered by name."""
        self._home.check_open()
        return self._definitions.list()

    def history(self, name: str) -> Sequence[DefinitionChange]:
        """Returns the changes of the definition of objects called ``name``, newest first.

        Changes older than the setting ``history_seconds`` are deleted, except for the definition that was
        valid then.
        """
        self._home.check_open()
        versions = self._definitions.versions(Name.parse(name))
        return [self._change(after, before) for after, before in zip_longest(versions, versions[1:])]

    def revert(self, name: str, to: int | None = None) -> T:
        """Restores an earlier definition of an object, as if its options were altered. Returns the object.

        Args:
            to: the ``id`` of a change in :meth:`history`: restores the definition after it. By default, the
                definition before the newest change.

        Raises:
            NotFoundError: no such object, or no such definition.
            InvalidStateError: an option that cannot be altered differs.
            Otherwise as :meth:`alter`.
        """
        current = self.find(name)
        present = self._definitions.definition(current)
        earlier = [version for version in self._definitions.versions(current.name)[1:] if version.definition is not None]
        wanted = next((version for version in earlier if to in (None, version.id)), None)
        if wanted is None:
            raise NotFoundError(
                f"The {self.kind} {current.name} has no earlier definition{'' if to is None else f' {to}'}.",
                f"See: volstream describe {self.kind} {current.name} --history.",
            )
        assert wanted.definition is not None, "definitions of dropped objects were left out"
        changes = {option: value for option, value in wanted.definition.items() if present.get(option) != value}
        if wanted.pickled != getattr(current, "pickled", None):
            changes |= {"function": wanted.definition["function"], "pickled": wanted.pickled}
        if fixed := sorted(changes.keys() - self._revertible):
            shown = f"{fixed[0]} {present.get(fixed[0])} cannot become {changes[fixed[0]]}"
            raise InvalidStateError(f"The {self.kind} {current.name} stays: its {shown}.", "Drop it, and create it again.")
        options = keys(self._spec)
        read_ = {name: options[name].read(options[name].write(changes.pop(name))) for name in options.keys() & changes}
        return self._put_back(current, {**read_, **changes})

    def can_revert(self, change: DefinitionChange) -> bool:
        """Returns whether :meth:`revert` can undo a change."""
        return change.changes.keys() <= self._revertible

    #: The class with the options that :meth:`revert` can change, and its other changeable attributes.
    _spec: type[Any] = StreamOptions
    _revertible: frozenset[str] = frozenset()

    def _put_back(self, current: T, changes: Mapping[str, Any]) -> T:
        return self._definitions.change(current, **changes)

    def _change(self, after: DefinitionVersion, before: DefinitionVersion | None) -> DefinitionChange:
        if after.definition is None:
            return DefinitionChange(after.id, after.saved_on, after.saved_by, "dropped", {})
        from volstream.ops.inspection.details import as_written  # late: it has many imports

        known = None if before is None else before.definition
        is_same = before is not None and before.object_id == after.object_id
        what = "changed" if is_same else "created" if known is None else "replaced"
        if known is None:
            defaults = {name: key.default for name, key in keys(self._spec).items()}
            known = {name: [*value] if isinstance(value, tuple) else value for name, value in defaults.items()}
        hidden = {"search_path", *(ENDS if before is not None and known.keys().isdisjoint(ENDS) else ())}
        changes = {
            option: (as_written(option, known.get(option)), as_written(option, value))
            for option, value in after.definition.items()
            if option not in hidden and (known.get(option) or None) != (value or None)
        }
        if before is not None and before.pickled != after.pickled:
            names = known.get("function"), after.definition.get("function")
            changes["function"] = (f"{names[0]} (earlier code)", f"{names[1]} (other code)")
        return DefinitionChange(after.id, after.saved_on, after.saved_by, what, changes)

    def frame(self, name: str) -> DataFrame:
        """Returns the rows of an object. Raises NotFoundError, SqlError."""
        return self.query(f"SELECT * FROM {self._relation(self.find(name))}")

    def _relation(self, definition: T) -> str:
        """Returns the name of an object's rows in SQL."""
        return definition.name.qualified

    @classmethod
    def of_one(cls) -> frozenset[str]:
        """Returns the names of the methods about one object."""
        methods = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
        return frozenset(name for name, method in methods.items() if _takes_a_name(method)) - {"find", "get", "create", "frame"}

    def __getitem__(self, name: str) -> Handle[T]:
        return Handle(self, self.find(name).name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._definitions.find(Name.parse(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return iter([str(definition.name) for definition in self.list()])

    def __len__(self) -> int:
        return len(self.list())

    def __repr__(self) -> str:
        names = [*self]
        return f"<{len(names)} {self.kind}s: {', '.join(names)}>" if names else f"<no {self.kind}s>"


def _takes_a_name(method: object) -> bool:
    code = getattr(inspect.unwrap(method) if callable(method) else None, "__code__", None)
    return code is not None and code.co_varnames[1:2] == ("name",)


# Storage connections.


@checked
class Connections(Collection[Connection]):
    """Storage connections."""

    _spec, _revertible = ConnectionOptions, frozenset(to_alter(ConnectionOptions))

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.connections)

    @takes(to_create(ConnectionOptions, "type"))
    def create(
        self,
        name: str,
        type: str,  # SQL's word
        *,
        if_not_exists: bool = False,
        **options: Unpack[ConnectionKeywords],
    ) -> Connection:
        """Stores a connection and returns it. Contacts nothing.

        Options are those of :class:`~volstream.base.definitions.ConnectionOptions`.

        Raises:
            InvalidValueError: the credential source is unknown, or the region, endpoint or role is invalid.
            AlreadyExistsError: the name is taken.
        """
        values = ConnectionOptions(**read(ConnectionOptions, {"type": type, **options}))
        return definitions.create_connection(self._home.catalog, Name.parse(name), values, if_not_exists=if_not_exists)

    @takes(to_alter(ConnectionOptions), changes=True)
    def alter(self, name: str, **changes: Unpack[ConnectionKeywords]) -> Connection:
        """Changes options of a connection: those of :meth:`create` except the type. Returns the changed
        connection.

        Raises:
            NotFoundError: no such connection.
            InvalidValueError: as :meth:`create`.
        """
        values = read(ConnectionOptions, changes)
        return self._put_back(self.find(name), values)

    def _put_back(self, current: Connection, changes: Mapping[str, Any]) -> Connection:
        return definitions.alter_connection(self._home.catalog, current.name, **changes)

    def policies(self, name: str) -> dict[str, Any]:
        """Returns the policies to set at the provider; see ``files.volumes.access``. Raises NotFoundError."""
        return policies(self.get(name), self._home.catalog)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a connection. Returns False if it does not exist and ``if_exists`` is set.

        Raises:
            NotFoundError: no such connection, without ``if_exists``.
            ObjectInUseError: a volume uses it.
        """
        return definitions.drop_connection(self._home.catalog, Name.parse(name), if_exists=if_exists)


# Python functions callable from SQL.


@checked
class Functions(Collection[Function]):
    """Python functions on values, which SQL statements call by name."""

    _spec = FunctionDefinition
    _revertible = frozenset({*keys(FunctionDefinition), "search_path", "pickled"})

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
        """Makes a function callable in statements, given as ``file.py:func``, ``pkg.mod:func`` or the
        function itself.

        The code of a file or module is read for each statement that calls it. A function of a notebook or
        program is stored in its current state.

        Args:
            returns: the SQL type of its value.
            of_items: it takes an item of a keyed table as a dict, and returns one, or None. In SQL both are
                JSON (STRING).
            directory: where to find the file or module. The working directory by default.

        Raises:
            FunctionLoadError: it cannot be imported.
            InvalidValueError: ``returns`` is not a type, or the function cannot be pickled.
            AlreadyExistsError: the name is taken.
        """
        from volstream.functions.sql import new_function

        existing = self._definitions.resolve_existing(Name.parse(name), or_replace=or_replace, if_not_exists=if_not_exists)
        if existing is not None and if_not_exists:
            return existing
        created = new_function(Name.parse(name), function, returns, comment, of_items=of_items, directory=directory)
        with self._home.catalog.database.transaction() as transaction:
            if existing is not None:
                self._definitions.remove(transaction, existing, replaced=True)
            self._definitions.add(transaction, created)
        return created

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a function. Its file stays. Returns False if it does not exist and ``if_exists`` is set."""
        return self._definitions.drop(Name.parse(name), if_exists=if_exists)


# Environments of functions: lists them with the jobs that use them, and removes them.


@dataclass(frozen=True)
class EnvironmentUse(MadeEnvironment):
    """An environment in the home, and its use.

    Attributes:
        jobs: names of the jobs that use it now. A job whose file has changed uses another one.
    """

    jobs: Sequence[str]


@checked
class Environments:
    """Environments that were built for the functions of jobs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._store = EnvironmentStore(home.settings.environments_directory)

    def list(self) -> Sequence[EnvironmentUse]:
        """Returns the environments of the home with the jobs that use them."""
        users: dict[str | None, list[str]] = {}
        for job in self._home.catalog.jobs.list():
            if isinstance(job, FileJob) and job.environment is not None:
                users.setdefault(self._store.id_of(job.environment), []).append(str(job.name))
        return [EnvironmentUse(**vars(item), jobs=users.get(item.id, ())) for item in self._store.all()]

    def remove(self, id: str, *, force: bool = False) -> None:
        """Removes an environment. A job that needs it builds it again, with the newest packages that its file
        allows.

        Args:
            force: also remove one that jobs use. Calls in progress may fail.

        Raises:
            NotFoundError: no environment has this id.
            ObjectInUseError: a job uses it.
        """
        found = next((use for use in self.list() if use.id == id), None)
        if found is None:
            raise NotFoundError(f"There is no environment {id}.", "See: volstream env list.")
        if found.jobs and not force:
            raise ObjectInUseError(
                f"The environment {id} is used by {', '.join(found.jobs)}.",
                f"To remove it anyway: volstream env rm {id} --force. The next run creates it again.",
            )
        self._store.remove(id)

    def remove_unused(self) -> Sequence[str]:
        """Removes the environments that no job uses. Returns their ids."""
        unused = [use.id for use in self.list() if not use.jobs]
        for id in unused:
            self._store.remove(id)
        return unused


# Streams: cursors over volumes and tables.


@checked
class Streams(Collection[Stream]):
    """Cursors over the changes of volumes and tables."""

    _revertible = frozenset({"comment"})

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.streams)

    def get(self, name: str) -> OpenStream:
        """Returns the stream called ``name``, which can be consumed. Raises NotFoundError."""
        from volstream.api.objects.open_stream import OpenStream  # late: imports pyarrow and deltalake

        return OpenStream.of(self._home, super().get(name))

    @takes(to_create(StreamSpec, "volume", "table"))
    def create(
        self,
        name: str,
        volume: str | None = None,
        *,
        table: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
        **options: Unpack[StreamKeywords],
    ) -> Stream:
        """Creates a stream on a volume or a table. Options are those of
        :class:`~volstream.base.definitions.StreamSpec`.

        Reads the log of the table, and changes only the catalog.

        Raises:
            NotFoundError: the volume or the table does not exist.
            InvalidStateError: the changes of the table are not tracked.
            InvalidValueError: neither a volume nor a table is given, or both, or the source does not have the
                given start.
            AlreadyExistsError: a stream or a table has this name.
            ObjectInUseError: the stream to replace serves a job.
        """
        from volstream.api.statements import metastore
        from volstream.changes.streams.definitions import create_stream

        if table is not None:
            metastore.locate(self._home, Name.parse(table))
        if or_replace:
            self.free(name)
        on_volume, on_table = (Name.parse(source) if source else None for source in (volume, table))
        values = read(StreamSpec, options)
        spec = StreamSpec(name=Name.parse(name), volume=on_volume, table=on_table, **values)
        return create_stream(self._home.catalog, self._home.warehouse, spec, or_replace=or_replace, if_not_exists=if_not_exists)

    def alter(self, name: str, *, comment: str | None) -> Stream:
        """Changes a stream's comment. Raises NotFoundError."""
        return self._definitions.change(self._definitions.get(Name.parse(name)), comment=comment)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a stream. Returns False if it does not exist and ``if_exists`` is set. Its source stays.

        Raises:
            NotFoundError: no such stream, without ``if_exists``.
            ObjectInUseError: a job consumes it.
            StreamBusyError: a consumption is open.
        """
        from volstream.changes.streams.definitions import drop_stream

        self.free(name)
        return drop_stream(self._home.catalog, Name.parse(name), if_exists=if_exists)

    def has_data(self, name: str) -> bool:
        """Returns whether a read may return rows. Reads the log of the source, without Spark.

        Raises:
            NotFoundError: no such stream.
            StreamStaleError: it can no longer be read.
        """
        return self._home.reader.has_data(self.get(name))

    def reset(self, name: str, *, to_version: int | None = None, to_timestamp: datetime | None = None) -> Stream:
        """Moves the offset back or forward to a version or a time. Later changes are delivered, some of them
        again.

        Raises:
            NotFoundError: no such stream.
            InvalidValueError: neither is given, or both, or the history of the source does not have it.
            StreamBusyError: a consumption is open.
        """
        from volstream.changes.streams.definitions import move_stream

        if (to_version is None) == (to_timestamp is None):
            raise InvalidValueError("Give either a version or a time to reset the stream to.")
        self.free(name)
        return move_stream(self._home.catalog, self._home.warehouse, Name.parse(name), to_version, to_timestamp)

    def advance(self, name: str, *, to_version: int | None = None) -> Stream:
        """Discards unconsumed changes: moves the offset to ``to_version``, by default to the newest.

        Raises:
            NotFoundError: no such stream.
            InvalidValueError: the version is before the offset, or does not exist yet.
            StreamBusyError: a consumption is open.
        """
        from volstream.changes.streams.definitions import advance_stream

        self.free(name)
        return advance_stream(self._home.catalog, self._home.warehouse, Name.parse(name), to_version)

    def free(self, name: str) -> None:
        """Finds out whether a consumption that a statement left open was committed, and closes it.

        Needs Spark only if there is one. Raises StreamBusyError if it is still running.
        """
        stream = self._home.catalog.streams.find(Name.parse(name))
        plan = None if stream is None else self._home.catalog.consumptions.open_plan(stream.id)
        if stream is None or plan is None or plan.kind is not PlanKind.STATEMENT:
            return
        with self._home.consumption() as consumption:
            consumption.free(stream)

    def resolve(self, name: str, *, committed: bool) -> None:
        """Records the outcome of an attempt that volstream cannot determine, because its table was dropped or
        replaced.

        Args:
            committed: if True, its changes are in the table, and the offset moves. If False, the next run
                delivers them again.

        Raises:
            NotFoundError: no such stream.
            InvalidStateError: it has no open attempt.
        """
        from volstream.catalog.consumptions import BatchOutcome

        stream = self.get(name)
        intent = self._home.catalog.consumptions.open_intent(stream.id)
        if intent is None:
            raise InvalidStateError(f"The stream {name} has no open attempt.", "Nothing needs to be resolved.")
        if committed:
            batch = self._home.catalog.reports.batch(intent.batch_id)
            self._home.catalog.consumptions.commit(intent, BatchOutcome(batch.files if batch else 0, 0, 0))
        else:
            self._home.catalog.consumptions.abort(intent, "Resolved by hand.")


# The tables of a home, for reading.


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
        """Returns all details of a table. Raises NotFoundError, and DependencyError if its log cannot be
        read."""
        from volstream.ops.inspection.tables import described_table  # late: imports Arrow

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
