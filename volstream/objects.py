"""The operations on objects, one collection a kind: what CLI, SQL and Python all call.

A collection resolves names, takes leases and calls the domain; rules are the domain's. Names are text, as users write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from volstream.batch import OpenStream
from volstream.catalog.definitions import Definitions
from volstream.catalog.failures import ACTIVE
from volstream.catalog.leases import held
from volstream.directory import definitions as volume_rules
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, NotFoundError
from volstream.lifecycle.identity import new_owner
from volstream.lifecycle.stop import Stop
from volstream.model.names import Name
from volstream.model.objects import Connection, Function, Job, JobSpec, Stream, StreamSpec, Volume, VolumeSpec
from volstream.model.work import Batch, Failure, FailureState, PlanKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.directory.reconcile import Reconciled
    from volstream.jobs.lead import RunReport
    from volstream.jobs.preview import Preview
    from volstream.jobs.progress import Observer
    from volstream.session import Session

T = TypeVar("T", bound=Connection | Volume | Stream | Job | Function)

#: A foreground refresh asks the daemon this often whether it is done.
_ASK_SECONDS = 0.1


@dataclass(frozen=True)
class Refreshed:
    """What a refresh came to.

    Attributes:
        reconciled: what the listing found; None where the daemon's writer did it, which tells the catalog only.
    """

    inserted: int
    updated: int
    deleted: int
    reconciled: Reconciled | None


class _Objects(Generic[T]):
    """Looking up the objects of one kind."""

    def __init__(self, session: Session, definitions: Definitions[T]) -> None:
        self._session = session
        self._definitions = definitions

    def get(self, name: str) -> T:
        """The object called ``name``. Raises NotFoundError."""
        return self._definitions.get(Name.parse(name))

    def list(self) -> Sequence[T]:
        """All of them, by name."""
        return self._definitions.list()


class Connections(_Objects[Connection]):
    """Storage connections."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.connections)

    def create(self, name: str, type: str, **options: Any) -> Connection:  # SQL's word for it
        """Makes a connection; options as :func:`volstream.directory.definitions.create_connection` takes them."""
        return volume_rules.create_connection(self._session.catalog, Name.parse(name), type, **options)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a connection; false where there was none and that is allowed. Raises ObjectInUseError."""
        return volume_rules.drop_connection(self._session.catalog, Name.parse(name), if_exists=if_exists)


class Volumes(_Objects[Volume]):
    """Volumes and their directory tables."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.volumes)

    def create(
        self, name: str, location: str, *, or_replace: bool = False, if_not_exists: bool = False, **options: Any
    ) -> Volume:
        """Makes a volume; options are the attributes of :class:`~volstream.model.objects.VolumeSpec`."""
        if isinstance(options.get("connection"), str):
            options["connection"] = Name.parse(options["connection"])
        spec = VolumeSpec(Name.parse(name), location, **options)
        return volume_rules.create_volume(
            self._session.catalog, spec, or_replace=or_replace, if_not_exists=if_not_exists
        )

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a volume; its files stay, its streams become stale. False where there was none and that is allowed."""
        return volume_rules.drop_volume(self._session.catalog, Name.parse(name), if_exists=if_exists)

    def refresh(self, name: str, subdirectory: str = "", *, stop: Stop | None = None) -> Refreshed:
        """Lists the volume, or a sub-directory of it, and makes the directory table true, before it returns.

        Where a daemon keeps the volume it is asked to, and waited for.

        Raises:
            StorageError: the listing did not come to its end; nothing was changed.
        """
        from volstream.directory.keeper import DirectoryKeeper, lease_name

        catalog, settings = self._session.catalog, self._session.settings
        volume = self.get(name)
        prefix = _prefix(subdirectory)
        before = catalog.refreshes.last(volume.id)
        asked, owner, stopped = False, new_owner(), Stop() if stop is None else stop
        while not stopped:
            with held(
                catalog.leases, lease_name(volume), owner, f"refresh of {volume.name}", settings.lease_seconds
            ) as other:
                if other is None:
                    keeper = DirectoryKeeper(volume, catalog, self._session.gateway, settings, stopped.wait)
                    done = keeper.reconcile(prefix)
                    if asked:
                        catalog.refreshes.checked(volume.id, [prefix])
                    return Refreshed(done.counts.inserted, done.counts.updated, done.counts.deleted, done)
            if not asked:
                catalog.refreshes.ask_check(volume.id, [prefix])
                asked = True
            elif not catalog.refreshes.is_asked(volume.id, prefix):
                number = before.number if before else 0
                since = catalog.refreshes.sums_after(volume.id, number)
                return Refreshed(*since, reconciled=None)
            stopped.wait(_ASK_SECONDS)
        raise InvalidStateError(f"The refresh of volume {volume.name} was stopped.")


class Streams(_Objects[Stream]):
    """Streams."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.streams)

    def get(self, name: str) -> OpenStream:
        """The stream called ``name``, which can be consumed. Raises NotFoundError."""
        return OpenStream.of(self._session, super().get(name))

    def create(
        self,
        name: str,
        volume: str | None = None,
        *,
        table: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
        **options: Any,
    ) -> Stream:
        """Makes a stream on a volume or a table; options are the attributes of
        :class:`~volstream.model.objects.StreamSpec`."""
        from volstream.streams.definitions import create_stream

        if or_replace:
            self.free(name)
        on_volume, on_table = (Name.parse(source) if source else None for source in (volume, table))
        spec = StreamSpec(Name.parse(name), on_volume, on_table, **options)
        return create_stream(
            self._session.catalog, self._session.warehouse, spec, or_replace=or_replace, if_not_exists=if_not_exists
        )

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a stream; false where there was none and that is allowed. Raises ObjectInUseError."""
        from volstream.streams.definitions import drop_stream

        self.free(name)
        return drop_stream(self._session.catalog, Name.parse(name), if_exists=if_exists)

    def has_data(self, name: str) -> bool:
        """Whether a read may return rows; asks the log, not Spark. Raises StreamStaleError."""
        return self._session.reader.has_data(self.get(name))

    def reset(self, name: str, *, to_version: int | None = None, to_timestamp: datetime | None = None) -> Stream:
        """Sets the offset to a point in time. Raises StreamBusyError, InvalidValueError."""
        from volstream.streams.definitions import move_stream

        if (to_version is None) == (to_timestamp is None):
            raise InvalidValueError("Say where to reset the stream to: a version or a time.")
        self.free(name)
        return move_stream(self._session.catalog, self._session.warehouse, Name.parse(name), to_version, to_timestamp)

    def advance(self, name: str, *, to_version: int | None = None) -> Stream:
        """Discards what the stream holds, up to a version or all of it. Raises StreamBusyError, InvalidValueError."""
        from volstream.streams.definitions import advance_stream

        self.free(name)
        return advance_stream(self._session.catalog, self._session.warehouse, Name.parse(name), to_version)

    def free(self, name: str) -> None:
        """Settles what a statement left open (R-8). No Spark where there is nothing. Raises StreamBusyError."""
        stream = self._session.catalog.streams.find(Name.parse(name))
        plan = None if stream is None else self._session.catalog.consumptions.open_plan(stream.id)
        if stream is None or plan is None or plan.kind is not PlanKind.STATEMENT:
            return
        with self._session.block() as block:
            block.free(stream)

    def resolve(self, name: str, *, committed: bool) -> None:
        """Says what became of an attempt that volstream cannot tell of itself (its table is gone or was replaced)."""
        from volstream.catalog.consumptions import Outcome

        stream = self.get(name)
        intent = self._session.catalog.consumptions.open_intent(stream.id)
        if intent is None:
            raise InvalidStateError(f"Nothing of the stream {name} is open.", "There is nothing to resolve.")
        if committed:
            batch = self._session.catalog.consumptions.batch(intent.batch_id)
            self._session.catalog.consumptions.commit(intent, Outcome(batch.files if batch else 0, 0, 0))
        else:
            self._session.catalog.consumptions.abort(intent)


class Jobs(_Objects[Job]):
    """Jobs and their failures."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.jobs)

    def create(
        self,
        name: str,
        function: str | None = None,
        into: str | None = None,
        *,
        statement: str | None = None,
        stream: str | None = None,
        volume: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
        **options: Any,
    ) -> Job:
        """Makes a job; options are the attributes of :class:`~volstream.model.objects.JobSpec`.

        Args:
            function, into: what is run on each file, and the table for what it gives.
            statement: in their place, DML that reads streams: a run of the job is one consumption by it.
        """
        from volstream.jobs.definitions import create_job

        if statement is not None:
            from volstream.sql.jobs import spec_of_statement  # its parser is needed for nothing else here

            if function or into or volume:
                raise InvalidValueError(
                    f"The job {name} runs a statement: it has no function, table or volume besides."
                )
            on = Name.parse(stream) if stream else None
            spec = spec_of_statement(self._session, Name.parse(name), statement, on, **options)
        elif function is None or into is None:
            raise InvalidValueError(f"The job {name} needs a function and a table, or a statement.")
        else:
            spec = JobSpec(
                Name.parse(name), function, Name.parse(into), stream=Name.parse(stream) if stream else None,
                volume=Name.parse(volume) if volume else None, **options,
            )  # fmt: skip
        if or_replace:
            self._free(name)
        return create_job(
            self._session.catalog, self._session.warehouse, spec, or_replace=or_replace, if_not_exists=if_not_exists,
            zone=self._session.zone,
        )  # fmt: skip

    def alter(self, name: str, **changes: Any) -> Job:
        """Changes a job; its cursor and its failures stay."""
        from volstream.jobs.definitions import alter_job

        return alter_job(self._session.catalog, Name.parse(name), self._session.zone, **changes)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a job, its failures and its own stream; its table stays. False where there was none and that is allowed."""
        from volstream.jobs.definitions import drop_job

        self._free(name)
        return drop_job(self._session.catalog, Name.parse(name), if_exists=if_exists)

    def pause(self, name: str) -> Job:
        """Lets nobody run the job until it is resumed; it keeps its place."""
        from volstream.jobs.definitions import set_paused

        return set_paused(self._session.catalog, Name.parse(name), paused=True)

    def resume(self, name: str) -> Job:
        """Lets a paused job run again."""
        from volstream.jobs.definitions import set_paused

        return set_paused(self._session.catalog, Name.parse(name), paused=False)

    def run(
        self, name: str, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None
    ) -> RunReport:
        """Runs a job once, here and now; lists its volumes first where that was never done.

        Raises:
            StreamBusyError: it is being run. InvalidStateError: it is paused. See
            :meth:`~volstream.jobs.lead.Runner.run` for the rest.
        """
        job, catalog = self.get(name), self._session.catalog
        for stream in map(catalog.streams.by_id, job.stream_ids):
            volume = catalog.volumes.by_id(stream.source_id) if stream else None
            if volume is not None and volume.reconciled_on is None:
                self._session.volumes.refresh(str(volume.name), stop=stop)
        return self._session.runner_of(job).run(job, until_empty=until_empty, stop=stop, observe=observe)

    def preview(self, name: str) -> Preview:
        """What a run of the job would do now. Changes nothing; raises StreamStaleError."""
        return self._session.runner.preview(self._of_files(name))

    def replay(
        self, name: str, where: str | None = None, *, stop: Stop | None = None, observe: Observer | None = None
    ) -> RunReport:
        """Processes files of a job again that were delivered before, and replaces their results; the cursor stays.

        Args:
            where: SQL condition on the directory's columns; None: all.

        Raises:
            InvalidValueError: not such a condition. See :meth:`run` for the rest.
        """
        from volstream.jobs.definitions import check_where

        if where is not None:
            check_where(where)
        return self._session.runner.replay(self._of_files(name), where, stop=stop, observe=observe)

    def failures(
        self,
        name: str | None = None,
        *,
        path: str | None = None,
        states: Sequence[FailureState] = ACTIVE,
        limit: int | None = 1000,
    ) -> Sequence[Failure]:
        """Failed files of a job, or of all, by path; those in some states, or all that count."""
        job_id = self.get(name).id if name else None
        return self._session.catalog.failures.active(job_id, states=states, path=path, limit=limit)

    def retry(self, name: str, paths: Sequence[str] | None = None) -> Sequence[str]:
        """Makes failed files due now, some or all that were not given up. Raises NotFoundError for a path without failure."""
        return self._set_state(name, FailureState.RETRYING, paths, datetime.now(UTC))

    def skip(self, name: str, paths: Sequence[str]) -> Sequence[str]:
        """Gives failed files up knowingly; a newer version of one is processed all the same."""
        return self._set_state(name, FailureState.SKIPPED, paths, None)

    def _free(self, name: str) -> None:
        """Settles what a run of a statement left open, which might fail for ever. Raises StreamBusyError where it runs."""
        job = self._session.catalog.jobs.find(Name.parse(name))
        ids = job.stream_ids if job is not None and job.statement is not None else ()
        for stream in map(self._session.catalog.streams.by_id, ids):
            if stream is not None:
                self._session.streams.free(str(stream.name))

    def _of_files(self, name: str) -> Job:
        job = self.get(name)
        if job.statement is not None:
            raise InvalidStateError(
                f"The job {name} runs a statement, which knows no single files.",
                "To deliver changes again: volstream reset-stream.",
            )
        return job

    def _set_state(
        self, name: str, state: FailureState, paths: Sequence[str] | None, next_try: datetime | None
    ) -> Sequence[str]:
        job = self.get(name)
        found = self._session.catalog.failures.set_state(job.id, state, paths=paths, next_try=next_try)
        unknown = sorted({*(paths or ())} - {*found})
        if unknown:
            raise NotFoundError(f"The job {name} has no failure of {unknown[0]!r}.", "See: volstream list failures.")
        return found


class Functions(_Objects[Function]):
    """Python functions of values, which SQL statements call by name."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.functions)

    def create(
        self,
        name: str,
        location: str,
        returns: str,
        *,
        comment: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
    ) -> Function:
        """Makes the function of a file, ``file.py:func``, or of a module, ``pkg.mod:func``, callable in statements.

        Its code is read at each statement that calls it.

        Args:
            returns: the SQL type of its value.

        Raises:
            FunctionLoadError: it cannot be imported.
            InvalidValueError: no such type.
            AlreadyExistsError: the name is taken.
        """
        from volstream.jobs.scalar import new_function

        volume_rules.exclusive(or_replace=or_replace, if_not_exists=if_not_exists)
        existing = self._definitions.find(Name.parse(name))
        if existing is not None and if_not_exists:
            return existing
        if existing is not None and not or_replace:
            raise AlreadyExistsError(f"There is already a function {existing.name}.", "Use OR REPLACE or another name.")
        made = new_function(Name.parse(name), location, returns, comment)
        with self._session.catalog.database.transaction() as transaction:
            if existing is not None:
                self._definitions.remove(transaction, existing)
            self._definitions.add(transaction, made)
        return made

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a function; its file stays. False where there was none and that is allowed."""
        existing = self._definitions.find(Name.parse(name)) if if_exists else self.get(name)
        if existing is None:
            return False
        with self._session.catalog.database.transaction() as transaction:
            self._definitions.remove(transaction, existing)
        return True


class Batches:
    """What jobs processed together, and will: slices of their streams' ranges, known by id."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, job: str | None = None, *, limit: int = 1000) -> Sequence[Batch]:
        """The newest batches, of one job or of all."""
        job_id = self._session.jobs.get(job).id if job else None
        return self._session.catalog.consumptions.batches_of(job_id, limit=limit)

    def get(self, identity: str) -> Batch:
        """The batch of that id. Raises NotFoundError."""
        batch = self._session.catalog.consumptions.batch(identity)
        if batch is None:
            raise NotFoundError(f"There is no batch {identity!r}.", "See: volstream list batches.")
        return batch

    def failures(self, identity: str) -> Sequence[Failure]:
        """The files of a batch that failed in it, and neither changed nor were processed since."""
        batch = self.get(identity)
        return self._session.catalog.failures.active(
            batch.job_id, after=batch.after_path, until=batch.until_path, batch_id=batch.id
        )

    def read(self, identity: str) -> DataFrame:
        """The files of a batch, the same at each look: the directory's columns, ``commit_version``, what becomes
        of a file (``action``), and for a moved one its ``old_path``. For a batch of a statement: the stream's rows.

        Raises:
            NotFoundError: no such batch.
            InvalidStateError: a batch of retries that has ended; its stream is dropped.
        """
        batch = self.get(identity)
        plan = self._session.catalog.consumptions.plan(batch.plan_id)
        stream = self._session.catalog.streams.by_id(batch.stream_id)
        assert plan is not None, "a batch refers to its plan"
        if stream is None:
            raise InvalidStateError(f"The stream that batch {identity} was of is dropped.")
        if plan.kind is PlanKind.STATEMENT:
            reader = self._session.reader
            return reader.frame(self._session.gateway.session(), reader.range_of(plan, stream))
        job = self._session.catalog.jobs.by_id(batch.job_id) if batch.job_id else None
        assert job is not None, "but for those of statements, batches are of a job, and go with it"
        runner = self._session.runner
        with runner.session() as session:
            return runner.planner.files_of(session, job, plan, batch, stream)


def _prefix(subdirectory: str) -> str:
    """A sub-directory as users write it, as a prefix of relative paths. Raises InvalidValueError."""
    parts = [part for part in subdirectory.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidValueError(f"The sub-directory {subdirectory!r} leads out of the volume.")
    return "".join(f"{part}/" for part in parts)
