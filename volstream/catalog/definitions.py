"""User-defined objects as rows: connections, volumes, streams, jobs, functions, sources. Their rules are
elsewhere."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection as Transaction
from sqlalchemy import Select, Table, bindparam, delete, insert, select, update

from volstream.base.definitions import Connection, DynamicJob, FileJob, Function, Job, Source, StatementJob, Stream, Volume
from volstream.base.definitions.options import keys
from volstream.base.model.names import Name, similar
from volstream.base.model.work import DefinitionVersion, groups
from volstream.base.processes import user_name
from volstream.catalog import alerts, tables
from volstream.catalog.alerts import ConditionKind, note_condition
from volstream.catalog.database import MAX_BOUND, Database, ReadSnapshot
from volstream.catalog.tables import from_row, tails, to_row
from volstream.errors import AlreadyExistsError, InvalidValueError, JobChangedError, NotFoundError

_VERSIONS = tables.definition_versions

#: Maximum number of definitions shown for a name.
_MAX_VERSIONS = 1000

#: Columns that change often. Their changes make no new version.
_STATE = frozenset({"state", "state_reason", "offset", "sequence", "refresh_count", "failed_batches", "generation", "clean"})

#: Columns that define objects, besides their options. The rest is state.
_DEFINING = (
    *("location", "connection_id", "queue_type"),
    *("function", "search_path", "returns", "arguments", "environment", "outputs_to", "outputs_prefix", "statement", "query"),
    *("primary_key", "retention_policy"),
)

T = TypeVar("T", bound=Connection | Volume | Stream | Job | Function | Source)
Changed = TypeVar("Changed", bound=Connection | Volume | Stream | Job | Function | Source)


class Definitions(Generic[T]):
    """The rows of one kind of object, by name and by id.

    Args:
        kind: the name of the kind in messages.
        table: where the objects are stored.
        classes: of the objects. If there are several, the column ``cls`` has the name of each object's class.
        dependents: tables whose rows refer to an object by this column, and are deleted with it.
        replaceable: True if a new object can replace an existing one with the same name.
    """

    def __init__(
        self,
        database: Database,
        kind: str,
        table: Table,
        classes: Sequence[type[T]],
        dependents: Sequence[tuple[Table, str]] = (),
        *,
        replaceable: bool = True,
    ) -> None:
        self.kind = kind
        self._database = database
        self._table = table
        self._classes: Mapping[str, type[T]] = {class_.__name__: class_ for class_ in classes}
        self._dependents = dependents
        self._replaceable = replaceable
        self._by_id = select(table).where(table.c.id == bindparam("id"))

    def get(self, name: Name) -> T:
        """Returns the object with this name. Raises NotFoundError."""
        definition = self.find(name)
        if definition is None:
            near = similar(name, (definition.name for definition in self.list()))
            raise NotFoundError(f"There is no {self.kind} {name}.", f"{near}See: volstream list {self.kind}s.")
        return definition

    def find(self, name: Name) -> T | None:
        """Returns the object with this name, or None."""
        return self._one(self._table.c.schema_name == name.schema, self._table.c.name == name.name)

    def resolve_existing(self, name: Name, *, or_replace: bool, if_not_exists: bool) -> T | None:
        """Returns the existing object called ``name``, to replace or keep by the options, or None.

        Raises:
            AlreadyExistsError: the object exists, and neither option is set.
            InvalidValueError: both options are set.
        """
        check_exclusive(or_replace=or_replace, if_not_exists=if_not_exists)
        existing = self.find(name)
        if existing is not None and not (or_replace or if_not_exists):
            raise self._already_exists(name)
        return existing

    def by_id(self, identity: str) -> T | None:
        """Returns the object with that id, or None if it was dropped."""
        moment = self._database.moment
        if moment is not None:
            return self._in(moment).get(identity)
        return next(map(self._object, self._database.rows(self._by_id, id=identity)), None)

    def list(self, **equal: Any) -> Sequence[T]:
        """Returns all objects whose columns have the given values, sorted by name."""
        moment = self._database.moment
        if moment is not None and not equal:
            return list(self._in(moment).values())
        return self._objects(*(self._table.c[column] == value for column, value in equal.items()))

    def unlike(self, **different: Any) -> Sequence[T]:
        """Returns all objects whose columns have other values than these, sorted by name."""
        return self._objects(*(self._table.c[column] != value for column, value in different.items()))

    def revisions(self) -> Mapping[str, int]:
        """Returns a number for each object, by id and ordered by name, that changes with the object. Only for
        volumes and jobs."""
        columns = self._table.c
        query = select(columns.id, columns.revision).order_by(columns.schema_name, columns.name)
        return dict(self._database.rows(query))

    def by_ids(self, ids: Sequence[str]) -> Sequence[T]:
        """Returns the objects that exist among these ids."""
        return [found for chunk in groups(ids, MAX_BOUND) for found in self._objects(self._table.c.id.in_(chunk))]

    def first(self, **equal: Any) -> T | None:
        """Returns an object whose columns have the given values, or None."""
        return next(iter(self.list(**equal)), None)

    def change(self, value: Changed, **changes: Any) -> Changed:
        """Stores new values of some attributes. Returns the changed object."""
        changed = dataclasses.replace(value, **changes)
        if different := self._difference(value, changed):
            with self._database.transaction() as transaction:
                self._update(transaction, value, different)
        return changed

    def replace(self, value: T, name: str, new: object) -> None:
        """Stores a new value of an attribute, unless another process changed it since ``value`` was read."""
        column = self._table.c[name]
        same = column.is_not_distinct_from(self._columns(value)[name])
        self._database.write(update(self._table).where(self._table.c.id == value.id, same).values({name: new}))

    def versions(self, name: Name) -> Sequence[DefinitionVersion]:
        """Returns the definitions of objects called ``name``, newest first."""
        columns = [column for column in _VERSIONS.c if column.key not in ("kind", "name")]
        of_name = (_VERSIONS.c.kind == self.kind, _VERSIONS.c.name == str(name))
        query = select(*columns).where(*of_name).order_by(_VERSIONS.c.id.desc()).limit(_MAX_VERSIONS)
        return self._database.all(query, DefinitionVersion)

    def definition(self, value: T, transaction: Transaction | None = None) -> Mapping[str, Any]:  # noqa: ARG002  # of jobs
        """Returns an object's definition as in versions, without a pickled function."""
        [names] = [{*keys(cls), *_DEFINING} for cls in self._classes.values() if isinstance(value, cls)]
        found = {name: column for name, column in self._columns(value).items() if name in names}
        if isinstance(value, Job):
            found["into"] = str(value.into)
        elif isinstance(value, Stream):
            found[value.source_kind.value] = str(value.source_name)
        return found

    def add(self, transaction: Transaction, value: T) -> None:
        """Stores a new object. Raises AlreadyExistsError."""
        if not self._database.add_missing(transaction, self._table, ["schema_name", "name"], [self._columns(value)]):
            raise self._already_exists(value.name)
        self._save(transaction, value, self.definition(value, transaction))

    def remove(self, transaction: Transaction, value: T, *, replaced: bool = False) -> None:
        """Deletes the object and all rows that belong to it.

        Args:
            replaced: True if another object with the same name follows in this transaction.
        """
        for table, column in self._dependents:
            transaction.execute(delete(table).where(table.c[column] == value.id))
        transaction.execute(delete(tables.conditions).where(tables.conditions.c.subject == value.id))
        transaction.execute(delete(self._table).where(self._table.c.id == value.id))
        self._save_first(transaction, value)
        if not replaced:
            self._save(transaction, value, None)

    def drop(self, name: Name, *, if_exists: bool, check: Callable[[T], object] = lambda _: None) -> bool:
        """Deletes an object. Returns False if it does not exist and ``if_exists`` is set.

        Args:
            check: raises if the object is in use.

        Raises:
            NotFoundError: there is no such object.
        """
        value = self.find(name) if if_exists else self.get(name)
        if value is None:
            return False
        check(value)
        with self._database.transaction() as transaction:
            self.remove(transaction, value)
        return True

    def _already_exists(self, name: Name) -> AlreadyExistsError:
        options = "OR REPLACE or IF NOT EXISTS (--or-replace, --if-not-exists)" if self._replaceable else "IF NOT EXISTS"
        alter = f"change it with volstream alter-{self.kind}, " if self.kind in ("volume", "job") else ""
        return AlreadyExistsError(f"There is already a {self.kind} {name}.", f"Use {options}, {alter}or choose another name.")

    def _in(self, moment: ReadSnapshot) -> Mapping[str, T]:
        """Returns all objects at a moment by id, ordered by name. Reads them once."""
        if self._table.name not in moment.objects:
            moment.objects[self._table.name] = {found.id: found for found in self._objects()}
        return moment.objects[self._table.name]

    def _one(self, *conditions: Any) -> T | None:
        return next(iter(self._objects(*conditions)), None)

    def _objects(self, *conditions: Any) -> Sequence[T]:
        query = select(self._table).where(*conditions).order_by(self._table.c.schema_name, self._table.c.name)
        return [self._object(row) for row in self._database.rows(query)]

    def _object(self, row: Any) -> T:
        (first, *_) = self._classes.values()
        return from_row(self._classes[row.cls] if len(self._classes) > 1 else first, row._mapping)

    def _columns(self, value: Any) -> dict[str, Any]:
        columns = to_row(value)
        return {**columns, "cls": type(value).__name__} if len(self._classes) > 1 else columns

    def _difference(self, value: Any, changed: Any) -> Mapping[str, Any]:
        before, after = self._columns(value), self._columns(changed)
        return {key: after[key] for key in after if after[key] != before[key]}

    def _update(self, transaction: Transaction, value: Any, different: Mapping[str, Any]) -> None:
        transaction.execute(update(self._table).where(self._table.c.id == value.id).values(**different))
        if different.keys() <= _STATE:
            return
        before = self.definition(value, transaction)
        if different.keys() & {*before, "pickled"}:
            self._save_first(transaction, value)
            after = {name: different.get(name, column) for name, column in before.items()}
            pickled = different.get("pickled", getattr(value, "pickled", None))
            self._save(transaction, value, after, pickled=pickled)

    def _save_first(self, transaction: Transaction, value: Any) -> None:
        """Saves the definition of an object that is older than its history."""
        query = select(_VERSIONS.c.id).where(_VERSIONS.c.object_id == value.id).limit(1)
        if transaction.execute(query).first() is None:
            self._save(transaction, value, self.definition(value, transaction), saved_on=value.created_on, saved_by="")

    def _save(self, transaction: Transaction, value: Any, definition: Mapping[str, Any] | None, **columns: Any) -> None:
        row = {
            "kind": self.kind,
            "name": str(value.name),
            "object_id": value.id,
            "saved_on": datetime.now(UTC),
            "saved_by": f"{user_name()} on {socket.gethostname()}",
            "definition": definition,
            "pickled": None if definition is None else getattr(value, "pickled", None),
        }
        transaction.execute(insert(_VERSIONS).values(row | columns))


class Jobs(Definitions[Job]):
    """Rows of ``jobs``. Changing a job that was altered since it was read raises JobChangedError."""

    def alter(self, transaction: Transaction, job: Job, **changes: Any) -> Job:
        """Changes how a job treats files, so that failures found by a run with the earlier definition are due
        again.

        Returns the changed job. Raises JobChangedError.
        """
        altered = dataclasses.replace(job, generation=job.generation + 1, **changes)
        self._update(transaction, job, self._difference(job, altered))
        return altered

    def definition(self, value: Job, transaction: Transaction | None = None) -> Mapping[str, Any]:
        """See :class:`Definitions`; of a file job also the volume or the stream that it reads."""
        found = super().definition(value, transaction)
        if not isinstance(value, FileJob):
            return found
        query = select(tables.streams).where(tables.streams.c.id == value.stream_id)
        rows = self._database.rows(query) if transaction is None else transaction.execute(query)
        for stream in [from_row(Stream, row._mapping) for row in rows]:
            source = ("volume", stream.source_name) if value.owns_stream else ("stream", stream.name)
            found = {**found, source[0]: str(source[1])}
        return found

    def _update(self, transaction: Transaction, value: Job, different: Mapping[str, Any]) -> None:
        check_current(transaction, value)
        super()._update(transaction, value, different)


class DefinitionCache(Generic[T]):
    """A copy of all objects of a kind, as of the last read. Each read only fetches changes. For use by one
    thread.

    Attributes:
        all: objects by id, in the order of the revisions, by default by name. A new mapping after each
            change.
        revisions: the revisions of the objects, by id.
    """

    def __init__(self, objects: Definitions[T]) -> None:
        self.all: Mapping[str, T] = {}
        self.revisions: Mapping[str, int] = {}
        self._objects = objects

    def follow(self, revisions: Mapping[str, int] | None = None) -> Sequence[T]:
        """Reads and returns the objects that changed since the last read. Raises CatalogError.

        Args:
            revisions: of all objects, if just read.
        """
        revisions, before = self._objects.revisions() if revisions is None else revisions, self.revisions
        changed = self._objects.by_ids([identity for identity in revisions if revisions[identity] != before.get(identity)])
        if changed or revisions.keys() != self.all.keys():
            found = {**self.all, **{item.id: item for item in changed}}
            self.all = {identity: found[identity] for identity in revisions if identity in found}
        # An object that changed again before it was read has a newer revision, so the next call reads it
        # again.
        self.revisions = revisions
        return changed


def check_exclusive(*, or_replace: bool, if_not_exists: bool) -> None:
    """Raises InvalidValueError if both options for an existing object are given."""
    if or_replace and if_not_exists:
        raise InvalidValueError("OR REPLACE and IF NOT EXISTS are mutually exclusive.", "Give one of them.")


def connections(database: Database) -> Definitions[Connection]:
    """Rows of ``connections``."""
    return Definitions(database, "connection", tables.connections, [Connection], replaceable=False)


def volumes(database: Database) -> Definitions[Volume]:
    """Rows of ``volumes``. Deleting one also deletes its refreshes, rejected messages and key checks."""
    dependents = [
        (table, "volume_id")
        for table in (tables.refreshes, tables.volume_totals, tables.rejected, tables.key_checks, tables.reconciles)
    ]
    return Definitions(database, "volume", tables.volumes, [Volume], dependents)


def streams(database: Database) -> Definitions[Stream]:
    """Rows of ``streams``. Deleting one also deletes its intents, and the batches and plans of statements,
    not of jobs."""
    dependents = [(table, "stream_id") for table in (tables.intents, tables.batches, tables.plans)]
    return Definitions(database, "stream", tables.streams, [Stream], dependents)


def jobs(database: Database) -> Jobs:
    """Rows of ``jobs``. Deleting one also deletes its failures, batches, plans and sums, and the intents of
    its stream."""
    dependents = [
        (table, "job_id")
        for table in (
            *(tables.failures, tables.batches, tables.plans, tables.job_totals, tables.job_counts),
            *(tables.code_versions, tables.forgotten_batches),
        )
    ]
    return Jobs(database, "job", tables.jobs, [FileJob, StatementJob, DynamicJob], dependents)


def functions(database: Database) -> Definitions[Function]:
    """Rows of ``functions``."""
    return Definitions(database, "function", tables.functions, [Function])


def sources(database: Database) -> Definitions[Source]:
    """Rows of ``sources``."""
    return Definitions(database, "source", tables.sources, [Source], replaceable=False)


#: Reads a job's row, and locks it until the end of the transaction.
LOCK_JOB: Select[Any] = (
    select(tables.jobs.c.generation, tables.jobs.c.failed_batches, tables.jobs.c.pause_after)
    .where(tables.jobs.c.id == bindparam("this"))
    .with_for_update()
)


def check_current(transaction: Transaction, job: Job) -> None:
    """Raises JobChangedError if a job was altered since it was read. Locks the job until the end of the
    transaction."""
    row = transaction.execute(LOCK_JOB, {"this": job.id}).one_or_none()
    if row is None or row.generation != job.generation:
        raise JobChangedError(f"The job {job.name} was changed or dropped by someone else meanwhile.", "Try again.")


#: Sets columns of the job ``this``.
CHANGE_JOB = update(tables.jobs).where(tables.jobs.c.id == bindparam("this"))


def note_begun(database: Database, job: Job) -> None:
    """Records that a run of a job began. The previous run's outcome stays until this run ends."""
    values = {"last_started": datetime.now(UTC), "last_ended": None}
    database.write(CHANGE_JOB, this=job.id, **values)


def note_ended(database: Database, job: Job, outcome: str | None, failed: str | None = None) -> None:
    """Records that a run of a job ended, with a one-line outcome and, if it failed as a whole, the reason."""
    with database.transaction() as transaction:
        values = {"last_ended": datetime.now(UTC), "last_outcome": outcome}
        transaction.execute(CHANGE_JOB, {"this": job.id, **values})
        alerts.note_condition(transaction, alerts.ConditionKind.JOB, job.id, failed)


# Locations of tables by name: tables outside of the warehouse, tables with tails, tables in a metastore.


class Locations:
    """Rows of ``links``, ``tails`` or ``registrations``.

    For ``registrations``, ``where`` has the metastore. Links are not stored in the warehouse: its writers
    must not choose where jobs write.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table

    def list(self, **where: str) -> Mapping[Name, str]:
        """Returns the locations of the tables, by name."""
        query = select(self._table).filter_by(**where).order_by("name")
        return {Name.parse(row.name): row.location for row in self._database.rows(query)}

    def put(self, name: Name, location: str, **where: str) -> None:
        """Records the location of a table."""
        key = {"name": str(name), **where}
        other = delete(self._table).filter_by(**key).where(self._table.c.location != location)
        with self._database.transaction() as transaction:
            transaction.execute(other)
            self._database.add_missing(transaction, self._table, [*key], [{**key, "location": location}])

    def remove(self, name: Name, **where: str) -> None:
        """Removes a table's record, if any."""
        with self._database.transaction() as transaction:
            transaction.execute(delete(self._table).filter_by(name=str(name), **where))
            if self._table is tails:
                note_condition(transaction, ConditionKind.TABLE, str(name), None)
