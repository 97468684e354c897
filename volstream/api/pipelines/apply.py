"""Makes a home what files say: reads, compares, rehearses, and then carries out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from volstream.api.objects.all import Objects
from volstream.api.pipelines.columns import missing_columns, parse_columns
from volstream.api.pipelines.definitions import CODE, Definition, Kind, PipelinePlan, PlanStep, Verb, written
from volstream.api.pipelines.export import existing
from volstream.api.pipelines.plan import RELATIONS, check, compare, relations
from volstream.api.pipelines.read import located, read
from volstream.base.definitions import NO_SCHEDULE, DynamicJobSpec, FileJobOptions, JobOptions, LoadKeys
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.options import keys, to_create
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.base.model.text import counted
from volstream.errors import EngineError, InvalidValueError, NotFoundError, VolstreamError
from volstream.functions.schema import InferredColumns, from_ddl
from volstream.home import Home
from volstream.jobs.rules.definitions import check_no_plan, create_job
from volstream.spark.session import SparkGateway
from volstream.sql.text import pairs, quote_columns, type_of

# Creates, alters and drops objects as actions say, through a home's objects.


class ActionExecutor:
    """Carries out actions, one by one, on the objects of a home."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def carry_out(self, action: PlanStep) -> None:
        """Does what an action says. Raises the VolstreamError of the operation."""
        if action.verb is Verb.DROP:
            self.drop(action.definition)
        elif action.verb is not Verb.KEEP:
            getattr(self, action.definition.kind.name.lower())(action)

    def connection(self, action: PlanStep) -> None:
        """Creates or alters a connection."""
        name, values = action.definition.name, options(action)
        if action.verb is Verb.CREATE:
            self.objects.connections.create(name, values.pop("type"), **values)
        else:
            self.objects.connections.alter(name, **values)

    def volume(self, action: PlanStep, *, check: bool = False) -> None:
        """Creates or alters a volume.

        Args:
            check: contact its store and its queue first.
        """
        name, values = action.definition.name, options(action)
        if action.verb is Verb.CREATE:
            self.objects.volumes.create(name, values.pop("location"), check=check, **values)
        else:
            self.objects.volumes.alter(name, check=check, **values)

    def function(self, action: PlanStep) -> None:
        """Creates a function, or replaces it: it has no state."""
        definition = action.definition
        values = dict(definition.values)
        self.objects.functions.create(
            definition.name,
            values.pop("function"),
            values.pop("returns"),
            or_replace=action.verb is Verb.ALTER,
            directory=definition.folder,
            **values,
        )

    def source(self, action: PlanStep) -> None:
        """Creates or alters a source."""
        name, values = action.definition.name, options(action)
        if "retention_policy" in values:
            values["retention_policy"] = written(Kind.SOURCE, "retention_policy", values["retention_policy"])
        if action.verb is Verb.ALTER:
            self.objects.source.alter(name, **values)
            return
        kind, comment = values["kind"], values["comment"]
        match kind:
            case "events":
                self.objects.source.create_stream(name, values["retention_policy"], comment=comment)
            case "items":
                self.objects.source.create_table(name, values["primary_key"], comment=comment)
            case _:
                self.objects.connector.upload_kafka(
                    values["brokers"],
                    name,
                    values["format"],
                    topic=values["topic"],
                    properties=values["properties"],
                    retention_policy=values["retention_policy"],
                    comment=comment,
                )

    def table(self, action: PlanStep) -> None:
        """Creates or alters a table, by Spark."""
        for statement in table_statements(action):
            self._sql(statement)

    def stream(self, action: PlanStep) -> None:
        """Creates a stream, or alters its comment."""
        name, values = action.definition.name, options(action)
        if action.verb is Verb.ALTER:
            self.objects.streams.alter(name, comment=values["comment"])
            return
        self.objects.streams.create(name, values.pop("volume"), **values)

    def job(self, action: PlanStep) -> None:
        """Creates or alters a job."""
        definition = action.definition
        name, values = definition.name, options(action)
        if definition.values["statement"] is not None and (action.verb is Verb.CREATE or "statement" in values):
            # Its streams are not the job's, so another job of the same name goes on where it was.
            self.objects.jobs.create(
                name,
                statement=definition.values["statement"],
                stream=definition.values["stream"],
                or_replace=action.verb is Verb.ALTER,
                **{key: definition.values[key] for key in keys(JobOptions)},
            )
        elif action.verb is Verb.ALTER:
            self.objects.jobs.alter(name, directory=definition.folder, **_altered(values))
        elif definition.values["load"] is not None:
            loaded = vars(values.pop("load"))
            common = {key: values[key] for key in keys(FileJobOptions)}
            self.load(name, values["volume"], values["into"], {**loaded, **common})
        else:
            del values["load"], values["statement"]
            function, into = values.pop("function"), values.pop("into")
            self.objects.jobs.create(name, function, into, directory=definition.folder, **values)

    def load(self, name: str, volume: str, into: str, values: Mapping[str, Any]) -> None:
        """Creates a job that loads files."""
        self.objects.jobs.load(name, volume, into, **values)

    def dynamic_table(self, action: PlanStep) -> None:
        """Creates a dynamic table and fills it, or alters its trigger and comment."""
        name, values = action.definition.name, options(action)
        if action.verb is Verb.ALTER:
            self.objects.jobs.alter(name, **values)
        else:
            self.objects.dynamic_tables.create(name, values.pop("query"), **values)

    def drop(self, definition: Definition) -> None:
        """Drops an object. Raises ObjectInUseError."""
        kind = "dynamic" if definition.kind is Kind.DYNAMIC_TABLE else definition.kind.noun
        self.objects.by_kind[kind].drop(definition.name)

    def _sql(self, statement: str) -> None:
        from volstream.api.objects.sql import run_statement

        run_statement(self.objects, statement)


def options(action: PlanStep) -> dict[str, Any]:
    """Returns the options of an operation: all keys to create an object, the changed keys to alter it."""
    definition = action.definition
    values = definition.values if action.verb is Verb.CREATE else action.changed
    chosen = {key: value for key, value in values.items() if key != CODE}
    if chosen.keys() & NO_SCHEDULE:
        chosen |= {key: definition.values[key] for key in NO_SCHEDULE}
    return chosen


def table_statements(action: PlanStep) -> list[str]:
    """Returns the SQL that creates or alters a table."""
    definition, name = action.definition, action.definition.name.qualified
    if action.verb is Verb.CREATE:
        values = definition.values
        key = f", PRIMARY KEY ({quote_columns(values['primary_key'])})" if values["primary_key"] else ""
        parts = f" PARTITIONED BY ({quote_columns(values['partitioned_by'])})" if values["partitioned_by"] else ""
        properties = f" TBLPROPERTIES ({pairs(values['properties'])})" if values["properties"] else ""
        return [f"CREATE TABLE {name} ({values['columns']}{key}) USING DELTA{parts}{properties}"]
    statements = []
    for change in action.changes:
        if change.key == "columns":
            added = ", ".join(column.text for column in missing_columns(change.after, change.before))
            statements.append(f"ALTER TABLE {name} ADD COLUMNS ({added})")
        else:
            statements.append(f"ALTER TABLE {name} SET PROPERTIES ({pairs(change.after)})")
    return statements


def schemas_of(definition: Definition) -> list[str]:
    """Returns the schemas that an object's tables are in."""
    into = definition.values.get("into")
    own = [definition.name] if definition.kind in (Kind.TABLE, Kind.DYNAMIC_TABLE) else []
    return [name.schema for name in (*own, *([into] if into is not None else []))]


def _altered(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes of a file job: of one that loads, options are arguments, and the schema its
    columns."""
    changed = dict(changes)
    loaded: LoadKeys | None = changed.pop("load", None)
    if loaded is not None:
        said = {key: getattr(loaded, key) for key in to_create(LoadKeys, "schema")}
        changed["arguments"] = {key: "" if value is None else as_text(value) for key, value in said.items()}
        if loaded.schema is not None:
            changed["returns"] = loaded.schema
    return changed


# Carries a plan out on a scratch home, so that what is wrong with it is found before the home is changed.
#
# The scratch home has a catalog with the home's definitions, and empty tables in place of the home's: nothing
# in it leads to the home's data. It runs the same operations as apply, so that no rule is written
# twice. Not rehearsed is what needs Spark, or reads files: a table's SQL types, a dynamic table's query, the
# columns of files to load, a stream's start in history.

#: Columns of a job whose columns its files would show.
_SOME_COLUMNS = "volstream_rehearsal STRING"


def rehearse(home: Home, plan: PipelinePlan, *, contact: bool = True) -> None:
    """Raises the error that carrying out a plan would end with, if it can be detected beforehand.

    Args:
        contact: contact the stores and queues of volumes that are created or altered.

    Raises:
        VolstreamError: an action is not possible; the message names file and object.
    """
    with _scratch(home, plan) as scratch:
        maker = _Rehearsal(Objects(scratch), contact)
        try:
            for action in plan.actions:
                try:
                    maker.carry_out(action)
                except VolstreamError as error:
                    raise located(_explained(error, action.definition, plan), action.definition.where) from None
        finally:
            maker.objects.source.close()


class _ScratchHome(Home):
    """A home with a catalog and a warehouse of its own, and the settings of another one."""

    def __init__(self, home: Home, folder: Path) -> None:
        # The warehouse in the settings stays: volumes are checked against it.
        own = {"catalog_url": f"sqlite:///{folder}/catalog.db", "spark_remote": "", "spark_conf": {}}
        self._folder = folder
        super().__init__(home.settings.model_copy(update=own), _no_spark)

    @property
    def warehouse(self) -> str:
        """The scratch warehouse."""
        return str(self._folder / "warehouse")


class _Rehearsal(ActionExecutor):
    """Carries out the parts of actions that need no Spark."""

    def __init__(self, objects: Objects, contact: bool) -> None:
        super().__init__(objects)
        self._contact = contact
        objects.jobs.inferring = lambda *_: InferredColumns(from_ddl(_SOME_COLUMNS), 0)

    def carry_out(self, action: PlanStep) -> None:
        for schema in schemas_of(action.definition):
            Path(self.objects.home.warehouse, "tables", schema).mkdir(parents=True, exist_ok=True)
        super().carry_out(action)

    def volume(self, action: PlanStep, *, check: bool = False) -> None:
        """Contacts store and queue, so that it need not be done again."""
        super().volume(action, check=check or self._contact)

    def stream(self, action: PlanStep) -> None:
        """Leaves out where it starts: the scratch home has no history."""
        values = {key: None if key.startswith("at_") else value for key, value in action.definition.values.items()}
        definition = action.definition
        super().stream(PlanStep(action.verb, Definition(definition.kind, definition.name, values), action.changes))

    def table(self, action: PlanStep) -> None:
        """Creates an empty table with the same columns."""
        from volstream.ingest.sources.tables import check_free

        definition = action.definition
        if action.verb is Verb.CREATE:
            check_free(self.objects.home, definition.name)
            tracked = definition.values["properties"].get("change_tracking", "false") == "true"
            columns = {column.name: column.text for column in parse_columns(definition.values["columns"]).values()}
            _empty_table(self.objects.home, definition.name, columns, definition.values["primary_key"], tracked=tracked)

    def load(self, name: str, volume: str, into: str, values: Mapping[str, Any]) -> None:
        """Creates the job with columns that need no look at the files."""
        super().load(name, volume, into, {**values, "schema": values["schema"] or _SOME_COLUMNS})

    def dynamic_table(self, action: PlanStep) -> None:
        """Creates the job that keeps the table, and an empty table whose columns are not known."""
        if action.verb is Verb.ALTER:
            super().dynamic_table(action)
            return
        from volstream.api.statements import dynamic

        home, definition, values = self.objects.home, action.definition, options(action)
        spec = DynamicJobSpec(
            name=definition.name,
            into=definition.name,
            own_streams=dynamic.stream_specs(home, definition.name, values["query"]),
            **values,
        )
        create_job(home, spec)
        _empty_table(home, definition.name, {"value": "value STRING"}, (), tracked=True)

    def drop(self, definition: Definition) -> None:
        """Drops definitions only."""
        if definition.kind is Kind.DYNAMIC_TABLE:
            self.objects.jobs.drop_of_any_kind(str(definition.name))
        else:
            super().drop(definition)


@contextmanager
def _scratch(home: Home, plan: PipelinePlan) -> Iterator[Home]:
    """Opens a scratch home with the definitions of another home, and an empty table for each that a plan
    names."""
    with tempfile.TemporaryDirectory(prefix="volstream-apply-") as folder, _ScratchHome(home, Path(folder)) as scratch:
        if home.settings.is_made:
            _copy_definitions(home, scratch)
            for name in sorted(set(_named(plan))):
                _copy_table(home, scratch, name)
        yield scratch


def _named(plan: PipelinePlan) -> Iterator[Name]:
    """Yields the names of tables that matter to a plan: tables that it reads, or that might be in its way."""
    for action in plan.actions:
        yield from relations(action.definition)
        if action.verb is Verb.CREATE and action.definition.kind in RELATIONS:
            yield action.definition.name


def _copy_definitions(home: Home, scratch: Home) -> None:
    with scratch.catalog.database.transaction() as transaction:
        for kind, stored in home.catalog.by_kind.items():
            for definition in stored.list():
                scratch.catalog.by_kind[kind].add(transaction, definition)


def _copy_table(home: Home, scratch: Home, name: Name) -> None:
    from volstream.api.statements import metastore
    from volstream.changes.streams.sources import tracked
    from volstream.tables.delta.opened import schema_at

    if home.catalog.streams.find(name) is not None:
        return
    schema = schema_at(metastore.locate(home, name))
    if schema is not None:
        columns = {column: f"c {type_of(json.loads(kind))}" for column, kind in schema.types.items()}
        _empty_table(scratch, name, columns, schema.primary_key, tracked=tracked(schema))


def _empty_table(home: Home, name: Name, columns: Mapping[str, str], key: Any, *, tracked: bool) -> None:
    """Creates a table.

    Args:
        columns: the definitions by name. A type that only Spark can create becomes STRING.
    """
    import pyarrow as pa

    from volstream.tables.delta import direct, places
    from volstream.tables.delta.schema import PRIMARY_KEY

    def type_of_column(definition: str) -> pa.DataType:
        with suppress(InvalidValueError):
            return pa.string() if "NTZ" in definition.upper() else from_ddl(definition).field(0).type
        return pa.string()

    properties = {PRIMARY_KEY: json.dumps([*key])} if key else {}
    schema = pa.schema([pa.field(column, type_of_column(definition)) for column, definition in columns.items()])
    direct.create(places.own_location(home.warehouse, name), schema, properties, tracked=tracked)


def _explained(error: VolstreamError, definition: Definition, plan: PipelinePlan) -> VolstreamError:
    """Returns an error with a better remedy, if a table is missing that a job of the plan will only make in
    its first run."""
    if not isinstance(error, NotFoundError) or definition.kind not in (Kind.STREAM, Kind.DYNAMIC_TABLE):
        return error
    writers = {
        action.definition.values["into"]: action.definition.name
        for action in plan.actions
        if action.definition.kind is Kind.JOB and action.definition.values["into"] is not None
    }
    for name in relations(definition):
        if name in writers:
            return NotFoundError(
                f"The table {name} is created by the first run of job {writers[name]} and does not exist yet.",
                f'Define it as well: [tables.{name}] with columns, and properties.change_tracking = "true".',
            )
    return error


def _no_spark() -> SparkGateway:
    raise EngineError("Spark is not used to rehearse a plan.")


def plan_of(objects: Objects, path: Path, profile: str | None = None, *, prune: bool = False) -> PipelinePlan:
    """Returns what makes a home what the files at ``path`` say; changes nothing, starts no Spark, contacts no
    store.

    Args:
        profile: whose variables apply.
        prune: drop what the files lack; tables and sources stay.

    Raises:
        InvalidValueError, NotFoundError, FunctionLoadError, SqlError: the files are wrong; the message names
            the place.
    """
    wanted = read(path, profile)
    tables = [table.name for table in wanted if table.kind is Kind.TABLE]
    try:
        return compare(wanted, existing(objects.home, tables), prune=prune)
    except VolstreamError as error:
        raise located(error, str(path)) from None


def check_plan(objects: Objects, plan: PipelinePlan, *, contact: bool = True) -> None:
    """Raises the error that :func:`carry_out` would end with, if it can be detected beforehand.

    Args:
        contact: contact the stores and queues of volumes that are created or altered.

    Raises:
        InvalidStateError: an object has something that cannot be altered.
        StreamBusyError: a run depends on what is to be changed.
        VolstreamError: an operation is not possible.
    """
    check(plan)
    for action in plan.changes:
        if action.definition.kind is Kind.JOB and action.verb is Verb.ALTER:
            check_no_plan(objects.home.catalog, objects.jobs.get(str(action.definition.name)), action.changed)
    if plan.changes:
        rehearse(objects.home, plan, contact=contact)


def carry_out(objects: Objects, plan: PipelinePlan, done: Callable[[PlanStep], None]) -> None:
    """Carries out a plan that was checked.

    Args:
        done: is called after each action.

    Raises:
        VolstreamError: an action failed; the message says which were carried out before.
    """
    maker, finished = ActionExecutor(objects), 0
    for action in plan.actions:
        try:
            if action.verb in (Verb.CREATE, Verb.ALTER):
                _make_schemas(objects, action)
            maker.carry_out(action)
        except VolstreamError as error:
            failure = located(error, action.definition.where)
            failure.message += f"\n{_left(finished, len(plan.changes))}"
            raise failure from error
        finished += action.verb is not Verb.KEEP
        done(action)


def apply(objects: Objects, path: Path, profile: str | None = None, *, prune: bool = False) -> PipelinePlan:
    """Makes a home what the files at ``path`` say; returns what was done. See :func:`plan_of`."""
    plan = plan_of(objects, path, profile, prune=prune)
    check_plan(objects, plan)
    carry_out(objects, plan, lambda _: None)
    return plan


def _make_schemas(objects: Objects, action: PlanStep) -> None:
    """Makes the folders of schemas, as CREATE SCHEMA does; object stores have none."""
    from volstream.tables.delta.places import make_folder

    for schema in schemas_of(action.definition):
        if schema != DEFAULT_SCHEMA:
            make_folder(f"{objects.home.warehouse}/tables/{schema}")


def _left(finished: int, total: int) -> str:
    if not finished:
        return "Nothing was changed."
    were = "was created and remains" if finished == 1 else "were created and remain"
    return f"{counted(finished, 'change')} of {total} {were}. Fix the error and apply again: completed changes are skipped."
