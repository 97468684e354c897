"""What definitions need of each other, and the order in which they can be made. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from volstream.api.pipelines.model import Definition, Kind
from volstream.base.model.names import Name
from volstream.errors import InvalidValueError
from volstream.sql.statement import SparkStatement

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
