"""Jobs and their failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from volstream.api.objects.collections import Collection, Streams
from volstream.base.definitions import (
    DynamicJob,
    FileJob,
    FileJobOptions,
    FileJobSpec,
    Job,
    JobOptions,
    JobSpec,
    LoadKeys,
    StatementJob,
    Volume,
)
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.job import JOB_ARGUMENTS, LOAD_OPTIONS, LOADER
from volstream.base.definitions.options import keys, read, to_alter, to_create
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name, folded
from volstream.base.model.paths import did_you_mean
from volstream.base.model.text import like
from volstream.base.model.work import Failure, FailureState
from volstream.base.threads import Stop
from volstream.catalog.failures import ANY, FailureFilter
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, VolstreamError

if TYPE_CHECKING:
    from volstream.base.definitions.keywords import JobChanges, JobKeywords, LoadKeywords
    from volstream.functions.schema import InferredColumns
    from volstream.functions.source import FunctionSource
    from volstream.home import Home
    from volstream.jobs.batches.logs import LogLine
    from volstream.jobs.proof.compare import Comparison, ComparisonObserver
    from volstream.jobs.proof.verify import Verification
    from volstream.jobs.rules.code import CodeCounts
    from volstream.jobs.runs.lease import Observer, Runner, RunReport
    from volstream.jobs.runs.run import FileRunner, Preview
    from volstream.jobs.runs.services import JobServices

#: Number of failures with which a misspelt path is compared.
_MAX_SIMILAR = 1000


@checked
class Jobs(Collection[Job]):
    """Jobs and their failures."""

    _spec, _revertible = FileJobSpec, frozenset({*to_alter(FileJobSpec), "search_path", "pickled"})

    def __init__(self, home: Home, streams: Streams) -> None:
        super().__init__(home, home.catalog.jobs)
        self._streams = streams
        #: Infers the columns of functions that declare none, from files of a volume.
        self.inferring = self._inferring

    def _relation(self, definition: Job) -> str:
        return definition.into.qualified

    def file_runner(self, job: FileJob) -> FileRunner:
        """Returns the runner of a file job."""
        from volstream.jobs.runs.run import FileRunner

        return FileRunner(self.services, job)

    def runner(self, job: Job) -> Runner:
        """Returns the runner of a job."""
        if isinstance(job, FileJob):
            return self.file_runner(job)
        from volstream.api.statements.dynamic import StatementRunner

        assert isinstance(job, StatementJob | DynamicJob), "there is no other kind"
        return StatementRunner(self._home, job)

    @property
    def services(self) -> JobServices:
        """The services that the runs of file jobs share."""
        from volstream.jobs.runs.services import JobServices

        return JobServices(self._home)

    @takes(to_create(FileJobSpec, *JOB_ARGUMENTS))
    def create(
        self,
        name: str,
        function: str | Callable[..., Any] | None = None,
        into: str | None = None,
        *,
        statement: str | None = None,
        stream: str | None = None,
        volume: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
        directory: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
        **options: Unpack[JobKeywords],
    ) -> Job:
        """Creates a job. Options are those of :class:`~volstream.base.definitions.FileJobSpec`.

        The columns are those of ``returns``, or the function's declared ones, or those that it returns for a
        few files.

        Args:
            function, into: the function to run on each file, as ``file.py:func``, ``pkg.mod:func`` or the
                function itself, and the table for its results. A function in a module is read from its file
                at each run. A function of a notebook, of the program, or inside another function is stored in
                its current state.
            statement: instead of these, DML that reads streams. Each run of the job is one consumption by it.
            directory: where to find the function's file or module. The working directory by default.
            tell: called with a sentence about inferred columns.

        Raises:
            InvalidValueError: an option is invalid, columns are neither declared nor inferred, or the
                function cannot be pickled.
            FunctionLoadError: the function cannot be imported.
            DependencyError: its environment cannot be built.
            NotFoundError: the stream, the volume or the environment does not exist.
            InvalidStateError: another job keeps the table, the table is in use and lacks columns, or it has
                rows that the job would append again.
            AlreadyExistsError: the name is taken.
            ObjectInUseError: the stream serves another job.
            SqlError: the statement is invalid.
        """
        from volstream.functions.pickled import function_attributes
        from volstream.jobs.rules.columns import check_not_appended
        from volstream.jobs.rules.definitions import create_job
        from volstream.tables.delta.places import reached

        values = read(FileJobSpec, options)
        if statement is not None:
            # The only place that needs its parser.
            from volstream.api.statements.dynamic import spec_of_statement

            if function or into or volume:
                raise InvalidValueError(f"The job {name} runs a statement, so it cannot have a function, table or volume.")
            if useless := sorted(options.keys() - keys(JobOptions)):
                raise InvalidValueError(f"The job {name} runs a statement, which has no {useless[0]}.", "Leave it out.")
            on = Name.parse(stream) if stream else None
            spec: JobSpec = spec_of_statement(self._home, Name.parse(name), statement, on, **values)
        elif function is None or into is None:
            raise InvalidValueError(
                f"The job {name} needs a function and a table (into), or a statement.",
                "Give into, the table for the results." if function else "Give a function, or a statement.",
            )
        else:
            spec = FileJobSpec(
                name=Name.parse(name),
                **function_attributes(function),
                into=Name.parse(into),
                stream=Name.parse(stream) if stream else None,
                volume=Name.parse(volume) if volume else None,
                **values,
            )
        self._check_receivers(spec.alert)
        if or_replace:
            self._free(name)
        existing = self._home.catalog.jobs.find(spec.name)
        if isinstance(spec, FileJobSpec) and (existing is None or or_replace):
            with reached(self._home.warehouse):
                check_not_appended(self._home, spec, existing)
        return create_job(
            self._home,
            spec,
            or_replace=or_replace,
            if_not_exists=if_not_exists,
            directory=directory,
            infer=partial(self.inferring, spec, tell) if isinstance(spec, FileJobSpec) else None,
        )

    @takes(LOAD_OPTIONS)
    def load(
        self,
        name: str,
        volume: str,
        into: str,
        *,
        or_replace: bool = False,
        if_not_exists: bool = False,
        **options: Unpack[LoadKeywords],
    ) -> Job:
        """Creates a job that loads a volume's files as rows of a table.

        Args:
            format: ``csv``, ``json``, ``parquet``, ``avro`` or ``orc``, or a plug-in's. By default, each
                file's extension decides.
            reader_options: of the plug-in that reads the format.
            header: the first row of a csv file names its columns.
            delimiter: one character between the values of a csv file. By default a comma, or a tab in
                ``.tsv`` files.
            encoding: of csv and json files.
            skip_rows: number of lines before the header of a csv file. By default none, and a file that seems
                to have some is rejected.
            skip_footer: number of rows at the end of a csv file that are not data.
            comment_prefix: prefix of comment lines in csv files.
            null_values: unquoted values of csv files that are NULL, besides empty ones.
            quote: around values of csv files. With ``none``, quotes are ordinary characters.
            escape: escape character of csv files.
            decimal: decimal separator of csv files.
            date_format, timestamp_format: of csv files, as for ``strptime``. ISO 8601 by default. Times
                without a zone are in UTC.
            records: path of the records in json files, as keys separated by dots.
            entries: globs for the entries of zip and tar files to load. All by default.
            schema: the table's columns as DDL. By default, the columns of a sample of the files.
            infer_types: find the types of values in csv and json files. Otherwise they are text.
            new_columns: treatment of columns that the table lacks: ``add`` them, ``rescue`` their values, or
                ``fail`` the file.
            options: further options, of :class:`~volstream.base.definitions.FileJobOptions`.

        Raises:
            NotFoundError: the volume does not exist.
            InvalidValueError: an option is invalid, or the sample has no columns.
            StorageError: a file of the sample cannot be read.
            As :meth:`create`.
        """
        from volstream.functions.loading.columns import with_rescued
        from volstream.functions.loading.options import INFERRED, LOADED, LoadOptions
        from volstream.jobs.rules.columns import first_columns
        from volstream.tables.delta.places import reached

        values = read(FileJobOptions, read(LoadKeys, options))
        schema = values.pop("schema", None)
        loading = {key: values.pop(key) for key in LOADED if key in values}
        arguments = {key: as_text(value) for key, value in loading.items() if value != LOADED[key].default}
        parsed, source = LoadOptions(**loading), self._home.catalog.volumes.get(Name.parse(volume))
        if schema is None and not (if_not_exists and self._home.catalog.jobs.find(Name.parse(name)) is not None):
            self._list_first(source)
            with reached(self._home.warehouse):
                schema, inferred = first_columns(self.services, source, Name.parse(into), parsed, values.get("where"))
                arguments |= {INFERRED: inferred} if inferred else {}
        return self.create(
            name,
            LOADER,
            into,
            volume=volume,
            returns=None if schema is None else with_rescued(schema),
            arguments=arguments,
            or_replace=or_replace,
            if_not_exists=if_not_exists,
            **values,
        )

    @takes(to_alter(FileJobSpec, "function"), changes=True)
    def alter(
        self,
        name: str,
        *,
        function: str | Callable[..., Any] | None = None,
        directory: Path | None = None,
        tell: Callable[[str], None] = lambda _: None,
        **changes: Unpack[JobChanges],
    ) -> Job:
        """Changes options of a job and returns it. Its cursor and failures stay.

        ``directory`` and ``tell`` are as in :meth:`create`. Rows of files processed before do not change; see
        :meth:`replay`.

        Raises:
            NotFoundError: no such job.
            StreamBusyError: a run whose plan depends on the option is in progress, or was interrupted.
            InvalidValueError: an option is invalid, or does not apply to the job.
            Otherwise as :meth:`create`.
        """
        from volstream.functions.pickled import function_attributes
        from volstream.jobs.rules.definitions import alter_job

        values = read(FileJobSpec, changes)
        if function is not None:
            values |= function_attributes(function)
        self._check_receivers(values.get("alert"))
        job = self.get(name)
        infer = partial(self.inferring, job, tell) if isinstance(job, FileJob) else None
        return alter_job(self._home, job.name, directory=directory, infer=infer, **values)

    def _put_back(self, current: Job, changes: Mapping[str, Any]) -> Job:
        from volstream.jobs.rules.definitions import alter_job

        values = dict(changes)
        folder = values.pop("search_path", getattr(current, "search_path", None))
        if "function" in values:
            values.setdefault("pickled", None)
        if values.keys() & {"arguments", "returns"} and isinstance(current, FileJob) and current.loads:
            values["arguments"] = {**dict.fromkeys(current.arguments, ""), **values.get("arguments", current.arguments)}
        return alter_job(self._home, current.name, directory=None if folder is None else Path(folder), **values)

    def drop(self, name: str, *, if_exists: bool = False, force: bool = False, remove_outputs: bool = False) -> bool:
        """Drops a job, its failures and its own stream. Its table and its outputs stay.

        Returns False if the job does not exist and ``if_exists`` is set. A batch that a run left open is
        settled first.

        Args:
            force: drop it even if that fails, or a run is in progress, whose calls are then interrupted. The
                rows of its batch may be in the table, or not, or may still arrive.
            remove_outputs: remove the files that rows of its table name in the volume of its outputs.

        Raises:
            InvalidStateError: it maintains a dynamic table.
            StreamBusyError: a run is processing a batch.
            VolstreamError: the open batch of a dead run cannot be settled.
        """
        if isinstance(self._home.catalog.jobs.find(Name.parse(name)), DynamicJob):
            raise InvalidStateError(
                f"The job {name} maintains a dynamic table, which is dropped together with its job.",
                f"Run: DROP DYNAMIC TABLE {name}",
            )
        return self.drop_of_any_kind(name, if_exists=if_exists, force=force, remove_outputs=remove_outputs)

    def drop_of_any_kind(self, name: str, *, if_exists: bool = False, force: bool = False, remove_outputs: bool = False) -> bool:
        """See :meth:`drop`. Also drops the job of a dynamic table, whose table the caller drops."""
        from volstream.jobs.batches.ledger import STORES
        from volstream.jobs.batches.outputs import remove_outputs_of
        from volstream.jobs.rules.definitions import drop_job
        from volstream.tables.delta import places

        if not force:
            self._free(name)
        job = self._home.catalog.jobs.find(Name.parse(name))
        dropped = drop_job(self._home.catalog, Name.parse(name), if_exists=if_exists, force=force)
        if job is not None:
            for store in STORES:
                places.discard(store.of(self._home.warehouse, job.id))
            if remove_outputs:
                remove_outputs_of(self._home.catalog, self._home.settings, job)
        return dropped

    def logs(self, name: str, *, lines: int = 100, path: str | None = None, batch: str | None = None) -> Sequence[LogLine]:
        """Returns the output of the job's function: the last lines of its newest batches, batch by batch.

        Args:
            path, batch: restrict the output to calls with this file, and to this batch.

        Raises:
            InvalidStateError: the job runs a statement.
        """
        from volstream.jobs.batches import logs
        from volstream.jobs.batches.ledger import LOGS
        from volstream.tables.delta.places import reached

        location = LOGS.of(self._home.warehouse, self._of_files(name).id)
        with reached(self._home.warehouse):
            return logs.read(location, lines, batch=batch, path=path)

    def pause(self, name: str) -> Job:
        """Pauses the job until it is resumed. It keeps its position.

        A run in progress ends after its batch. If that takes longer than the setting ``batch_seconds``, its
        calls are interrupted, and its files are processed again later.

        Raises NotFoundError.
        """
        from volstream.jobs.rules.definitions import set_paused

        return set_paused(self._home.catalog, Name.parse(name), paused=True)

    def resume(self, name: str) -> Job:
        """Resumes a paused job. Does nothing if it is not paused. Raises NotFoundError."""
        from volstream.jobs.rules.definitions import set_paused

        return set_paused(self._home.catalog, Name.parse(name), paused=False)

    def run(
        self,
        name: str,
        *,
        until_empty: bool = False,
        waits: Callable[[str], object] | None = None,
        stop: Stop | None = None,
        observe: Observer | None = None,
        owner: str | None = None,
    ) -> RunReport:
        """Runs a job once, in this process, and returns a report. First lists its volumes that were never
        listed.

        Failed files raise nothing: the report counts them, and :meth:`failures` returns them.

        Args:
            waits: called with the reason if the job is already running, in any process. This run then waits
                for that one to end. Without it, the run does not wait.
            owner: the holder of the job's lease for this run. By default, the run takes the lease.

        Raises:
            StreamBusyError: it is already running.
            InvalidStateError: it is paused.
            InterruptedByUserError: stopped while waiting.
            See :meth:`~volstream.jobs.runs.lease.Runner.run` for the rest.
        """
        from volstream.jobs.runs.lease import in_turn

        stop = Stop() if stop is None else stop
        job, catalog = self.get(name), self._home.catalog
        for stream in map(catalog.streams.by_id, job.stream_ids):
            volume = catalog.volumes.by_id(stream.source_id) if stream else None
            if volume is not None:
                self._list_first(volume, stop)

        def run() -> RunReport:  # on another engine, if a daemon took over the first one
            return self.runner(job).run(until_empty=until_empty, stop=stop, observe=observe, owner=owner)

        report = self._home.unless_yielded(lambda: in_turn(run, stop, waits))
        # A daemon does so from time to time, but there may be none.
        self._forget_history()
        if self._home.settings.metastore:
            from volstream.api.statements.metastore import register_after_work

            register_after_work(self._home)
        return report

    def preview(self, name: str) -> Preview:
        """Returns what a run of the job would do now: files, batches and time. Changes nothing.

        Raises:
            NotFoundError: no such job.
            InvalidStateError: the job runs a statement.
            StreamStaleError: its stream can no longer be read.
        """
        return self.file_runner(self._of_files(name)).preview()

    def compare(
        self,
        name: str,
        function: str | Callable[..., Any],
        *,
        returns: str | None = None,
        arguments: Mapping[str, str] | None = None,
        sample: int = 200,
        where: str | None = None,
        paths: Sequence[str] = (),
        both: bool = False,
        directory: Path | None = None,
        observe: ComparisonObserver = lambda _: None,
    ) -> Comparison:
        """Runs other code on files that were delivered to a job, and returns the differences. Writes to
        neither table nor catalog.

        Args:
            function: the other code, as in :meth:`create`, or the same to see the effect of an edit.
            returns: its columns as DDL. By default, its declared columns, or else the job's.
            arguments: its arguments. By default, the job's.
            sample: maximum number of files, up to 10,000: always the same files, spread over the directory.
            where: SQL condition on the directory's columns.
            paths: only these files, all of them.
            both: also run the job's own code, to measure it, and to check that it still returns the rows of
                the table.
            directory: as in :meth:`create`.
            observe: called with the progress.

        Raises:
            InvalidStateError: the job runs a statement, loads files, or has not delivered any file.
            InvalidValueError: ``where``, ``sample`` or the columns are invalid.
            NotFoundError: the selection includes no delivered file.
            FunctionLoadError: the function cannot be imported or set up.
        """
        from volstream.functions.pickled import function_attributes
        from volstream.jobs.proof.compare import MAX_SAMPLE, SampleSelection, compare
        from volstream.jobs.rules.conditions import of_files
        from volstream.jobs.rules.definitions import with_function

        job = self._of_files(name)
        if not 1 <= sample <= MAX_SAMPLE:
            raise InvalidValueError(f"A sample cannot have {sample} files.", f"Give 1 to {MAX_SAMPLE}.")
        condition = of_files(where, paths)
        environments = self._home.settings.environments_directory
        other = with_function(
            job,
            function_attributes(function),
            returns,
            arguments,
            environments=environments,
            directory=directory,
            infer=partial(self.inferring, job, lambda _: None),
        )
        return compare(
            self.services, job, other, SampleSelection(max(sample, len(paths)), condition, paths), both=both, observe=observe
        )

    def replay(
        self,
        name: str,
        where: str | None = None,
        *,
        paths: Sequence[str] = (),
        stale: bool = False,
        waits: Callable[[str], object] | None = None,
        stop: Stop | None = None,
        observe: Observer | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> RunReport:
        """Reprocesses files that were delivered to a job before, and replaces their results. The cursor
        stays.

        Args:
            where: SQL condition on the directory's columns.
            paths: only these files, at most 2,000. All by default.
            stale: only files whose rows were made by other code than the job's current one; see :meth:`code`.
            waits: as in :meth:`run`.
            is_cancelled: called once the replay was stopped. If True, the rest is dropped. Otherwise the next
                run resumes it.

        Raises:
            InvalidValueError: ``where`` is not a valid condition.
            NotFoundError: none of the ``paths`` was delivered.
            See :meth:`run` for the rest.
        """
        from volstream.jobs.rules.code import stale_paths
        from volstream.jobs.rules.conditions import of_files
        from volstream.jobs.runs.lease import in_turn

        condition = of_files(where, paths)
        stop = Stop() if stop is None else stop
        replay = self.file_runner(self._of_files(name)).replay
        among = stale_paths(self._home, self._of_files(name)) if stale else None
        report = in_turn(
            lambda: replay(condition, among=among, stop=stop, observe=observe, is_cancelled=is_cancelled), stop, waits
        )
        if paths and not (report.progress.batches or stop):
            files = "The file was not" if len(paths) == 1 else "None of these files was"
            hint = self._hint_for(self.get(name), paths[0]) or "Paths are relative to the volume."
            raise NotFoundError(f"{files} delivered to the job {name}, or has changed since.", hint.rstrip())
        return report

    def clear_steps(self, name: str) -> FileJob:
        """Deletes the kept values of the job's steps, so that the next call for each file computes all of
        them.

        Raises:
            NotFoundError: there is no such job.
            InvalidStateError: the job runs a statement.
            DependencyError: the warehouse cannot be reached.
        """
        from volstream.jobs.batches.step_values import values_of
        from volstream.tables.delta.places import reached

        job = self._of_files(name)
        with reached(self._home.warehouse):
            values_of(self._home.warehouse, job).clear()
        return job

    def code(self, name: str) -> CodeCounts | None:
        """Returns how many files have rows of each version of the job's code. None if it has no table, or
        appends to one.

        Reads two columns of the table, without Spark.

        Raises:
            NotFoundError: there is no such job.
            InvalidStateError: the job runs a statement.
            FunctionLoadError: its function no longer exists.
            DependencyError: the table cannot be read.
        """
        from volstream.jobs.rules.code import counts

        return counts(self._home, self._of_files(name))

    def describe_code(self, name: str) -> str | None:
        """Returns how many files have rows of older code, and what to do, or None. Raises as :meth:`code`."""
        from volstream.jobs.rules.code import describe_code

        counts = self.code(name)
        return None if counts is None else describe_code(self._of_files(name), counts)

    def verify(
        self, name: str, *, fix: bool = False, outputs: bool = False, stop: Stop | None = None, observe: Observer | None = None
    ) -> Verification:
        """Compares a job's table with the files that were delivered to it, without calling the function.

        Args:
            fix: process the wrong files again, and remove rows that belong to no file.
            outputs: also compare the files that the function made with their volume.

        Raises:
            InvalidValueError: ``outputs``, but the job makes no files.
            StreamBusyError: the job is running.
            StreamStaleError: the directory no longer has the history of the delivered files; see
                :meth:`heal`.
        """
        return self.file_runner(self._of_files(name)).verify(fix=fix, outputs=outputs, stop=stop, observe=observe)

    def heal(self, name: str, *, stop: Stop | None = None, observe: Observer | None = None) -> Verification:
        """Fixes as :meth:`verify` does. If the directory no longer has the versions that the stream needs,
        compares its present files, from which the stream continues.

        Raises:
            StreamBusyError: the job is running.
            StreamStaleError: the volume was dropped.
        """
        return self.file_runner(self._of_files(name)).verify(heal=True, stop=stop, observe=observe)

    def failures(
        self, name: str | None = None, *, path: str | None = None, wanted: FailureFilter = ANY, limit: int | None = 1000
    ) -> Sequence[Failure]:
        """Returns the active failures of a job, or of all, ordered by path; only those ``wanted``."""
        job_id = self.get(name).id if name else None
        return self._home.catalog.failures.active(job_id, wanted=wanted, path=path, limit=limit)

    def failure_count(self, name: str | None = None, wanted: FailureFilter = ANY) -> int:
        """Returns the number of :meth:`failures`, without a limit."""
        return self._home.catalog.failures.count(self.get(name).id if name else None, wanted)

    def retry(self, name: str, paths: Sequence[str] | None = None, wanted: FailureFilter = ANY) -> Sequence[str]:
        """Makes failed files due at the next run, by ``paths`` or by the filter ``wanted``. Returns their
        paths.

        Raises:
            NotFoundError: a path has no failure.
        """
        return self._set_state(name, FailureState.RETRYING, paths, wanted)

    def skip(self, name: str, paths: Sequence[str] | None = None, wanted: FailureFilter = ANY) -> Sequence[str]:
        """Skips failed files, by ``paths`` or by the filter ``wanted``. Returns their paths.

        A newer version of a file is still processed.

        Raises:
            NotFoundError: a path has no failure.
        """
        return self._set_state(name, FailureState.SKIPPED, paths, wanted)

    def _check_receivers(self, names: Sequence[str] | None) -> None:
        """Raises InvalidValueError if alerts about a job would go to an unknown receiver."""
        if names:
            from volstream.ops.receivers import check_names

            check_names(self._home.settings, names, "The job")

    def _free(self, name: str) -> None:
        """Settles an open batch. Raises StreamBusyError if a run is processing it, or the error that prevents
        settling it."""
        from volstream.jobs.rules.targets import has_outputs

        job = self._home.catalog.jobs.find(Name.parse(name))
        if job is None:
            return
        try:
            if isinstance(job, FileJob):
                if self._home.catalog.consumptions.open_intent(job.stream_id) is not None:
                    self.file_runner(job).free()
                if has_outputs(job):  # while the catalog knows which attempts were committed
                    self._home.catalog.outputs.resolve_attempts(str(job.into))
                return
            for stream in map(self._home.catalog.streams.by_id, job.stream_ids):
                if stream is not None:
                    self._streams.free(str(stream.name))
        except VolstreamError as error:
            error.remedy = f"{error.remedy} To drop the job anyway: volstream drop job {name} --force.".lstrip()
            raise

    def _inferring(
        self, job: FileJob | FileJobSpec, tell: Callable[[str], None], source: FunctionSource, arguments: Mapping[str, str]
    ) -> InferredColumns:
        """Returns the columns that a function returns for a few files of a job's volume, and reports them."""
        from volstream.functions.schema import of_job
        from volstream.jobs.rules.columns import ColumnInference

        catalog = self._home.catalog
        if isinstance(job, FileJob):
            volume = catalog.volume_of(job)
        elif job.volume is not None:
            volume = catalog.volumes.get(job.volume)
        else:
            volume = catalog.volumes.by_id(catalog.streams.get(job.stream).source_id) if job.stream is not None else None
        if volume is None:
            raise InvalidValueError(
                "The columns cannot be inferred: the stream is not on a volume.", "Give the job a stream on a volume."
            )
        self._list_first(volume)
        inferred = ColumnInference(self.services, catalog.volumes.get(volume.name), job)(source, arguments)
        columns = {folded(name) for name in of_job(job).names} if isinstance(job, FileJob) else set[str]()
        if new := inferred.excluding(columns):
            tell(str(new))
        return inferred

    def _list_first(self, volume: Volume, stop: Stop | None = None) -> None:
        """Lists a volume that was never listed."""
        from volstream.changes.directory.keeper import refresh

        if volume.last_listing is None:
            refresh(self._home.catalog, self._home.settings, volume, stop=stop)

    def _forget_history(self) -> None:
        settings = self._home.settings
        self._home.catalog.history.forget(settings.history_begins(), kept=settings.directory_versions)

    def _of_files(self, name: str) -> FileJob:
        job = self.get(name)
        if not isinstance(job, FileJob):
            raise InvalidStateError(
                f"The job {name} runs a statement, which does not process single files.",
                "To deliver changes again: volstream reset-stream.",
            )
        return job

    def _hint_for(self, job: Job, path: str, known: Sequence[str] = ()) -> str:
        """Returns a hint about the job's file that an unknown path may mean, as :func:`meant`."""
        if isinstance(job, FileJob) and job.group_by is not None:
            return f"{like(path, known)}The job processes sets of files: give keys of sets, not paths. "
        volume = self._home.catalog.volume_of(job) if isinstance(job, FileJob) else None
        return "" if volume is None else did_you_mean(volume.location, path, known)

    def _set_state(self, name: str, state: FailureState, paths: Sequence[str] | None, wanted: FailureFilter) -> Sequence[str]:
        job = self.get(name)
        catalog = self._home.catalog
        with catalog.database.transaction() as transaction:
            if state is FailureState.RETRYING:
                catalog.jobs.alter(transaction, job)  # failures of a run in progress are due, too
            changed = catalog.failures.set_state(transaction, job.id, state, paths=paths, wanted=wanted)
        unknown = sorted({*(paths or ())} - {*changed})
        if unknown:
            failed = [failure.path for failure in self._home.catalog.failures.active(job.id, limit=_MAX_SIMILAR)]
            raise NotFoundError(
                f"The job {name} has no failure for {unknown[0]!r}.",
                f"{self._hint_for(job, unknown[0], failed)}See: volstream list failures --job {name}.",
            )
        return changed
