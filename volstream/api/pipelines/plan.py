"""Compares what is wanted with what is there. Pure: definitions in, a plan out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from volstream.api.pipelines.columns import conflict, missing_columns
from volstream.api.pipelines.definitions import (
    ADDED,
    CODE,
    JOB_KINDS,
    KEYS,
    Change,
    Definition,
    Kind,
    PipelinePlan,
    PlanStep,
    Verb,
    defaults,
    written,
)
from volstream.base.definitions import LoadKeys, NewColumns
from volstream.base.model.names import Name
from volstream.base.model.text import counted
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.functions.schema import from_ddl
from volstream.functions.types.widen import grown
from volstream.sql.statement import SparkStatement

#: Kinds that have rows of their own, which nothing could bring back: they are never dropped.
KEPT_KINDS = (Kind.TABLE, Kind.SOURCE)


#: Kinds of which one stands in the way of another, on the same stream or with the same name.
_CONSUMERS = (Kind.JOB, Kind.DYNAMIC_TABLE, Kind.STREAM)


def compare(wanted: Sequence[Definition], existing: Sequence[Definition], *, prune: bool = False) -> PipelinePlan:
    """Returns what makes ``existing`` what is ``wanted``, in the order of dependence.

    Args:
        prune: drop what is not wanted, in the opposite order, but no table with rows of its own: first what
            consumes, so that others can consume instead, and last what is consumed, when nothing uses it any
            more.

    Raises:
        InvalidValueError, SqlError: the definitions need each other, or have a statement that cannot be
            parsed.
    """
    present = {definition.identity: definition for definition in existing}
    asked = {definition.identity for definition in wanted}
    surplus = [old for old in existing if prune and old.identity not in asked and old.kind not in KEPT_KINDS]
    drops = [PlanStep(Verb.DROP, definition) for definition in reversed(in_order(surplus))]
    actions = [drop for drop in drops if drop.definition.kind in _CONSUMERS]
    for definition in in_order(wanted):
        before = present.get(definition.identity)
        if before is None:
            actions.append(PlanStep(Verb.CREATE, definition))
            continue
        changes = list(_changes(definition, before))
        actions.append(PlanStep(Verb.ALTER if changes else Verb.KEEP, definition, changes))
    return PipelinePlan([*actions, *(drop for drop in drops if drop.definition.kind not in _CONSUMERS)])


def check(plan: PipelinePlan) -> None:
    """Raises InvalidStateError, which names them all, if the plan has changes that cannot be made."""
    blocked = [(action.definition, change) for action in plan.actions for change in action.changes if change.blocked]
    if not blocked:
        return
    lines = [f"{definition.where}: {change.key} cannot be altered: {change.blocked}." for definition, change in blocked]
    drops = "; ".join(dict.fromkeys(_drop(definition) for definition, _ in blocked))
    raise InvalidStateError(
        "\n".join([*lines, "Nothing was changed."]), f"Use another name in the file, or drop what is there first: {drops}."
    )


def _changes(wanted: Definition, existing: Definition) -> Iterator[Change]:
    if wanted.kind is Kind.JOB:
        forms = [next((form for form in JOB_KINDS if side.values[form] is not None), "") for side in (existing, wanted)]
        if forms[0] != forms[1]:
            yield Change(forms[1], None, wanted.values[forms[1]], f"it is a job with {forms[0]}")
            return
        if wanted.values["function"] == existing.values["function"] and wanted.values[CODE] != existing.values[CODE]:
            yield Change("function", existing.values["function"], wanted.values["function"])
    for key, spec in KEYS[wanted.kind].items():
        before, after = existing.values[key], wanted.values[key]
        if key == "columns":
            reason = conflict(after, before, existing.values.get(ADDED, ()))
            if reason or missing_columns(after, before):
                yield Change(key, before, after, reason)
        elif not (spec.option.at_start or _is_same(wanted, key, after, before)):
            yield Change(key, before, after, _blocked(wanted.kind, key, before, after))


def _is_same(definition: Definition, key: str, wanted: Any, existing: Any) -> bool:
    match definition.kind, key:
        case Kind.TABLE, "properties":
            return all(existing.get(name, _UNSET.get(name)) == value for name, value in wanted.items())
        case Kind.JOB, "load" if wanted is not None and existing is not None:
            return _same_load(wanted, existing)
        case Kind.JOB, "stream" if definition.values["statement"] is not None:
            return True  # its streams are those that the statement reads
        case (Kind.STREAM, "identity"):  # without one, the table's primary key
            return not wanted or _names(wanted) == _names(existing)
        case (Kind.TABLE, "primary_key" | "partitioned_by"):
            return _names(wanted) == _names(existing)
        case _:
            return bool(wanted == existing)


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    """Returns column names as they are compared: in lower case."""
    return tuple(column.lower() for column in columns)


#: The value of a table's property that was never set.
_UNSET = {"change_tracking": "false"}


def _same_load(wanted: LoadKeys, existing: LoadKeys) -> bool:
    """True if a job loads as wanted: without a schema any will do, and with new columns some, or fields, may
    have come."""
    if dataclasses.replace(wanted, schema=None) != dataclasses.replace(existing, schema=None):
        return False
    asked, present = wanted.schema, existing.schema
    if asked is None or asked == present:
        return True
    if present is None or wanted.new_columns is not NewColumns.ADD:
        return False
    columns, now = from_ddl(asked), from_ddl(present)
    # `zip` ends with the columns that were asked for.
    grew = [was.with_type(grown(was.type, field.type)) == field for was, field in zip(columns, now, strict=False)]
    return len(grew) == len(columns) and all(grew)


def _blocked(kind: Kind, key: str, before: Any, after: Any) -> str:
    """Returns why a key cannot be changed; empty: it can."""
    if KEYS[kind][key].option.alterable:
        return ""
    return f"it is {_shown(written(kind, key, before))}, not {_shown(written(kind, key, after))}"


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _drop(definition: Definition) -> str:
    """Returns the command that drops an object."""
    kind, name = definition.kind, definition.name
    if kind in (Kind.TABLE, Kind.DYNAMIC_TABLE):
        return f'volstream sql "DROP {kind.noun.upper()} {name}"'
    return f"volstream drop {kind.noun} {name}"


# Plans and actions in words, and as plain values. Pure.

_SIGNS = {Verb.CREATE: "+", Verb.ALTER: "~", Verb.DROP: "-", Verb.KEEP: " "}

_CHANGING = (Verb.CREATE, Verb.ALTER, Verb.DROP)

#: Longer values are shortened in a line.
_LONGEST = 100


def plan_lines(plan: PipelinePlan) -> Iterator[str]:
    """Yields what a plan would do, in lines: a sign and the object, and below it the values."""
    for action in plan.changes:
        yield f"{_SIGNS[action.verb]} {action.definition.title}"
        if action.verb is Verb.CREATE:
            usual = defaults(action.definition.kind)
            for key, value in action.definition.values.items():
                if key not in (CODE, ADDED) and value != usual[key]:
                    yield f"    {key} = {_value(written(action.definition.kind, key, value))}"
        for change in action.changes:
            yield f"    {_changed(action, change)}"


def plan_summary(plan: PipelinePlan) -> str:
    """Returns in one line what a plan would do."""
    if not plan.changes:
        return "Nothing to change."
    return _counts(plan, {**{verb: f"to {verb.value}" for verb in _CHANGING}, Verb.KEEP: Verb.KEEP.done})


def done_line(action: PlanStep) -> str:
    """Returns in one line what an action did."""
    changed = ", ".join(_changed(action, change) for change in action.changes)
    text = f"{action.definition.title} {action.verb.done}{f': {changed}' if changed else ''}"
    return f"{text[0].upper()}{text[1:]}.{_next_step(action)}"


def finished_line(plan: PipelinePlan) -> str:
    """Returns in one line what was done."""
    if not plan.changes:
        return f"Nothing to change: {counted(len(plan.actions), 'object')} as in the file."
    return _counts(plan, {verb: verb.done for verb in (*_CHANGING, Verb.KEEP)})


def plan_values(plan: PipelinePlan) -> Sequence[Mapping[str, Any]]:
    """Returns the actions of a plan as plain values."""
    return [
        {
            "action": action.verb.value,
            "kind": action.definition.kind.noun,
            "name": str(action.definition.name),
            "file": action.definition.file or None,
            "changes": [
                {
                    "key": change.key,
                    "before": written(action.definition.kind, change.key, change.before),
                    "after": written(action.definition.kind, change.key, change.after),
                    "blocked": change.blocked or None,
                }
                for change in action.changes
            ],
        }
        for action in plan.actions
    ]


def _counts(plan: PipelinePlan, words: Mapping[Verb, str]) -> str:
    return ", ".join(f"{count} {words[verb]}" for verb in words if (count := plan.count(verb))) + "."


def _changed(action: PlanStep, change: Change) -> str:
    if change.before == change.after:
        return f"{change.key}: its code changed"
    blocked = f"  cannot be altered: {change.blocked}" if change.blocked else ""
    before, after = (written(action.definition.kind, change.key, value) for value in (change.before, change.after))
    return f"{change.key}: {_value(before)} -> {_value(after)}{blocked}"


def _next_step(action: PlanStep) -> str:
    """Returns what a user may want to do after an action."""
    keys, name = action.changed.keys(), action.definition.name
    if action.verb is not Verb.ALTER:
        return ""
    if action.definition.kind is Kind.JOB and keys & {"function", "returns", "arguments"}:
        return f" New files use it. For files that were processed before: volstream replay {name}."
    if action.definition.kind is Kind.JOB and "where" in keys:
        return f" It applies from now on. For older files that it now includes: volstream replay {name}."
    if action.definition.kind is Kind.VOLUME and keys & {"patterns", "ignores", "recursive"}:
        return f" To apply it now: volstream refresh {name}."
    return ""


def _value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple() | list():
            text = f"[{', '.join(map(str, value))}]"
        case Mapping():
            text = "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items() if item is not None) + "}"
        case _:
            text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# What definitions need of each other, and the order in which they can be made. Pure.

#: A definition's kind and name.
Identity = tuple[Kind, Name]

#: Kinds whose objects are relations in SQL, which share one namespace.
RELATIONS = (Kind.TABLE, Kind.SOURCE, Kind.STREAM, Kind.DYNAMIC_TABLE)

_KINDS = list(Kind)


def in_order(definitions: Sequence[Definition]) -> Sequence[Definition]:
    """Sorts definitions: each comes after the definitions it needs, independent ones by kind and name.

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
    """Returns for each relation the definition that makes it; a table without a definition of its own is made
    by its job."""
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
