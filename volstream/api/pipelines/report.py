"""Plans and actions in words, and as plain values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from volstream.api.pipelines.keys import defaults, written
from volstream.api.pipelines.model import ADDED, CODE, Change, Kind, PipelinePlan, PlanStep, Verb
from volstream.base.model.text import counted

_SIGNS = {Verb.CREATE: "+", Verb.ALTER: "~", Verb.DROP: "-", Verb.KEEP: " "}

_CHANGING = (Verb.CREATE, Verb.ALTER, Verb.DROP)

#: Longer values are shortened in a line.
_LONGEST = 100


def shown(plan: PipelinePlan) -> Iterator[str]:
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


def summary(plan: PipelinePlan) -> str:
    """Returns in one line what a plan would do."""
    if not plan.changes:
        return "Nothing to change."
    return _counts(plan, {**{verb: f"to {verb.value}" for verb in _CHANGING}, Verb.KEEP: Verb.KEEP.done})


def done(action: PlanStep) -> str:
    """Returns in one line what an action did."""
    changed = ", ".join(_changed(action, change) for change in action.changes)
    text = f"{action.definition.title} {action.verb.done}{f': {changed}' if changed else ''}"
    return f"{text[0].upper()}{text[1:]}.{_next_step(action)}"


def finished(plan: PipelinePlan) -> str:
    """Returns in one line what was done."""
    if not plan.changes:
        return f"Nothing to change: {counted(len(plan.actions), 'object')} as in the file."
    return _counts(plan, {verb: verb.done for verb in (*_CHANGING, Verb.KEEP)})


def as_values(plan: PipelinePlan) -> Sequence[Mapping[str, Any]]:
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
