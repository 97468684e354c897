"""Creates, alters and drops objects as actions say, through a home's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volstream.api.objects.all import Objects
from volstream.api.pipelines.columns import missing_columns
from volstream.api.pipelines.keys import written
from volstream.api.pipelines.model import CODE, Definition, Kind, PlanStep, Verb
from volstream.base.definitions import NO_SCHEDULE, FileJobOptions, JobOptions, LoadKeys
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.options import keys, to_create
from volstream.sql.text import pairs, quote_columns


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
    """Returns the options of an operation: of all keys of an object to create, or of those that an altered one changes."""
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
    """Returns the changes of a file job: of one that loads, options are arguments, and the schema its columns."""
    changed = dict(changes)
    loaded: LoadKeys | None = changed.pop("load", None)
    if loaded is not None:
        said = {key: getattr(loaded, key) for key in to_create(LoadKeys, "schema")}
        changed["arguments"] = {key: "" if value is None else as_text(value) for key, value in said.items()}
        if loaded.schema is not None:
            changed["returns"] = loaded.schema
    return changed
