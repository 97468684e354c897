"""Definitions, as files and homes have them in common: kinds, keys, columns, and the order in which they can be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from volstream.base import definitions
from volstream.base.definitions.options import Key, keys
from volstream.base.model.names import Name
from volstream.errors import InvalidValueError
from volstream.sql.statement import SparkStatement
from volstream.sql.text import slices, tree_of
from volstream.sql.tokens import tokenize
from volstream.tables.delta.schema import Schema, definition_of

# Definitions, as files and homes have them in common: kinds, names, and values in one canonical form. Pure.

#: The value of a key that only the planner sees: a hash of the source of a job's function.
CODE = "code"

#: The value of a table that only the planner sees: columns that jobs which write it may have added.
ADDED = "added"

#: Keys that say what a job runs; a job has one of them.
JOB_KINDS = ("statement", "load", "function")


class Kind(StrEnum):
    """The kinds of objects, by the tables of a file that define them. In the order in which independent ones are made."""

    CONNECTION = "connections"
    VOLUME = "volumes"
    FUNCTION = "functions"
    SOURCE = "sources"
    TABLE = "tables"
    STREAM = "streams"
    JOB = "jobs"
    DYNAMIC_TABLE = "dynamic_tables"

    @property
    def noun(self) -> str:
        """The kind of one object, in messages."""
        return self.value.removesuffix("s").replace("_", " ")


@dataclass(frozen=True)
class Definition:
    """An object, as a file defines it or as the home has it.

    Attributes:
        values: a value for every key of the kind, defaults included: text, numbers, booleans, tuples and mappings of text.
        folder: paths in the file are relative to it.
        file: the name of its file, for messages; empty: it comes from a home.
    """

    kind: Kind
    name: Name
    values: Mapping[str, Any]
    folder: Path = field(default_factory=Path, compare=False)
    file: str = field(default="", compare=False)

    @property
    def identity(self) -> tuple[Kind, Name]:
        """What distinguishes it from all others."""
        return self.kind, self.name

    @property
    def title(self) -> str:
        """The object in messages, such as ``volume photos``."""
        return f"{self.kind.noun} {self.name}"

    @property
    def where(self) -> str:
        """The object and its file, for messages."""
        return f"{self.file}: {self.title}" if self.file else self.title


class Verb(StrEnum):
    """What an action does to its object."""

    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"
    KEEP = "keep"

    @property
    def done(self) -> str:
        """The verb in a report."""
        return {"create": "created", "alter": "altered", "drop": "dropped", "keep": "unchanged"}[self.value]


@dataclass(frozen=True)
class Change:
    """A key whose value differs.

    Attributes:
        blocked: why it cannot be changed, with the remedy; empty: it can.
    """

    key: str
    before: Any
    after: Any
    blocked: str = ""


@dataclass(frozen=True)
class PlanStep:
    """A step of a plan.

    Attributes:
        changes: of an object that is altered: what differs.
    """

    verb: Verb
    definition: Definition
    changes: Sequence[Change] = ()

    @property
    def changed(self) -> Mapping[str, Any]:
        """The new values of the keys that differ."""
        return {change.key: change.after for change in self.changes}


@dataclass(frozen=True)
class PipelinePlan:
    """What is to be done, in order."""

    actions: Sequence[PlanStep]

    @property
    def changes(self) -> Sequence[PlanStep]:
        """The actions that change something."""
        return [action for action in self.actions if action.verb is not Verb.KEEP]

    def count(self, verb: Verb) -> int:
        """Returns the number of actions of a kind."""
        return sum(action.verb is verb for action in self.actions)


# The keys of each kind of object in a file: the options that its definition describes.

#: Prefixes of table properties that record a table's own history. Another table with them could not be read at its times.
BOOKKEEPING = ("volstream.", "delta.rowTracking.", "delta.columnMapping.max", "delta.inCommitTimestampEnablement")

#: The keys of each kind. Their values are kept as the catalog has them.
KEYS: Mapping[Kind, Mapping[str, Key]] = {
    Kind.CONNECTION: keys(definitions.ConnectionOptions),
    Kind.VOLUME: keys(definitions.VolumeSpec),
    Kind.FUNCTION: keys(definitions.FunctionDefinition),
    Kind.SOURCE: keys(definitions.SourceDefinition),
    Kind.TABLE: keys(definitions.TableDefinition),
    Kind.STREAM: keys(definitions.StreamSpec),
    Kind.JOB: keys(definitions.JobDefinition),
    Kind.DYNAMIC_TABLE: keys(definitions.DynamicTableOptions),
}


def defaults(kind: Kind) -> dict[str, Any]:
    """Returns the value of each key that a file leaves out."""
    return {name: key.default for name, key in KEYS[kind].items()}


def written(kind: Kind, name: str, value: Any) -> Any:
    """Returns a value as a file has it."""
    key = KEYS[kind].get(name)
    return value if key is None else key.write(value)


# The columns of tables as SQL text: parsed, compared, and written from a table's log. Without Spark.


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of a table.

    Attributes:
        type: its SQL type in one spelling, for comparisons.
        text: its definition as it is written.
    """

    name: str
    type: str
    text: str


def parse_columns(text: str) -> Mapping[str, ColumnDefinition]:
    """Returns columns by their names in lower case, in order.

    Raises:
        InvalidValueError: not a list of columns, or a constraint that has a key of its own.
    """
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = tree_of(f"CREATE TABLE t ({text})")
    except SqlglotError:
        raise _not_columns(text) from None
    listed = parsed.this.expressions if isinstance(parsed.this, exp.Schema) else []
    if not listed:
        raise _not_columns(text)
    tokens = tokenize(text)
    commas = [at for at, token in enumerate(tokens) if token.word == ","]
    texts = slices(text, tokens, commas, listed, _only_column)
    if texts is None:
        raise _not_columns(text)
    columns: dict[str, ColumnDefinition] = {}
    for node, definition in zip(listed, texts, strict=True):
        if isinstance(node, exp.Identifier) or (isinstance(node, exp.ColumnDef) and node.args.get("kind") is None):
            raise _not_columns(text)
        if not isinstance(node, exp.ColumnDef) or node.find(exp.PrimaryKeyColumnConstraint):
            raise InvalidValueError(
                f"The columns {text!r} have a constraint.", 'Write a primary key as primary_key = ["COLUMN"].'
            )
        if node.name.lower() in columns:
            raise InvalidValueError(f"The column {node.name!r} is declared twice.")
        columns[node.name.lower()] = ColumnDefinition(node.name, _spelled(node.args["kind"]), definition)
    return columns


def _only_column(text: str) -> Any:
    """Returns the tree of a column's definition, or None if the text is not exactly one definition."""
    from sqlglot.errors import SqlglotError

    try:
        listed = tree_of(f"CREATE TABLE t ({text})").this.expressions
    except (SqlglotError, AttributeError):
        return None
    return listed[0] if len(listed) == 1 else None


def columns_text(schema: Schema) -> str:
    """Returns the columns of a table as SQL."""
    return ", ".join(definition_of(field, schema.sql_type(field["name"])) for field in schema.fields)


def missing_columns(wanted: str, existing: str) -> Sequence[ColumnDefinition]:
    """Returns the columns that a table lacks."""
    present = parse_columns(existing)
    return [column for name, column in parse_columns(wanted).items() if name not in present]


def conflict(wanted: str, existing: str, added: Sequence[str]) -> str:
    """Returns why a table's columns cannot become those that are wanted; empty: they can.

    Args:
        added: columns, in lower case, that jobs may have added to the table.
    """
    asked, present = parse_columns(wanted), parse_columns(existing)
    for name, column in asked.items():
        if name in present and present[name].type != column.type:
            return f"the column {column.name} is {present[name].type}, not {column.type}"
        if name not in present and "NOT NULL" in column.text.upper():
            return f"the new column {column.name} cannot be NOT NULL, because existing rows have no value for it"
    for name, column in present.items():
        if name not in asked and name not in added:
            return f"the table has a column {column.name}, which the file lacks"
    return ""


def _spelled(kind: object) -> str:
    """Returns a type as Spark's log has it: text is STRING, however long it may be."""
    from sqlglot import expressions as exp

    assert isinstance(kind, exp.DataType), "a column's kind is a type"
    text = kind.sql(dialect="databricks").upper()
    return "STRING" if text.startswith(("VARCHAR", "CHAR")) else text


def _not_columns(text: str) -> InvalidValueError:
    return InvalidValueError(f"The columns {text!r} cannot be parsed.", "Write for example: id BIGINT, name STRING.")


# What definitions need of each other, and the order in which they can be made. Pure.

#: A definition's kind and name.
Identity = tuple[Kind, Name]

#: Kinds whose objects are relations in SQL, which share one namespace.
RELATIONS = (Kind.TABLE, Kind.SOURCE, Kind.STREAM, Kind.DYNAMIC_TABLE)

_KINDS = list(Kind)


def in_order(definitions: Sequence[Definition]) -> Sequence[Definition]:
    """Returns definitions so that each comes after those that it needs; independent ones by kind and name.

    Raises:
        InvalidValueError: some need each other.
        SqlError: a statement cannot be parsed.
    """
    by_identity = {definition.identity: definition for definition in definitions}
    makers = _makers(definitions)
    graph = {definition.identity: set(_needed(definition, by_identity, makers)) for definition in definitions}
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(by_identity[identity].title for identity in error.args[1])
        raise InvalidValueError(
            f"These definitions depend on each other: {circle}.",
            "A table that a job writes, and that streams read, needs its own definition: [tables.NAME].",
        ) from None
    ordered: list[Definition] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=lambda identity: (_KINDS.index(identity[0]), identity[1]))
        ordered += [by_identity[identity] for identity in ready]
        sorter.done(*ready)
    return ordered


def relations(definition: Definition) -> Sequence[Name]:
    """Returns the tables, streams and the like that a definition names."""
    values = definition.values
    match definition.kind:
        case Kind.STREAM if values["table"] is not None:
            return [values["table"]]
        case Kind.JOB | Kind.DYNAMIC_TABLE:
            named = [name for name in (values.get("stream"), values.get("into")) if name is not None]
            return [*named, *(reference.name for reference in _sql(definition).references if not reference.directory)]
        case _:
            return []


def _makers(definitions: Sequence[Definition]) -> Mapping[Name, Identity]:
    """Returns for each relation the definition that makes it; a table without a definition of its own is made by its job."""
    jobs = {
        definition.values["into"]: definition.identity
        for definition in definitions
        if definition.kind is Kind.JOB and definition.values["into"] is not None
    }
    return jobs | {definition.name: definition.identity for definition in definitions if definition.kind in RELATIONS}


def _needed(
    definition: Definition, by_identity: Mapping[Identity, Definition], makers: Mapping[Name, Identity]
) -> Iterator[Identity]:
    statement = _sql(definition)
    wanted: list[Identity] = []
    if definition.values.get("volume"):
        wanted.append((Kind.VOLUME, definition.values["volume"]))
    if definition.values.get("outputs_to"):
        wanted.append((Kind.VOLUME, Name.parse(definition.values["outputs_to"])))
    wanted += [(Kind.VOLUME, reference.name) for reference in statement.references if reference.directory]
    wanted += [(Kind.VOLUME, call.volume) for call in statement.volume_calls]
    wanted += [(Kind.FUNCTION, call.name) for call in statement.calls]
    if definition.values.get("connection"):
        wanted.append((Kind.CONNECTION, definition.values["connection"]))
    wanted += [makers[name] for name in relations(definition) if name in makers]
    for identity in dict.fromkeys(wanted):
        if identity in by_identity and identity != definition.identity:
            yield identity


def _sql(definition: Definition) -> SparkStatement:
    return SparkStatement(str(definition.values.get("statement") or definition.values.get("query") or ""))
