"""Carries a plan out on a scratch home, so that what is wrong with it is found before the home is changed.

The scratch home has a catalog with the home's definitions, and empty tables in place of the home's: nothing in it leads to the
home's data. The operations are those that apply carries out, so that no rule is written twice. Not rehearsed is what needs
Spark, or reads files: a table's SQL types, a dynamic table's query, the columns of files to load, a stream's start in history.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from volstream.api.objects.all import Objects
from volstream.api.pipelines.columns import parse_columns
from volstream.api.pipelines.make import ActionExecutor, options, schemas_of
from volstream.api.pipelines.model import Definition, Kind, PipelinePlan, PlanStep, Verb
from volstream.api.pipelines.order import RELATIONS, relations
from volstream.api.pipelines.read import located
from volstream.base.definitions import DynamicJobSpec
from volstream.base.model.names import Name
from volstream.errors import EngineError, NotFoundError, VolstreamError
from volstream.functions.schema import InferredColumns, from_ddl
from volstream.home import Home
from volstream.jobs.rules.definitions import create_job
from volstream.spark.session import SparkGateway

#: Columns of a job whose columns its files would show.
_SOME_COLUMNS = "value STRING"


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
        """Creates an empty table with columns of the same names."""
        from volstream.ingest.sources.tables import check_free

        definition = action.definition
        if action.verb is Verb.CREATE:
            check_free(self.objects.home, definition.name)
            tracked = definition.values["properties"].get("change_tracking", "false") == "true"
            columns = [column.name for column in parse_columns(definition.values["columns"]).values()]
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
            own_streams=dynamic.streams_of(home, definition.name, values["query"]),
            **values,
        )
        create_job(home, spec)
        _empty_table(home, definition.name, ["value"], (), tracked=True)

    def drop(self, definition: Definition) -> None:
        """Drops definitions only."""
        if definition.kind is Kind.DYNAMIC_TABLE:
            self.objects.jobs.drop_of_any_kind(str(definition.name))
        else:
            super().drop(definition)


@contextmanager
def _scratch(home: Home, plan: PipelinePlan) -> Iterator[Home]:
    """Opens a scratch home with the definitions of another one, and empty tables for those that a plan names."""
    with tempfile.TemporaryDirectory(prefix="volstream-apply-") as folder, _ScratchHome(home, Path(folder)) as scratch:
        if home.settings.is_made:
            _copy_definitions(home, scratch)
            for name in sorted(set(_named(plan))):
                _copy_table(home, scratch, name)
        yield scratch


def _named(plan: PipelinePlan) -> Iterator[Name]:
    """Yields the names of tables that matter to a plan: those that it reads, and those that might be in its way."""
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
        _empty_table(scratch, name, schema.columns, schema.primary_key, tracked=tracked(schema))


def _empty_table(home: Home, name: Name, columns: Any, key: Any, *, tracked: bool) -> None:
    import pyarrow as pa

    from volstream.tables.delta import direct, places
    from volstream.tables.delta.schema import PRIMARY_KEY

    properties = {PRIMARY_KEY: json.dumps([*key])} if key else {}
    schema = pa.schema([pa.field(column, pa.string()) for column in columns])
    direct.create(places.own_location(home.warehouse, name), schema, properties, tracked=tracked)


def _explained(error: VolstreamError, definition: Definition, plan: PipelinePlan) -> VolstreamError:
    """Returns an error with a better remedy, if a table is missing that a job of the plan will only make in its first run."""
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
